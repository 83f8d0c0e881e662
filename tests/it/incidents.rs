//! What operators of rate limiters met with their Redis, as they would meet it here: failovers,
//! restarts, clocks, crashes and evictions.

use std::time::{Duration, Instant};

use chronosdb::store::redis::{Settings, Topology};

use crate::harness::callers::RECOVERY;
use crate::harness::clock::Clock;
use crate::harness::counters::{Counters as _, InRedis, START_US, Wanted, want};
use crate::harness::instance::{CONNECTIONS, Instance, check, patient};
use crate::harness::redis::Redis;
use crate::harness::sentinels::Sentinels;
use crate::harness::server::Server;
use crate::harness::{PATIENCE, wait_until};

const RULES: &str = "
domain: edge
descriptors:
  - { key: user, rate_limit: { limit: 30, window: 1h } }
";

/// Settings of a service whose Redis this is; `more` are keys of the section `store`.
fn store(redis: &Redis, more: &str) -> String {
    let url = redis.url();
    format!(
        "store: {{ kind: redis, redis: {{ url: '{url}', timeout: 1s }}{more} }}\nl1: {{ enabled: false }}"
    )
}

/// How many of some questions about a user, dealt out to the instances in turn, may pass.
fn passes(instances: &[Server], user: &str, questions: usize) -> usize {
    let ask = |question: &usize| {
        let answer = instances[question % instances.len()].ask("edge", "user", user);
        assert!([200, 429].contains(&answer.status), "{}", answer.body);
        answer.status == 200
    };
    (0..questions).filter(ask).count()
}

/// Ten seconds ahead, ten behind, and one Redis: only its own clock decides.
#[test]
fn clocks_of_instances_decide_nothing() {
    const NOON_US: u64 = 1_767_225_600_000_000;
    let redis = Redis::start();
    redis.clock.stop_at(NOON_US);
    let folder = tempfile::TempDir::new().unwrap();
    let instances = [-10_000_000, 10_000_000].map(|offset_us| {
        let clock = Clock::new(&folder.path().join(offset_us.to_string()));
        clock.run_at_offset(offset_us);
        let variables = clock.variables();
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let rules = RULES.replace("30, window: 1h", "4, window: 1s");
        Server::launch_under(&variables, &rules, &store(&redis, "")).ready()
    });
    for (after_us, expected) in [(0, 4), (999_999, 0), (1_000_000, 4), (1_500_000, 0)] {
        redis.clock.stop_at(NOON_US + after_us);
        assert_eq!(passes(&instances, "bob", 20), expected, "after {after_us} µs");
    }
    let said = instances.each_ref().map(|server| server.log());
    let first = said.each_ref().map(|log| log.split('"').nth(3).unwrap()[..19].to_owned());
    assert_ne!(first[0], first[1], "they live at different times");
}

/// Redis loads its data for a while: each answer is the policy's, and its reason is counted.
#[test]
fn while_redis_loads_the_policy_answers() {
    let delays = "--key-load-delay 500 --loading-process-events-interval-bytes 1024";
    let mut redis = Redis::start_with(&delays.split(' ').collect::<Vec<_>>());
    let policies = [("allow", 200), ("deny", 429)];
    let servers = policies
        .map(|(policy, _)| Server::start(RULES, &store(&redis, &format!(", on_error: {policy}"))));
    redis.command::<()>("DEBUG POPULATE 4000");
    redis.command::<()>("SAVE");
    redis.relaunch();
    for (server, (policy, status)) in servers.iter().zip(policies) {
        let loading = "chronosdb_store_errors_total{reason=\"loading\"}";
        wait_until("it is loading", || {
            let answer = server.ask("edge", "user", "bob");
            assert!(
                answer.status == status && answer.header("x-chronosdb-source") == Some("fallback")
            );
            server.metric(loading) > 0
        });
        let decisions = format!("chronosdb_fallback_decisions_total{{policy=\"{policy}\"}}");
        assert!(server.metric(&decisions) > 0);
    }
    wait_until("the data are loaded", || redis.info("loading") == "0");
    for server in &servers {
        let is_truth = || server.ask("edge", "user", "z").header("x-chronosdb-source").is_none();
        wait_until("Redis decides", is_truth);
    }
    assert!(passes(&servers, "bob", 60) <= 30);
}

/// A failover that somebody wants: the old primary goes on as a replica, and keeps its connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_costs_few_calls() {
    let sentinels = Sentinels::start();
    let settings = Settings {
        topology: Topology::Sentinel,
        nodes: sentinels.nodes(),
        master_name: Some("quotas".into()),
        ..patient("redis://unused")
    };
    let instance = Instance::start(&settings).await;
    let user = check("bob", 1_000_000, 1);
    instance.until_answered(&user).await;
    sentinels.fail_over();
    let (mut failed, mut asked, started) = (0, 0, Instant::now());
    let new = &sentinels.servers[1];
    // What it was asked itself: its log is its primary's too.
    let counted = || {
        let stats = new.try_command::<String>("INFO commandstats").unwrap_or_default();
        let runs = stats.split("cmdstat_evalsha:calls=").nth(1);
        runs.and_then(|runs| runs.split(',').next()?.parse().ok()).unwrap_or(0_u64)
    };
    let is_replica = |server: &Redis| {
        let role = server.try_command::<Vec<redis::Value>>("ROLE");
        role.is_ok_and(|role| role[0] == redis::Value::BulkString(b"slave".into()))
    };

    let mut at_the_end = None;
    while at_the_end.is_none_or(|known| counted() < known + 20) {
        asked += 1;
        failed += u32::from(instance.ask(std::slice::from_ref(&user)).await.is_err());
        if at_the_end.is_none() && !is_replica(new) && is_replica(&sentinels.servers[0]) {
            at_the_end = Some(counted());
        }
        if at_the_end.is_none() && asked % 5_000 == 0 && is_replica(new) {
            // On a busy machine the sentinels may give up, and want to be asked again.
            sentinels.fail_over();
        }
        assert!(started.elapsed() < 2 * PATIENCE, "{failed} of {asked} failed");
    }
    assert!(failed <= CONNECTIONS, "{failed} of {asked} failed");
}

/// Three instances without their Redis admit the limit together, and not once more afterwards.
#[test]
fn three_instances_without_redis_admit_one_limit() {
    let mut redis = Redis::start();
    let settings = store(&redis, ", on_error: local, expected_instances: 3");
    let instances = [(); 3].map(|()| Server::start(RULES, &settings));
    assert_eq!(passes(&instances, "before", 3), 3);
    redis.kill();
    assert_eq!(passes(&instances, "bob", 100), 30);
    for server in &instances {
        let local = "chronosdb_fallback_decisions_total{policy=\"local\"}";
        assert!(server.metric(local) >= 33, "{}", server.metric(local));
    }
    redis.restart();
    for server in &instances {
        wait_until("Redis decides", || {
            server.ask("edge", "user", "probe").header("x-chronosdb-source").is_none()
        });
    }
    // Those that asked before the last one had told what it admitted.
    let passed = passes(&instances, "bob", 100);
    assert!(passed <= 2, "{passed} more");
}

/// `kill -9` and broken connections while many keys are hit: no key is without an end.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_leaves_no_key_without_expiry() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let settings = Settings { timeout: Duration::from_millis(200), ..patient(&redis.url()) };
    let instance = Instance::start(&settings).await;
    for round in 0..5 {
        let calls = (0..1_000).map(|user| {
            let instance = &instance;
            async move { _ = instance.ask(&[check(&format!("{round}-{user}"), 10, 1)]).await }
        });
        let calls = futures_util::future::join_all(calls);
        let crash = async {
            tokio::task::yield_now().await;
            redis.command::<()>("CLIENT KILL TYPE normal");
            tokio::task::yield_now().await;
            redis.restart();
        };
        tokio::join!(calls, crash);
        tokio::time::timeout(RECOVERY, instance.until_answered(&check("after", 100, 1)))
            .await
            .unwrap();
        let keys: Vec<String> = redis.command("KEYS *");
        for key in keys {
            let ttl_ms: i64 = redis.command(&format!("PTTL {key}"));
            // -2: it has just gone, as keys do.
            assert!(
                ttl_ms == -2 || (0..=60_000 + 60_000 / 16 + 2).contains(&ttl_ms),
                "{key}: {ttl_ms}"
            );
        }
    }
    let counted = redis.command::<u64>("DBSIZE");
    assert!(counted > 100, "only {counted} keys were counted");
}

/// At maxmemory a log that has expired makes room for itself: what passes was counted, and Redis
/// grows no further.
#[test]
fn a_full_redis_does_not_grow_through_the_script() {
    let mut lua = InRedis::on(Redis::start_with(&["--maxmemory-policy", "noeviction"]));
    let wanted = want("full", 1_000, 1_000, 1);
    for step in 0..100 {
        lua.ask(START_US + step, &[wanted]);
    }
    lua.command::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let memory = |lua: &InRedis| lua.redis.info("used_memory_dataset").parse::<u64>().unwrap();
    let before = memory(&lua);
    let (mut refused, mut admitted) = (0, 0);
    for step in 0..2_000_u64 {
        let now_us = START_US + 5_000_000 + step;
        match lua.run(now_us, 1, &[wanted]) {
            Ok(verdicts) => {
                let peek = lua.run(now_us, 1, &[Wanted { hits: 0, ..wanted }]).unwrap();
                assert!(verdicts[0].granted == 0 || peek[0].remaining == verdicts[0].remaining);
                admitted += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("OOM"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "{admitted} were admitted");
    assert!(memory(&lua) < before + 64 * 1024, "{before} bytes, and then {}", memory(&lua));
}

/// Whoever lets Redis evict quotas is warned, and sees how many went.
#[test]
fn evictions_are_warned_of_and_counted() {
    for (policy, is_bad) in [("allkeys-lru", true), ("volatile-ttl", true), ("noeviction", false)] {
        let redis = Redis::start();
        redis.command::<()>("DEBUG POPULATE 50000");
        redis.command::<()>("CONFIG SET maxmemory-policy allkeys-lru");
        redis.command::<()>("CONFIG SET maxmemory 3mb");
        wait_until("keys are evicted", || redis.info("evicted_keys") != "0");
        redis.command::<()>(&format!("CONFIG SET maxmemory-policy {policy}"));
        redis.command::<()>("FLUSHALL");
        let server = Server::start(RULES, &store(&redis, ""));
        wait_until("evictions are counted", || server.metric("chronosdb_redis_evicted_keys") > 0);
        let warned = server.log().contains("set maxmemory-policy noeviction");
        assert_eq!(warned, is_bad, "{policy}: {}", server.log());
    }
}
