//! Rows 130 to 145: from end to end, through Redis and a real Envoy.

use super::{Absent, Case, Differs, Row, Same, row};
use crate::harness::envoy::Envoy;
use crate::harness::redis::Redis;
use crate::harness::server::run_with;
use crate::harness::wait_until;

#[test]
fn ends() {
    let redis = Redis::start();
    super::prove(ROWS, &on(&redis, ""));
}

fn on(redis: &Redis, more: &str) -> Case {
    let url = redis.url();
    Case::new(&format!("store: {{ kind: redis, redis: {{ url: '{url}', timeout: 1s }} }}\n{more}"))
}

/// When a clock that the test moves stands.
const NOON_US: u64 = 1_767_225_600_000_000;

/// A server on a Redis whose clock stands at [`NOON_US`]; without the memory of refusals, which
/// lives by the real clock.
fn at_noon() -> (Redis, Case) {
    let redis = Redis::start();
    redis.clock.stop_at(NOON_US);
    let case = on(&redis, "l1: { enabled: false }");
    (redis, case)
}

/// Calls through Envoy with the entries `foo` and `baz`, and how they end.
fn through_envoy(case: &Case, shade: &str, times: usize) -> Vec<(u16, String)> {
    let keys = |text: String| {
        let text = text.replace("descriptor_key: api_key", "descriptor_key: foo");
        let text = text.replace("descriptor_key: user_id", "descriptor_key: baz");
        text.replace("domain: edge", "domain: rl").replace("timeout: 0.05s", "timeout: 5s")
    };
    let envoy = Envoy::start(case.server.grpc_port, keys);
    wait_until("Envoy finds the service healthy", || {
        envoy.stat("cluster.chronosdb.membership_healthy") == 1
    });
    let headers = format!("x-api-key: pro\r\nx-user-id: {shade}\r\n");
    let call = |_| {
        let response = envoy.get(headers.as_bytes());
        (response.status, response.body)
    };
    (0..times).map(call).collect()
}

pub(super) const ROWS: &[Row] = &[
    row(130, "an unknown domain", Same, |case| case.says("foo | hello=world", "OK | OK")),
    row(131, "the first hit of fifty in a second", Same, |case| {
        case.says("counting | of50_second=r131", "OK | OK 49 of 50/SECOND");
        assert!(case.counts("counting", "of50_second").unwrap()[0] >= 1);
    }),
    row(132, "twenty a minute, twenty-five hits", Same, |case| {
        let refused = case.counts("counting", "of20_minute").unwrap()[1];
        for left in (0..20).rev() {
            let expected = format!("OK | OK {left} of 20/MINUTE");
            case.says("counting | of20_minute=r132", &expected);
        }
        let over = "OVER_LIMIT | OVER_LIMIT 0 of 20/MINUTE";
        case.says("counting | of20_minute=r132", over);
        let runs = case.metric("chronosdb_script_runs_total");
        (0..4).for_each(|_| case.says("counting | of20_minute=r132", over));
        assert_eq!(case.metric("chronosdb_script_runs_total"), runs, "Redis was asked again");
        assert_eq!(case.counts("counting", "of20_minute").unwrap()[1], refused + 5);
    }),
    row(
        133,
        "refused requests are counted on the other limits",
        Differs("decided together: nothing is taken; `charge: independent` gives their accounting"),
        |case| {
            let both = "counting | of20=r133 | of10=r133";
            case.passes(both, "..........xxxxx");
            case.says("counting | of20=r133 +0", "OK | OK 10 of 20/HOUR");
            let alone = "alone | of20=r133 | of10=r133";
            case.passes(alone, "..........xxxxx");
            case.says("alone | of20=r133 +0", "OK | OK 5 of 20/HOUR");
        },
    ),
    row(134, "the reset comes closer", Same, |_| {
        let (redis, case) = at_noon();
        assert_eq!(case.resets_s("counting | of20_minute=r134"), [60]);
        redis.clock.stop_at(NOON_US + 2_000_000);
        assert_eq!(case.resets_s("counting | of20_minute=r134"), [58]);
    }),
    row(135, "a shared threshold, and one for each value", Same, |case| {
        case.passes("share | short=doc/a.pdf", "..........");
        case.says("share | short=doc/b.csv", "OVER_LIMIT | OVER_LIMIT 0 of 10/HOUR");
        for value in 0..10 {
            let question = format!("share | unshared=doc/{value}");
            case.says(&question, "OK | OK 9 of 10/HOUR");
        }
    }),
    row(
        136,
        "the same over every kind of store",
        Differs("over memory, Redis and its kinds; memcache is not there"),
        |case| {
            let memory = Case::new("");
            for case in [&memory, case] {
                case.passes("counting | of5=r136 | of10=r136", ".....x");
                case.says("counting | of10=r136 +0", "OK | OK 5 of 10/HOUR");
            }
        },
    ),
    row(
        137,
        "tags for every statistic",
        Absent("labels for every series are the scraper's: --compat-env names relabel_configs"),
        |_| {
            let folder = tempfile::TempDir::new().unwrap();
            let arguments = ["serve", "--compat-env", "--print-config"];
            let output = run_with(folder.path(), &arguments, &[("EXTRA_TAGS", "foo=bar")]);
            assert!(output.text.contains("EXTRA_TAGS has no effect"), "{}", output.text);
        },
    ),
    row(138, "through Envoy: the fourth of three is refused", Same, |case| {
        let calls = through_envoy(case, "not-so-shady", 4);
        assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [200, 200, 200, 429]);
    }),
    row(139, "through Envoy: shadow mode refuses nothing", Same, |case| {
        let calls = through_envoy(case, "shady", 5);
        assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [200; 5]);
        assert_eq!(case.counts("rl", "foo,baz=shady"), Some([3, 0, 2, 0]));
    }),
    row(140, "replaces: a limit of 0, alone and replaced", Same, |case| {
        case.says("rl | foo=a > bar=banned", "OVER_LIMIT | OVER_LIMIT 0 of 0/MINUTE banned_limit");
        let replaced =
            "rl | source_cluster=proxy > destination_cluster=override | foo=a > bar=banned";
        case.says(replaced, "OK | OK 1 of 2/MINUTE | OK");
        case.passes(replaced, ".x");
    }),
    row(141, "a replaced counter is not touched; one rule replaces two", Same, |case| {
        let both = "rl | category=account | foo=b > bar=bkthomps | source_cluster=proxy > destination_cluster=fake";
        case.says(both, "OK | OK 3 of 4/MINUTE | OK | OK");
        case.passes(both, "...x");
        case.says("rl | foo=b > bar=bkthomps", "OK | OK 0 of 1/MINUTE bkthomps");
        case.says(
            "rl | source_cluster=proxy > destination_cluster=fake",
            "OK | OK 1 of 2/MINUTE fake_name",
        );
    }),
    row(142, "detailed_metric: the third of two is counted under its value", Same, |case| {
        case.passes("rl | unspec=r142", "..x");
        assert_eq!(case.counts("rl", "unspec=r142"), Some([2, 1, 0, 0]));
    }),
    row(143, "two quotas are used up, and filled again after a minute", Same, |_| {
        let (redis, case) = at_noon();
        case.passes("rl | service=service_1 | service=service_2", ".");
        case.says("rl | service=service_2", "OK | OK 0 of 2/MINUTE");
        let both = "rl | service=service_1 | service=service_2";
        case.says(both, "OVER_LIMIT | OVER_LIMIT 0 of 1/MINUTE | OVER_LIMIT 0 of 2/MINUTE");
        redis.clock.stop_at(NOON_US + 60_000_000);
        case.passes(both, ".");
    }),
    row(
        144,
        "a peek before, and the cost afterwards: a limit of two lets three pass",
        Differs(
            "the rule must say count_denied: true, or a cost that does not fit is not recorded",
        ),
        |case| {
            for expected in ["OK", "OK", "OK", "OVER_LIMIT"] {
                let peek = case.ask_hits(1, "tokens | cost=r144 +0");
                assert!(peek.starts_with(&format!("{expected} |")), "{peek}, not {expected}");
                case.ask("tokens | cost=r144 +1").unwrap();
            }
        },
    ),
    row(
        145,
        "metadata names a service that has quota left",
        Differs("as above: costs that arrive afterwards need count_denied: true"),
        |_| {
            let redis = Redis::start();
            let case = on(&redis, "ratelimit: { dynamic_metadata: true }");
            let peek = "tokens | service=service_1 +0 | service=service_2 +0";
            for expected in ["service_1", "service_1", "service_2", "service_2", "service_2"] {
                let answer = case.ask(peek).unwrap();
                assert_eq!(answer.overall_code, 1, "{expected}");
                let said = format!("{:?}", answer.dynamic_metadata);
                assert!(said.contains(&format!("StringValue(\"{expected}\")")), "{said}");
                case.ask(&format!("tokens | service={expected} +1")).unwrap();
            }
            assert_eq!(case.ask(peek).unwrap().overall_code, 2);
        },
    ),
];
