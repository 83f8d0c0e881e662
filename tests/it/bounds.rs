//! What a spray of keys does to the memory of one process: nothing beyond the bounds it was given.

use std::time::Duration;

use chronosdb::check::{Check, Mode, QuotaKey};
use chronosdb::l1::{self, L1};
use chronosdb::metrics::Metrics;
use chronosdb::quota::{Limit, Verdict};
use chronosdb::store::memory::{self, Memory};
use chronosdb::store::{Store as _, StoreError};
use tokio::time::Instant;

/// Different keys: five million in the long form.
fn sprayed() -> usize {
    if std::env::var("CHRONOSDB_TEST_LONG").is_ok_and(|long| long == "1") {
        5_000_000
    } else {
        200_000
    }
}

const BOUND: usize = 10_000;

fn check(user: usize) -> Check {
    let key = QuotaKey::of_identity(b"spray", format!("user-{user}").as_bytes());
    let limit = Limit::new(2, Duration::from_secs(3600)).unwrap();
    Check { key, limit, hits: 1, mode: Mode::Enforce, count_denied: false }
}

#[tokio::test]
async fn a_spray_of_keys_resets_nobody_in_the_memory_store() {
    let metrics = Metrics::new();
    let store = Memory::new(&memory::Settings { max_keys: BOUND }, metrics.clone());
    let ask = async |user| store.acquire(&[check(user)], None).await;
    for _ in 0..2 {
        assert!(ask(0).await.unwrap()[0].allowed);
    }
    let mut refused_room = 0;
    for user in 1..sprayed() {
        match ask(user).await {
            Ok(verdicts) => assert!(verdicts[0].allowed),
            Err(StoreError::OutOfMemory(_)) => refused_room += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(store.keys() <= BOUND);
    }
    assert_eq!(refused_room, sprayed() - BOUND, "a new key found room at the bound");
    assert_eq!(metrics.memory_full.get(), u64::try_from(refused_room).unwrap());
    assert!(!ask(0).await.unwrap()[0].allowed, "a live quota was thrown away");
}

#[test]
fn a_spray_of_refusals_stays_within_the_l1() {
    let metrics = Metrics::new();
    let (max_entries, wait) = (BOUND as u64, Duration::from_secs(3600));
    let settings = l1::Settings { max_entries, max_ttl: wait, ..l1::Settings::default() };
    let l1 = L1::new(&settings, metrics.clone());
    let refused =
        Verdict { allowed: false, remaining: 0, retry_after: Some(wait), reset_after: wait };
    let now = Instant::now();
    for user in 0..sprayed() {
        l1.remember(&check(user), &refused, l1.asking(now));
        // The cache puts its work off a little.
        let entries = usize::try_from(metrics.l1_entries.get()).unwrap();
        assert!(entries <= BOUND + BOUND / 10, "{entries} entries");
    }
    assert!(metrics.l1_entries.get() > 0);
    // Whatever it forgot, it grants nothing: the store is asked.
    let known = (0..sprayed()).filter(|user| l1.refusal(&check(*user), now).is_some()).count();
    assert!((1..=BOUND + BOUND / 10).contains(&known), "{known} of {} are known", sprayed());
}
