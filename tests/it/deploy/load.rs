//! `tests/load`: Locust, headless, against a real server.

use super::{outcome, read, tool};
use crate::harness::free_port;
use crate::harness::server::Server;

/// Runs the load against this port for a moment: whether Locust is content, and its statistics.
fn locust(port: u16) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut locust = tool("locust");
    locust.args(["-f", "tests/load/locustfile.py", "--headless", "-u", "8", "-r", "8", "-t", "3s"]);
    locust.arg("--csv").arg(folder.path().join("run")).args(["--only-summary", "-L", "ERROR"]);
    locust.env("CHRONOSDB_GRPC_TARGET", format!("127.0.0.1:{port}"));
    let (good, _) = outcome(&mut locust, "");
    (good, std::fs::read_to_string(folder.path().join("run_stats.csv")).unwrap())
}

/// Requests and failures of the rows whose name begins so.
fn counted(statistics: &str, name: &str) -> (u64, u64) {
    let mut sums = (0, 0);
    for line in statistics.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        if cells[1].starts_with(name) {
            sums.0 += cells[2].parse::<u64>().unwrap();
            sums.1 += cells[3].parse::<u64>().unwrap();
        }
    }
    sums
}

#[test]
fn both_doors_stand_the_load() {
    let server = Server::start(&read("config/rules/edge.yaml"), "");
    let (good, statistics) = locust(server.grpc_port);
    assert!(good, "{statistics}");
    for door in ["CheckQuota (allowed)", "ShouldRateLimit (allowed)", "ShouldRateLimit (refused)"] {
        let (requests, failures) = counted(&statistics, door);
        assert!(requests > 0 && failures == 0, "{door}: {statistics}");
    }
    let (requests, _) = counted(&statistics, "Aggregated");
    let page = server.page("/metrics").unwrap().body;
    let counts = page.lines().filter(|line| line.starts_with("grpc_latency_ms_count"));
    let served: u64 = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
    // Calls that the end of the run cut off were served, and are in no statistics.
    assert!(served >= requests && requests > 100, "{served} served, {requests} counted");
}

#[test]
fn a_server_that_is_not_there_is_a_failure() {
    let (good, statistics) = locust(free_port());
    assert!(!good, "{statistics}");
    let (requests, failures) = counted(&statistics, "Aggregated");
    assert!(requests > 0 && failures == requests, "{statistics}");
}
