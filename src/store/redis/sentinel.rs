//! Asks the sentinels which server is the primary. It never asks anything of the quotas.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::DIAL_TIMEOUT;
use super::address::{Access, Address};
use super::settings::Settings;

/// A sentinel that does not answer within this is left out.
const PATIENCE: Duration = Duration::from_millis(300);

/// Those who watch a primary.
pub(super) struct Sentinels {
    sentinels: Vec<Access>,
    master_name: String,
    /// Account and certificates of the primary, whichever it is.
    access: Access,
    /// The latest primary, and when it was asked for: those who ask together share an answer.
    latest: Mutex<Option<(Instant, Access)>>,
}

/// What one sentinel believes.
struct Opinion {
    primary: Address,
    /// Failovers so far: who knows of more of them is right.
    epoch: u64,
}

impl Sentinels {
    pub(super) fn new(settings: &Settings) -> Result<Self, String> {
        Ok(Self {
            sentinels: Access::of_nodes(settings)?,
            master_name: settings.master_name.clone().unwrap_or_default(),
            access: Access::of_url(settings)?,
            latest: Mutex::default(),
        })
    }

    /// How to reach the primary, by news that is no older than this question.
    pub(super) async fn primary(&self) -> RedisResult<Access> {
        let asked = Instant::now();
        let mut latest = self.latest.lock().await;
        if let Some((_, primary)) = latest.as_ref().filter(|(since, _)| *since >= asked) {
            return Ok(primary.clone());
        }
        let since = Instant::now();
        let primary = self.ask_all().await?;
        *latest = Some((since, primary.clone()));
        Ok(primary)
    }

    /// As the sentinel with the latest news says.
    async fn ask_all(&self) -> RedisResult<Access> {
        let asked = self.sentinels.iter().map(|sentinel| async move {
            timeout(PATIENCE, self.ask(sentinel)).await.unwrap_or_else(|_| {
                Err(RedisError::from((ErrorKind::Io, "no answer", sentinel.to_string())))
            })
        });
        let mut trouble = None;
        let mut latest: Option<Opinion> = None;
        for opinion in join_all(asked).await {
            match opinion {
                Ok(opinion) if latest.as_ref().is_none_or(|known| opinion.epoch > known.epoch) => {
                    latest = Some(opinion);
                }
                Ok(_) => {}
                Err(error) => trouble = Some(error),
            }
        }
        if let Some(latest) = latest {
            return Ok(self.access.at(&latest.primary));
        }
        let why = trouble.map(|error| error.to_string()).unwrap_or_default();
        let name = &self.master_name;
        Err(RedisError::from((ErrorKind::Io, "no sentinel knows", format!("{name}: {why}"))))
    }

    async fn ask(&self, sentinel: &Access) -> RedisResult<Opinion> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(DIAL_TIMEOUT));
        let client = sentinel.client()?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&self.master_name);
        let said: HashMap<String, String> = command.query_async(&mut connection).await?;
        let number = |name: &str| said.get(name).and_then(|text| text.parse::<u64>().ok());
        let port = number("port").and_then(|port| u16::try_from(port).ok());
        let primary = said.get("ip").zip(port);
        let (host, port) = primary.ok_or_else(|| {
            RedisError::from((ErrorKind::UnexpectedReturnType, "a sentinel names no address"))
        })?;
        let primary = Address { host: host.clone(), port };
        Ok(Opinion { primary, epoch: number("config-epoch").unwrap_or(0) })
    }

    /// Fails when the server that was dialled is a replica: during a failover sentinels may
    /// still name, or name already, one that is not the primary at this moment.
    pub(super) async fn confirm(
        &self,
        connection: &mut MultiplexedConnection,
        access: &Access,
    ) -> RedisResult<()> {
        let role = redis::cmd("ROLE").query_async::<Value>(connection).await;
        // An account that may not ask is believed the sentinels.
        if role.is_err() || role.is_ok_and(|role| is_primary(&role)) {
            return Ok(());
        }
        Err(redis::make_extension_error("READONLY".into(), Some(format!("{access} is a replica"))))
    }
}

/// Reads the reply of ROLE.
pub(super) fn is_primary(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    match parts.first() {
        Some(Value::BulkString(name)) => name == b"master",
        Some(Value::SimpleString(name)) => name == "master",
        _ => false,
    }
}
