//! One instance's view of Redis: the store, watched, with metrics of its own.

use std::sync::Arc;
use std::time::Duration;

use chronosdb::check::{Check, Mode, QuotaKey};
use chronosdb::metrics::Metrics;
use chronosdb::quota::{Limit, Verdict};
use chronosdb::store::redis::{Redis, Settings};
use chronosdb::store::{Store as _, StoreError};
use tokio::time::{Instant, sleep};

use super::PATIENCE;

/// More than failures in a row that open a breaker: each of them may be stale.
pub(crate) const CONNECTIONS: u32 = 6;

/// Watched until dropped.
pub(crate) struct Instance {
    pub(crate) store: Redis,
    pub(crate) metrics: Arc<Metrics>,
    watch: tokio::task::JoinHandle<()>,
}

impl Instance {
    /// As it is right after its start.
    pub(crate) fn launch(settings: &Settings) -> Self {
        // Without optimizations a handshake takes long.
        let connections = if settings.url.starts_with("rediss:") { 1 } else { CONNECTIONS };
        let metrics = Metrics::new();
        let store = Redis::open(settings, connections, "test", Arc::clone(&metrics)).unwrap();
        let watch = tokio::spawn(store.clone().watch());
        Self { store, metrics, watch }
    }

    /// Ready to answer.
    pub(crate) async fn start(settings: &Settings) -> Self {
        let instance = Self::launch(settings);
        instance.until("Redis answers", async || instance.store.answers()).await;
        instance
    }

    /// One request.
    pub(crate) async fn ask(&self, checks: &[Check]) -> Result<Vec<Verdict>, StoreError> {
        self.store.acquire(checks, None).await
    }

    /// Asks until the answer is yes.
    pub(crate) async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let started = Instant::now();
        while !holds().await {
            let trouble = self.store.trouble();
            assert!(started.elapsed() < PATIENCE, "{what}: {trouble:?}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// One hit of a check gets an answer of Redis, at last.
    pub(crate) async fn until_answered(&self, check: &Check) -> Verdict {
        let started = Instant::now();
        loop {
            match self.ask(std::slice::from_ref(check)).await {
                Ok(verdicts) => return verdicts[0],
                Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// `hits` of `limit` in a minute for a user, enforced.
pub(crate) fn check(user: &str, limit: u64, hits: i64) -> Check {
    check_in(user, limit, Duration::from_secs(60), hits)
}

/// The same, in any window.
pub(crate) fn check_in(user: &str, limit: u64, window: Duration, hits: i64) -> Check {
    Check {
        key: QuotaKey::of_identity(b"k", user.as_bytes()),
        limit: Limit::new(limit, window).unwrap(),
        hits,
        mode: Mode::Enforce,
        count_denied: false,
    }
}

/// Settings that wait for a slow machine: the contract is what counts.
pub(crate) fn patient(url: &str) -> Settings {
    Settings { url: url.into(), timeout: Duration::from_secs(5), ..Settings::default() }
}
