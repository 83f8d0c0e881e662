//! Rows 59 to 94: counting, near limits, the local cache, and the stores behind it.

use super::{Absent, Case, Differs, Row, Same, Verdict, row, rows};
use crate::harness::redis::Redis;
use crate::harness::server::run_with;

/// Why statistics of hits are other numbers.
const REQUESTS: Verdict = Differs(
    "outcomes count descriptors, not hits, and sum up to what was asked; near_limit is a part of allowed",
);

const MEMCACHE: Verdict =
    Absent("counters live in Redis or in memory; --compat-env says so and ends the start");

#[test]
fn limiting() {
    super::prove(ROWS, &Case::new(""));
}

fn on_redis(redis: &Redis, more: &str) -> Case {
    let url = redis.url();
    Case::new(&format!("store: {{ kind: redis, redis: {{ url: '{url}', timeout: 1s{more} }} }}"))
}

fn keys(redis: &Redis) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis.connect()).unwrap();
    // The trial run at start leaves a key for one second.
    keys.retain(|key| !key.contains("self-test"));
    keys.sort();
    keys
}

/// A Redis that was given this command.
fn locked(command: &[&str]) -> Redis {
    let redis = Redis::start();
    let words = redis::cmd(command[0]).arg(&command[1..]).to_owned();
    words.exec(&mut redis.connect()).unwrap();
    redis
}

/// `serve --compat-env` with one of their variables: how it ends and what it says.
fn start_with(variables: &[(&str, &str)]) -> (i32, String) {
    let folder = tempfile::TempDir::new().unwrap();
    let output = run_with(folder.path(), &["serve", "--compat-env", "--print-config"], variables);
    (output.code, output.text)
}

/// Series `chronosdb_near_limit_total` of a rule.
fn near(case: &Case, rule: &str) -> u64 {
    let series = format!("chronosdb_near_limit_total{{domain=\"counting\",rule=\"{rule}\"}}");
    case.metric(&series).unwrap()
}

pub(super) const ROWS: &[Row] = &[
    row(
        59,
        "a counter is named by its path and the start of its window",
        Differs("a sliding window has no start; parts are escaped, so no two paths are one key"),
        |_| {
            let redis = Redis::start();
            let case = on_redis(&redis, "");
            case.says("counting | of50_second=a_b:c", "OK | OK 49 of 50/SECOND");
            assert_eq!(keys(&redis), ["chronosdb:quota:{counting:of50_second:a_b%3Ac}:1000"]);
        },
    ),
    row(60, "a prefix before every key", Same, |_| {
        let redis = Redis::start();
        let case = on_redis(&redis, ", key_prefix: 'prefix:'");
        case.says("counting | of5=r60", "OK | OK 4 of 5/HOUR");
        assert_eq!(keys(&redis), ["prefix:{counting:of5:r60}:3600000"]);
    }),
    row(
        61,
        "windows begin at whole minutes, hours and days",
        Differs("a window slides: the key carries its length, and every hit its own time"),
        |_| {
            let redis = Redis::start();
            let case = on_redis(&redis, "");
            case.says(
                "counting | of20_minute=r | of5=r | of10_day=r",
                "OK | OK 19 of 20/MINUTE | OK 4 of 5/HOUR | OK 9 of 10/DAY",
            );
            let lengths = ["86400000", "60000", "3600000"];
            let found = keys(&redis);
            assert!(
                found.iter().zip(lengths).all(|(key, ms)| key.ends_with(&format!(":{ms}"))),
                "{found:?}"
            );
        },
    ),
    row(62, "a shared threshold has one key for all values, at each level", Same, |_| {
        let redis = Redis::start();
        let case = on_redis(&redis, "");
        for question in ["share | short=doc/a", "share | short=doc/b"] {
            case.ask(question).unwrap();
        }
        assert_eq!(keys(&redis), ["chronosdb:quota:{share:short:doc/*}:3600000"]);
        case.ask("share | files=top/a > files=nested/b").unwrap();
        let nested = "chronosdb:quota:{share:files:top/*:files:nested/*}:60000";
        assert!(keys(&redis).iter().any(|key| key == nested), "{:?}", keys(&redis));
    }),
    row(63, "what is left", Same, |case| {
        case.says("counting | of10=r63 +5", "OK | OK 5 of 10/HOUR");
        assert!(case.counts("counting", "of10").unwrap()[0] > 0);
    }),
    row(64, "a descriptor without a limit costs nothing", Same, |_| {
        let redis = Redis::start();
        let case = on_redis(&redis, "");
        case.says("counting | nobody=r64 | of10=r64", "OK | OK | OK 9 of 10/HOUR");
        assert_eq!(keys(&redis).len(), 1);
    }),
    row(65, "over the limit", Same, |case| {
        case.says("counting | of10=r65 +10", "OK | OK 0 of 10/HOUR");
        let [allowed, refused, ..] = case.counts("counting", "of10").unwrap();
        case.says("counting | of10=r65", "OVER_LIMIT | OVER_LIMIT 0 of 10/HOUR");
        let after = case.counts("counting", "of10").unwrap();
        assert_eq!((after[0], after[1]), (allowed, refused + 1));
    }),
    row(66, "two limits that are over, each with its own reset", Same, |case| {
        case.ask("counting | of5=r66 +5").unwrap();
        case.ask("counting | of10_day=r66 +10").unwrap();
        let resets = case.resets_s("counting | of5=r66 | of10_day=r66");
        assert!((3_500..=3_600).contains(&resets[0]), "{resets:?}");
        assert!((86_300..=86_400).contains(&resets[1]), "{resets:?}");
        case.says(
            "counting | of5=r66 | of10_day=r66",
            "OVER_LIMIT | OVER_LIMIT 0 of 5/HOUR | OVER_LIMIT 0 of 10/DAY",
        );
    }),
    row(
        67,
        "a peek at a counter that is over says so, and counts nothing",
        Differs(
            "a counter never exceeds its limit here, so a peek at a full one is OK, with 0 left",
        ),
        |case| {
            case.ask("counting | of10=r67 +10").unwrap();
            case.says("counting | of10=r67 +0", "OK | OK 0 of 10/HOUR");
            case.says(
                "counting | of10=r67 +0 | of5=r67 +1",
                "OK | OK 0 of 10/HOUR | OK 4 of 5/HOUR",
            );
        },
    ),
    row(
        68,
        "a second Redis for limits per second",
        Absent("all limits of a request are decided in one step, so they live in one Redis"),
        |_| {
            let (code, text) = start_with(&[("REDIS_PERSECOND", "true"), ("REDIS_URL", "r:1")]);
            assert_eq!(code, 0);
            assert!(text.contains("REDIS_PERSECOND has no effect: one Redis"), "{text}");
        },
    ),
    row(69, "the near limit begins at 0.8 of the limit", REQUESTS, |case| {
        let before = near(case, "of15");
        case.says("counting | of15=r69 +11", "OK | OK 4 of 15/HOUR");
        assert_eq!(near(case, "of15"), before);
        case.says("counting | of15=r69 +2", "OK | OK 2 of 15/HOUR");
        assert_eq!(near(case, "of15"), before + 1);
        case.says("counting | of15=r69 +3", "OVER_LIMIT | OVER_LIMIT 0 of 15/HOUR");
        assert_eq!(near(case, "of15"), before + 1);
    }),
    row(70, "three hits below the near limit", REQUESTS, |case| {
        let before = near(case, "of20");
        case.says("counting | of20=r70 +2", "OK | OK 18 of 20/HOUR");
        case.says("counting | of20=r70 +3", "OK | OK 15 of 20/HOUR");
        assert_eq!(near(case, "of20"), before);
    }),
    row(71, "two hits across the near limit", REQUESTS, |case| {
        let before = near(case, "of8");
        case.says("counting | of8=r71 +5", "OK | OK 3 of 8/HOUR");
        case.says("counting | of8=r71 +2", "OK | OK 1 of 8/HOUR");
        assert_eq!(near(case, "of8"), before + 1);
    }),
    row(72, "three hits above the near limit", REQUESTS, |case| {
        case.says("counting | of20=r72 +16", "OK | OK 4 of 20/HOUR");
        let before = near(case, "of20");
        case.says("counting | of20=r72 +3", "OK | OK 1 of 20/HOUR");
        assert_eq!(near(case, "of20"), before + 1);
    }),
    rows(
        73,
        75,
        "hits that go over are split into a near and an over part",
        Differs("n hits pass or are refused as a whole; a refusal counts once and takes nothing"),
        |case| {
            case.says("counting | of20=r73 +19", "OK | OK 1 of 20/HOUR");
            let before = case.counts("counting", "of20").unwrap();
            case.says("counting | of20=r73 +3", "OVER_LIMIT | OVER_LIMIT 0 of 20/HOUR");
            case.says("counting | of20=r73 +7", "OVER_LIMIT | OVER_LIMIT 0 of 20/HOUR");
            let after = case.counts("counting", "of20").unwrap();
            assert_eq!(after, [before[0], before[1] + 2, before[2], before[3]]);
            case.says("counting | of20=r73 +1", "OK | OK 0 of 20/HOUR");
        },
    ),
    row(
        76,
        "expiry is the window and a random part",
        Differs(
            "a key expires with its last hit, in the script that writes it: no jitter is needed",
        ),
        |_| {
            let redis = Redis::start();
            let case = on_redis(&redis, "");
            case.ask("counting | of50_second=r76").unwrap();
            let ttl: i64 =
                redis::cmd("PTTL").arg(&keys(&redis)[0]).query(&mut redis.connect()).unwrap();
            assert!((1..=1_100).contains(&ttl), "{ttl} ms");
        },
    ),
    row(77, "what is over is remembered, and Redis is not asked again", Same, |_| {
        let redis = Redis::start();
        let case = on_redis(&redis, "");
        case.passes("counting | of5=r77", ".....x");
        let runs = case.metric("chronosdb_script_runs_total");
        let refused = case.counts("counting", "of5").unwrap()[1];
        case.says("counting | of5=r77", "OVER_LIMIT | OVER_LIMIT 0 of 5/HOUR");
        assert_eq!(case.metric("chronosdb_script_runs_total"), runs);
        assert_eq!(case.metric("chronosdb_l1_hits_total"), Some(1));
        assert_eq!(case.counts("counting", "of5").unwrap()[1], refused + 1);
    }),
    row(
        78,
        "what is over in shadow mode passes, with nothing left, and is counted",
        Same,
        |case| {
            case.says("counting | shadow5=r78 +5", "OK | OK 0 of 5/HOUR");
            let shadow = case.counts("counting", "shadow5").unwrap()[2];
            case.says("counting | shadow5=r78", "OK | OK 0 of 5/HOUR");
            case.says("counting | shadow5=r78", "OK | OK 0 of 5/HOUR");
            assert_eq!(case.counts("counting", "shadow5").unwrap()[2], shadow + 2);
        },
    ),
    row(79, "a descriptor that has no counter is OK", Same, |case| {
        case.says("counting | free=r79", "OK | OK unlimited");
    }),
    row(80, "two hits on what is remembered to be over", REQUESTS, |_| {
        let redis = Redis::start();
        let case = on_redis(&redis, "");
        case.ask("counting | of5=r80 +5").unwrap();
        case.says("counting | of5=r80 +2", "OVER_LIMIT | OVER_LIMIT 0 of 5/HOUR");
        let refused = case.counts("counting", "of5").unwrap()[1];
        case.says("counting | of5=r80 +2", "OVER_LIMIT | OVER_LIMIT 0 of 5/HOUR");
        assert_eq!(case.counts("counting", "of5").unwrap()[1], refused + 1);
    }),
    row(
        81,
        "hits that do not all fit fill the counter",
        Differs("all or nothing: what does not fit is refused whole and takes nothing"),
        |case| {
            case.says("counting | of5=r81 +2", "OK | OK 3 of 5/HOUR");
            case.says("counting | of5=r81 +5", "OVER_LIMIT | OVER_LIMIT 0 of 5/HOUR");
            case.says("counting | of5=r81 +3", "OK | OK 0 of 5/HOUR");
        },
    ),
    row(82, "several hits below the limit", Same, |case| {
        case.says("counting | of10=r82 +2", "OK | OK 8 of 10/HOUR");
        case.says("counting | of10=r82 +4", "OK | OK 4 of 10/HOUR");
    }),
    row(83, "two limits with room both count", Same, |case| {
        case.says("counting | of5=r83 | of10=r83", "OK | OK 4 of 5/HOUR | OK 9 of 10/HOUR");
        case.says("counting | of5=r83 | of10=r83", "OK | OK 3 of 5/HOUR | OK 8 of 10/HOUR");
    }),
    row(
        84,
        "when one is over, the other is not counted, but the one that is over is",
        Differs("always so, in one atomic step, and what is over is not counted either"),
        |case| {
            case.ask("counting | of5=r84 +5").unwrap();
            for _ in 0..3 {
                case.says(
                    "counting | of5=r84 | of10=r84",
                    "OVER_LIMIT | OVER_LIMIT 0 of 5/HOUR | OK 10 of 10/HOUR",
                );
            }
        },
    ),
    row(
        85,
        "a Redis that cannot be used ends the start",
        Differs("it listens at once, is not ready, says why, and becomes ready by itself"),
        |_| {
            let redis = locked(&["CONFIG", "SET", "requirepass", "secret"]);
            let settings = format!("store: {{ kind: redis, redis: {{ url: '{}' }} }}", redis.url());
            let server = crate::harness::server::Server::launch("domain: d\n", &settings);
            let page = || server.page("/readyz").unwrap();
            crate::harness::wait_until("it says why", || {
                page().status == 503 && page().body.contains("NOAUTH")
            });
        },
    ),
    row(86, "a password, and a user with one", Same, |_| {
        let password = ["CONFIG", "SET", "requirepass", "secret"];
        let user = ["ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all"];
        for (command, auth) in [(&password[..], "secret"), (&user, "ann:pw")] {
            let redis = locked(command);
            let url = redis.url().replace(
                "//",
                &match auth.contains(':') {
                    true => format!("//{auth}@"),
                    false => format!("//:{auth}@"),
                },
            );
            let settings =
                format!("store: {{ kind: redis, redis: {{ url: '{url}', timeout: 1s }} }}");
            Case::new(&settings).says("counting | of5=r86", "OK | OK 4 of 5/HOUR");
        }
    }),
    row(87, "a connection that dies is an error, and nothing panics", Same, |_| {
        let mut redis = Redis::start();
        let case = on_redis(&redis, "");
        case.says("counting | of5=r87", "OK | OK 4 of 5/HOUR");
        redis.kill();
        let error = case.ask("counting | of5=r87").unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
        redis.restart();
        crate::harness::wait_until("it answers again", || case.ask("counting | of5=r87").is_ok());
    }),
    row(
        88,
        "what to do when the pool is empty",
        Absent("calls share connections and pipeline, so a pool is never empty"),
        |_| {
            let variables = [("REDIS_POOL_ON_EMPTY_BEHAVIOR", "ERROR"), ("REDIS_URL", "r:1")];
            let (code, text) = start_with(&variables);
            assert_eq!(code, 0);
            assert!(text.contains("REDIS_POOL_ON_EMPTY_BEHAVIOR has no effect"), "{text}");
        },
    ),
    row(89, "a sentinel address with too few parts", Same, |_| {
        let (code, text) = start_with(&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "only-a-name")]);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("REDIS_URL=only-a-name"), "{text}");
    }),
    rows(
        90,
        91,
        "how many groups of a cluster are asked at the same time",
        Absent("every group of slots is asked at once: there is nothing to set"),
        |_| {
            let variables = [("REDIS_CLUSTER_PIPELINE_PARALLELISM", "8"), ("REDIS_URL", "r:1")];
            let (code, text) = start_with(&variables);
            assert_eq!(code, 0);
            assert!(text.contains("REDIS_CLUSTER_PIPELINE_PARALLELISM has no effect"), "{text}");
        },
    ),
    rows(92, 94, "memcache", MEMCACHE, |_| {
        let (code, text) = start_with(&[("BACKEND_TYPE", "memcache")]);
        assert_eq!(code, 2);
        assert!(text.contains("counters live in Redis or in memory"), "{text}");
        let (_, text) = start_with(&[("MEMCACHE_SRV", "x"), ("REDIS_URL", "r:1")]);
        assert!(text.contains("MEMCACHE_SRV has no effect"), "{text}");
    }),
];
