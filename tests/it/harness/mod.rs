//! The real things that tests drive: Redis with a clock of its own, the service, Envoy.

pub(crate) mod callers;
pub(crate) mod certs;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod collector;
pub(crate) mod counters;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod instance;
pub(crate) mod oracle;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod redis;
pub(crate) mod sentinels;
pub(crate) mod server;
pub(crate) mod upstream;

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a process may take to come up or to go down, on a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A loopback port that nobody listens on, and that no other test was given. It is none of those
/// that the system deals out to connections: one of them could be taken before it is listened on.
pub(crate) fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 22_000;
    loop {
        let turn = GIVEN.fetch_add(1, Ordering::Relaxed);
        // Other runs of the tests begin elsewhere.
        let place = std::process::id().wrapping_mul(7_919).wrapping_add(turn) % PORTS;
        let port = u16::try_from(FIRST + place).unwrap();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Asks until the answer is yes.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A tool that `tests/run` installs and names in the environment, or the one on the PATH.
pub(crate) fn tool(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| default.to_owned())
}

/// A signal to a process that this test started: `KILL`, `STOP`, `CONT`, `TERM`.
pub(crate) fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let status = Command::new("/bin/sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &id]).status();
    assert!(status.unwrap().success(), "kill -s {name} {id}");
}
