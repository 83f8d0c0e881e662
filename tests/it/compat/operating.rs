//! Rows 113 to 129: headers, pages, health, metrics, and where rules come from.

use super::{Absent, Case, Differs, Row, Same, row, rows};
use crate::harness::certs::{Ca, Pair};
use crate::harness::redis::Redis;
use crate::harness::server::{Server, run_with};
use crate::harness::{http, wait_until};

#[test]
fn operating() {
    super::prove(ROWS, &Case::new(""));
}

const ONE: &str =
    "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}\n";

/// A server on a Redis whose clock stands still, after one refusal under `key`.
fn full(style: &str, key: &str) -> (Redis, Case) {
    let redis = Redis::start();
    redis.clock.stop_at(1_767_225_600_000_000);
    let settings = format!(
        "headers: {{ style: {style} }}\nstore: {{ kind: redis, redis: {{ url: '{}', timeout: 1s }} }}",
        redis.url()
    );
    let case = Case::new(&settings);
    case.ask(&format!("counting | {key} +20")).unwrap();
    (redis, case)
}

/// A redis that nobody listens on yet, and a server that wants it.
fn waiting_for_redis() -> (Redis, Case) {
    let mut redis = Redis::start();
    redis.kill();
    let url = redis.url();
    let settings = format!("store: {{ kind: redis, redis: {{ url: '{url}', timeout: 1s }} }}");
    (redis, Case::of(Server::launch(ONE, &settings)))
}

fn health(case: &Case) -> (u16, i32) {
    (case.server.page("/healthcheck").unwrap().status, case.health("ratelimit"))
}

/// Serving and not serving, as gRPC numbers them.
const UP: (u16, i32) = (200, 1);
const DOWN: (u16, i32) = (503, 2);

pub(super) const ROWS: &[Row] = &[
    row(
        113,
        "RateLimit-Limit, -Remaining and -Reset",
        Differs(
            "x-ratelimit-* as Envoy writes them, or the fields of the IETF draft; and retry-after",
        ),
        |_| {
            let (_redis, case) = full("x_ratelimit", "of20_minute=r113");
            let headers = case.headers("counting | of20_minute=r113 | nobody=x");
            assert_eq!(
                headers,
                [
                    "retry-after: 60",
                    "x-ratelimit-limit: 20, 20;w=60",
                    "x-ratelimit-remaining: 0",
                    "x-ratelimit-reset: 60",
                ]
            );
        },
    ),
    row(
        114,
        "headers under other names",
        Differs(
            "the names are standards, chosen by headers.style: off, retry_after, x_ratelimit, ietf",
        ),
        |_| {
            let (_redis, case) = full("ietf", "of20_minute=r114");
            assert_eq!(
                case.headers("counting | of20_minute=r114"),
                [
                    "retry-after: 60",
                    "ratelimit-policy: \"of20_minute\";q=20;w=60",
                    "ratelimit: \"of20_minute\";r=0;t=60",
                ]
            );
            let (_redis, case) = full("retry_after", "of20_minute=r114");
            assert_eq!(case.headers("counting | of20_minute=r114"), ["retry-after: 60"]);
            let (_redis, case) = full("off", "of20_minute=r114");
            assert_eq!(case.headers("counting | of20_minute=r114"), [""; 0]);
        },
    ),
    row(115, "/json: a body that is no request", Same, |case| {
        for body in ["", "}"] {
            assert_eq!(http::post(case.server.http_port, "/json", body).unwrap().status, 400);
        }
    }),
    row(
        116,
        "/json: one status for each answer",
        Differs("an error of the store is 503, not 400: the request was good"),
        |case| {
            assert_eq!(case.server.ask("basic", "key3", "r116").status, 200);
            let over = case.server.ask("basic", "key3", "r116");
            assert_eq!(over.status, 429);
            assert!(over.body.contains("\"overallCode\":\"OVER_LIMIT\""), "{}", over.body);
            let (_redis, case) = waiting_for_redis();
            assert_eq!(case.server.ask("d", "k", "r116").status, 503);
        },
    ),
    rows(
        117,
        119,
        "/healthcheck and gRPC health follow Redis and the rules",
        Differs(
            "503 with the reasons instead of an empty 500; the empty service name tells the truth",
        ),
        |_| {
            let (mut redis, case) = waiting_for_redis();
            assert_eq!(health(&case), DOWN);
            redis.restart();
            wait_until("healthy", || health(&case) == UP);
            redis.kill();
            wait_until("unhealthy", || health(&case) == DOWN);
            assert_eq!(case.health(""), DOWN.1);
            redis.restart();
            wait_until("healthy again", || health(&case) == UP);
            let empty = Case::of(Server::launch("", ""));
            assert_eq!(health(&empty), DOWN);
            empty.server.change_rules(ONE);
            wait_until("healthy with rules", || health(&empty) == UP);
        },
    ),
    row(
        120,
        "names of statistics: `:` and `|` become `_`",
        Differs("a label may hold any text, so it holds this one; the metric's name never changes"),
        |_| {
            let rules = "domain: 'a:b|c'\ndescriptors:\n- {key: 'k:|', rate_limit: {unit: hour, requests_per_unit: 9}}\n";
            let case = Case::with(rules, "");
            case.server.ask("a:b|c", "k:|", "v");
            assert_eq!(case.counts("a:b|c", "k:|"), Some([1, 0, 0, 0]));
        },
    ),
    row(121, "every call is counted, and how long it took", Same, |_| {
        let case = Case::with(ONE, "");
        let count = "grpc_latency_ms_count{method=\"ShouldRateLimit\"}";
        case.passes("d | k=r121", ".xxxx");
        assert_eq!(case.metric(count), Some(5));
        assert_eq!(case.ask_at_once(100, "d | k=more"), 1);
        assert_eq!(case.metric(count), Some(105));
    }),
    row(
        122,
        "labels for two levels of keys; deeper ones are summed up",
        Differs("one label with the whole path, so that no two rules are summed up"),
        |case| {
            case.counted_as("values | plain1=a > plain2=b", "values", "plain1,plain2");
            case.counted_as(
                "values | route=a > http_method=b > subject_id=c",
                "values",
                "route=a,http_method=b,subject_id",
            );
        },
    ),
    row(
        123,
        "response times in seconds, or in milliseconds",
        Differs("a histogram in milliseconds, with its unit in its name: grpc_latency_ms"),
        |case| {
            case.ask("basic | key6=x").unwrap();
            let page = case.server.page("/metrics").unwrap().body;
            assert!(page.contains("grpc_latency_ms_bucket{method=\"ShouldRateLimit\",le=\"20\"}"));
        },
    ),
    row(
        124,
        "dogstatsd names and tags by patterns",
        Absent("Prometheus reads /metrics; relabelling is its own: --compat-env says so"),
        |_| {
            let folder = tempfile::TempDir::new().unwrap();
            let variables = [("DOG_STATSD_MOGRIFIER_A_PATTERN", "x"), ("USE_DOG_STATSD", "true")];
            let output =
                run_with(folder.path(), &["serve", "--compat-env", "--print-config"], &variables);
            for (name, _) in variables {
                assert!(output.text.contains(&format!("{name} has no effect")), "{}", output.text);
            }
        },
    ),
    row(125, "the password of a URL is not shown", Same, |_| {
        let folder = tempfile::TempDir::new().unwrap();
        for url in ["redis://ann:hunter2@h:1", "redis://:hunter2@h:1"] {
            let arguments = ["serve", "--redis", url, "--print-config"];
            let output = run_with(folder.path(), &arguments, &[]);
            assert!(output.text.contains("redis://***@h:1"), "{}", output.text);
            assert!(!output.text.contains("hunter2"), "{}", output.text);
        }
    }),
    row(
        126,
        "rules from an xDS server",
        Absent(
            "rules are files, which every deployment tool can mount: --compat-env ends the start",
        ),
        |_| {
            let folder = tempfile::TempDir::new().unwrap();
            let variables = [("CONFIG_TYPE", "GRPC_XDS_SOTW")];
            let output = run_with(folder.path(), &["serve", "--compat-env"], &variables);
            assert_eq!(output.code, 2, "{}", output.text);
            assert!(output.text.contains("rules are files"), "{}", output.text);
        },
    ),
    row(127, "a file that comes is read, and one that goes is forgotten", Same, |case| {
        let rules = "domain: added\ndescriptors:\n- {key: k, rate_limit: {unit: second, requests_per_unit: 50}}\n";
        case.says("added | k=r127", "OK | OK");
        case.server.write_rules("added.yaml", rules);
        let rules_of_it = || case.metric("chronosdb_rules{domain=\"added\"}");
        wait_until("it is read", || rules_of_it() == Some(1));
        case.says("added | k=r127", "OK | OK 49 of 50/SECOND");
        std::fs::remove_file(case.server.rules_folder().join("added.yaml")).unwrap();
        wait_until("it is forgotten", || rules_of_it().is_none());
        case.says("added | k=r127", "OK | OK");
    }),
    row(128, "certificates that are replaced are in use, and the old CA fails", Same, |_| {
        let folder = tempfile::TempDir::new().unwrap();
        let [old, new] = ["old", "new"].map(Ca::new);
        let pair = old.issue(folder.path(), "server", &["localhost"]);
        let server = Server::launch_with(ONE, &tls(&pair, ""), "", "").ready();
        let [old_ca, new_ca] = [("old.ca", &old), ("new.ca", &new)]
            .map(|(name, ca)| ca.write(&folder.path().join(name)).display().to_string());
        assert_eq!(check(&server, &["--ca", &old_ca]), 0);
        new.issue(folder.path(), "server", &["localhost"]);
        wait_until("it is in use", || check(&server, &["--ca", &new_ca]) == 0);
        assert_eq!(check(&server, &["--ca", &old_ca]), 1);
    }),
    row(129, "a client with a certificate of its CA and of its name", Same, |_| {
        let folder = tempfile::TempDir::new().unwrap();
        let ca = Ca::new("ours");
        let ca_file = ca.write(&folder.path().join("ca.crt")).display().to_string();
        let more = format!(", client_ca: '{ca_file}', client_sans: [envoy.example.org]");
        let pair = ca.issue(folder.path(), "server", &["localhost"]);
        let server = Server::launch_with(ONE, &tls(&pair, &more), "", "").ready();
        let client = ca.issue(folder.path(), "client", &["envoy.example.org"]);
        let [cert, key] = [&client.cert, &client.key].map(|path| path.display().to_string());
        assert_eq!(check(&server, &["--ca", &ca_file, "--cert", &cert, "--key", &key]), 0);
        assert_eq!(check(&server, &["--ca", &ca_file]), 1);
    }),
];

/// `tls:` of the section `grpc`.
fn tls(pair: &Pair, more: &str) -> String {
    format!(", tls: {{ cert: '{}', key: '{}'{more} }}", pair.cert.display(), pair.key.display())
}

/// `chronosdb check` over TLS: how it ends.
fn check(server: &Server, options: &[&str]) -> i32 {
    let target = format!("https://localhost:{}", server.grpc_port);
    let fixed = ["check", "--times", "1", "--hits", "0", "--target", &target];
    run_with(std::path::Path::new("."), &[&fixed, options].concat(), &[]).code
}
