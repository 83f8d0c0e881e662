//! A real Envoy, with the bootstrap that users are given: only its ports are changed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{free_port, http, tool, wait_until};

/// The ports of the bootstraps that users are given.
pub(crate) const PORTS: [u16; 3] = [10000, 10001, 9901];

/// Runs until dropped.
pub(crate) struct Envoy {
    /// Where clients of the fleet knock.
    pub(crate) port: u16,
    admin_port: u16,
    process: Child,
    _folder: TempDir,
}

impl Envoy {
    /// `envoy/ratelimit.yaml`, asking the service on `grpc_port`; `change` edits the text further.
    pub(crate) fn start(grpc_port: u16, change: impl FnOnce(String) -> String) -> Self {
        Self::start_sample("ratelimit.yaml", grpc_port, change)
    }

    /// A bootstrap of `envoy/`, asking the service on `grpc_port`; `change` edits the text further.
    pub(crate) fn start_sample(
        name: &str,
        grpc_port: u16,
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let text = std::fs::read_to_string(sample(name)).unwrap();
        let ports = PORTS.map(|_| free_port());
        let text =
            PORTS.iter().zip(ports).fold(text, |text, (from, to)| with_port(&text, *from, to));
        Self::run(&change(with_port(&text, 50051, grpc_port)), ports[0], ports[2])
    }

    /// A whole bootstrap that listens on these ports.
    pub(crate) fn run(text: &str, port: u16, admin_port: u16) -> Self {
        let folder = TempDir::new().unwrap();
        let config = folder.path().join("envoy.yaml");
        std::fs::write(&config, text).unwrap();
        let process = command()
            .args(["-c".as_ref(), config.as_os_str()])
            .args(["--use-dynamic-base-id", "--concurrency", "1", "-l", "error"])
            .spawn()
            .expect("a real Envoy is missing: run tests/run, which installs it");
        let envoy = Self { port, admin_port, process, _folder: folder };
        wait_until("Envoy is ready", || {
            http::get(admin_port, "/ready").is_ok_and(|page| page.status == 200)
        });
        envoy
    }

    /// Waits until Envoy finds so many instances of the service healthy.
    pub(crate) fn wait_for_instances(&self, instances: u64) {
        wait_until("Envoy finds the service healthy", || {
            self.stat("cluster.chronosdb.membership_healthy") == instances
        });
    }

    /// `GET /` as a client, with these raw header lines.
    pub(crate) fn get(&self, headers: &[u8]) -> http::Response {
        http::request(self.port, "GET", "/", headers, "").unwrap()
    }

    /// A counter of Envoy's own; 0 when it has not counted yet.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let page = http::get(self.admin_port, &format!("/stats?filter=%5E{name}%24")).unwrap();
        page.body.trim().rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Where a bootstrap of `envoy/` is.
pub(crate) fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy").join(name)
}

/// The bootstrap with another port in the place of this one.
pub(crate) fn with_port(text: &str, from: u16, to: u16) -> String {
    let named = format!("port_value: {from} ");
    assert!(text.contains(&named), "the sample has no {named}");
    text.replace(&named, &format!("port_value: {to} "))
}

/// Whether Envoy would start with this file.
pub(crate) fn accepts(config: &Path) -> bool {
    accepts_in(Path::new("."), config)
}

/// The same, where relative paths in the file start at a folder.
pub(crate) fn accepts_in(folder: &Path, config: &Path) -> bool {
    let arguments = ["--mode".as_ref(), "validate".as_ref(), "-c".as_ref(), config.as_os_str()];
    command().current_dir(folder).args(arguments).args(["-l", "error"]).status().unwrap().success()
}

fn command() -> Command {
    let mut command = Command::new(tool("CHRONOSDB_TEST_ENVOY", "envoy"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}
