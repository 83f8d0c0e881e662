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

/// Messages that are announced, and never come.
#[tokio::test]
async fn a_call_that_never_arrives_is_ended_and_reserves_little() {
    let server = Server::start(RULES, "");
    let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, server.grpc_port));
    let (client, connection) = h2::client::handshake(stream.await.unwrap()).await.unwrap();
    tokio::spawn(connection);
    let (cancelled, out_of_range) = ("1", "11");
    for (method, announced_bytes, status) in [
        ("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", 1 << 10, cancelled),
        ("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", 1 << 20, out_of_range),
        ("chronosdb.v1.RateLimiter/CheckQuota", 1 << 20, out_of_range),
        // Larger ones are let in where ext_authz is set up: they may have bodies.
        ("envoy.service.auth.v3.Authorization/Check", 1 << 20, out_of_range),
    ] {
        let request = http::Request::post(format!("http://test/{method}"));
        let request = request.header("content-type", "application/grpc").body(()).unwrap();
        let mut client = client.clone().ready().await.unwrap();
        let (answer, mut sent) = client.send_request(request, false).unwrap();
        let announced = [&[0], &u32::to_be_bytes(announced_bytes)[..]].concat();
        sent.send_data(announced.into(), false).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], status, "{method}: {answer:?}");
    }
}

#[test]
fn settings_that_would_silence_the_log_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_with(folder.path(), &["serve", "--log-level", "warning"], &[]);
    assert_eq!(output.code, 2, "{}", output.text);
    assert!(output.text.contains("log.level: \"warning\" is not one of error, warn"), "{output:?}");
}
