//! Rows 95 to 112: what is answered for a whole request.

use super::{Case, Differs, Row, Same, row};
use crate::harness::server::Server;
use crate::harness::wait_until;

#[test]
fn service() {
    super::prove(ROWS, &Case::new(""));
}

/// One limit of one, in the domain `d`.
const ONE: &str =
    "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}\n";

/// A series of the metrics page.
const RELOADS_OK: &str = "chronosdb_rules_reloads_total{result=\"ok\"}";
const RELOADS_BAD: &str = "chronosdb_rules_reloads_total{result=\"error\"}";

/// The text form of an answer's dynamic metadata.
fn metadata(case: &Case, question: &str) -> String {
    format!("{:?}", case.ask(question).unwrap().dynamic_metadata)
}

pub(super) const ROWS: &[Row] = &[
    row(95, "a reload is in force, and counted", Same, |_| {
        let case = Case::with(ONE, "");
        let before = case.metric(RELOADS_OK).unwrap();
        case.says("d | k=r95", "OK | OK 0 of 1/HOUR");
        case.server.change_rules(&ONE.replace("unit: 1", "unit: 9"));
        wait_until("the reload is counted", || case.metric(RELOADS_OK) == Some(before + 1));
        case.says("d | k=r95", "OK | OK 7 of 9/HOUR");
    }),
    row(96, "a reload that fails changes nothing, and is counted", Same, |_| {
        let case = Case::with(ONE, "");
        case.says("d | k=r96", "OK | OK 0 of 1/HOUR");
        case.server.change_rules("domain: d\ndescriptors: [{kee: k}]\n");
        wait_until("the failure is counted", || case.metric(RELOADS_BAD) == Some(1));
        case.says("d | k=r96", "OVER_LIMIT | OVER_LIMIT 0 of 1/HOUR");
    }),
    row(97, "one over and one unmatched, in the order of the request", Same, |case| {
        case.ask("counting | of5=r97 +5").unwrap();
        let over = "OVER_LIMIT 0 of 5/HOUR";
        case.says("counting | of5=r97 | nobody=x", &format!("OVER_LIMIT | {over} | OK"));
        case.says("counting | nobody=x | of5=r97", &format!("OVER_LIMIT | OK | {over}"));
    }),
    row(98, "everything in shadow mode: all pass, and statuses say what would be", Same, |_| {
        Case::with(ONE, "").passes("d | k=r98", ".x");
        let trial = shadow(ONE);
        trial.says("d | k=r98", "OK | OK 0 of 1/HOUR");
        trial.says("d | k=r98", "OK | OVER_LIMIT 0 of 1/HOUR");
        assert_eq!(trial.counts("d", "k"), Some([1, 0, 1, 0]));
        assert_eq!(trial.headers("d | k=r98"), [""; 0], "nobody is told to come back");
    }),
    row(99, "all in shadow mode, and some", Same, |case| {
        case.ask("counting | shadow5=r99 +5 | of5=r99 +5").unwrap();
        case.says("counting | shadow5=r99", "OK | OK 0 of 5/HOUR");
        case.says(
            "counting | shadow5=r99 | of5=r99",
            "OVER_LIMIT | OK 0 of 5/HOUR | OVER_LIMIT 0 of 5/HOUR",
        );
    }),
    row(
        100,
        "no domain, no descriptors: an error",
        Differs("INVALID_ARGUMENT with the field's name, not UNKNOWN, and counted apart"),
        |case| {
            let before = case.metric("chronosdb_empty_requests_total").unwrap();
            case.says(" | a=b", "INVALID_ARGUMENT domain: it must not be empty");
            case.says("basic", "INVALID_ARGUMENT descriptors: there must be at least one");
            assert_eq!(case.metric("chronosdb_empty_requests_total"), Some(before + 2));
        },
    ),
    row(
        101,
        "an error of the store is an error of the call",
        Differs("UNAVAILABLE, not UNKNOWN, by default; a policy may answer instead"),
        |_| {
            let mut redis = crate::harness::redis::Redis::start();
            let settings = format!(
                "store: {{ kind: redis, redis: {{ url: '{}', timeout: 1s }} }}",
                redis.url()
            );
            let case = Case::with(ONE, &settings);
            redis.kill();
            let error = case.ask("d | k=r101").unwrap_err();
            assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
            let page = case.server.page("/metrics").unwrap().body;
            assert!(page.contains("chronosdb_store_errors_total{reason="), "{page}");
        },
    ),
    row(
        102,
        "before the first good rules every call is an error",
        Differs("it is not ready, so nobody asks; who asks anyway is in an unknown domain"),
        |_| {
            let case = Case::of(Server::launch("domain: d\ndescriptors: [{kee: k}]\n", ""));
            wait_until("not ready", || case.server.page("/readyz").unwrap().status == 503);
            assert!(case.server.page("/readyz").unwrap().body.contains("no rules are loaded"));
            case.says("d | k=r102", "OK | OK");
            case.server.change_rules(ONE);
            wait_until("ready", || case.server.page("/readyz").unwrap().status == 200);
            case.says("d | k=r102", "OK | OK 0 of 1/HOUR");
        },
    ),
    row(103, "limited, unmatched and unlimited", Same, |case| {
        case.says(
            "counting | of10=r103 | nobody=x | free=x",
            "OK | OK 9 of 10/HOUR | OK | OK unlimited",
        );
    }),
    row(
        104,
        "a span for each call",
        Differs("only what is sampled has spans: see the settings tracing.*"),
        |case| case.says("counting | of10=r104", "OK | OK 9 of 10/HOUR"),
    ),
    row(
        105,
        "every rule in quota mode, by a variable",
        Differs("quota_mode is written on the rules that are meant; two that are over refuse"),
        |case| {
            case.ask("counting | quota1=r105 | quota2=r105 +2").unwrap();
            case.says(
                "counting | quota1=r105 | quota2=r105",
                "OVER_LIMIT | OVER_LIMIT 0 of 1/HOUR | OVER_LIMIT 0 of 2/HOUR",
            );
        },
    ),
    row(106, "a limit that is over and a quota that is not", Same, |case| {
        case.ask("counting | regular1=r106").unwrap();
        case.says(
            "counting | regular1=r106 | quota2=r106",
            "OVER_LIMIT | OVER_LIMIT 0 of 1/HOUR | OK 2 of 2/HOUR",
        );
    }),
    row(107, "a limit that is not over and the only quota is", Same, |case| {
        case.ask("counting | quota1=r107").unwrap();
        case.says(
            "counting | of10=r107 | quota1=r107",
            "OVER_LIMIT | OK 10 of 10/HOUR | OVER_LIMIT 0 of 1/HOUR",
        );
    }),
    row(108, "a limit and a quota, neither over", Same, |case| {
        case.says("counting | of10=r108 | quota1=r108", "OK | OK 9 of 10/HOUR | OK 0 of 1/HOUR");
    }),
    row(109, "two quotas: both over, or one", Same, |case| {
        case.ask("counting | quota1=r109").unwrap();
        case.says(
            "counting | quota1=r109 | quota2=r109",
            "OK | OVER_LIMIT 0 of 1/HOUR | OK 1 of 2/HOUR",
        );
        case.ask("counting | quota2=r109").unwrap();
        case.says(
            "counting | quota1=r109 | quota2=r109",
            "OVER_LIMIT | OVER_LIMIT 0 of 1/HOUR | OVER_LIMIT 0 of 2/HOUR",
        );
    }),
    row(110, "quotas that are over, in shadow mode as a whole", Same, |_| {
        let rules = ONE.replace("{key: k,", "{key: k, quota_mode: true,");
        let case = shadow(&rules);
        case.says("d | k=r110", "OK | OK 0 of 1/HOUR");
        case.says("d | k=r110", "OK | OVER_LIMIT 0 of 1/HOUR");
        assert_eq!(case.counts("d", "k"), Some([1, 0, 1, 0]));
    }),
    row(111, "metadata of what passed, merged; the first value stays", Same, |_| {
        let case = Case::new("ratelimit: { dynamic_metadata: true }");
        let both = metadata(&case, "rl | service=service_1 | service=service_2");
        for part in ["service_1", "\"first\"", "\"second\""] {
            assert!(both.contains(part), "{part}: {both}");
        }
        assert_eq!(both.matches("StringValue(\"service_2\")").count(), 0, "{both}");
        let second = metadata(&case, "rl | service=service_1 | service=service_2");
        assert!(second.contains("StringValue(\"service_2\")"), "{second}");
        assert!(!second.contains("\"first\""), "what was refused adds nothing: {second}");
    }),
    row(112, "metadata says what was asked", Same, |_| {
        let case = Case::new("ratelimit: { dynamic_metadata: true }");
        let said = metadata(&case, "counting | of10=r112 +5 | of5=x @7/DAY");
        for part in ["\"counting\"", "\"of10=r112\"", "NumberValue(5.0)", "7 per 86400000ms"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }),
];

/// A server whose rules refuse nothing.
fn shadow(rules: &str) -> Case {
    Case::of(Server::launch_under(&[("CHRONOSDB_RULES__SHADOW_MODE", "true")], rules, ""))
}
