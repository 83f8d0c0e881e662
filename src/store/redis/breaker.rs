//! The circuit breaker: after some failures in a row calls end at once, until the watchdog has
//! seen Redis answer. It does not try by itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use prometheus::IntGauge;
use tokio::sync::Notify;

use super::dial::Link;
use crate::store::StoreError;

/// Failures in a row that open the breaker.
const MAX_FAILURES: u32 = 5;

pub(super) struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
    reason: Mutex<String>,
    opened: Notify,
    gauge: IntGauge,
}

impl Breaker {
    /// Open, until Redis has answered for the first time.
    pub(super) fn new(gauge: IntGauge) -> Self {
        gauge.set(1);
        Self {
            failures: AtomicU32::new(0),
            open: AtomicBool::new(true),
            reason: Mutex::new("Redis has not answered yet".into()),
            opened: Notify::new(),
            gauge,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Why calls are cut short; `None` while they are not.
    pub(super) fn trouble(&self) -> Option<String> {
        self.is_open().then(|| self.reason.lock().expect("no code panics holding this").clone())
    }

    /// Learns from a call. What Redis itself refuses (OOM, MISCONF) is an answer, in no time.
    pub(super) fn observe(&self, error: Option<&StoreError>, link: Option<&Link>) {
        match error {
            None | Some(StoreError::OutOfMemory(_) | StoreError::Misconfigured(_)) => {
                if self.failures.load(Ordering::Relaxed) != 0 {
                    self.failures.store(0, Ordering::Relaxed);
                }
                return;
            }
            // A demoted primary never says anything else on this connection.
            Some(StoreError::ReadOnly(_)) => link.into_iter().for_each(Link::give_up),
            Some(_) => {}
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if let (Some(error), true) = (error, failures >= MAX_FAILURES) {
            // A peer that answers nothing may be a black hole: a new connection finds out.
            link.into_iter().for_each(Link::give_up);
            self.trip(&error.to_string());
        }
    }

    /// Cuts calls short from now on.
    pub(super) fn trip(&self, reason: &str) {
        reason.clone_into(&mut self.reason.lock().expect("no code panics holding this"));
        if !self.open.swap(true, Ordering::Relaxed) {
            self.gauge.set(1);
            self.opened.notify_one();
        }
    }

    /// Lets calls through again.
    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
        self.gauge.set(0);
    }

    /// Returns when the breaker has opened.
    pub(super) async fn opened(&self) {
        self.opened.notified().await;
    }
}
