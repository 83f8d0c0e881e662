//! Equal checks that wait at the same time share one script run, first come first served.
//! Those that are ready at one moment go together; those that come while they are under way go
//! together after them.
//!
//! It happens twice: a worker gathers its callers, and the process what its workers have gathered.
//! So a hot key costs one run for each round trip, however many workers there are, and a worker is
//! woken once for all of its callers.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::Inner;
use super::script::{Share, Work};
use crate::check::{Check, QuotaKey};
use crate::quota::Limit;
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

type Outcome = Result<Share, StoreError>;

/// Some equal asks that wait together.
struct Waiter {
    times: usize,
    outcome: oneshot::Sender<Outcome>,
}

/// The checks under way, each with those that wait behind it.
#[derive(Default)]
pub(super) struct Coalescer {
    flights: Mutex<HashMap<Single, Vec<Waiter>, ahash::RandomState>>,
    /// Where those that waited here meet others.
    wider: Option<Arc<Self>>,
}

enum Turn {
    /// Nobody asks the same right now: ask, with a [`Landing`] in hand.
    Lead,
    /// Somebody does: the outcome comes with the next run.
    Wait(oneshot::Receiver<Outcome>),
}

impl Coalescer {
    /// One of several that share what was gathered.
    pub(super) fn within(wider: &Arc<Self>) -> Self {
        Self { wider: Some(Arc::clone(wider)), ..Self::default() }
    }

    fn join(&self, single: &Single, times: usize) -> Turn {
        let mut flights = self.flights.lock().expect("no code panics holding this");
        let Some(waiters) = flights.get_mut(single) else {
            flights.insert(single.clone(), Vec::new());
            return Turn::Lead;
        };
        let (outcome, waiting) = oneshot::channel();
        waiters.push(Waiter { times, outcome });
        Turn::Wait(waiting)
    }

    /// A place for the one who leads, before those who have joined it; nobody may have.
    fn gather(&self, single: &Single, times: usize) -> Option<oneshot::Receiver<Outcome>> {
        let mut flights = self.flights.lock().expect("no code panics holding this");
        let waiters = flights.get_mut(single).filter(|waiters| !waiters.is_empty())?;
        let (outcome, waiting) = oneshot::channel();
        waiters.insert(0, Waiter { times, outcome });
        Some(waiting)
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

/// Asks the same so many times: alone, or in a run with others.
pub(super) async fn ask(
    inner: &Arc<Inner>,
    level: &Arc<Coalescer>,
    single: Single,
    times: usize,
    deadline: Instant,
) -> Outcome {
    let outcome = match level.join(&single, times) {
        Turn::Wait(outcome) => outcome,
        Turn::Lead => {
            // Also when this is cancelled: those who wait behind it must be served.
            let landing = Landing { inner: Arc::clone(inner), level: Arc::clone(level), single };
            step_back().await;
            let Some(outcome) = level.gather(&landing.single, times) else {
                return run(inner, &landing.single, times, deadline).await;
            };
            drop(landing);
            outcome
        }
    };
    match timeout_at(deadline, outcome).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(StoreError::Unavailable("the server stops".into())),
        Err(_) => Err(StoreError::Timeout),
    }
}

/// One run, for all of them.
async fn run(inner: &Inner, single: &Single, times: usize, deadline: Instant) -> Outcome {
    let check = [single.check()];
    inner.servers.run(Work::Decide { checks: &check, times }, deadline).await?.share()
}

/// Lets all go first who are ready now. (To yield would also look at the sockets, each time.)
async fn step_back() {
    let mut has_stepped = false;
    poll_fn(|context| {
        if has_stepped {
            return Poll::Ready(());
        }
        has_stepped = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Serves those who wait behind a call when it ends, in whatever way it does.
struct Landing {
    inner: Arc<Inner>,
    level: Arc<Coalescer>,
    single: Single,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let waiters = self.level.land(&self.single);
        if !waiters.is_empty() {
            let (inner, level) = (Arc::clone(&self.inner), Arc::clone(&self.level));
            // A task of its own: a caller that goes away must not take the others with it.
            tokio::spawn(serve(inner, level, self.single.clone(), waiters));
        }
    }
}

async fn serve(inner: Arc<Inner>, level: Arc<Coalescer>, single: Single, mut waiters: Vec<Waiter>) {
    while !waiters.is_empty() {
        // Who has gone away takes nothing.
        waiters.retain(|waiter| !waiter.outcome.is_closed());
        let times = waiters.iter().map(|waiter| waiter.times).sum();
        if times > 0 {
            let deadline = Instant::now() + inner.timeout;
            let outcome = match &level.wider {
                Some(wider) => ask(&inner, wider, single.clone(), times, deadline).await,
                None => run(&inner, &single, times, deadline).await,
            };
            let mut before = 0;
            for waiter in waiters {
                let outcome = outcome.clone().map(|share| share.after(before));
                before += waiter.times;
                let _ = waiter.outcome.send(outcome);
            }
        }
        // What has come in meanwhile is read before the next run starts, and shares it.
        tokio::task::yield_now().await;
        waiters = level.land(&single);
    }
}
