//! The same quotas on a real Valkey, with the same scripts.

use std::time::Duration;

use crate::harness::counters::{Counters as _, InRedis, START_US, want};
use crate::harness::instance::{Instance, check, patient};
use crate::harness::oracle::Oracle;
use crate::harness::random::Random;
use crate::harness::redis::Redis;
use crate::harness::wait_until;

/// Its clock cannot be stopped to the microsecond, so nothing here happens close to the moment at
/// which a hit leaves its window, and waits are compared within this.
const CLOSE: Duration = Duration::from_millis(2);

#[test]
fn valkey_and_the_oracle_agree() {
    let mut valkey = InRedis::on(Redis::start_valkey());
    let mut oracle = Oracle::default();
    let mut random = Random::new(11);
    let mut now_us = START_US;
    for step in 0..500 {
        now_us += 10_000 * random.within(1, 8);
        let wanted: Vec<_> = (0..random.within(1, 3))
            .map(|_| {
                let limit = random.within(1, 6);
                let hits = random.pick(&[1, 1, 1, 2, 3, 0, -1]);
                want(random.pick(&["a", "b", "c"]), limit, random.pick(&[205, 1_005]), hits)
            })
            .collect();
        // It reads its clock now and then only, and counts on by itself in between.
        valkey.redis.clock.stop_at(now_us);
        wait_until("the step is noticed", || {
            let (seconds, micros): (u64, u64) = valkey.command(&["TIME"]);
            (seconds * 1_000_000 + micros).abs_diff(now_us) < 1_000
        });
        let (answers, expected) = (valkey.ask(now_us, &wanted), oracle.ask(now_us, &wanted));
        for (answer, expected) in answers.iter().zip(&expected) {
            let close = answer.reset_after.abs_diff(expected.reset_after) < CLOSE
                && match (answer.retry_after, expected.retry_after) {
                    (Some(wait), Some(expected)) => wait.abs_diff(expected) < CLOSE,
                    (wait, expected) => wait == expected,
                };
            let same = answer.allowed == expected.allowed && answer.remaining == expected.remaining;
            assert!(same && close, "step {step}, {wanted:?}: {answer:?}, not {expected:?}");
        }
    }
}

/// Everything that is sent to a Redis: the self-test, the script by hash and whole, shared runs.
#[tokio::test]
async fn valkey_admits_exactly_the_limit() {
    let valkey = Redis::start_valkey();
    assert_eq!(valkey.info("server_name"), "valkey");
    let instance = Instance::start(&patient(&valkey.url())).await;
    for round in 0..20 {
        valkey.command::<()>("SCRIPT FLUSH");
        let user = [check(&round.to_string(), 5, 1)];
        let calls = (0..100).map(|_| instance.ask(&user));
        let answers = futures_util::future::join_all(calls).await;
        let allowed = answers.into_iter().filter(|answer| answer.as_ref().unwrap()[0].allowed);
        assert_eq!(allowed.count(), 5, "round {round}");
    }
}
