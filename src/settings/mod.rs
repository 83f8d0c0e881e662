//! All settings: each room's own, put together. One YAML file, every key with a default;
//! file < environment < flags. It opens nothing but that file.

pub mod reference;
mod sources;
pub mod tls;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::sources::SettingsError;
use crate::check::OnStoreError;
use crate::store::{memory, redis};
use crate::{api, l1, privacy, rules, trace};

/// The whole of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where decisions are asked for.
    pub grpc: Grpc,
    /// Where people and Prometheus look.
    pub http: Http,
    /// Which limits there are.
    pub rules: rules::watch::Settings,
    /// Where hits are counted.
    pub store: Store,
    /// The memory of refusals.
    pub l1: l1::Settings,
    /// Which headers an answer carries.
    pub headers: api::headers::Settings,
    /// What Envoy's rate limit service answers besides.
    pub ratelimit: api::ratelimit::Settings,
    /// What Envoy's ext_authz filter may ask.
    pub ext_authz: api::ext_authz::Settings,
    /// Who is let in by ext_authz.
    pub api_keys: api::keys::Settings,
    /// Which values are secrets.
    pub privacy: privacy::Settings,
    /// How the process ends.
    pub drain: Drain,
    /// What it says.
    pub log: Log,
    /// Where sampled calls are told about.
    pub tracing: trace::Settings,
}

/// Settings of `grpc:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grpc {
    /// Address and port.
    pub listen: SocketAddr,
    /// A unix socket to listen on as well.
    pub uds: Option<PathBuf>,
    /// How TCP connections are protected; `None`: they are not. The unix socket has the file
    /// system's permissions.
    pub tls: Option<tls::Tls>,
    /// After this time a connection is closed gently, so that new instances get their part.
    #[serde(with = "crate::duration")]
    pub max_connection_age: Duration,
    /// Single-threaded runtimes that serve connections; 0 for one on each core.
    pub workers: usize,
}

impl Default for Grpc {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 50051)),
            uds: None,
            tls: None,
            max_connection_age: Duration::from_secs(30 * 60),
            workers: 0,
        }
    }
}

impl Grpc {
    /// Each worker is a thread with memory and connections of its own.
    const MAX_WORKERS: usize = 1024;

    fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.workers > Self::MAX_WORKERS {
            return Some(("grpc.workers", "more than 1024 are not served: 0 is one for each core"));
        }
        if self.max_connection_age.is_zero() {
            let why = "it must be longer than zero, such as 30m; 3650d is practically for ever";
            return Some(("grpc.max_connection_age", why));
        }
        if self.uds.as_deref() == Some(Path::new("")) {
            return Some(("grpc.uds", "it is empty: write a path, or leave the key out"));
        }
        self.tls.as_ref().and_then(tls::Tls::fault)
    }
}

/// Settings of `http:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Address and port.
    pub listen: SocketAddr,
    /// What `/rules`, `/explain` and `/json` ask for; without one they are open on loopback alone.
    pub token: Option<String>,
    /// A file with that token, read whenever it is needed.
    pub token_file: Option<PathBuf>,
}

impl Default for Http {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 8000));
        Self { listen, token: None, token_file: None }
    }
}

/// Settings of `store:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Which store counts.
    pub kind: StoreKind,
    /// Who answers when it cannot, for rules that do not say it themselves.
    pub on_error: OnStoreError,
    /// Into how many parts `local` divides a limit.
    pub expected_instances: u32,
    /// The store in this process.
    pub memory: memory::Settings,
    /// The store in Redis.
    pub redis: redis::Settings,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            kind: StoreKind::Memory,
            on_error: OnStoreError::Error,
            expected_instances: 1,
            memory: memory::Settings::default(),
            redis: redis::Settings::default(),
        }
    }
}

/// Which store counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// This process alone.
    Memory,
    /// The fleet, together.
    Redis,
}

/// Settings of `drain:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drain {
    /// Not ready, but serving: until those who ask have noticed.
    #[serde(with = "crate::duration")]
    pub delay: Duration,
    /// How long calls under way may still take.
    #[serde(with = "crate::duration")]
    pub timeout: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { delay: Duration::from_secs(2), timeout: Duration::from_secs(20) }
    }
}

/// Settings of `log:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,chronosdb::rules=debug`.
    pub level: String,
    /// How a line looks.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Auto }
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Settings {
    /// Reads `file`, then the environment on top of it.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and a remedy.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let settings = sources::read(file, environment)?;
        settings.check()?;
        Ok(settings)
    }

    /// What types cannot say.
    fn check(&self) -> Result<(), SettingsError> {
        let wrong = |key: &str, why| Err(SettingsError::Value { key: key.to_owned(), why });
        if let Err((key, why)) = self.ext_authz.check() {
            return wrong(&key, why);
        }
        if self.ext_authz.wants_key_names() && self.api_keys.path.is_none() {
            return wrong("api_keys.path", "`from: api_key_name` needs a file of API keys");
        }
        if self.api_keys.poll.is_zero() {
            return wrong("api_keys.poll", "it must be longer than zero, such as 2s");
        }
        if let Some((key, why)) = self.grpc.fault() {
            return wrong(key, why);
        }
        if self.privacy.key.as_deref() == Some("") {
            return wrong("privacy.key", "it is empty: set a secret, or leave the key out");
        }
        if self.http.token.is_some() && self.http.token_file.is_some() {
            return wrong("http.token", "it is in http.token_file as well: leave one of them out");
        }
        let endpoint = self.tracing.otlp_endpoint.as_deref();
        if endpoint.is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
            return wrong("tracing.otlp_endpoint", "write a URL, such as http://127.0.0.1:4317");
        }
        if self.store.expected_instances == 0 {
            return wrong("store.expected_instances", "it must be at least 1");
        }
        if self.store.memory.max_keys == 0 {
            return wrong("store.memory.max_keys", "it must be at least 1");
        }
        if let Err((key, why)) = self.store.redis.check() {
            return wrong(key, why);
        }
        if !self.l1.enabled || !self.l1.max_ttl.is_zero() {
            return Ok(());
        }
        wrong(
            "l1.max_ttl",
            "it must be longer than zero; to switch the L1 off, set l1.enabled: false",
        )
    }

    /// The settings as YAML, with secrets masked.
    pub fn shown(&self) -> String {
        let mut shown = self.clone();
        shown.store.redis = shown.store.redis.shown();
        shown.http.token = shown.http.token.map(|_| "***".into());
        shown.privacy.key = shown.privacy.key.map(|_| "***".into());
        serde_yaml::to_string(&shown).unwrap_or_else(|error| format!("# {error}\n"))
    }
}
