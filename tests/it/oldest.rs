//! The same quotas on a real Redis 6.2, the oldest that is tested: it says some errors differently.

use std::time::Duration;

use chronosdb::store::redis::Settings;

use crate::harness::counters::{Counters as _, InRedis, START_US, want};
use crate::harness::instance::{Instance, check, patient};
use crate::harness::oracle::Oracle;
use crate::harness::random::Random;
use crate::harness::redis::Redis;

#[test]
fn redis_6_and_the_oracle_agree() {
    let mut lua = InRedis::on(Redis::start_oldest());
    let mut oracle = Oracle::default();
    let mut random = Random::new(62);
    let mut now_us = START_US;
    for step in 0..3_000 {
        now_us += random.pick(&[0, 1, 999, 1_000, 60_000, 300_000]);
        let wanted: Vec<_> = (0..random.within(1, 3))
            .map(|_| {
                let hits = random.pick(&[1, 1, 1, 2, 3, 0, -1]);
                let window_ms = random.pick(&[200, 1_000]);
                want(random.pick(&["a", "b", "c"]), random.within(1, 6), window_ms, hits)
            })
            .collect();
        let (answers, expected) = (lua.ask(now_us, &wanted), oracle.ask(now_us, &wanted));
        assert_eq!(answers, expected, "step {step}, {wanted:?}");
    }
}

/// Everything that is sent to a Redis, and what it may refuse: the code of an inner command stands
/// in the text of the script's error only.
#[tokio::test(flavor = "multi_thread")]
async fn redis_6_serves_and_its_errors_are_told_apart() {
    let mut redis = Redis::start_oldest();
    assert!(redis.info("redis_version").starts_with("6.2."));
    let settings = Settings { timeout: Duration::from_millis(500), ..patient(&redis.url()) };
    for asked in ["", "?protocol=resp2"] {
        let url = format!("{}{asked}", redis.url());
        let instance = Instance::start(&Settings { url, ..settings.clone() }).await;
        redis.command::<()>("SCRIPT FLUSH");
        let user = [check("exact", 5, 1)];
        let calls = (0..100).map(|_| instance.ask(&user));
        let answers = futures_util::future::join_all(calls).await;
        let allowed = answers.into_iter().filter(|answer| answer.as_ref().unwrap()[0].allowed);
        assert_eq!(allowed.count(), 5, "{asked}");
        redis.command::<()>("FLUSHALL");
        for (cause, end, reason) in [
            ("CONFIG SET maxmemory 500kb", "CONFIG SET maxmemory 0", "oom"),
            (
                "CONFIG SET min-replicas-to-write 1",
                "CONFIG SET min-replicas-to-write 0",
                "noreplicas",
            ),
            ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "read_only"),
        ] {
            redis.command::<()>(cause);
            let error = instance.ask(&[check("bob", 5, 1)]).await.unwrap_err();
            assert_eq!(error.reason(), reason, "{asked}: {error}");
            redis.command::<()>(end);
            instance.until_answered(&check(reason, 5, 1)).await;
        }
        redis.restart();
        assert_eq!(instance.until_answered(&check("bob", 5, 1)).await.remaining, 4, "{asked}");
        redis.command::<()>("FLUSHALL");
    }
}
