//! Dashboard and alerts against a real Prometheus that reads the fleet of the compose file.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chronosdb::api::client::{Client, Question};
use serde_json::Value;

use super::compose::Fleet;
use super::objects::{at, list, text};
use super::{outcome, printed, read, repository, yaml_file};
use crate::harness::{http, tool, wait_until};

/// Between requests of the load: enough for every graph, and little work.
const PAUSE: Duration = Duration::from_millis(20);

#[test]
fn a_limit_bites_and_every_graph_moves() {
    let mut fleet = Fleet::start();
    let statuses: Vec<u16> = (0..130).map(|_| fleet.knock()).collect();
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    fleet.redis.kill();
    wait_until("the instances decide by themselves", || {
        ask(&fleet, "edge", "remote_address");
        metrics(&fleet).contains("chronosdb_fallback_decisions_total{policy=\"local\"}")
    });
    fleet.redis.restart();
    fleet.freeze();
    wait_until("Envoy lets requests pass without an answer", || {
        assert_eq!(fleet.knock(), 200);
        fleet.envoy_counted("ratelimit.failure_mode_allowed")
    });
    fleet.thaw();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Ends the load also when an assertion below fails.
        let _end = End(&done);
        scope.spawn(|| load(&fleet, &done));
        let prometheus = fleet.port("prometheus", 9090);
        for query in dashboard_queries() {
            wait_until(&query, || has_data(prometheus, &query));
        }
        let refused = "sum(rate(requests_denied_total{api_key=\"free\"}[1m])) > 0";
        wait_until(refused, || has_data(prometheus, refused));
        for metric in alerted_metrics() {
            wait_until(&metric, || has_data(prometheus, &metric));
        }
        wait_until("every alert is evaluated without an error", || alerts_are_well(prometheus));
    });
    let page = metrics(&fleet);
    assert!(page.contains("chronosdb_store_errors_total{"), "{page}");
    let (_, complaints) = outcome(promtool().args(["check", "metrics"]), &page);
    // Its lint dislikes the unit ms, which the names `*_latency_ms` are bound to.
    let other: Vec<&str> =
        complaints.lines().filter(|line| !line.contains("_latency_ms")).collect();
    assert!(other.is_empty(), "{}", other.join("\n"));
}

#[test]
fn panels_stand_side_by_side() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/chronosdb.json")).unwrap();
    let (mut taken, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard, "panels") {
        let title = text(panel, "title");
        assert!(!title.is_empty() && numbers.insert(panel["id"].as_u64()), "{title}");
        let grid = |side: &str| at(panel, &format!("gridPos.{side}")).as_u64().unwrap();
        assert!(grid("x") + grid("w") <= 24, "{title} is wider than the page");
        for x in grid("x")..grid("x") + grid("w") {
            for y in grid("y")..grid("y") + grid("h") {
                assert!(taken.insert((x, y)), "{title} covers another panel");
            }
        }
        let references: Vec<&str> =
            list(panel, "targets").iter().map(|target| text(target, "refId")).collect();
        let different: BTreeSet<&&str> = references.iter().collect();
        assert_eq!(different.len(), references.len(), "{title}: {references:?}");
    }
}

#[test]
fn alerts_have_runbooks_and_tests() {
    for arguments in [
        ["check", "rules", "deploy/prometheus/alerts.yaml"],
        ["test", "rules", "deploy/prometheus/alerts_test.yaml"],
    ] {
        printed(promtool().args(arguments), "");
    }
    let tests = read("deploy/prometheus/alerts_test.yaml");
    let operations = read("docs/operations.md");
    for alert in alerts() {
        let name = text(&alert, "alert");
        for annotation in ["summary", "runbook"] {
            let text = text(&alert, &format!("annotations.{annotation}"));
            assert!(!text.is_empty() && !text.contains('\n'), "{name}: {annotation}");
        }
        assert!(["page", "ticket"].contains(&text(&alert, "labels.severity")), "{name}");
        assert!(tests.contains(name), "{name} has no test");
        assert!(operations.contains(name), "docs/operations.md does not know {name}");
    }
}

#[test]
fn alert_tests_find_faults() {
    let folder = tempfile::tempdir().unwrap();
    let alerts = read("deploy/prometheus/alerts.yaml");
    let tests = read("deploy/prometheus/alerts_test.yaml");
    std::fs::write(folder.path().join("alerts_test.yaml"), tests).unwrap();
    for (from, to) in [
        ("} == 0\n", "} == 2\n"),
        ("chronosdb_ready == 0", "chronosdb_ready == 2"),
        ("chronosdb_store_errors_total[5m])) > 0.1", "chronosdb_store_errors_total[5m])) > 9"),
        ("(chronosdb_breaker_open) == 1", "(chronosdb_breaker_open) == 2"),
        ("fallback_decisions_total[5m])) > 0", "fallback_decisions_total[5m])) > 99"),
        ("Unavailable|", ""),
        ("failure_mode_allowed[5m])) > 0", "failure_mode_allowed[5m])) > 9"),
        ("> 15\n", "> 18\n"),
        ("> 5 * sum", "> 500 * sum"),
        ("chronosdb_rules_errors) > 0", "chronosdb_rules_errors) > 9"),
        ("chronosdb_rules_outdated) > 0", "chronosdb_rules_outdated) > 9"),
        ("max(delta(", "min(-delta("),
        ("chronosdb_memory_full_total[5m]) > 0", "chronosdb_memory_full_total[5m]) > 9"),
        ("chronosdb_bad_authority_total[5m]) > 0", "chronosdb_bad_authority_total[5m]) < 0"),
        ("chronosdb_unknown_domain_total[5m]) > 0", "chronosdb_unknown_domain_total[5m]) > 9"),
        ("< 7 * 24 * 3600", "< 6 * 24 * 3600"),
        ("> 0.8\n", "> 0.95\n"),
    ] {
        assert!(alerts.contains(from), "there is no {from}");
        std::fs::write(folder.path().join("alerts.yaml"), alerts.replacen(from, to, 1)).unwrap();
        let tests = folder.path().join("alerts_test.yaml");
        assert!(!outcome(promtool().args(["test", "rules"]).arg(tests), "").0, "{to} passed");
    }
}

fn promtool() -> Command {
    let mut command = Command::new(tool("CHRONOSDB_TEST_PROMTOOL", "promtool"));
    command.current_dir(repository());
    command
}

/// Ends the load when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All kinds of questions, through both doors of both instances, until `done`.
fn load(fleet: &Fleet, done: &AtomicBool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let target = format!("127.0.0.1:{}", fleet.port("chronosdb-2", 50051));
    let client = Client::connect(&target, Duration::from_secs(5));
    let mut client = runtime.block_on(client).unwrap();
    let quota = |user: &str| Question::Quota {
        user_id: user.into(),
        api_key: "native".into(),
        max_requests: 3,
        window_seconds: 1,
        hits: 1,
    };
    while !done.load(Ordering::Relaxed) {
        fleet.knock();
        runtime.block_on(client.ask(&quota("ann"))).unwrap();
        runtime.block_on(client.ask(&quota(""))).unwrap_err();
        for (domain, key) in [("edge", "path"), ("edge", "unheard_of"), ("nowhere", "path")] {
            ask(fleet, domain, key);
        }
        std::thread::sleep(PAUSE);
    }
}

/// One question as JSON; whatever the answer is.
fn ask(fleet: &Fleet, domain: &str, key: &str) {
    let value = "/search/x";
    let body = format!(
        r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}]}}]}}"#
    );
    http::post(fleet.port("chronosdb-1", 8000), "/json", &body).unwrap();
}

fn metrics(fleet: &Fleet) -> String {
    http::get(fleet.port("chronosdb-1", 8000), "/metrics").unwrap().body
}

/// Every query of the dashboard, with its variables filled in as Grafana would.
fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/chronosdb.json")).unwrap();
    let mut queries = Vec::new();
    // Rules did not change here, so the annotation that shows it would find nothing.
    expressions(&dashboard["panels"], &mut queries);
    assert!(queries.len() > 30, "only {} queries", queries.len());
    for variable in list(&dashboard, "templating.list") {
        let Some(query) = at(variable, "query.query").as_str() else { continue };
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (metric, label) = inside.and_then(|inside| inside.split_once(", ")).unwrap();
        queries.push(format!("count by ({label}) ({metric}{{{label}!=\"\"}})"));
    }
    let filled = |query: String| {
        let query = query.replace("$__rate_interval", "1m").replace("$__range", "5m");
        let query = query.replace("$instance", ".*").replace("$domain", ".*");
        assert!(!query.contains('$'), "{query}");
        query
    };
    queries.into_iter().map(filled).collect()
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| expressions(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn alerts() -> Vec<Value> {
    let file = yaml_file("deploy/prometheus/alerts.yaml");
    let alerts = list(&list(&file, "groups")[0], "rules").to_vec();
    assert!(alerts.len() > 10);
    alerts
}

/// Every metric that an alert looks at. Its unit test would also pass with a misspelt one.
fn alerted_metrics() -> BTreeSet<String> {
    let mut metrics = BTreeSet::new();
    for alert in alerts() {
        let words =
            text(&alert, "expr").split(|symbol: char| symbol != '_' && !symbol.is_alphanumeric());
        let is_metric = |word: &&str| {
            ["up", "grpc_latency_ms_bucket"].contains(word)
                || word.starts_with("chronosdb_")
                || word.starts_with("envoy_cluster_ratelimit")
                || word.starts_with("requests_")
                || word.starts_with("process_")
        };
        metrics.extend(words.filter(is_metric).map(str::to_owned));
    }
    assert!(metrics.len() > 10, "{metrics:?}");
    metrics
}

/// Whether Prometheus answers with a number. An error in the query fails at once.
fn has_data(prometheus: u16, query: &str) -> bool {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let page = http::get(prometheus, &format!("/api/v1/query?query={encoded}")).unwrap();
    let answer: Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    let value = |sample: &Value| sample["value"][1].as_str()?.parse::<f64>().ok();
    list(&answer, "data.result").iter().filter_map(value).any(f64::is_finite)
}

fn alerts_are_well(prometheus: u16) -> bool {
    let page = http::get(prometheus, "/api/v1/rules").unwrap();
    let answer: Value = serde_json::from_str(&page.body).unwrap();
    let rules = list(&list(&answer, "data.groups")[0], "rules");
    assert_eq!(rules.len(), alerts().len());
    for rule in rules {
        assert!(text(rule, "lastError").is_empty(), "{rule}");
    }
    rules.iter().all(|rule| rule["health"] == "ok")
}
