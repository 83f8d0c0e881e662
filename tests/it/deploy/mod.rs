//! What operators are given in `deploy/`: read by the tools that will read it, and its names, ports,
//! paths and settings held against the program.

mod chart;
mod completions;
mod compose;
mod container;
mod dashboard;
mod image;
mod load;
mod manifests;
mod objects;
mod references;
mod sidecar;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// The top of the repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository.
#[track_caller]
fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| {
        panic!("{path}: {error}");
    })
}

/// Every document of a YAML stream; empty ones are left out.
#[track_caller]
fn yaml(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_yaml::from_multiple(text).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// The one document of a YAML file.
#[track_caller]
fn yaml_file(path: &str) -> Value {
    yaml(&read(path)).pop().unwrap_or_default()
}

/// Below `CHRONOSDB_TEST_DEPLOY_TOOLS`.
fn tools() -> PathBuf {
    std::env::var_os("CHRONOSDB_TEST_DEPLOY_TOOLS")
        .expect("the tools for deploy/ are missing: run tests/run, which installs them")
        .into()
}

/// A program that `tests/tools/deploy.sh` installed, started at the top of the repository.
fn tool(name: &str) -> Command {
    let mut command = Command::new(tools().join("bin").join(name));
    command.current_dir(repository()).stdin(Stdio::null());
    command
}

/// Runs a command that must do well, and gives what it printed; `input` goes to its stdin.
#[track_caller]
fn printed(command: &mut Command, input: &str) -> String {
    let (good, text) = outcome(command, input);
    assert!(good, "{command:?}: {text}");
    text
}

/// Whether a command did well, and what it printed: stdout if so, else both streams.
fn outcome(command: &mut Command, input: &str) -> (bool, String) {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // A program that ends without reading it all says so by its exit code.
    let _ = writing.join().unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    (output.status.success(), text)
}

/// A process that ends when it is dropped.
struct Running(Child);

impl Running {
    #[track_caller]
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Envoy with this bootstrap, as it stands.
    #[track_caller]
    fn envoy(bootstrap: &Path) -> Self {
        let mut command = Command::new(crate::harness::tool("CHRONOSDB_TEST_ENVOY", "envoy"));
        command.arg("-c").arg(bootstrap).args(["--use-dynamic-base-id", "--concurrency", "1"]);
        Self::start(command.args(["-l", "error"]))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
