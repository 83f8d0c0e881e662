//! What operators of rate limiters reported, as they would meet it here: rules that are silently
//! not in force, answers that are late or wrong, metrics that do not add up.

use std::process::{Command, Stdio};

use crate::compat::Case;
use crate::harness::redis::Redis;
use crate::harness::{tool, wait_until};

const RELOADS_BAD: &str = "chronosdb_rules_reloads_total{result=\"error\"}";

/// When a clock that a test moves starts.
const NOON_US: u64 = 1_767_225_600_000_000;

/// A server on a Redis whose clock stands still. The memory of refusals lives by the real clock,
/// so it is off.
fn at_noon(rules: &str) -> (Redis, Case) {
    let redis = Redis::start();
    redis.clock.stop_at(NOON_US);
    let settings = format!(
        "store: {{ kind: redis, redis: {{ url: '{}', timeout: 1s }} }}\nl1: {{ enabled: false }}",
        redis.url()
    );
    let case = Case::with(rules, &settings);
    (redis, case)
}

/// Rules of a domain `d`, one in each line: `key: u, rate_limit: {…}`.
fn rules(lines: &[&str]) -> String {
    let lines = lines.iter().map(|line| format!("- {{{line}}}\n"));
    format!("domain: d\ndescriptors:\n{}", lines.collect::<String>())
}

fn per_minute(key: &str, limit: u64) -> String {
    format!("key: {key}, rate_limit: {{unit: minute, requests_per_unit: {limit}}}")
}

#[test]
fn a_doubled_descriptor_is_said_once_and_disturbs_nothing() {
    let good = rules(&[&per_minute("u", 2)]);
    let case = Case::with(&good, "");
    let doubled = rules(&[&per_minute("u", 5), &per_minute("u", 6)]);
    for times in 1..=20 {
        // Another file each time for whoever watches, the same text for whoever reads.
        case.server.change_rules(&doubled);
        if times == 1 {
            wait_until("it is counted", || case.metric(RELOADS_BAD) == Some(1));
        }
    }
    case.server.write_rules("other.yaml", &good.replace("domain: d", "domain: other"));
    wait_until("the other file is in", || {
        case.metric("chronosdb_rules{domain=\"other\"}").is_some()
    });
    case.passes("d | u=x", "..x");
    let said = |log: &str| log.matches("is defined twice").count();
    // Once when it came, and once when the other file came beside it.
    assert_eq!(said(&case.server.log()), 2, "{}", case.server.log());
    assert!(case.server.log().contains("(first at line 3)"), "{}", case.server.log());
}

#[test]
fn an_exempt_address_is_exempt_when_it_replaces_the_limit() {
    let text = |replaces: &str| {
        rules(&[
            &format!(
                "key: remote_address, value: 192.0.2.9, rate_limit: {{unlimited: true{replaces}}}"
            ),
            "key: path, value: /v2/x, descriptors: [{key: remote_address, \
             rate_limit: {unit: hour, requests_per_unit: 5, name: per_ip}}]",
        ])
    };
    let question = "d | remote_address=192.0.2.9 | path=/v2/x > remote_address=192.0.2.9";
    Case::with(&text(""), "").passes(question, ".....x");
    let case = Case::with(&text(", replaces: [{name: per_ip}]"), "");
    case.passes(question, ".......");
    case.says("d | path=/v2/x > remote_address=192.0.2.9 +0", "OK | OK 5 of 5/HOUR per_ip");
}

#[test]
fn a_limit_of_nothing_refuses_everybody_and_asks_nobody() {
    let (_redis, case) =
        at_noon(&rules(&["key: banned, rate_limit: {unit: second, requests_per_unit: 0}"]));
    let runs = case.metric("chronosdb_script_runs_total");
    case.says("d | banned=x", "OVER_LIMIT | OVER_LIMIT 0 of 0/SECOND");
    case.says("d | banned=x +5", "OVER_LIMIT | OVER_LIMIT 0 of 0/SECOND");
    assert_eq!(case.headers("d | banned=x"), [""; 0], "it never passes: there is no time to name");
    assert_eq!(case.metric("chronosdb_script_runs_total"), runs, "Redis was asked");
    case.says("d | banned=x +0", "OK | OK 0 of 0/SECOND");
}

#[test]
fn a_wrong_domain_is_counted_and_said() {
    let case = Case::with(
        &rules(&[&per_minute("u", 2)]).replace("domain: d", "domain: api-production"),
        "",
    );
    for _ in 0..3 {
        case.says("production-api | u=x", "OK | OK");
    }
    case.says("api-production | nobody=x", "OK | OK");
    assert_eq!(case.metric("chronosdb_unknown_domain_total"), Some(3));
    assert_eq!(case.metric("chronosdb_no_rule_total{domain=\"api-production\"}"), Some(1));
    let log = case.server.log();
    assert_eq!(log.matches("production-api").count(), 1, "{log}");
    for number in 0..100 {
        case.says(&format!("stranger-{number} | u=x"), "OK | OK");
    }
    assert!(case.server.log().matches("stranger-").count() < 20, "a client could fill the log");
}

#[test]
fn a_file_that_is_written_slowly_lets_nobody_pass() {
    let text = rules(&["key: u, rate_limit: {unit: hour, requests_per_unit: 5}"]);
    let case = Case::with(&text, "");
    case.passes("d | u=x", ".....x");
    let path = case.server.rules_folder().join("rules.yaml");
    let whole = text.replace("unit: 5", "unit: 6");
    for (part, errors) in [("", 1), (&whole[..whole.len() - 20], 2)] {
        std::fs::write(&path, part).unwrap();
        wait_until("the part is noticed", || {
            case.says("d | u=x", "OVER_LIMIT | OVER_LIMIT 0 of 5/HOUR");
            case.metric(RELOADS_BAD) == Some(errors)
        });
    }
    std::fs::write(&path, whole).unwrap();
    wait_until("the whole is in force", || {
        case.ask("d | u=x +0").unwrap().statuses[0].limit_remaining == 1
    });
    case.passes("d | u=x", ".x");
}

#[test]
fn a_refusal_is_remembered_with_its_limit() {
    let case = Case::with(&rules(&[&per_minute("u", 2)]), "");
    case.passes("d | u=x @5/MINUTE", ".....xx");
    case.says("d | u=x @100/MINUTE", "OK | OK 94 of 100/MINUTE");
    case.passes("d | u=x @5/MINUTE", "x");
}

#[test]
fn a_window_that_changes_and_changes_back_forgets_nothing() {
    let of = |unit: &str| {
        rules(&[&format!("key: u, rate_limit: {{unit: {unit}, requests_per_unit: 10}}")])
    };
    let (redis, case) = at_noon(&of("minute"));
    let is_in_force = |unit: &str| {
        let reset_s = if unit == "minute" { 2..=60 } else { 0..=1 };
        wait_until("the rule changed", || reset_s.contains(&case.resets_s("d | u=x +0")[0]));
    };
    case.says("d | u=x +10", "OK | OK 0 of 10/MINUTE");
    case.server.change_rules(&of("second"));
    is_in_force("second");
    redis.clock.stop_at(NOON_US + 500_000);
    case.says("d | u=x +10", "OK | OK 0 of 10/SECOND");
    redis.clock.stop_at(NOON_US + 600_000);
    case.says("d | u=x", "OVER_LIMIT | OVER_LIMIT 0 of 10/SECOND");
    case.server.change_rules(&of("minute"));
    is_in_force("minute");
    redis.clock.stop_at(NOON_US + 59_999_999);
    case.says("d | u=x", "OVER_LIMIT | OVER_LIMIT 0 of 10/MINUTE");
    redis.clock.stop_at(NOON_US + 60_000_000);
    case.says("d | u=x", "OK | OK 9 of 10/MINUTE");
}

#[test]
fn a_limit_below_what_is_used_leaves_nothing_and_shows_no_huge_number() {
    let (redis, case) = at_noon(&rules(&[&per_minute("u", 10)]));
    case.says("d | u=x +8", "OK | OK 2 of 10/MINUTE");
    case.server.change_rules(&rules(&[&per_minute("u", 5)]));
    wait_until("the limit is lower", || {
        case.ask("d | u=x +0").unwrap().statuses[0].limit_remaining == 0
    });
    case.says("d | u=x +0", "OVER_LIMIT | OVER_LIMIT 0 of 5/MINUTE");
    case.says("d | u=x", "OVER_LIMIT | OVER_LIMIT 0 of 5/MINUTE");
    redis.clock.stop_at(NOON_US + 60_000_000);
    case.says("d | u=x", "OK | OK 4 of 5/MINUTE");
}

#[test]
fn costs_as_large_as_the_wire_allows_are_refused_not_wrapped_around() {
    let (_redis, case) = at_noon(&rules(&[
        "key: u, rate_limit: {unit: minute, requests_per_unit: 4294967295}",
        "key: w, rate_limit: {limit: 9007199254740991, window: 1m}",
    ]));
    let full = "OVER_LIMIT | OVER_LIMIT 0 of 4294967295/MINUTE";
    case.says("d | u=x +4294967295", "OK | OK 0 of 4294967295/MINUTE");
    case.says("d | u=x +1", full);
    case.says("d | u=y +18446744073709551615", full);
    case.says("d | u=y +4294967296", full);
    case.says("d | u=y +4294967294", "OK | OK 1 of 4294967295/MINUTE");
    // More than the wire's numbers can show is shown as their largest.
    case.says("d | w=x +9007199254740990", "OK | OK 1 of 4294967295/MINUTE");
    case.says("d | w=x +2", full);
    case.says("d | w=x +1", "OK | OK 0 of 4294967295/MINUTE");
}

#[test]
fn a_refund_gives_back_what_was_taken_and_no_more() {
    let (_redis, case) = at_noon(&rules(&[&per_minute("u", 10)]));
    case.says("d | u=x +10", "OK | OK 0 of 10/MINUTE");
    case.says("d | u=x", "OVER_LIMIT | OVER_LIMIT 0 of 10/MINUTE");
    case.says("d | u=x -3", "OK | OK 3 of 10/MINUTE");
    case.says("d | u=x +3", "OK | OK 0 of 10/MINUTE");
    case.says("d | u=x +1", "OVER_LIMIT | OVER_LIMIT 0 of 10/MINUTE");
    case.says("d | u=fresh -3", "OK | OK 10 of 10/MINUTE");
    case.says("d | u=fresh +11", "OVER_LIMIT | OVER_LIMIT 0 of 10/MINUTE");
    case.says("d | u=fresh +10", "OK | OK 0 of 10/MINUTE");
}

#[test]
fn retry_after_is_when_the_oldest_hit_leaves() {
    let (redis, case) = at_noon(&rules(&[&per_minute("u", 10)]));
    for step in 0..10 {
        redis.clock.stop_at(NOON_US + step * 2_000_000);
        case.passes("d | u=x", ".");
    }
    for (at_us, expected) in [(20_000_000, "40"), (59_999_000, "1"), (59_000_001, "1")] {
        redis.clock.stop_at(NOON_US + at_us);
        assert_eq!(case.headers("d | u=x"), [format!("retry-after: {expected}")], "at {at_us} µs");
    }
    redis.clock.stop_at(NOON_US + 60_000_000);
    case.passes("d | u=x", ".");
    redis.clock.stop_at(NOON_US + 60_001_000);
    assert_eq!(case.headers("d | u=x"), ["retry-after: 2"]);
}

#[test]
fn headers_tell_of_the_limit_that_bites() {
    let redis = Redis::start();
    redis.clock.stop_at(NOON_US);
    let settings = format!(
        "store: {{ kind: redis, redis: {{ url: '{}', timeout: 1s }} }}\n\
         l1: {{ enabled: false }}\nheaders: {{ style: x_ratelimit }}",
        redis.url()
    );
    let second = "key: sec, rate_limit: {unit: second, requests_per_unit: 10}";
    let case = Case::with(&rules(&[second, &per_minute("min", 12)]), &settings);
    let both = "d | sec=x | min=x";
    case.passes(both, "..........");
    redis.clock.stop_at(NOON_US + 1_000_000);
    case.passes(both, ".");
    assert_eq!(
        case.headers(both),
        [
            "x-ratelimit-limit: 12, 10;w=1, 12;w=60",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 59",
        ]
    );
    redis.clock.stop_at(NOON_US + 2_000_000);
    assert_eq!(
        case.headers(both),
        [
            "retry-after: 58",
            "x-ratelimit-limit: 12, 10;w=1, 12;w=60",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 58",
        ]
    );
    case.says(both, "OVER_LIMIT | OK 10 of 10/SECOND | OVER_LIMIT 0 of 12/MINUTE");
}

#[test]
fn asking_is_not_taking() {
    let (_redis, case) = at_noon(&rules(&[&per_minute("u", 2)]));
    assert_eq!(case.ask_hits(0, "d | u=x"), "OK | OK 1 of 2/MINUTE", "unset counts as one");
    case.says("d | u=x +0", "OK | OK 1 of 2/MINUTE");
    case.says("d | u=x", "OK | OK 0 of 2/MINUTE");
    case.says("d | u=x +0", "OK | OK 0 of 2/MINUTE");
}

#[test]
fn shadow_refusals_are_all_counted() {
    let shadow = format!("{}, shadow_mode: true", per_minute("sh", 3));
    let case = Case::with(&rules(&[&shadow]), "");
    case.passes("d | sh=x", "..........");
    assert_eq!(case.counts("d", "sh"), Some([3, 0, 7, 0]));
}

#[test]
fn what_was_allowed_can_be_computed() {
    let case = Case::with(&rules(&[&per_minute("group", 10), &per_minute("special", 3)]), "");
    case.passes("d | group=x | special=x", "...xx");
    assert_eq!(case.counts("d", "special"), Some([3, 2, 0, 0]));
    assert_eq!(case.counts("d", "group"), Some([3, 0, 0, 2]), "two were blocked by another limit");
    case.says("d | group=x +0", "OK | OK 7 of 10/MINUTE");
}

#[test]
fn a_page_of_metrics_does_not_grow_with_the_clients() {
    let detailed = format!("{}, detailed_metric: true", per_minute("shown", 9));
    let case = Case::with(&rules(&[&per_minute("remote_address", 9), &detailed]), "");
    let series = || case.server.page("/metrics").unwrap().body.lines().count();
    case.ask("d | remote_address=first | remote_address=first @9/DAY").unwrap();
    let before = series();
    for number in 0..500 {
        let question =
            format!("d | remote_address=10.0.0.{number} | remote_address=x{number} @9/DAY");
        case.ask(&question).unwrap();
    }
    assert_eq!(series(), before);
    for number in 0..1500 {
        case.ask(&format!("d | shown={number}")).unwrap();
    }
    let other = case.counts("d", "other").expect("the rest is counted together");
    assert!(other[0] > 400, "{other:?}");
    let page = case.server.page("/metrics").unwrap().body;
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    let total: u64 = page
        .lines()
        .filter(|line| {
            line.starts_with("chronosdb_decisions_total{") && !line.contains("remote_address")
        })
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(total, 1500, "every descriptor is in one series");
}

#[test]
fn any_name_is_a_label_that_prometheus_reads() {
    let names = ["a.b", "a/b", "a\"b", "a\\b", "a\nb", "9lives", "a|b:c", "ü"];
    let quoted = |name: &str| serde_json::to_string(name).unwrap();
    let descriptors = names.map(|name| {
        format!("- {{key: {}, rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n", quoted(name))
    });
    let files = names.map(|domain| {
        format!("domain: {}\ndescriptors:\n{}", quoted(domain), descriptors.concat())
    });
    let case = Case::with(&files.join("---\n"), "");
    for name in names {
        case.says(&format!("{name} | {name}=x"), "OK | OK 8 of 9/HOUR");
    }
    let page = case.server.page("/metrics").unwrap().body;
    for name in ["a.b", "a/b", "a\\\"b", "a\\\\b", "9lives", "a|b:c", "ü"] {
        let series = format!("{{domain=\"{name}\",outcome=\"allowed\",rule=\"{name}\"}} 1");
        assert!(page.contains(&series), "{series}");
    }
    let mut promtool = Command::new(tool("CHRONOSDB_TEST_PROMTOOL", "promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(promtool.stdin.as_mut().unwrap(), page.as_bytes()).unwrap();
    let complaints = String::from_utf8(promtool.wait_with_output().unwrap().stderr).unwrap();
    let other = complaints.lines().filter(|line| !line.contains("_latency_ms")).collect::<Vec<_>>();
    assert!(other.is_empty(), "{}", other.join("\n"));
}
