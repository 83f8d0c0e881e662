//! The environment variables of envoyproxy/ratelimit, as settings of ours. Pure: variables in,
//! variables and notes out. Every variable of theirs is mapped, kept as it is here anyway, or
//! answered with what to do instead; none is passed over in silence.

mod table;

use std::collections::BTreeMap;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use self::table::Meaning::{Inherent, Instead, Part, Setting};
use self::table::{MEMCACHE, STATSD, XDS, meaning};

/// What their variables come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// `CHRONOSDB_SECTION__KEY` and a value, by name.
    pub settings: BTreeMap<String, String>,
    /// What has no meaning here, and what to do instead: one sentence for each variable.
    pub notes: Vec<String>,
}

/// A variable that would leave the service without its limits or its store if it were ignored.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value} has no counterpart here: {remedy}")]
pub struct Untranslatable {
    variable: &'static str,
    value: String,
    remedy: &'static str,
}

/// Reads their variables. What is not theirs is left alone.
///
/// # Errors
/// A variable that must not be ignored, and what to do about it.
pub fn translate(
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Translated, Untranslatable> {
    let variables: BTreeMap<String, String> =
        environment.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let theirs = Theirs(&variables);
    let mut translated = Translated::default();
    for (name, value) in &variables {
        match meaning(name) {
            Some(Setting(setting)) => translated.set(setting, plain(value)),
            Some(Instead(remedy)) => translated.note(name, remedy),
            Some(Part | Inherent) | None => {}
        }
    }
    theirs.listeners(&mut translated);
    theirs.rules(&mut translated)?;
    theirs.rest(&mut translated);
    theirs.redis(&mut translated)?;
    Ok(translated)
}

/// A value as YAML reads it: theirs may say `TRUE` or `1` where ours says `true`.
fn plain(value: &str) -> String {
    match value {
        "1" | "t" | "T" | "TRUE" | "True" => "true".into(),
        "0" | "f" | "F" | "FALSE" | "False" => "false".into(),
        _ => value.into(),
    }
}

impl Translated {
    fn set(&mut self, setting: &str, value: impl Into<String>) {
        self.settings.insert(format!("CHRONOSDB_{setting}"), value.into());
    }

    fn note(&mut self, name: &str, remedy: &str) {
        self.notes.push(format!("{name} has no effect: {remedy}"));
    }
}

/// Their variables, with their defaults where those decide where the service is found.
struct Theirs<'a>(&'a BTreeMap<String, String>);

impl Theirs<'_> {
    fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn or<'d>(&'d self, name: &str, default: &'d str) -> &'d str {
        self.value(name).unwrap_or(default)
    }

    fn flag(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| plain(value) == "true")
    }

    /// Where callers look for it: on every address, at their ports.
    fn listeners(&self, translated: &mut Translated) {
        let every = "0.0.0.0";
        let http = format!("{}:{}", self.or("HOST", every), self.or("PORT", "8080"));
        let grpc = format!("{}:{}", self.or("GRPC_HOST", every), self.or("GRPC_PORT", "8081"));
        translated.set("HTTP__LISTEN", http);
        translated.set("GRPC__LISTEN", grpc);
        if !self.flag("GRPC_SERVER_USE_TLS") {
            return;
        }
        for (name, setting) in [
            ("GRPC_SERVER_TLS_CERT", "GRPC__TLS__CERT"),
            ("GRPC_SERVER_TLS_KEY", "GRPC__TLS__KEY"),
            ("GRPC_CLIENT_TLS_CACERT", "GRPC__TLS__CLIENT_CA"),
        ] {
            if let Some(path) = self.value(name) {
                translated.set(setting, path);
            }
        }
        if let Some(san) = self.value("GRPC_CLIENT_TLS_SAN") {
            translated.set("GRPC__TLS__CLIENT_SANS", format!("[\"{san}\"]"));
        }
    }

    fn rules(&self, translated: &mut Translated) -> Result<(), Untranslatable> {
        let source = self.or("CONFIG_TYPE", "FILE");
        if source != "FILE" {
            return Err(untranslatable("CONFIG_TYPE", source, XDS));
        }
        let parts = [
            self.or("RUNTIME_ROOT", "/srv/runtime_data/current"),
            self.or("RUNTIME_SUBDIRECTORY", ""),
            self.or("RUNTIME_APPDIRECTORY", "config"),
        ];
        let path = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        translated.set("RULES__PATH", path);
        Ok(())
    }

    fn rest(&self, translated: &mut Translated) {
        let level = match self.or("LOG_LEVEL", "warn").to_ascii_lowercase().as_str() {
            "warning" => "warn".into(),
            "fatal" | "panic" => "error".into(),
            level => level.to_owned(),
        };
        translated.set("LOG__LEVEL", level);
        if self.flag("LIMIT_RESPONSE_HEADERS_ENABLED") {
            translated.set("HEADERS__STYLE", "x_ratelimit");
            translated.note(
                "the name RateLimit-* of LIMIT_RESPONSE_HEADERS_ENABLED",
                "the headers are x-ratelimit-*, or RateLimit and RateLimit-Policy with headers.style: ietf",
            );
        }
        for name in ["USE_STATSD", "USE_DOG_STATSD"] {
            if self.flag(name) {
                translated.note(name, STATSD);
            }
        }
        if self.value("NEAR_LIMIT_RATIO").is_some_and(|ratio| ratio.parse() != Ok(0.8_f64)) {
            let remedy = "chronosdb_near_limit_total begins at 0.8 of a limit";
            translated.note("NEAR_LIMIT_RATIO", remedy);
        }
    }

    fn redis(&self, translated: &mut Translated) -> Result<(), Untranslatable> {
        let backend = self.or("BACKEND_TYPE", "redis");
        if backend != "redis" {
            return Err(untranslatable("BACKEND_TYPE", backend, MEMCACHE));
        }
        if self.flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
            let remedy =
                "give the certificate the name that is dialled, or its CA in REDIS_TLS_CACERT";
            return Err(untranslatable("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true", remedy));
        }
        let Some(url) = self.value("REDIS_URL") else {
            translated
                .notes
                .push("REDIS_URL is not set: this instance counts alone, in memory".to_owned());
            return Ok(());
        };
        translated.set("STORE__KIND", "redis");
        if let Some(prefix) = self.value("CACHE_KEY_PREFIX") {
            translated.set("STORE__REDIS__KEY_PREFIX", format!("{prefix}chronosdb:quota:"));
        }
        for (name, setting) in [
            ("REDIS_TLS_CACERT", "STORE__REDIS__TLS__CA"),
            ("REDIS_TLS_CLIENT_CERT", "STORE__REDIS__TLS__CERT"),
            ("REDIS_TLS_CLIENT_KEY", "STORE__REDIS__TLS__KEY"),
        ] {
            if let Some(path) = self.value(name) {
                translated.set(setting, path);
            }
        }
        self.topology(url, translated)
    }

    /// One address, `master,sentinel,…`, or some nodes of a cluster.
    fn topology(&self, url: &str, translated: &mut Translated) -> Result<(), Untranslatable> {
        let mut places = url.split(',').map(str::trim).peekable();
        let topology = self.or("REDIS_TYPE", "SINGLE").to_ascii_lowercase();
        let auth = self.or("REDIS_AUTH", "");
        let mut node_auth = auth;
        match &*topology {
            "sentinel" if !url.contains(',') => {
                let remedy = "write the master's name and the sentinels: master,host:port,…";
                return Err(untranslatable("REDIS_URL", url, remedy));
            }
            "sentinel" => {
                translated.set("STORE__REDIS__MASTER_NAME", places.next().unwrap_or_default());
                node_auth = self.or("REDIS_SENTINEL_AUTH", "");
            }
            "cluster" => {}
            _ => {
                translated.set("STORE__REDIS__URL", self.redis_url(url, auth));
                return Ok(());
            }
        }
        translated.set("STORE__REDIS__TOPOLOGY", topology);
        // The login of every server; its place is one of the nodes anyway.
        let first = places.peek().copied().unwrap_or_default();
        translated.set("STORE__REDIS__URL", self.redis_url(first, auth));
        let nodes = places.map(|place| format!("\"{}\"", self.redis_url(place, node_auth)));
        let nodes = nodes.collect::<Vec<_>>().join(", ");
        translated.set("STORE__REDIS__NODES", format!("[{nodes}]"));
        Ok(())
    }

    /// `host:port`, `/a/socket` or a whole URL, with what the other variables say about it.
    fn redis_url(&self, place: &str, auth: &str) -> String {
        if place.contains("://") {
            return place.to_owned();
        }
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (user, password) = auth.split_once(':').unwrap_or(("", auth));
        let (user, password) = (encoded(user), encoded(password));
        if place.starts_with('/') {
            let query =
                if auth.is_empty() { "" } else { &*format!("?user={user}&pass={password}") };
            return format!("redis+unix://{place}{query}");
        }
        let scheme = if self.flag("REDIS_TLS") { "rediss" } else { "redis" };
        let login = if auth.is_empty() { "" } else { &*format!("{user}:{password}@") };
        format!("{scheme}://{login}{place}")
    }
}

fn untranslatable(variable: &'static str, value: &str, remedy: &'static str) -> Untranslatable {
    Untranslatable { variable, value: value.to_owned(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(variables: &[(&str, &str)]) -> Result<Translated, Untranslatable> {
        translate(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())))
    }

    /// What one of our settings becomes.
    fn setting(variables: &[(&str, &str)], setting: &str) -> Option<String> {
        let name = format!("CHRONOSDB_{setting}");
        translated(variables).unwrap().settings.get(&name).cloned()
    }

    #[test]
    fn where_it_is_found() {
        let table = [
            (&[][..], "GRPC__LISTEN", Some("0.0.0.0:8081")),
            (&[], "HTTP__LISTEN", Some("0.0.0.0:8080")),
            (&[("PORT", "1"), ("HOST", "127.0.0.1")], "HTTP__LISTEN", Some("127.0.0.1:1")),
            (&[("GRPC_UDS", "/run/rl.sock")], "GRPC__UDS", Some("/run/rl.sock")),
            (&[("GRPC_UDS", "")], "GRPC__UDS", None),
            (&[], "RULES__PATH", Some("/srv/runtime_data/current/config")),
            (
                &[("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "ratelimit")],
                "RULES__PATH",
                Some("/data/ratelimit/config"),
            ),
            (&[("LOG_LEVEL", "FATAL")], "LOG__LEVEL", Some("error")),
            (&[("SHADOW_MODE", "TRUE")], "RULES__SHADOW_MODE", Some("true")),
            (&[("RESPONSE_DYNAMIC_METADATA", "1")], "RATELIMIT__DYNAMIC_METADATA", Some("true")),
            (&[("GRPC_SERVER_TLS_CERT", "/c")], "GRPC__TLS__CERT", None),
            (
                &[("GRPC_SERVER_TLS_CERT", "/c"), ("GRPC_SERVER_USE_TLS", "true")],
                "GRPC__TLS__CERT",
                Some("/c"),
            ),
        ];
        for (variables, name, expected) in table {
            assert_eq!(setting(variables, name).as_deref(), expected, "{variables:?} {name}");
        }
    }

    #[test]
    fn which_redis() {
        let url = |place: &str, more: &[(&str, &str)]| {
            let mut variables = vec![("REDIS_URL", place)];
            variables.extend(more);
            setting(&variables, "STORE__REDIS__URL").unwrap()
        };
        assert_eq!(setting(&[], "STORE__KIND"), None);
        assert_eq!(url("redis:6379", &[]), "redis://redis:6379");
        assert_eq!(url("redis:1", &[("REDIS_AUTH", "p@ss")]), "redis://:p%40ss@redis:1");
        assert_eq!(
            url("redis:1", &[("REDIS_AUTH", "u:p"), ("REDIS_TLS", "true")]),
            "rediss://u:p@redis:1"
        );
        assert_eq!(url("/run/redis.sock", &[]), "redis+unix:///run/redis.sock");
        assert_eq!(url("redis://kept:1", &[("REDIS_AUTH", "x")]), "redis://kept:1");
        let sentinel = [("REDIS_URL", "main,a:1, b:2"), ("REDIS_TYPE", "sentinel")];
        assert_eq!(setting(&sentinel, "STORE__REDIS__MASTER_NAME").as_deref(), Some("main"));
        assert_eq!(setting(&sentinel, "STORE__REDIS__URL").as_deref(), Some("redis://a:1"));
        assert_eq!(
            setting(&sentinel, "STORE__REDIS__NODES").as_deref(),
            Some("[\"redis://a:1\", \"redis://b:2\"]")
        );
        let logins = [&sentinel[..], &[("REDIS_AUTH", "p"), ("REDIS_SENTINEL_AUTH", "s")]].concat();
        assert_eq!(setting(&logins, "STORE__REDIS__URL").as_deref(), Some("redis://:p@a:1"));
        assert_eq!(
            setting(&logins, "STORE__REDIS__NODES").as_deref(),
            Some("[\"redis://:s@a:1\", \"redis://:s@b:2\"]")
        );
        let cluster = [("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "CLUSTER")];
        assert_eq!(setting(&cluster, "STORE__REDIS__TOPOLOGY").as_deref(), Some("cluster"));
    }

    #[test]
    fn what_has_no_effect_is_named_with_what_to_do_instead() {
        for (variable, value, expected) in [
            ("USE_STATSD", "true", "USE_STATSD has no effect: metrics are Prometheus' own"),
            ("STATSD_HOST", "x", "STATSD_HOST has no effect: metrics are Prometheus' own"),
            ("REDIS_PERSECOND_URL", "x", "REDIS_PERSECOND_URL has no effect: one Redis"),
            ("REDIS_PIPELINE_WINDOW", "1ms", "REDIS_PIPELINE_WINDOW has no effect: connections"),
            ("QUOTA_MODE", "true", "QUOTA_MODE has no effect: write quota_mode: true"),
            ("NEAR_LIMIT_RATIO", "0.5", "NEAR_LIMIT_RATIO has no effect: "),
            ("LIMIT_RESET_HEADER", "x", "LIMIT_RESET_HEADER has no effect: header names"),
        ] {
            let notes = translated(&[(variable, value), ("REDIS_URL", "r:1")]).unwrap().notes;
            assert_eq!(notes.len(), 1, "{variable}: {notes:?}");
            assert!(notes[0].starts_with(expected), "{notes:?}");
        }
        let silent = [
            ("USE_STATSD", "false"),
            ("USE_PROMETHEUS", "true"),
            ("NEAR_LIMIT_RATIO", "0.8"),
            ("MERGE_DOMAIN_CONFIG", "true"),
            ("REDIS_URL", "r:1"),
            ("HOME", "/root"),
        ];
        assert_eq!(translated(&silent).unwrap().notes, [""; 0]);
        assert_eq!(translated(&[]).unwrap().notes.len(), 1, "no Redis is said");
    }

    #[test]
    fn what_must_not_be_ignored_is_refused() {
        for (variable, value) in [
            ("BACKEND_TYPE", "memcache"),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
        ] {
            let error = translated(&[(variable, value)]).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{variable}={value} has no counterpart")),
                "{error}"
            );
        }
    }
}
