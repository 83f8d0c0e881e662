//! Opens connections to Redis, and knows when one is dead. It sends nothing of its own but PING.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bb8_redis::bb8::ManageConnection;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo as _, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisResult,
};

use super::Settings;
use super::fault::store_error;
use crate::store::StoreError;

/// A peer that says nothing for this long is gone: well above a slow answer, well below the
/// kernel's quarter of an hour.
const SILENCE: Duration = Duration::from_secs(5);

/// A connection that many callers share.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

impl Link {
    /// Whether the connection must not be used any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// The pool will replace it.
    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

/// Why the latest dial failed, if it did.
pub(super) type Trouble = Arc<Mutex<Option<StoreError>>>;

/// Makes the pool's connections.
pub(super) struct Dialer {
    client: Client,
    timeout: Duration,
    /// Why the latest dial failed; a pool only says that time ran out.
    trouble: Trouble,
    /// RESP3 tells when a connection dies, even an idle one.
    tells_its_end: bool,
}

impl Dialer {
    pub(super) fn new(
        settings: &Settings,
        timeout: Duration,
        trouble: Trouble,
    ) -> Result<Self, String> {
        let shown = masked(&settings.url);
        let wrong = |error: RedisError| {
            format!(
                "store.redis.url: {shown} is not a Redis address ({error}): write redis://host:port or redis+unix:///path"
            )
        };
        let info = settings.url.as_str().into_connection_info().map_err(wrong)?;
        let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 5);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(SILENCE);
        let mut resp = info.redis_settings().clone();
        if !settings.url.contains("protocol=") {
            resp = resp.set_protocol(ProtocolVersion::RESP3);
        }
        let tells_its_end = resp.protocol() == ProtocolVersion::RESP3;
        let info = info.set_tcp_settings(tcp).set_redis_settings(resp);
        let client = Client::open(info).map_err(wrong)?;
        Ok(Self { client, timeout, trouble, tells_its_end })
    }
}

impl ManageConnection for Dialer {
    type Connection = Link;
    type Error = RedisError;

    async fn connect(&self) -> RedisResult<Link> {
        let broken = Arc::new(AtomicBool::new(false));
        // A call has its own deadline; a timeout here would only hide whose it was.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(None);
        if self.tells_its_end {
            let broken = Arc::clone(&broken);
            config = config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    broken.store(true, Ordering::Relaxed);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        }
        let dialled = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let trouble = dialled.as_ref().err().map(store_error);
        *self.trouble.lock().expect("no code panics holding this") = trouble;
        Ok(Link { connection: dialled?, broken })
    }

    async fn is_valid(&self, link: &mut Link) -> RedisResult<()> {
        redis::cmd("PING").query_async(&mut link.connection).await
    }

    fn has_broken(&self, link: &mut Link) -> bool {
        link.is_broken()
    }
}

/// A URL without user and password.
pub(super) fn masked(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}://***{}", &url[..scheme], &url[at..])
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(masked("redis://bob:p@ss@host:1/0"), "redis://***@host:1/0");
        assert_eq!(masked("redis://host:1"), "redis://host:1");
        let settings = Settings { url: "http://me:secret@host".into(), ..Settings::default() };
        let error = Dialer::new(&settings, SILENCE, Trouble::default()).err().unwrap();
        assert!(error.contains("store.redis.url") && !error.contains("secret"), "{error}");
    }
}
