//! The embedded store: logs in this process, sharded and bounded.
//! A live log is never thrown away to make room: at the bound a new key is an error.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Store, StoreError};
use crate::check::{Check, QuotaKey};
use crate::metrics::Metrics;
use crate::quota::Verdict;
use crate::quota::sliding_log::{Ask, Log, decide, decide_alone};

const SHARDS: usize = 64;

/// Logs looked at for expiry with each call: more than one, so that reclaiming keeps up.
const RECLAIM_STEPS: usize = 4;

/// At the bound, all shards are searched for expired logs, but not more often than this.
const SEARCH_EVERY_US: u64 = 100_000;

/// Settings of `store.memory:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Keys held at most; a new key beyond is answered by the policy.
    pub max_keys: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_keys: 1_000_000 }
    }
}

/// Counts in this process.
pub struct Memory {
    shards: Vec<Mutex<Shard>>,
    hasher: ahash::RandomState,
    started: Instant,
    keys: AtomicUsize,
    max_keys: usize,
    searched_at_us: AtomicU64,
    metrics: Arc<Metrics>,
}

/// A log's name: whose quota, and its window in ms.
type LogKey = (QuotaKey, u64);

#[derive(Default)]
struct Shard {
    logs: HashMap<LogKey, Log, ahash::RandomState>,
    /// When to look whether a log has run empty: exactly one entry for each log.
    due: BinaryHeap<Reverse<(u64, Due)>>,
}

/// A log's name, ordered by nothing: the heap orders by time alone.
struct Due(LogKey);

impl PartialEq for Due {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Memory {
    /// An empty store.
    pub fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: ahash::RandomState::new(),
            started: Instant::now(),
            keys: AtomicUsize::new(0),
            max_keys: settings.max_keys,
            searched_at_us: AtomicU64::new(0),
            metrics,
        }
    }

    /// Keys held now, expired ones that were not yet reclaimed included.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Hits that the window of this key holds now.
    pub fn used(&self, key: &QuotaKey, window_ms: u64) -> u64 {
        let key = (key.clone(), window_ms);
        let mut shard = self.lock(self.shard_of(&key));
        let Some(log) = shard.logs.get_mut(&key) else { return 0 };
        log.advance(window_ms * 1000, self.now_us());
        log.used()
    }

    /// Frees what has run empty. For a background task: calls do it too, but only where they look.
    pub fn reclaim(&self) {
        for shard in 0..SHARDS {
            self.reclaim_shard(&mut self.lock(shard), self.now_us(), usize::MAX);
        }
        self.metrics.memory_keys.set(i64::try_from(self.keys()).unwrap_or(i64::MAX));
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().expect("no code panics while holding a shard")
    }

    fn shard_of(&self, key: &LogKey) -> usize {
        // The shard's own map hashes with another key, so the low bits are free to use here.
        usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0)
    }

    fn reclaim_shard(&self, shard: &mut Shard, now_us: u64, steps: usize) {
        for _ in 0..steps {
            if shard.due.peek().is_none_or(|Reverse((at_us, _))| *at_us > now_us) {
                return;
            }
            let Some(Reverse((_, Due(key)))) = shard.due.pop() else { return };
            let Some(log) = shard.logs.get_mut(&key) else { continue };
            let window_us = key.1 * 1000;
            log.advance(window_us, now_us);
            match log.newest_at_us() {
                Some(newest_at_us) => shard.due.push(Reverse((newest_at_us + window_us, Due(key)))),
                None => {
                    shard.logs.remove(&key);
                    self.keys.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Whether another key fits, once expired logs are gone.
    fn has_room(&self) -> bool {
        if self.keys() < self.max_keys {
            return true;
        }
        let now_us = self.now_us();
        let searched_at_us = self.searched_at_us.load(Ordering::Relaxed);
        let due = now_us >= searched_at_us + SEARCH_EVERY_US || searched_at_us == 0;
        let ours = due
            && self
                .searched_at_us
                .compare_exchange(
                    searched_at_us,
                    now_us.max(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if ours {
            self.reclaim();
        }
        self.keys() < self.max_keys
    }

    /// The usual case, without the cost of the general one.
    fn decide_alone(&self, check: &Check) -> Result<Verdict, StoreError> {
        let key = (check.key.clone(), check.limit.window_ms());
        let home = self.shard_of(&key);
        if !self.has_room() {
            let (checks, keys) = (std::slice::from_ref(check), std::slice::from_ref(&key));
            self.refuse_new_keys(checks, keys, &[home])?;
        }
        let mut shard = self.lock(home);
        let now_us = self.now_us();
        self.reclaim_shard(&mut shard, now_us, RECLAIM_STEPS);
        let Check { limit, hits, mode, count_denied, .. } = *check;
        let ask = Ask { log: 0, limit, hits, mode, count_denied };
        if let Some(log) = shard.logs.get_mut(&key) {
            log.advance(limit.window_us(), now_us);
            return Ok(decide_alone(log, &ask, now_us));
        }
        let mut log = Log::default();
        let verdict = decide_alone(&mut log, &ask, now_us);
        self.put_back(&mut shard, key, log);
        Ok(verdict)
    }

    fn decide(&self, checks: &[Check]) -> Result<Vec<Verdict>, StoreError> {
        let keys: Vec<LogKey> =
            checks.iter().map(|check| (check.key.clone(), check.limit.window_ms())).collect();
        let mut shards: Vec<usize> = keys.iter().map(|key| self.shard_of(key)).collect();
        let home = shards.clone();
        // Locked in ascending order, so that two requests never wait for each other.
        shards.sort_unstable();
        shards.dedup();
        if checks.len() > self.max_keys || !self.has_room() {
            self.refuse_new_keys(checks, &keys, &home)?;
        }
        let mut guards: Vec<_> = shards.iter().map(|&shard| self.lock(shard)).collect();
        let now_us = self.now_us();
        for guard in &mut guards {
            self.reclaim_shard(guard, now_us, RECLAIM_STEPS);
        }
        let guard_of: Vec<usize> =
            home.iter().map(|shard| shards.binary_search(shard).unwrap_or(0)).collect();

        let mut logs: Vec<Log> = Vec::with_capacity(checks.len());
        let mut asks = Vec::with_capacity(checks.len());
        let mut first_use: Vec<usize> = Vec::with_capacity(checks.len());
        for (index, check) in checks.iter().enumerate() {
            let log = match first_use.iter().position(|&first| keys[first] == keys[index]) {
                Some(log) => log,
                None => {
                    let shard = &mut guards[guard_of[index]];
                    let held = shard.logs.get_mut(&keys[index]);
                    let mut log = held.map(std::mem::take).unwrap_or_default();
                    log.advance(check.limit.window_us(), now_us);
                    first_use.push(index);
                    logs.push(log);
                    logs.len() - 1
                }
            };
            let Check { limit, hits, mode, count_denied, .. } = *check;
            asks.push(Ask { log, limit, hits, mode, count_denied });
        }
        let verdicts = decide(&mut logs, &asks, now_us);
        for (log, &index) in logs.into_iter().zip(&first_use) {
            self.put_back(&mut guards[guard_of[index]], keys[index].clone(), log);
        }
        Ok(verdicts)
    }

    fn put_back(&self, shard: &mut Shard, key: LogKey, log: Log) {
        if let Some(held) = shard.logs.get_mut(&key) {
            *held = log;
        } else if let Some(newest_at_us) = log.newest_at_us() {
            shard.due.push(Reverse((newest_at_us + key.1 * 1000, Due(key.clone()))));
            shard.logs.insert(key, log);
            self.keys.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// At the bound: an error if one of the checks would need a new key.
    fn refuse_new_keys(
        &self,
        checks: &[Check],
        keys: &[LogKey],
        home: &[usize],
    ) -> Result<(), StoreError> {
        let needs_key = checks.iter().zip(keys).zip(home).any(|((check, key), &shard)| {
            check.hits > 0 && !self.lock(shard).logs.contains_key(key)
        });
        if !needs_key {
            return Ok(());
        }
        self.metrics.memory_full.inc();
        Err(StoreError::OutOfMemory(format!(
            "it holds {} keys (store.memory.max_keys), all of them live",
            self.max_keys
        )))
    }
}

impl Store for Memory {
    async fn acquire(
        &self,
        checks: &[Check],
        _deadline: Option<Instant>,
    ) -> Result<Vec<Verdict>, StoreError> {
        match checks {
            [check] => Ok(vec![self.decide_alone(check)?]),
            _ => self.decide(checks),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::quota::{Limit, Mode};

    fn store(max_keys: usize) -> Memory {
        Memory::new(&Settings { max_keys }, Metrics::new())
    }

    fn check(user: &str, limit: u64) -> Check {
        Check {
            key: QuotaKey::of_identity(b"k", user.as_bytes()),
            limit: Limit::new(limit, Duration::from_secs(1)).unwrap(),
            hits: 1,
            mode: Mode::Enforce,
            count_denied: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_spray_of_keys_resets_nobody() {
        let store = store(100);
        assert!(store.acquire(&[check("alice", 1)], None).await.unwrap()[0].allowed);
        for user in 0..10_000 {
            let answer = store.acquire(&[check(&user.to_string(), 1)], None).await;
            assert_eq!(answer.is_ok(), user < 99, "{user}: {answer:?}");
            assert!(store.keys() <= 100);
        }
        assert!(!store.acquire(&[check("alice", 1)], None).await.unwrap()[0].allowed);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(store.acquire(&[check("bob", 1)], None).await.unwrap()[0].allowed);
    }

    #[tokio::test(start_paused = true)]
    async fn what_ran_empty_is_reclaimed() {
        let store = store(1000);
        for user in 0..500 {
            store.acquire(&[check(&user.to_string(), 1)], None).await.unwrap();
        }
        tokio::time::advance(Duration::from_millis(600)).await;
        store.acquire(&[check("0", 2)], None).await.unwrap();
        tokio::time::advance(Duration::from_millis(600)).await;
        store.reclaim();
        assert_eq!(store.keys(), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        store.reclaim();
        assert_eq!(store.keys(), 0);
        assert!(store.shards.iter().all(|shard| shard.lock().unwrap().due.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_bound_only_who_takes_something_needs_a_key() {
        let store = store(1);
        let both = [check("a", 1), check("b", 1)];
        assert!(store.acquire(&both, None).await.is_err(), "it will never hold two");
        assert!(store.acquire(&both[..1], None).await.unwrap()[0].allowed);
        for hits in [0, -1] {
            let nothing = Check { hits, ..check("b", 1) };
            assert!(
                store.acquire(std::slice::from_ref(&nothing), None).await.unwrap()[0].allowed,
                "{hits}"
            );
            let twice = [nothing, both[0].clone()];
            assert!(!store.acquire(&twice, None).await.unwrap()[1].allowed, "{hits}");
        }
        assert_eq!(store.used(&both[0].key, 1000), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(store.used(&both[0].key, 1000), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn windows_of_one_user_are_logs_of_their_own() {
        let store = store(10);
        let limit = Limit::new(2, Duration::from_secs(60)).unwrap();
        let both = [check("a", 1), Check { limit, ..check("a", 1) }];
        for expected in [[true, true], [true, true], [true, false]] {
            let verdicts = store.acquire(&both, None).await.unwrap();
            assert_eq!([verdicts[0].allowed, verdicts[1].allowed], expected);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // Also when only a part has left.
        let two = [check("b", 2), Check { hits: 0, ..check("c", 1) }];
        for (pause_ms, expected) in [(0, true), (500, true), (499, false), (1, true)] {
            tokio::time::advance(Duration::from_millis(pause_ms)).await;
            assert_eq!(store.acquire(&two, None).await.unwrap()[0].allowed, expected, "{pause_ms}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn peeks_and_refusals_make_no_key() {
        let store = store(10);
        let peek = Check { hits: 0, ..check("a", 1) };
        let too_many = Check { hits: 5, ..check("b", 1) };
        store.acquire(&[peek, too_many], None).await.unwrap();
        assert_eq!(store.keys(), 0);
    }
}
