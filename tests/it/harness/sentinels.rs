//! A primary, a replica, and the sentinels that choose between them.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::redis::Redis;
use super::{free_port, tool, wait_until};

/// What the sentinels want to hear before they answer.
pub(crate) const PASSWORD: &str = "guarded";

/// Runs until dropped.
pub(crate) struct Sentinels {
    /// Two servers: the first begins as the primary, the second follows it.
    pub(crate) servers: [Redis; 2],
    ports: Vec<u16>,
    processes: Vec<Child>,
    _folder: TempDir,
}

impl Sentinels {
    /// Three of them, who agree on a primary called `quotas`.
    pub(crate) fn start() -> Self {
        let servers = [Redis::start(), Redis::start()];
        let [primary, replica] = &servers;
        replica.command::<()>(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
        wait_until("the replica follows", || replica.info("master_link_status") == "up");
        let folder = TempDir::new().unwrap();
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let spawn = |port: &u16| {
            let path = folder.path().join(format!("{port}.conf"));
            let config = format!(
                "port {port}\nbind 127.0.0.1\nrequirepass {PASSWORD}\nsentinel sentinel-pass {PASSWORD}\n\
                 sentinel monitor quotas 127.0.0.1 {} 2\n\
                 sentinel down-after-milliseconds quotas 400\n\
                 sentinel failover-timeout quotas 3000\n",
                primary.port
            );
            std::fs::write(&path, config).unwrap();
            Command::new(tool("CHRONOSDB_TEST_REDIS", "redis-server"))
                .arg(&path)
                .arg("--sentinel")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        let processes = ports.iter().map(spawn).collect();
        let sentinels = Self { servers, ports, processes, _folder: folder };
        wait_until("the sentinels know each other and the replica", || {
            (0..3).all(|index| {
                let known = |what| sentinels.master(index, what).is_some_and(|text| text != "0");
                sentinels.master(index, "num-other-sentinels").as_deref() == Some("2")
                    && known("num-slaves")
            })
        });
        sentinels
    }

    /// What goes into `store.redis.nodes`.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let node = |port| format!("redis://:{PASSWORD}@127.0.0.1:{port}");
        self.ports.iter().map(node).collect()
    }

    /// What one of them says of the primary.
    pub(crate) fn master(&self, index: usize, field: &str) -> Option<String> {
        let client = redis::Client::open(self.nodes()[index].as_str()).ok()?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg("quotas");
        let said = command
            .query::<std::collections::HashMap<String, String>>(&mut client.get_connection().ok()?);
        said.ok()?.remove(field)
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
