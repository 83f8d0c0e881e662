//! The settings of `store.redis:`, and what is wrong with them. It opens nothing.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::address::masked;

/// Settings of `store.redis:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `redis[s]://[user:password@]host:port[/db]` or `redis+unix:///path`. With `sentinel` and
    /// `cluster`: scheme, user, password and database of every server; its host is one more node
    /// of a cluster, unless `nodes` has some.
    pub url: String,
    /// How Redis is laid out.
    pub topology: Topology,
    /// The sentinels, or some servers of the cluster: `host:port`, or a URL.
    pub nodes: Vec<String>,
    /// The name that the sentinels know the primary by.
    pub master_name: Option<String>,
    /// Certificates for `rediss://`.
    pub tls: Tls,
    /// Connections of the whole process to each server; each worker has its part, at least one.
    pub pool_size: u32,
    /// How long a decision may wait for Redis.
    #[serde(with = "crate::duration")]
    pub timeout: Duration,
    /// Stands before every key.
    pub key_prefix: String,
}

/// How Redis is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One server.
    #[default]
    Standalone,
    /// A primary that sentinels choose.
    Sentinel,
    /// Many primaries, each with a part of the keys.
    Cluster,
}

/// PEM files. Without `ca` the operating system's certificates say who is trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Certificates of those who may sign a server's; no others are trusted then.
    pub ca: Option<PathBuf>,
    /// The certificate that we show.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

/// On a cluster: how long a refusal is believed.
const BRIEF: Duration = Duration::from_millis(100);

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".into(),
            topology: Topology::Standalone,
            nodes: Vec::new(),
            master_name: None,
            tls: Tls::default(),
            pool_size: 4,
            timeout: Duration::from_millis(15),
            key_prefix: "chronosdb:quota:".into(),
        }
    }
}

impl Settings {
    /// Without the passwords, for people.
    pub fn shown(&self) -> Self {
        let nodes = self.nodes.iter().map(|node| masked(node)).collect();
        Self { url: masked(&self.url), nodes, ..self.clone() }
    }

    /// Where Redis is, in a few words and without secrets, for logs.
    pub fn place(&self) -> String {
        let Self { url, nodes, .. } = self.shown();
        match self.topology {
            Topology::Standalone => url,
            Topology::Cluster if nodes.is_empty() => format!("the cluster of {url}"),
            Topology::Cluster => format!("the cluster of {}", nodes.join(", ")),
            Topology::Sentinel => {
                let name = self.master_name.as_deref().unwrap_or_default();
                format!("{name} of the sentinels {}", nodes.join(", "))
            }
        }
    }

    /// How long a refusal may be repeated without asking again. On a cluster a request over several
    /// slots holds hits for a moment, and gives them back when one of the slots refuses.
    pub fn refusals_hold(&self) -> Duration {
        match self.topology {
            Topology::Standalone | Topology::Sentinel => Duration::MAX,
            Topology::Cluster => BRIEF,
        }
    }

    /// What types cannot say.
    ///
    /// # Errors
    /// The key, and what is wrong with its value.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let wrong = |key, why| Err((key, why));
        if self.timeout.is_zero() {
            return wrong("store.redis.timeout", "it must be longer than zero, such as 15ms");
        }
        if self.pool_size == 0 {
            return wrong("store.redis.pool_size", "it must be at least 1");
        }
        if self.key_prefix.contains(['{', '}']) {
            return wrong(
                "store.redis.key_prefix",
                "braces would change which cluster node a key lives on: leave them out",
            );
        }
        if self.tls.cert.is_some() != self.tls.key.is_some() {
            return wrong("store.redis.tls", "cert and key belong together: set both or neither");
        }
        let named = self.master_name.is_some();
        match self.topology {
            Topology::Standalone if named || !self.nodes.is_empty() => wrong(
                "store.redis.nodes",
                "a standalone Redis has no other nodes and no master_name: leave both out, or set topology",
            ),
            Topology::Sentinel if self.nodes.is_empty() => {
                wrong("store.redis.nodes", "name the sentinels, such as [\"10.0.0.1:26379\"]")
            }
            Topology::Sentinel if !named => wrong(
                "store.redis.master_name",
                "say by which name the sentinels know the primary, such as mymaster",
            ),
            Topology::Cluster if named => {
                wrong("store.redis.master_name", "a cluster has none: leave it out")
            }
            _ => Ok(()),
        }
    }
}
