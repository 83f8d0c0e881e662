//! Resident memory: idle, with a million keys in the memory store, and whether it grows.

use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::contestant::Server;
use super::scenarios::rules;

/// Parts of the time, each with its line.
const PARTS: u64 = 10;

/// Asks for `seconds` about a million keys, and prints what the server holds.
pub(crate) fn run(seconds: u64) {
    let folder = TempDir::new().expect("there is room for a folder");
    let server = Server::ours(folder.path(), "soak", &rules(22), "");
    let mb = || server.resident_bytes() / 1_000_000;
    println!("idle: {} MB", mb());
    let target = format!("127.0.0.1:{}", server.port);
    let duration = format!("{}s", (seconds / PARTS).max(1));
    for part in 1..=PARTS {
        let status = Command::new(env!("CARGO_BIN_EXE_chronosdb"))
            .args(["load", "--target", &target, "--in-flight", "256", "--duration", &duration])
            .args(["--domain", "edge", "slow={key}", "--keys", "1000000"])
            .stdout(Stdio::null())
            .status();
        assert!(status.is_ok_and(|status| status.success()), "a question got no answer");
        println!("{part}/{PARTS} of {seconds} s: {} MB", mb());
    }
}
