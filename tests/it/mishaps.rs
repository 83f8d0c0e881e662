//! What goes wrong around a server: signals that were not meant, too few file descriptors,
//! a start without rules. It serves on where it can, and the log says what to do.

use std::net::{Ipv4Addr, TcpStream};

use crate::harness::server::{Server, run_with};
use crate::harness::wait_until;

const RULES: &str =
    "domain: d\ndescriptors:\n- { key: u, rate_limit: { limit: 100, window: 1m } }\n";

#[test]
fn a_hang_up_ends_nothing() {
    let mut server = Server::start(RULES, "");
    server.signal("HUP");
    wait_until("it is said", || server.log().contains("SIGHUP changes nothing"));
    assert_eq!(server.ask("d", "u", "x").status, 200);
    assert!(server.terminate().success());
}

#[test]
fn a_start_without_rules_is_said_in_the_log() {
    let server = Server::launch("", "");
    std::fs::remove_file(server.rules_folder().join("rules.yaml")).unwrap();
    let said = |what: &str| server.log().lines().filter(|line| line.contains(what)).count();
    wait_until("it is said", || said("not ready") == 1);
    assert!(server.log().contains("set rules.allow_empty: true"), "{}", server.log());
    server.change_rules(RULES);
    wait_until("it is ready", || said("\"ready\"") == 1);
}

#[test]
fn without_file_descriptors_it_waits_and_says_so_once() {
    let server = Server::launch_with_open_files(64, RULES);
    let connect = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let connections: Vec<TcpStream> = (0..100).map(|_| connect(server.grpc_port)).collect();
    let said = || server.log().matches("could not be accepted").count();
    wait_until("it is said", || said() > 0);
    drop(connections);
    assert_eq!(server.ask("d", "u", "x").status, 200);
    // Some hundred attempts have failed meanwhile.
    assert!(said() <= 2, "{}", server.log());
}

#[test]
fn settings_that_would_silence_the_log_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_with(folder.path(), &["serve", "--log-level", "warning"], &[]);
    assert_eq!(output.code, 2, "{}", output.text);
    assert!(output.text.contains("log.level: \"warning\" is not one of error, warn"), "{output:?}");
}
