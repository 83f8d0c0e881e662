//! Equal checks that wait at the same time share one script run, first come first served.
//! The first goes out at once; those that come while it is under way go together after it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Inner;
use super::script::Work;
use crate::check::{Check, QuotaKey};
use crate::quota::{Limit, Verdict};
use crate::store::StoreError;

/// What makes two checks equal.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Single {
    key: QuotaKey,
    limit: Limit,
    hits: i64,
}

impl Single {
    /// A lone check that takes hits; others are not shared.
    pub(super) fn of(checks: &[Check]) -> Option<Self> {
        match checks {
            [check] if check.hits > 0 && !check.count_denied => {
                Some(Self { key: check.key.clone(), limit: check.limit, hits: check.hits })
            }
            _ => None,
        }
    }

    fn check(&self) -> Check {
        let Self { key, limit, hits } = self.clone();
        Check { key, limit, hits, mode: crate::quota::Mode::Enforce, count_denied: false }
    }
}

type Waiter = oneshot::Sender<Result<Verdict, StoreError>>;

/// The checks under way, each with those that wait behind it.
#[derive(Default)]
pub(super) struct Coalescer {
    flights: Mutex<HashMap<Single, Vec<Waiter>, ahash::RandomState>>,
}

pub(super) enum Turn {
    /// Nobody asks the same right now: ask, with a [`Landing`] in hand.
    Lead,
    /// Somebody does: the answer comes with the next run.
    Wait(oneshot::Receiver<Result<Verdict, StoreError>>),
}

impl Coalescer {
    pub(super) fn join(&self, single: &Single) -> Turn {
        let mut flights = self.flights.lock().expect("no code panics holding this");
        let Some(waiters) = flights.get_mut(single) else {
            flights.insert(single.clone(), Vec::new());
            return Turn::Lead;
        };
        let (answer, waiting) = oneshot::channel();
        waiters.push(answer);
        Turn::Wait(waiting)
    }

    /// Those who wait now; when there are none, the next one leads.
    fn land(&self, single: &Single) -> Vec<Waiter> {
        let mut flights = self.flights.lock().expect("no code panics holding this");
        let waiters = flights.get_mut(single).map(std::mem::take).unwrap_or_default();
        if waiters.is_empty() {
            flights.remove(single);
        }
        waiters
    }
}

/// Serves those who wait behind a call when it ends, in whatever way it does.
pub(super) struct Landing {
    inner: Arc<Inner>,
    single: Option<Single>,
}

impl Landing {
    pub(super) fn new(inner: Arc<Inner>, single: Single) -> Self {
        Self { inner, single: Some(single) }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let Some(single) = self.single.take() else { return };
        let waiters = self.inner.coalescer.land(&single);
        if !waiters.is_empty() {
            // A task of its own: a caller that goes away must not take the others with it.
            tokio::spawn(serve(Arc::clone(&self.inner), single, waiters));
        }
    }
}

async fn serve(inner: Arc<Inner>, single: Single, mut waiters: Vec<Waiter>) {
    let check = [single.check()];
    while !waiters.is_empty() {
        // Who has gone away takes nothing.
        waiters.retain(|waiter| !waiter.is_closed());
        let times = waiters.len();
        if times > 0 {
            let work = Work::Decide { checks: &check, times };
            match inner.servers.run(work, Instant::now() + inner.timeout).await {
                Ok(answer) => {
                    let shares = answer.shares(times, single.hits.unsigned_abs());
                    for (waiter, verdict) in waiters.into_iter().zip(shares) {
                        let _ = waiter.send(Ok(verdict));
                    }
                }
                Err(error) => {
                    for waiter in waiters {
                        let _ = waiter.send(Err(error.clone()));
                    }
                }
            }
        }
        // What has come in meanwhile is read before the next run starts, and shares it.
        tokio::task::yield_now().await;
        waiters = inner.coalescer.land(&single);
    }
}
