//! Both stores, as the limiter uses them: the same answers, for one instance and for a fleet.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use chronosdb::check::{Descriptor, Entry, OnStoreError, Request};
use chronosdb::l1::{self, L1};
use chronosdb::limiter::{self, Limiter, Quota, Shared, Source};
use chronosdb::metrics::Metrics;
use chronosdb::privacy::{self, Privacy};
use chronosdb::quota::Limit;
use chronosdb::rules::RuleSet;
use chronosdb::store::AnyStore;
use chronosdb::store::memory::{self, Memory};
use chronosdb::store::redis::{self as store, Redis as RedisStore};
use tokio::time::{Instant, advance, sleep};

use crate::harness::random::Random;
use crate::harness::redis::Redis;

pub(crate) fn memory() -> AnyStore {
    let settings = memory::Settings::default();
    AnyStore::Memory(Arc::new(Memory::new(&settings, Metrics::new())))
}

/// One instance's store, ready to answer.
async fn in_redis(redis: &Redis) -> AnyStore {
    opened(&redis.url()).await
}

async fn opened(url: &str) -> AnyStore {
    let timeout = Duration::from_secs(5);
    let settings = store::Settings { url: url.into(), timeout, ..store::Settings::default() };
    let opened = RedisStore::open(&settings, 2, "test", Metrics::new()).unwrap();
    tokio::spawn(opened.clone().watch());
    let started = Instant::now();
    while let Some(trouble) = opened.trouble() {
        assert!(started.elapsed() < Duration::from_secs(10), "{url}: {trouble}");
        sleep(Duration::from_millis(2)).await;
    }
    AnyStore::Redis(opened)
}

/// A password, a socket, and an account that may not load scripts: each decides.
#[tokio::test]
async fn redis_behind_a_password_a_socket_and_an_acl() {
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("redis.sock");
    let redis = Redis::start_with(&["--unixsocket", socket.to_str().unwrap()]);
    let mut connection = redis.connect();
    let acl = "ACL SETUSER limiter on >pass ~chronosdb:* +@all -script";
    let words: Vec<&str> = acl.split(' ').collect();
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
    let config = ["SET", "requirepass", "secret"];
    redis::cmd("CONFIG").arg(&config).exec(&mut connection).unwrap();
    let address = redis.url().replace("redis://", "");
    let urls = [
        format!("redis://:secret@{address}"),
        format!("redis+unix://{}?pass=secret", socket.display()),
        format!("redis://limiter:pass@{address}"),
    ];
    for (user, url) in urls.into_iter().enumerate() {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
        let limiter = limiter(opened(&url).await, "", true);
        let quota = quota("k", &user.to_string(), 1, Duration::from_secs(60), 1);
        assert!(limiter.check_quota(&quota, None).await.unwrap().allowed);
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
        assert!(!limiter.check_quota(&quota, None).await.unwrap().allowed);
    }
    let wrong = store::Settings { url: format!("redis://:no@{address}"), ..Default::default() };
    let wrong = RedisStore::open(&wrong, 1, "test", Metrics::new()).unwrap();
    tokio::spawn(wrong.clone().watch());
    let started = Instant::now();
    while let Some(trouble) = wrong.trouble().filter(|trouble| !trouble.contains("WRONGPASS")) {
        assert!(started.elapsed() < Duration::from_secs(10), "{trouble}");
        sleep(Duration::from_millis(2)).await;
    }
    assert!(!wrong.answers());
}

pub(crate) fn limiter(store: AnyStore, rules: &str, l1: bool) -> Limiter {
    let metrics = Metrics::new();
    let privacy = Privacy::new(&privacy::Settings::default());
    let rules = if rules.is_empty() { "domain: none" } else { rules };
    let rules = RuleSet::from_text(rules, &metrics, &privacy).unwrap();
    let rules = Arc::new(ArcSwap::from_pointee(rules));
    let l1 = l1::Settings { enabled: l1, ..l1::Settings::default() };
    let l1 = L1::new(&l1, Arc::clone(&metrics));
    let fallback = limiter::Settings {
        shadow_mode: false,
        on_error: OnStoreError::Error,
        expected_instances: 1,
        memory: memory::Settings::default(),
    };
    Limiter::new(Arc::new(Shared::new(rules, l1, privacy, fallback, metrics)), store)
}

pub(crate) fn quota(
    api_key: &str,
    user_id: &str,
    limit: u64,
    window: Duration,
    hits: u32,
) -> Quota {
    let limit = Limit::new(limit, window).unwrap();
    Quota { api_key: api_key.into(), user_id: user_id.into(), limit, hits }
}

pub(crate) fn request(domain: &str, entries: &[(&[u8], &[u8])]) -> Request {
    let entries = entries.iter().map(|(key, value)| Entry::new(*key, *value)).collect();
    let descriptor = Descriptor { entries, hits: 1, limit_override: None };
    Request { domain: domain.into(), descriptors: vec![descriptor] }
}

/// A hundred times: 200 calls at once, over three instances, at a quota of five.
#[tokio::test(flavor = "multi_thread")]
async fn three_instances_admit_exactly_the_limit() {
    let redis = Redis::start();
    let mut instances = Vec::new();
    for _ in 0..3 {
        instances.push(Arc::new(limiter(in_redis(&redis).await, "", true)));
    }
    for round in 0..100 {
        let calls: Vec<_> = (0..200)
            .map(|call| {
                let instance = Arc::clone(&instances[call % 3]);
                let quota = quota("k", &round.to_string(), 5, Duration::from_secs(60), 1);
                tokio::spawn(
                    async move { instance.check_quota(&quota, None).await.unwrap().allowed },
                )
            })
            .collect();
        let mut allowed = 0;
        for call in calls {
            allowed += u32::from(call.await.unwrap());
        }
        assert_eq!(allowed, 5, "round {round}");
    }
}

/// With and without the L1: the same answers, whatever is asked, whenever. Where callers disagree
/// about a key's limit, a hit that the larger one admits may lengthen another caller's wait; who
/// passes stays the same.
#[tokio::test(start_paused = true)]
async fn law_06_l1_changes_no_outcome() {
    for limits_differ in [false, true] {
        let with = limiter(memory(), "", true);
        let without = limiter(memory(), "", false);
        let mut random = Random::new(6);
        let mut remembered = 0;
        for step in 0..20_000 {
            let user = random.within(0, 3);
            let limit = 1 + if limits_differ { random.within(0, 3) } else { user };
            let hits = u32::try_from(random.within(0, 3)).unwrap();
            let quota = quota("k", &user.to_string(), limit, Duration::from_millis(100), hits);
            let mine = with.check_quota(&quota, None).await.unwrap();
            let truth = without.check_quota(&quota, None).await.unwrap();
            let (status, expected) = (&mine.statuses[0], &truth.statuses[0]);
            remembered += u32::from(status.source == Source::L1);
            let context = format!("step {step}: {quota:?}");
            assert_eq!(mine.allowed, truth.allowed, "{context}");
            assert_eq!(status.verdict.remaining, expected.verdict.remaining, "{context}");
            if !limits_differ {
                assert_eq!(status.verdict, expected.verdict, "{context}");
                assert_eq!(mine.retry_after, truth.retry_after, "{context}");
            }
            advance(Duration::from_micros(random.within(0, 9_000))).await;
        }
        assert!(remembered > 300, "the L1 answered {remembered} times only");
    }
}

const IDENTITY: &str = "
domain: edge
descriptors:
  - key: api_key
    descriptors:
      - key: user_id
        rate_limit: { limit: 3, window: 60s }
        identity: { api_key: '{api_key}', user_id: '{user_id}' }
  - key: own
    rate_limit: { limit: 3, window: 60s }
";

#[tokio::test]
async fn one_quota_two_doors() {
    let redis = Redis::start();
    for store in [memory(), in_redis(&redis).await] {
        let limiter = limiter(store, IDENTITY, true);
        let by_rule = request("edge", &[(b"api_key", b"free"), (b"user_id", b"bob")]);
        let native = quota("free", "bob", 3, Duration::from_secs(60), 1);
        assert!(limiter.decide(&by_rule, None).await.unwrap().allowed);
        assert_eq!(
            limiter.check_quota(&native, None).await.unwrap().statuses[0].verdict.remaining,
            1
        );
        assert!(limiter.decide(&by_rule, None).await.unwrap().allowed);
        assert!(!limiter.check_quota(&native, None).await.unwrap().allowed);
        assert!(!limiter.decide(&by_rule, None).await.unwrap().allowed);
        // A rule without `identity` has a counter of its own, whatever its path looks like.
        let other = quota("edge", "own:bob", 3, Duration::from_secs(60), 3);
        assert!(limiter.check_quota(&other, None).await.unwrap().allowed);
        let own = limiter.decide(&request("edge", &[(b"own", b"bob")]), None).await.unwrap();
        assert_eq!(own.statuses[0].verdict.remaining, 2);
    }
}

#[tokio::test]
async fn keys_never_alias_and_all_of_them_expire() {
    let redis = Redis::start();
    let long = "x".repeat(10_000);
    let names: Vec<&str> = vec![
        "a",
        "b",
        "c",
        "a:b",
        "b:c",
        "%3A",
        "a%3Ab",
        "{a}",
        "}",
        "%",
        "\0",
        " ",
        "~",
        "é",
        &long,
        &long[1..],
        "a\r\nb",
        "*",
    ];
    for store in [memory(), in_redis(&redis).await] {
        let limiter = limiter(store, "", true);
        for api_key in &names {
            for user_id in &names {
                let quota = quota(api_key, user_id, 1, Duration::from_secs(600), 1);
                let decision = limiter.check_quota(&quota, None).await.unwrap();
                assert!(decision.allowed, "{api_key:?} {user_id:?} was taken by another one");
            }
        }
    }
    let mut connection = redis.connect();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    assert!(keys.len() >= names.len() * names.len());
    for key in keys {
        assert!(key.len() <= 300, "{} bytes", key.len());
        let ttl_ms: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
        assert!((1..=600_000 + 37_500 + 1).contains(&ttl_ms), "{ttl_ms}: {}", key.escape_ascii());
    }
    redis.clock.run_at_offset(640_000_000);
    let count = || redis::cmd("DBSIZE").query::<u64>(&mut redis.connect()).unwrap();
    crate::harness::wait_until("every key is gone", || count() == 0);
}

/// Zero, unlimited, unknown domain and no rule need no store: a dead one is not even asked.
#[tokio::test]
async fn law_11_what_needs_no_store() {
    let settings = store::Settings { url: "redis://127.0.0.1:1".into(), ..Default::default() };
    let dead = RedisStore::open(&settings, 1, "test", Metrics::new()).unwrap();
    let rules = "
domain: edge
descriptors:
  - key: banned
    rate_limit: { limit: 0, window: 1s }
  - key: free
    rate_limit: { unlimited: true }
  - key: limited
    rate_limit: { limit: 1, window: 1s }
";
    let limiter = limiter(AnyStore::Redis(dead), rules, true);
    let ask = async |domain: &str, key: &str| {
        limiter.decide(&request(domain, &[(key.as_bytes(), b"v")]), None).await
    };
    let banned = ask("edge", "banned").await.unwrap();
    assert_eq!((banned.allowed, banned.retry_after), (false, None));
    assert!(ask("edge", "free").await.unwrap().allowed);
    assert!(ask("edge", "unknown").await.unwrap().allowed);
    assert!(ask("nowhere", "banned").await.unwrap().allowed);
    assert!(ask("edge", "limited").await.is_err(), "law 14: no answer is invented");
    assert_eq!(limiter.shared().metrics.unknown_domain.get(), 1);
}

/// Several descriptors: what one refuses, none of them pays; unless the domain says so.
#[tokio::test]
async fn law_03_charge() {
    for (charge, group_left) in [("together", 9), ("independent", 7)] {
        let rules = format!(
            "domain: edge\ncharge: {charge}\ndescriptors:\n  - {{ key: group, rate_limit: {{ limit: 10, window: 60s }} }}\n  - {{ key: special, rate_limit: {{ limit: 1, window: 60s }} }}\n"
        );
        let limiter = limiter(memory(), &rules, true);
        let mut both = request("edge", &[(b"group", b"g")]);
        both.descriptors.extend(request("edge", &[(b"special", b"s")]).descriptors);
        assert!(limiter.decide(&both, None).await.unwrap().allowed);
        for _ in 0..2 {
            assert!(!limiter.decide(&both, None).await.unwrap().allowed);
        }
        let decision = limiter.decide(&both, None).await.unwrap();
        let left = decision.statuses[0].verdict.remaining;
        assert_eq!(
            left,
            if charge == "together" { group_left } else { group_left - 1 },
            "{charge}"
        );
    }
}

/// Each policy, by rule, when Redis is killed; and the process's own for a rule without one.
#[tokio::test]
async fn law_14_each_policy_answers_and_is_marked() {
    let mut redis = Redis::start();
    let rule = |name: &str, policy: &str| {
        format!("  - {{ key: {name}, rate_limit: {{ limit: 2, window: 60s }}{policy} }}\n")
    };
    let rules = ["error", "allow", "deny", "local"]
        .map(|policy| rule(policy, &format!(", on_store_error: {policy}")));
    let rules = format!("domain: edge\ndescriptors:\n{}{}", rules.concat(), rule("plain", ""));
    let limiter = limiter(in_redis(&redis).await, &rules, true);
    let ask = async |key: &str| {
        let decision = limiter.decide(&request("edge", &[(key.as_bytes(), b"v")]), None).await;
        decision.map(|decision| (decision.allowed, decision.statuses[0].source))
    };
    assert_eq!(ask("deny").await.unwrap(), (true, Source::Store));
    redis.kill();
    for _ in 0..8 {
        assert_eq!(ask("allow").await.unwrap(), (true, Source::Fallback));
        assert_eq!(ask("deny").await.unwrap(), (false, Source::Fallback));
        assert!(ask("error").await.is_err() && ask("plain").await.is_err());
    }
    let local = [ask("local").await, ask("local").await, ask("local").await];
    let local = local.map(|answer| answer.unwrap());
    let expected = [true, true, false].map(|allowed| (allowed, Source::Fallback));
    assert_eq!(local, expected, "this instance's own window");
}
