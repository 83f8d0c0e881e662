//! The processes that take turns, and what one turn of a process cost.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::harness::redis::Redis;
use super::harness::{cpu_us, free_port, wait_until};

/// A server, running until dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    process: Child,
}

impl Server {
    /// Ours: the `chronosdb` that cargo built for this benchmark. `settings` is YAML.
    pub(crate) fn ours(folder: &Path, name: &str, rules: &str, settings: &str) -> Self {
        let (port, http_port) = (free_port(), free_port());
        let rules_path = folder.join(format!("{name}-rules.yaml"));
        let config_path = folder.join(format!("{name}.yaml"));
        let config = format!(
            "grpc: {{ listen: '127.0.0.1:{port}' }}\nhttp: {{ listen: '127.0.0.1:{http_port}' }}\n\
             rules: {{ path: '{}' }}\nlog: {{ level: warn }}\n{settings}\n",
            rules_path.display()
        );
        std::fs::write(&rules_path, rules).expect("the folder is ours");
        std::fs::write(&config_path, config).expect("the folder is ours");
        let mut command = Command::new(env!("CARGO_BIN_EXE_chronosdb"));
        command.arg("serve").arg("--config").arg(config_path);
        Self::spawn(command, port)
    }

    /// A stand-in: this very program in another role.
    pub(crate) fn stand_in(redis: Option<&Redis>) -> Self {
        let port = free_port();
        let this = std::env::current_exe().expect("this program is a file");
        let mut command = Command::new(this);
        command.args(["--stand-in", &port.to_string()]);
        command.args(redis.map(|redis| redis.port.to_string()));
        Self::spawn(command, port)
    }

    fn spawn(mut command: Command, port: u16) -> Self {
        let process = command.stdin(Stdio::null()).spawn().expect("the server starts");
        wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { port, process }
    }

    pub(crate) fn cpu_us(&self) -> f64 {
        cpu_us(self.process.id())
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.process.id());
        let pages = std::fs::read_to_string(path).expect("it runs");
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or(0) * 4096
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a turn of a server cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) per_second: f64,
    pub(crate) server_us: f64,
    pub(crate) redis_us: f64,
    pub(crate) redis_calls: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
}

/// Lets `chronosdb load` ask a server, and reads the clocks before and after.
pub(crate) fn turn(server: &Server, redis: &Redis, load: &[&str], pace: &[&str]) -> Turn {
    let calls = || script_runs(redis);
    let before = (server.cpu_us(), redis.cpu_us(), calls());
    let target = format!("127.0.0.1:{}", server.port);
    let output = Command::new(env!("CARGO_BIN_EXE_chronosdb"))
        .args(["load", "--json", "--target", &target])
        .args(load)
        .args(pace)
        .stderr(Stdio::inherit())
        .output()
        .expect("chronosdb load runs");
    let after = (server.cpu_us(), redis.cpu_us(), calls());
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("load prints a report");
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
    let sent = number(&report["sent"]);
    let latency = |name: &str| number(&report["latency_us"][name]);
    Turn {
        per_second: number(&report["sent_per_second"]),
        server_us: (after.0 - before.0) / sent,
        redis_us: (after.1 - before.1) / sent,
        redis_calls: (after.2 - before.2) / sent,
        p50_us: latency("p50"),
        p99_us: latency("p99"),
        p99_9_us: latency("p99.9"),
    }
}

/// Scripts that Redis has run so far.
fn script_runs(redis: &Redis) -> f64 {
    let stats = redis.connect().call(&[b"INFO", b"commandstats"]);
    let of = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<f64>().ok();
    stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:")).find_map(of).unwrap_or(0.0)
}
