//! Asks Redis how it is, and closes the breaker when it answers. One probe at a time; callers
//! never pay for one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::Inner;
use super::fault::store_error;
use crate::check::{Check, QuotaKey};
use crate::quota::{Limit, Mode};
use crate::store::StoreError;

/// Between probes of a Redis that answers.
const CALM: Duration = Duration::from_secs(1);

/// Between probes of one that does not: doubled each time, with jitter.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// A probe may take longer than a decision: it is about whether Redis answers at all.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Between looks at Redis' memory settings.
const INSPECT_EVERY: Duration = Duration::from_secs(30);

pub(super) async fn run(inner: Arc<Inner>) {
    let mut retry = FIRST_RETRY;
    let mut inspected: Option<Instant> = None;
    loop {
        let was_open = inner.breaker.is_open();
        let probe = if was_open { self_test(&inner).await } else { ping(&inner).await };
        match probe {
            Ok(()) => {
                if was_open && inner.speaks {
                    tracing::info!("Redis answers");
                }
                inner.breaker.close();
                retry = FIRST_RETRY;
                if inspected.is_none_or(|at| at.elapsed() >= INSPECT_EVERY) {
                    inspect(&inner, inspected.is_none() && inner.speaks).await;
                    inspected = Some(Instant::now());
                }
                tokio::select! {
                    () = sleep(CALM) => {}
                    () = inner.breaker.opened() => sleep(jittered(retry)).await,
                }
            }
            Err(error) => {
                if inner.speaks && (!was_open || retry == FIRST_RETRY) {
                    tracing::warn!(%error, "Redis does not answer; the policy does (store.on_error)");
                }
                inner.breaker.trip(&error.to_string());
                sleep(jittered(retry)).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }
}

async fn ping(inner: &Inner) -> Result<(), StoreError> {
    let probe = async {
        let mut link = inner.link().await?;
        let pong = redis::cmd("PING").query_async::<()>(&mut link.connection).await;
        pong.map_err(|error| store_error(&error))
    };
    timeout(PROBE_TIMEOUT, probe).await.unwrap_or_else(|_| Err(too_late(inner)))
}

/// One hit on a key of its own: shows that the script runs, writes, and may use each command.
async fn self_test(inner: &Inner) -> Result<(), StoreError> {
    let window = Duration::from_secs(1);
    let check = Check {
        key: QuotaKey::of_identity(b"chronosdb", b"self-test"),
        limit: Limit::new(1_000_000, window).expect("a second is a window"),
        hits: 1,
        mode: Mode::Enforce,
        count_denied: false,
    };
    let probe = async {
        let mut link = inner.link().await?;
        let answer = inner.script.run(&mut link, &[check], 1).await;
        inner.breaker.observe(answer.as_ref().err(), Some(&link));
        answer.map(|_| ())
    };
    timeout(PROBE_TIMEOUT, probe).await.unwrap_or_else(|_| Err(too_late(inner)))
}

/// Without a connection the reason is why none could be made.
fn too_late(inner: &Inner) -> StoreError {
    let trouble = inner.dial_trouble.lock().expect("no code panics holding this").clone();
    trouble.unwrap_or(StoreError::Timeout)
}

/// Says what would make quotas restart at random.
async fn inspect(inner: &Inner, first: bool) {
    let Ok(mut link) = inner.link().await else { return };
    let info = redis::cmd("INFO");
    let info = info.query_async::<String>(&mut link.connection);
    // An account without INFO is no fault: the rest works.
    let Ok(Ok(info)) = timeout(PROBE_TIMEOUT, info).await else { return };
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    if let Some(evicted) = field("evicted_keys").and_then(|keys| keys.parse().ok()) {
        inner.metrics.redis_evicted_keys.set(evicted);
    }
    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    if first && policy != "noeviction" && field("maxmemory").is_some_and(|bytes| bytes != "0") {
        tracing::warn!(
            policy,
            "Redis may evict quotas under memory pressure, and they would start anew: set maxmemory-policy noeviction"
        );
    }
}

/// Between half of it and all of it: instances that lost Redis together do not come back together.
fn jittered(wait: Duration) -> Duration {
    let random = ahash::RandomState::new().hash_one(Instant::now());
    wait / 2 + wait.mul_f64((random % 1000) as f64 / 2000.0)
}
