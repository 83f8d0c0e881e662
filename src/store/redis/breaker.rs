//! The circuit breaker of one server: after some failures in a row calls end at once, until the
//! watchdog has seen the server answer. It does not try by itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use prometheus::IntGauge;
use tokio::sync::Notify;

use crate::store::StoreError;

/// Failures in a row that open the breaker.
const MAX_FAILURES: u32 = 5;

pub(super) struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
    reason: Mutex<StoreError>,
    opened: Notify,
    /// How many are open.
    gauge: IntGauge,
}

/// How a breaker begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody has heard of the server: it must answer the watchdog first.
    Open,
    /// Another server has named it.
    Closed,
}

impl Breaker {
    pub(super) fn new(gauge: IntGauge, state: State) -> Self {
        let open = state == State::Open;
        gauge.add(i64::from(open));
        Self {
            failures: AtomicU32::new(0),
            open: AtomicBool::new(open),
            reason: Mutex::new(StoreError::Unavailable("Redis has not answered yet".into())),
            opened: Notify::new(),
            gauge,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Why calls are cut short; `None` while they are not.
    pub(super) fn trouble(&self) -> Option<StoreError> {
        self.is_open().then(|| self.reason.lock().expect("no code panics holding this").clone())
    }

    /// Learns from a call. What Redis itself refuses (OOM, MISCONF) is an answer, in no time,
    /// and its refusals and peeks are still true.
    pub(super) fn observe(&self, error: Option<&StoreError>) {
        let Some(error) = error.filter(|error| is_failure(error)) else {
            if self.failures.load(Ordering::Relaxed) != 0 {
                self.failures.store(0, Ordering::Relaxed);
            }
            return;
        };
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_FAILURES {
            self.trip(error);
        }
    }

    /// Cuts calls short from now on.
    pub(super) fn trip(&self, reason: &StoreError) {
        let reason = match reason {
            // What is cut short was never sent.
            StoreError::Timeout => StoreError::Unavailable("it does not answer in time".into()),
            reason => reason.clone(),
        };
        *self.reason.lock().expect("no code panics holding this") = reason;
        if !self.open.swap(true, Ordering::Relaxed) {
            self.gauge.inc();
            self.opened.notify_one();
        }
    }

    /// Lets calls through again.
    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if self.open.swap(false, Ordering::Relaxed) {
            self.gauge.dec();
        }
    }

    /// Returns when the breaker has opened.
    pub(super) async fn opened(&self) {
        self.opened.notified().await;
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        self.gauge.sub(i64::from(self.is_open()));
    }
}

/// Whether the server does not do its work at all. `ClusterDown` is the work of all servers.
fn is_failure(error: &StoreError) -> bool {
    match error {
        StoreError::Timeout
        | StoreError::Unavailable(_)
        | StoreError::ReadOnly(_)
        | StoreError::Loading(_)
        | StoreError::Busy(_) => true,
        StoreError::Overloaded(_)
        | StoreError::ClusterDown(_)
        | StoreError::OutOfMemory(_)
        | StoreError::NotSaving(_)
        | StoreError::NoReplicas(_)
        | StoreError::Misconfigured(_) => false,
    }
}
