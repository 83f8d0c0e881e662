//! The `chronosdb` program itself, with settings of the test, on free loopback ports.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use super::{free_port, http, signal, wait_until};

/// The file that the log goes to.
const LOG: &str = "chronosdb.log";

/// Runs until dropped; its log is shown when the test has failed.
pub(crate) struct Server {
    /// gRPC: RLS and `CheckQuota`.
    pub(crate) grpc_port: u16,
    /// HTTP: pages, metrics, probes.
    pub(crate) http_port: u16,
    process: Child,
    folder: TempDir,
}

impl Server {
    /// Starts with these rules and settings, and waits until it is ready.
    ///
    /// `settings` is YAML for the sections that the test cares about, except `grpc`, `http` and
    /// `rules`; drains take no time unless it says otherwise.
    pub(crate) fn start(rules: &str, settings: &str) -> Self {
        Self::launch(rules, settings).ready()
    }

    /// Waits until it is ready.
    pub(crate) fn ready(self) -> Self {
        wait_until("the server is ready", || {
            self.page("/readyz").is_ok_and(|page| page.status == 200)
        });
        self
    }

    /// The value of a series on `/metrics`, named as it stands there; 0 when it is not there.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let page = self.page("/metrics").unwrap().body;
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// Starts, and waits until it listens.
    pub(crate) fn launch(rules: &str, settings: &str) -> Self {
        Self::open(rules, ["", ""], settings, &[])
    }

    /// The same with these environment variables.
    pub(crate) fn launch_under(variables: &[(&str, &str)], rules: &str, settings: &str) -> Self {
        Self::open(rules, ["", ""], settings, variables)
    }

    /// The same, with more keys (`, key: value`) in the sections `grpc` and `http`.
    pub(crate) fn launch_with(rules: &str, grpc: &str, http: &str, settings: &str) -> Self {
        Self::open(rules, [grpc, http], settings, &[])
    }

    fn open(
        rules: &str,
        [grpc, http]: [&str; 2],
        settings: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let (grpc_port, http_port) = (free_port(), free_port());
        let rules_folder = folder.path().join("rules");
        std::fs::create_dir(&rules_folder).unwrap();
        std::fs::write(rules_folder.join("rules.yaml"), rules).unwrap();
        let drain =
            if settings.contains("drain:") { "" } else { "drain: { delay: 0s, timeout: 5s }" };
        let config = format!(
            "grpc: {{ listen: '127.0.0.1:{grpc_port}'{grpc} }}\n\
             http: {{ listen: '127.0.0.1:{http_port}'{http} }}\n\
             rules: {{ path: '{}', poll: 100ms }}\n{drain}\n{settings}\n",
            rules_folder.display()
        );
        std::fs::write(folder.path().join("chronosdb.yaml"), config).unwrap();
        let process = serve(&folder, variables);
        let mut server = Self { grpc_port, http_port, process, folder };
        server.wait_until_it_listens();
        server
    }

    fn wait_until_it_listens(&mut self) {
        wait_until("the server listens", || {
            assert!(self.process.try_wait().unwrap().is_none(), "the server ended at once");
            self.page("/livez").is_ok()
        });
    }

    /// SIGTERM, and when it has drained a new one in its place.
    pub(crate) fn restart(&mut self) {
        assert!(self.terminate().success());
        self.process = serve(&self.folder, &[]);
        self.wait_until_it_listens();
    }

    /// As somebody starts it who follows the comment of a sample: `line` is a command of a shell.
    pub(crate) fn follow(line: &str, grpc_port: u16, http_port: u16) -> Self {
        let folder = TempDir::new().unwrap();
        let mut command = program(Path::new(env!("CARGO_MANIFEST_DIR")));
        command.env("CHRONOSDB_GRPC__LISTEN", format!("127.0.0.1:{grpc_port}"));
        command.env("CHRONOSDB_HTTP__LISTEN", format!("127.0.0.1:{http_port}"));
        // A pause of this machine is no error of the sample.
        command.env("CHRONOSDB_STORE__REDIS__TIMEOUT", "1s");
        let (variables, arguments) = line.split_once("chronosdb serve").unwrap();
        command.envs(variables.split_whitespace().filter_map(|pair| pair.split_once('=')));
        let process = command.arg("serve").args(arguments.split_whitespace()).spawn().unwrap();
        let server = Self { grpc_port, http_port, process, folder };
        wait_until("the server is ready", || {
            server.page("/readyz").is_ok_and(|page| page.status == 200)
        });
        server
    }

    /// A page of the HTTP port.
    pub(crate) fn page(&self, path: &str) -> std::io::Result<http::Response> {
        http::get(self.http_port, path)
    }

    /// Asks over `/json` whether a descriptor may pass; 200 or 429.
    pub(crate) fn ask(&self, domain: &str, key: &str, value: &str) -> http::Response {
        let body = format!(
            r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}]}}]}}"#
        );
        http::post(self.http_port, "/json", &body).unwrap()
    }

    /// Writes the rules anew; the server notices by itself.
    pub(crate) fn change_rules(&self, rules: &str) {
        self.write_rules("rules.yaml", rules);
    }

    /// Writes one file of the rules folder, in one step.
    pub(crate) fn write_rules(&self, name: &str, rules: &str) {
        let made = self.folder.path().join("next.yaml");
        std::fs::write(&made, rules).unwrap();
        std::fs::rename(made, self.rules_folder().join(name)).unwrap();
    }

    /// Where its rules lie.
    pub(crate) fn rules_folder(&self) -> std::path::PathBuf {
        self.folder.path().join("rules")
    }

    /// Memory that it occupies, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes = line.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        kilobytes * 1024
    }

    /// What it has said so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join(LOG)).unwrap()
    }

    /// The settings file that it was started with.
    pub(crate) fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("chronosdb.yaml")
    }

    /// Starts, with so many file descriptors at most, and waits until it listens.
    pub(crate) fn launch_with_open_files(most: u32, rules: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let (grpc_port, http_port) = (free_port(), free_port());
        std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let line = format!(
            "ulimit -n {most}; exec \"$0\" serve --rules rules.yaml \
             --grpc-listen 127.0.0.1:{grpc_port} --http-listen 127.0.0.1:{http_port}"
        );
        let process = Command::new("/bin/sh")
            .args(["-c", &line, env!("CARGO_BIN_EXE_chronosdb")])
            .current_dir(folder.path())
            .stderr(File::create(folder.path().join(LOG)).unwrap())
            .spawn()
            .unwrap();
        let mut server = Self { grpc_port, http_port, process, folder };
        server.wait_until_it_listens();
        server
    }

    /// Listens for HTTP on all addresses, with these environment variables.
    pub(crate) fn launch_everywhere(rules: &str, variables: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let (grpc_port, http_port) = (free_port(), free_port());
        std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let (grpc, http) = (format!("127.0.0.1:{grpc_port}"), format!("0.0.0.0:{http_port}"));
        let process = program(folder.path())
            .args([
                "serve",
                "--rules",
                "rules.yaml",
                "--grpc-listen",
                &grpc,
                "--http-listen",
                &http,
            ])
            .envs(variables.iter().copied())
            .stderr(File::create(folder.path().join(LOG)).unwrap())
            .spawn()
            .unwrap();
        let server = Self { grpc_port, http_port, process, folder };
        wait_until("the server listens", || server.page("/livez").is_ok());
        server
    }

    /// A signal: `TERM`, `INT`.
    pub(crate) fn signal(&self, name: &str) {
        signal(&self.process, name);
    }

    /// SIGTERM: it drains and ends.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.ends()
    }

    /// Waits for its end.
    pub(crate) fn ends(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Starts with the settings that are in the folder.
fn serve(folder: &TempDir, variables: &[(&str, &str)]) -> Child {
    let log = File::options().create(true).append(true).open(folder.path().join(LOG)).unwrap();
    let arguments = ["serve", "--config", "chronosdb.yaml"];
    program(folder.path())
        .args(arguments)
        .envs(variables.iter().copied())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// What a command said and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) text: String,
}

/// Runs a command of the program to its end.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Output {
    pipe(folder, arguments, "")
}

/// The same with these environment variables.
pub(crate) fn run_with(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    collect(program(folder).args(arguments).envs(variables.iter().copied()), "")
}

/// Runs a command of the program to its end, with this text on its standard input.
pub(crate) fn pipe(folder: &Path, arguments: &[&str], input: &str) -> Output {
    collect(program(folder).args(arguments), input)
}

fn collect(command: &mut Command, input: &str) -> Output {
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let mut text = String::new();
    process.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    process.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    Output { code: process.wait().unwrap().code().unwrap_or(-1), text }
}

/// The program, with nothing of the developer's own environment.
fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chronosdb"));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CHRONOSDB_")) {
        command.env_remove(name);
    }
    command
}
