//! The program as it is deployed: it starts, decides, reloads, fails and ends.

use std::path::Path;

use crate::harness::envoy::{self, Envoy};
use crate::harness::redis::Redis;
use crate::harness::server::{self, Server};
use crate::harness::wait_until;

/// Two per hour for each address and for each key, so that no test can see a window end.
const RULES: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { limit: 2, window: 1h }
  - key: api_key
    rate_limit: { limit: 3, window: 1h }
    descriptors:
      - key: user_id
        rate_limit: { limit: 1, window: 1h }
";

fn redis_settings(redis: &Redis) -> String {
    format!("store: {{ kind: redis, redis: {{ url: '{}', timeout: 1s }} }}", redis.url())
}

fn statuses(server: &Server, value: &str, times: usize) -> Vec<u16> {
    (0..times).map(|_| server.ask("edge", "api_key", value).status).collect()
}

#[test]
fn it_serves_from_memory_and_ends_on_sigterm() {
    let mut server = Server::start(RULES, "");
    assert_eq!(statuses(&server, "k", 4), [200, 200, 200, 429]);
    assert_eq!(statuses(&server, "other", 1), [200]);
    assert!(server.terminate().success());
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut server = Server::start(RULES, "drain: { delay: 1h, timeout: 1h }");
    server.signal("TERM");
    wait_until("it is not ready", || server.page("/readyz").unwrap().status == 503);
    assert_eq!(statuses(&server, "k", 1), [200], "it serves on while it drains");
    // Signals of one kind that are pending together count once, so this one comes after the first
    // was seen.
    assert!(server.terminate().success());
}

#[test]
fn two_instances_share_one_quota_in_redis() {
    let redis = Redis::start();
    let one = Server::start(RULES, &redis_settings(&redis));
    let two = Server::start(RULES, &redis_settings(&redis));
    assert_eq!(statuses(&one, "k", 2), [200, 200]);
    assert_eq!(statuses(&two, "k", 2), [200, 429]);
    assert_eq!(statuses(&one, "k", 1), [429]);
}

#[test]
fn law_13_reload() {
    let server = Server::start(RULES, "");
    assert_eq!(statuses(&server, "k", 1), [200]);
    server.change_rules(&RULES.replace("limit: 3", "limit: 1"));
    wait_until("the lower limit applies", || statuses(&server, "k", 1) == [429]);
    server.change_rules(
        "domain: edge\ndescriptors: [{ key: api_key, rate_limit: { limit: oops } }]\n",
    );
    wait_until("the bad file is counted", || {
        let page = server.page("/metrics").unwrap().body;
        page.lines().any(|line| {
            line.starts_with("chronosdb_rules_reloads_total{result=\"error\"}")
                && !line.ends_with(" 0")
        })
    });
    assert_eq!(statuses(&server, "k", 1), [429], "a bad file disturbed what runs");
}

#[test]
fn law_14_no_answer_is_invented() {
    let mut redis = Redis::start();
    let error = Server::start(RULES, &redis_settings(&redis));
    let allow = Server::start(
        RULES,
        &format!("{}\nl1: {{ enabled: false }}", redis_settings(&redis))
            .replace("kind: redis", "kind: redis, on_error: allow"),
    );
    redis.kill();
    let status = error.ask("edge", "api_key", "k").status;
    assert!(status >= 500, "with nobody to ask, the answer was {status}");
    wait_until("not ready without Redis", || error.page("/readyz").unwrap().status == 503);
    assert_eq!(statuses(&allow, "k", 5), [200; 5]);
    let page = allow.page("/metrics").unwrap().body;
    assert!(page.contains("chronosdb_fallback_decisions_total{policy=\"allow\"} 5"), "{page}");
    redis.restart();
    wait_until("it comes back by itself", || error.page("/readyz").unwrap().status == 200);
    wait_until("the quota is asked again", || statuses(&error, "again", 1) == [200]);
}

#[test]
fn a_frozen_redis_is_not_waited_for() {
    let redis = Redis::start();
    let settings = redis_settings(&redis).replace("timeout: 1s", "timeout: 20ms");
    let server = Server::start(RULES, &settings);
    assert_eq!(statuses(&server, "k", 1), [200]);
    redis.freeze();
    let started = std::time::Instant::now();
    let status = server.ask("edge", "api_key", "k").status;
    redis.thaw();
    assert!(status >= 500, "an answer was invented: {status}");
    assert!(started.elapsed().as_secs() < 5, "it took {:?}", started.elapsed());
}

#[test]
fn an_outage_gives_no_second_quota() {
    let mut redis = Redis::start();
    let rules =
        "domain: edge\ndescriptors:\n- {key: api_key, rate_limit: {limit: 10, window: 1h}}\n";
    let settings = redis_settings(&redis)
        .replace("kind: redis", "kind: redis, on_error: local, expected_instances: 2");
    let server = Server::start(rules, &settings);
    let asks_redis =
        || server.ask("edge", "api_key", "probe").header("x-chronosdb-source").is_none();
    wait_until("Redis is asked", asks_redis);
    assert_eq!(statuses(&server, "k", 4), [200; 4]);
    redis.kill();
    assert_eq!(statuses(&server, "k", 7), [200, 200, 200, 200, 200, 429, 429], "half of ten");
    assert_eq!(statuses(&server, "other", 2), [200; 2]);
    // It comes back without what it knew: of the ten, five were admitted here.
    redis.restart();
    wait_until("Redis is asked again", asks_redis);
    assert_eq!(statuses(&server, "k", 6), [200, 200, 200, 200, 200, 429]);
    assert_eq!(statuses(&server, "other", 9), [200, 200, 200, 200, 200, 200, 200, 200, 429]);
}

#[test]
fn promtool_reads_the_metrics() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let server = Server::start(RULES, "");
    statuses(&server, "k", 4);
    let page = server.page("/metrics").unwrap().body;
    let tool = crate::harness::tool("CHRONOSDB_TEST_PROMTOOL", "promtool");
    let mut child = Command::new(tool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing: run tests/run");
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    // Its lint dislikes the unit ms, which the names `*_latency_ms` are bound to.
    let complaints = String::from_utf8(output.stderr).unwrap();
    let other = complaints.lines().filter(|line| !line.contains("_latency_ms")).collect::<Vec<_>>();
    assert!(other.is_empty(), "{}", other.join("\n"));
}

#[test]
fn envoy_refuses_what_is_over_the_limit() {
    let redis = Redis::start();
    let server = Server::start(RULES, &redis_settings(&redis));
    let slower = |text: String| text.replace("timeout: 0.05s", "timeout: 5s");
    let envoy = Envoy::start(server.grpc_port, slower);
    wait_until("Envoy finds the service healthy", || {
        envoy.stat("cluster.chronosdb.membership_healthy") == 1
    });
    assert_eq!(envoy.get(b"").status, 200);
    assert_eq!(envoy.get(b"").status, 200);
    let refused = envoy.get(b"");
    assert_eq!(refused.status, 429);
    let retry_after_s: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((3_590..=3_600).contains(&retry_after_s), "{retry_after_s} s");
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"), "{refused:?}");
}

#[test]
fn each_style_of_headers_reaches_the_client() {
    let own = "enable_x_ratelimit_headers: DRAFT_VERSION_03";
    for (style, allowed, refused) in [
        ("off", &[][..], &[][..]),
        ("retry_after", &[], &["retry-after: 3600"]),
        (
            "x_ratelimit",
            &[
                "x-ratelimit-limit: 1, 1;w=3600",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 3600",
            ],
            &[
                "retry-after: 3600",
                "x-ratelimit-limit: 1, 1;w=3600",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 3600",
            ],
        ),
        (
            "ietf",
            &[
                "ratelimit-policy: \"remote_address\";q=1;w=3600",
                "ratelimit: \"remote_address\";r=0;t=3600",
            ],
            &[
                "ratelimit-policy: \"remote_address\";q=1;w=3600",
                "ratelimit: \"remote_address\";r=0;t=3600",
                "retry-after: 3600",
            ],
        ),
    ] {
        // A clock that stands: the wait is a whole hour.
        let redis = Redis::start();
        redis.clock.stop_at(1_767_225_600_000_000);
        let settings = format!("headers: {{ style: {style} }}\n{}", redis_settings(&redis));
        let server = Server::start(&RULES.replacen("limit: 2", "limit: 1", 1), &settings);
        let envoy = Envoy::start(server.grpc_port, |text| {
            text.replace("timeout: 0.05s", "timeout: 5s").replace(own, "")
        });
        envoy.wait_for_instances(1);
        for expected in [allowed, refused] {
            let response = envoy.get(b"");
            let about_limits = |name: &str| name.contains("ratelimit") || name == "retry-after";
            let found = response.headers.iter().filter(|(name, _)| about_limits(name));
            let mut found =
                found.map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>();
            found.retain(|header| !header.starts_with("x-envoy-"));
            found.sort();
            assert_eq!(found, expected, "style {style}, status {}", response.status);
        }
    }
}

#[test]
fn one_odd_byte_does_not_switch_a_limit_off() {
    let rules = RULES.replace("limit: 2, ", "limit: 100, ");
    let server = Server::start(&rules, "");
    let slower = |text: String| text.replace("timeout: 0.05s", "timeout: 5s");
    let envoy = Envoy::start(server.grpc_port, slower);
    wait_until("Envoy finds the service healthy", || {
        envoy.stat("cluster.chronosdb.membership_healthy") == 1
    });
    let headers = b"x-api-key: a\xff\xfeb\r\nx-user-id: u\r\n";
    assert_eq!(envoy.get(headers).status, 200);
    assert_eq!(envoy.get(headers).status, 429);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.failure_mode_allowed"), 0);
}

#[test]
fn a_real_envoy_accepts_the_sample() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy/ratelimit.yaml");
    assert!(envoy::accepts(&sample));
    let folder = tempfile::TempDir::new().unwrap();
    let broken = folder.path().join("broken.yaml");
    let text = std::fs::read_to_string(sample).unwrap();
    std::fs::write(&broken, text.replace("failure_mode_deny:", "failure_mode_denied:")).unwrap();
    assert!(!envoy::accepts(&broken));
}

#[test]
fn who_reads_only_the_beginning_sees_no_panic() {
    use std::process::{Command, Stdio};
    let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs/broken");
    let mut child = Command::new(env!("CARGO_BIN_EXE_chronosdb"))
        .args(["validate".as_ref(), broken.as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}

#[test]
fn validate_says_what_it_found() {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("good.yaml"), RULES).unwrap();
    std::fs::write(folder.path().join("bad.yaml"), "domain: x\ndescriptors: [{ kee: a }]\n")
        .unwrap();
    let good = server::run(folder.path(), &["validate", "good.yaml"]);
    assert_eq!(good.code, 0, "{}", good.text);
    let bad = server::run(folder.path(), &["validate", "bad.yaml"]);
    assert_eq!(bad.code, 1, "{}", bad.text);
    assert!(bad.text.contains("bad.yaml:2:"), "{}", bad.text);
    assert_eq!(server::run(folder.path(), &["no-such-command"]).code, 2);
}
