//! A primary, a replica, and the sentinels that choose between them.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::certs::Issued;
use super::redis::{ACCOUNT, Redis};
use super::{free_port, tool, wait_until};

/// What the sentinels want to hear before they answer.
pub(crate) const PASSWORD: &str = "guarded";

/// Runs until dropped.
pub(crate) struct Sentinels {
    /// Two servers: the first begins as the primary, the second follows it.
    pub(crate) servers: [Redis; 2],
    /// Where the sentinels listen, without TLS.
    ports: Vec<u16>,
    nodes: Vec<String>,
    processes: Vec<Child>,
    folder: TempDir,
}

impl Sentinels {
    /// Three of them, who agree on a primary called `quotas`.
    pub(crate) fn start() -> Self {
        Self::start_over(None)
    }

    /// All of them speak TLS with each other and with us, if there are certificates.
    pub(crate) fn start_over(issued: Option<&Issued>) -> Self {
        let servers = [(); 2].map(|()| Redis::start_over(issued, &[]));
        let [primary, replica] = &servers;
        replica.command::<()>(&format!("REPLICAOF 127.0.0.1 {}", primary.door()));
        wait_until("the replica follows", || replica.info("master_link_status") == "up");
        let folder = TempDir::new().unwrap();
        let mut sentinels =
            Self { servers, ports: vec![], nodes: vec![], processes: vec![], folder };
        for _ in 0..3 {
            sentinels.add(issued);
        }
        wait_until("the sentinels know each other and the replica", || {
            (0..3).all(|index| {
                let known = |what| sentinels.master(index, what).is_some_and(|text| text != "0");
                sentinels.master(index, "num-other-sentinels").as_deref() == Some("2")
                    && known("num-slaves")
            })
        });
        sentinels
    }

    fn add(&mut self, issued: Option<&Issued>) {
        let (port, tls_port) = (free_port(), free_port());
        let path = self.folder.path().join(format!("{port}.conf"));
        let config = format!(
            "port {port}\nbind 127.0.0.1\nrequirepass {PASSWORD}\nsentinel sentinel-pass {PASSWORD}\n\
             sentinel monitor quotas 127.0.0.1 {} 2\n\
             sentinel auth-user quotas {ACCOUNT}\nsentinel auth-pass quotas {ACCOUNT}\n\
             sentinel down-after-milliseconds quotas 400\n\
             sentinel failover-timeout quotas 3000\n",
            self.servers[0].door()
        );
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new(tool("CHRONOSDB_TEST_REDIS", "redis-server"));
        command.arg(&path).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null());
        self.nodes.push(match issued {
            Some(issued) => {
                command.args(issued.arguments(tls_port));
                format!("rediss://:{PASSWORD}@127.0.0.1:{tls_port}")
            }
            None => format!("redis://:{PASSWORD}@127.0.0.1:{port}"),
        });
        self.ports.push(port);
        self.processes.push(command.spawn().unwrap());
    }

    /// What goes into `store.redis.nodes`.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.nodes.clone()
    }

    /// What one of them says of the primary.
    pub(crate) fn master(&self, index: usize, field: &str) -> Option<String> {
        self.ask::<HashMap<String, String>>(index, "MASTER").ok()?.remove(field)
    }

    /// They make the replica the primary, though nobody has failed.
    pub(crate) fn fail_over(&self) {
        wait_until("a failover may begin", || self.ask::<()>(0, "FAILOVER").is_ok());
    }

    fn ask<T: redis::FromRedisValue>(&self, index: usize, what: &str) -> redis::RedisResult<T> {
        let url = format!("redis://:{PASSWORD}@127.0.0.1:{}", self.ports[index]);
        let mut connection = redis::Client::open(url)?.get_connection()?;
        redis::cmd("SENTINEL").arg(what).arg("quotas").query(&mut connection)
    }

    /// Returns when all of them call this server the primary.
    pub(crate) fn wait_until_chosen(&self, server: usize) {
        let port = self.servers[server].door().to_string();
        wait_until("the sentinels choose another primary", || {
            (0..3).all(|index| self.master(index, "port").as_ref() == Some(&port))
        });
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
