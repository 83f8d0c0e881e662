//! `chronosdb load` against a real server: what it says adds up.

use serde_json::Value;

use crate::harness::free_port;
use crate::harness::server::{self, Server};

const RULES: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { limit: 2, window: 1h }
";

/// Runs it to its end: the exit code, and the report it printed.
fn load(server: &Server, arguments: &[&str]) -> (i32, Value) {
    let target = format!("127.0.0.1:{}", server.grpc_port);
    let words = [&["load", "--json", "--target", &target], arguments].concat();
    let output = server::run(&std::env::temp_dir(), &words);
    let json = output.text.find('{').zip(output.text.rfind('}'));
    let json = json.map(|(from, to)| serde_json::from_str(&output.text[from..=to]).unwrap());
    (output.code, json.unwrap_or_else(|| panic!("no report: {}", output.text)))
}

fn count(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn an_open_loop_asks_as_often_as_it_was_told() {
    let server = Server::start(RULES, "");
    let quota = ["--keys", "1", "--limit", "50", "--window", "3600s"];
    let (code, report) =
        load(&server, &[&quota[..], &["--rate", "500", "--duration", "500ms"]].concat());
    assert_eq!(code, 0, "{report}");
    assert_eq!(count(&report, "sent"), 250);
    assert_eq!((count(&report, "allowed"), count(&report, "refused")), (50, 200));
    assert_eq!(report["sent_per_second"], 500.0);
    let latency = |name: &str| count(&report["latency_us"], name);
    let order = ["p50", "p90", "p99", "p99.9", "max"].map(latency);
    assert!(order[0] > 0 && order.is_sorted(), "{order:?}");
}

#[test]
fn a_closed_loop_asks_about_every_key() {
    let server = Server::start(RULES, "");
    let edge = ["--domain", "edge", "remote_address=10.0.0.{key}", "--keys", "5"];
    let (code, report) =
        load(&server, &[&edge[..], &["--in-flight", "8", "--duration", "500ms"]].concat());
    assert_eq!(code, 0, "{report}");
    assert_eq!(count(&report, "allowed"), 10, "two for each of five addresses");
    assert_eq!(count(&report, "sent"), 10 + count(&report, "refused"));
}

#[test]
fn what_got_no_answer_is_counted_by_its_status() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let server =
        Server::launch(RULES, &format!("store: {{ kind: redis, redis: {{ url: '{url}' }} }}"));
    let (code, report) = load(&server, &["--rate", "100", "--duration", "200ms"]);
    assert_eq!(code, 1, "{report}");
    assert_eq!(count(&report, "sent"), 20);
    assert_eq!(count(&report["errors"], "Unavailable"), 20);
}

#[test]
fn nobody_there_is_said_at_once() {
    let target = format!("127.0.0.1:{}", free_port());
    let output = server::run(&std::env::temp_dir(), &["load", "--target", &target]);
    assert_eq!(output.code, 1, "{}", output.text);
    assert!(output.text.contains("nobody answers at"), "{}", output.text);
}
