//! `tests/load`: Locust, headless, against a real server.

use super::{outcome, read, tool};
use crate::harness::free_port;
use crate::harness::server::Server;

/// Runs the load against this port for a moment: whether Locust is content, and for each kind of
/// request its name, how many there were and how many failed.
fn locust(port: u16) -> (bool, Vec<(String, u64, u64)>) {
    let mut locust = tool("locust");
    locust.args(["-f", "tests/load/locustfile.py", "--headless", "-u", "8", "-r", "8", "-t", "3s"]);
    locust.args(["--json", "-L", "ERROR"]);
    locust.env("CHRONOSDB_GRPC_TARGET", format!("127.0.0.1:{port}"));
    let (good, text) = outcome(&mut locust, "");
    // After the statistics it prints what failed.
    let statistics = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
    let statistics = statistics.flatten().next().unwrap_or_else(|| panic!("no statistics: {text}"));
    let rows = statistics.as_array().unwrap().iter().map(|row| {
        let count = |name: &str| row[name].as_u64().unwrap();
        (row["name"].as_str().unwrap().to_owned(), count("num_requests"), count("num_failures"))
    });
    (good, rows.collect())
}

/// Requests and failures of the rows whose name begins so.
fn counted(rows: &[(String, u64, u64)], name: &str) -> (u64, u64) {
    let named = rows.iter().filter(|row| row.0.starts_with(name));
    named.fold((0, 0), |sums, row| (sums.0 + row.1, sums.1 + row.2))
}

#[test]
fn both_doors_stand_the_load() {
    let server = Server::start(&read("config/rules/edge.yaml"), "");
    let (good, statistics) = locust(server.grpc_port);
    assert!(good, "{statistics:?}");
    for door in ["CheckQuota (allowed)", "ShouldRateLimit (allowed)", "ShouldRateLimit (refused)"] {
        let (requests, failures) = counted(&statistics, door);
        assert!(requests > 0 && failures == 0, "{door}: {statistics:?}");
    }
    let (requests, _) = counted(&statistics, "");
    let page = server.page("/metrics").unwrap().body;
    let counts = page.lines().filter(|line| line.starts_with("grpc_latency_ms_count"));
    let served: u64 = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
    // Calls that the end of the run cut off were served, and are in no statistics.
    assert!(served >= requests && requests > 100, "{served} served, {requests} counted");
}

#[test]
fn a_server_that_is_not_there_is_a_failure() {
    let (good, statistics) = locust(free_port());
    assert!(!good, "{statistics:?}");
    let (requests, failures) = counted(&statistics, "");
    assert!(requests > 0 && failures == requests, "{statistics:?}");
}
