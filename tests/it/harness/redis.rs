//! A real redis-server on a free loopback port, with a wall clock that the test sets.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::certs::Issued;
use super::clock::Clock;
use super::{free_port, signal, tool, wait_until};

/// User and password of the test itself and of replicas, who may do everything whatever becomes
/// of the others' accounts.
pub(crate) const ACCOUNT: &str = "tests";

/// Runs until dropped.
pub(crate) struct Redis {
    /// Its wall clock.
    pub(crate) clock: Clock,
    /// Without TLS.
    pub(crate) port: u16,
    tls_port: Option<u16>,
    program: String,
    args: Vec<String>,
    process: Child,
    folder: TempDir,
}

impl Redis {
    /// Persistence off, nothing special.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more command line arguments.
    pub(crate) fn start_with(args: &[&str]) -> Self {
        let args = [args, &["--enable-debug-command", "yes"]].concat();
        Self::start_program(tool("CHRONOSDB_TEST_REDIS", "redis-server"), &args)
    }

    /// With these certificates, if any: then others are spoken to over TLS only, and without it
    /// only the test itself speaks.
    pub(crate) fn start_over(issued: Option<&Issued>, args: &[&str]) -> Self {
        let tls = issued.map(|issued| {
            let port = free_port();
            (port, issued.arguments(port))
        });
        let more = tls.iter().flat_map(|(_, arguments)| arguments).map(String::as_str);
        let mut redis = Self::start_with(&args.iter().copied().chain(more).collect::<Vec<_>>());
        redis.tls_port = tls.map(|(port, _)| port);
        redis
    }

    /// Redis 6.2 instead, the oldest that is tested.
    pub(crate) fn start_oldest() -> Self {
        Self::start_program(tool("CHRONOSDB_TEST_REDIS_6", "redis-server-6"), &[])
    }

    /// Valkey instead. It has no clock of its own to stop: its time runs on within a command.
    pub(crate) fn start_valkey() -> Self {
        Self::start_program(tool("CHRONOSDB_TEST_VALKEY", "valkey-server"), &[])
    }

    fn start_program(program: String, args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let clock = Clock::new(&folder.path().join("clock"));
        let args = args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>();
        let port = free_port();
        let process = spawn(&program, port, &args, &clock, &folder);
        let redis = Self { clock, port, tls_port: None, program, args, process, folder };
        redis.wait_for_ping();
        redis
    }

    /// What goes into `store.redis.url`.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where it listens for others: over TLS, if it does at all.
    pub(crate) fn door(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// One command, on a connection of its own.
    #[track_caller]
    pub(crate) fn command<T: redis::FromRedisValue>(&self, words: &str) -> T {
        self.try_command(words).unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// The same, when it may fail.
    pub(crate) fn try_command<T: redis::FromRedisValue>(
        &self,
        words: &str,
    ) -> redis::RedisResult<T> {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        command.arg(words.collect::<Vec<_>>());
        command.query(&mut self.client()?.get_connection()?)
    }

    /// A field of INFO.
    pub(crate) fn info(&self, field: &str) -> String {
        let info: String = self.command("INFO");
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(name, _)| *name == field);
        found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    }

    /// Where it keeps its files.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// A connection of the test's own.
    pub(crate) fn connect(&self) -> redis::Connection {
        self.client().unwrap().get_connection().unwrap()
    }

    fn client(&self) -> redis::RedisResult<redis::Client> {
        redis::Client::open(format!("redis://{ACCOUNT}:{ACCOUNT}@127.0.0.1:{}", self.port))
    }

    /// `kill -9`: nothing is saved, nothing is said.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Comes back on the same port, with the same arguments and clock.
    pub(crate) fn restart(&mut self) {
        self.relaunch();
        self.wait_for_ping();
    }

    /// The same, without waiting until it answers.
    pub(crate) fn relaunch(&mut self) {
        self.kill();
        self.process = spawn(&self.program, self.port, &self.args, &self.clock, &self.folder);
    }

    /// Accepts connections and answers nothing, until [`Redis::thaw`].
    pub(crate) fn freeze(&self) {
        signal(&self.process, "STOP");
    }

    /// Ends a freeze.
    pub(crate) fn thaw(&self) {
        signal(&self.process, "CONT");
    }

    fn wait_for_ping(&self) {
        let client = self.client().unwrap();
        wait_until("redis-server answers PING", || {
            client.get_connection().is_ok_and(|mut connection| {
                redis::cmd("PING").query::<String>(&mut connection).is_ok()
            })
        });
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(program: &str, port: u16, args: &[String], clock: &Clock, folder: &TempDir) -> Child {
    let mut command = Command::new(program);
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
        .args(["--dir".as_ref(), folder.path().as_os_str()])
        .args(["--repl-diskless-sync-delay", "0"])
        .args(["--user", ACCOUNT, "on", &format!(">{ACCOUNT}"), "~*", "&*", "+@all"])
        .args(["--masteruser", ACCOUNT, "--masterauth", ACCOUNT])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    clock.rule_over(&mut command);
    command
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}: run tests/run, which installs it"))
}
