//! To whose account a decision goes in the metrics, and who answered it.

use std::time::Duration;

use chronosdb::check::{Check, Request};
use chronosdb::limiter::Source;
use futures_util::future::join_all;

use crate::harness::instance::{Instance, check, patient};
use crate::harness::redis::Redis;
use crate::stores::{limiter, memory, quota, request};

const RULES: &str = "
domain: edge
descriptors:
  - { key: group, rate_limit: { limit: 9, window: 1h }, identity: { api_key: groups, user_id: '{group}' } }
  - { key: user, rate_limit: { limit: 1, window: 1h }, identity: { api_key: users, user_id: '{user}' } }
  - { key: plain, rate_limit: { limit: 9, window: 1h } }
  - { key: banned, rate_limit: { limit: 0, window: 1h } }
  - { key: incurred, rate_limit: { limit: 0, window: 1h }, count_denied: true }
  - { key: cost, rate_limit: { limit: 5, window: 1h }, count_denied: true }
";

fn asked(keys: &[&str]) -> Request {
    let one = |key: &&str| request("edge", &[(key.as_bytes(), b"v")]).descriptors;
    Request { domain: "edge".into(), descriptors: keys.iter().flat_map(one).collect() }
}

/// The one who refuses, else the first who was asked; without an identity that is the domain.
#[tokio::test]
async fn a_request_is_counted_for_one_api_key() {
    let limiter = limiter(memory(), RULES, true);
    let steps: [(&[&str], &str, bool); 7] = [
        (&["group", "user"], "groups", true),
        (&["group", "user"], "users", false),
        (&["user", "group"], "users", false),
        (&["plain", "group"], "edge", true),
        (&["unknown", "group"], "groups", true),
        (&["unknown"], "edge", true),
        (&["group", "banned"], "edge", false),
    ];
    let counts = |api_key: &str| {
        let stats = limiter.shared().metrics.api_key(api_key);
        (stats.allowed.get(), stats.denied.get())
    };
    for (keys, api_key, allowed) in steps {
        let before = ["groups", "users", "edge"].map(counts);
        assert_eq!(limiter.decide(&asked(keys), None).await.unwrap().allowed, allowed, "{keys:?}");
        let after = ["groups", "users", "edge"].map(counts);
        for (index, known) in ["groups", "users", "edge"].into_iter().enumerate() {
            let (mut passed, mut denied) = before[index];
            passed += u64::from(known == api_key && allowed);
            denied += u64::from(known == api_key && !allowed);
            assert_eq!(after[index], (passed, denied), "{known}: {keys:?}");
        }
    }
}

#[tokio::test]
async fn a_question_with_its_own_limit_is_counted_too() {
    let limiter = limiter(memory(), RULES, true);
    let quota = quota("free", "bob", 1, Duration::from_secs(3600), 1);
    for allowed in [true, false, false] {
        assert_eq!(limiter.check_quota(&quota, None).await.unwrap().allowed, allowed);
    }
    let metrics = &limiter.shared().metrics;
    let (key, rule) = (metrics.api_key("free"), metrics.rule("native", "CheckQuota"));
    assert_eq!((key.allowed.get(), key.denied.get()), (1, 2));
    assert_eq!((rule.allowed.get(), rule.refused.get()), (1, 2));
}

#[tokio::test]
async fn who_answered_is_said() {
    let limiter = limiter(memory(), RULES, true);
    let steps = [
        ("banned", Source::Rules),
        ("unknown", Source::Rules),
        ("user", Source::Store),
        ("user", Source::Store),
        ("user", Source::L1),
        ("incurred", Source::Store),
        ("incurred", Source::Store),
    ];
    for (key, source) in steps {
        let decision = limiter.decide(&asked(&[key]), None).await.unwrap();
        assert_eq!(decision.statuses[0].source, source, "{key}");
    }
}

#[tokio::test]
async fn a_rule_that_counts_what_it_denies_does_so() {
    let limiter = limiter(memory(), RULES, true);
    for (hits, allowed) in
        [(4, true), (2, false), (1, false), (-2, true), (1, false), (-2, true), (1, true)]
    {
        let mut request = asked(&["cost"]);
        request.descriptors[0].hits = hits;
        let decision = limiter.decide(&request, None).await.unwrap();
        assert_eq!(decision.allowed, allowed, "{hits}");
    }
}

#[tokio::test]
async fn a_look_at_a_quota_says_whether_one_more_hit_would_pass() {
    let limiter = limiter(memory(), RULES, true);
    let of = |hits| quota("free", "bob", 2, Duration::from_secs(3600), hits);
    for (taken, passes) in [(1, true), (1, false)] {
        assert!(limiter.check_quota(&of(taken), None).await.unwrap().allowed);
        let look = limiter.check_quota(&of(0), None).await.unwrap();
        assert_eq!((look.allowed, look.retry_after.is_none()), (passes, passes));
    }
}

/// Equal checks share a run; those that record what was refused as well must not.
#[tokio::test]
async fn costs_that_were_incurred_are_all_counted_however_many_come_at_once() {
    let redis = Redis::start();
    let instance = Instance::start(&patient(&redis.url())).await;
    let incurred = [Check { count_denied: true, ..check("bob", 5, 1) }];
    let answers = join_all((0..20).map(|_| instance.ask(&incurred))).await;
    let allowed = answers.into_iter().filter(|answer| answer.as_ref().unwrap()[0].allowed);
    assert_eq!(allowed.count(), 5);
    assert_eq!(instance.ask(&[check("bob", 100, 0)]).await.unwrap()[0].remaining, 80);
}
