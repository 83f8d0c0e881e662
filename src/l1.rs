//! Remembers refusals, and only refusals: what the store would refuse again is refused here.
//! It never grants, and it changes no outcome (law 6).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mini_moka::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::check::{Check, QuotaKey};
use crate::metrics::Metrics;
use crate::quota::{Limit, Verdict};

/// Settings of `l1:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether refusals are remembered.
    pub enabled: bool,
    /// Refusals held at most.
    pub max_entries: u64,
    /// How long one is held at most, whatever its window.
    #[serde(with = "crate::duration")]
    pub max_ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { enabled: true, max_entries: 100_000, max_ttl: Duration::from_secs(60) }
    }
}

/// The refusals that are still true.
pub struct L1 {
    refusals: Option<Cache<(QuotaKey, u64), Refusal, ahash::RandomState>>,
    max_ttl: Duration,
    /// Grows with each refund: a refusal asked for before one is not remembered after it.
    refunds: AtomicU64,
    metrics: Arc<Metrics>,
}

#[derive(Clone, Copy)]
struct Refusal {
    limit: Limit,
    hits: i64,
    /// Until then no hit leaves the window, so nothing about the answer can change.
    holds_until: Instant,
    reset_at: Instant,
    retry_at: Instant,
}

/// The moment the store was asked: what it answers is true since then.
#[derive(Clone, Copy)]
pub struct Asked {
    at: Instant,
    refunds: u64,
}

/// Refunds that the store is asked for, perhaps.
pub struct Refunding<'a> {
    l1: &'a L1,
    checks: &'a [Check],
}

impl Drop for Refunding<'_> {
    fn drop(&mut self) {
        let Some(refusals) = &self.l1.refusals else { return };
        for check in self.checks.iter().filter(|check| check.hits < 0) {
            self.l1.refunds.fetch_add(1, Ordering::AcqRel);
            refusals.invalidate(&(check.key.clone(), check.limit.window_ms()));
        }
    }
}

impl L1 {
    /// Empty.
    pub fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        let refusals = settings.enabled.then(|| {
            Cache::builder()
                .max_capacity(settings.max_entries)
                .time_to_live(settings.max_ttl)
                .build_with_hasher(ahash::RandomState::new())
        });
        Self { refusals, max_ttl: settings.max_ttl, refunds: AtomicU64::new(0), metrics }
    }

    /// To be called before the store is.
    pub fn asking(&self, now: Instant) -> Asked {
        Asked { at: now, refunds: self.refunds.load(Ordering::Acquire) }
    }

    /// To be held while the store is asked: what is given back is forgotten here, also when the
    /// answer never comes.
    pub fn refunding<'a>(&'a self, checks: &'a [Check]) -> Refunding<'a> {
        Refunding { l1: self, checks }
    }

    /// The refusal that the store would give now, if it is known.
    pub fn refusal(&self, check: &Check, now: Instant) -> Option<Verdict> {
        let refusals = self.refusals.as_ref()?;
        if check.hits <= 0 || check.count_denied {
            return None;
        }
        let known = refusals
            .get(&(check.key.clone(), check.limit.window_ms()))
            // The same hits only: more would be refused too, but would have to wait longer.
            .filter(|known| known.limit == check.limit && known.hits == check.hits)
            .filter(|known| now < known.holds_until);
        let Some(known) = known else {
            self.metrics.l1_misses.inc();
            return None;
        };
        self.metrics.l1_hits.inc();
        Some(Verdict {
            allowed: false,
            remaining: 0,
            retry_after: Some(known.retry_at - now),
            reset_after: known.reset_at - now,
        })
    }

    /// Keeps what the store answered, if it is a refusal that stays true for a while.
    pub fn remember(&self, check: &Check, verdict: &Verdict, asked: Asked) {
        let Some(refusals) = &self.refusals else { return };
        // With something left, others may take it and the answer would change.
        let (false, 0, Some(retry_after)) =
            (verdict.allowed, verdict.remaining, verdict.retry_after)
        else {
            return;
        };
        if check.hits <= 0 || check.count_denied {
            return;
        }
        // Counted from when we asked: a slow answer must not make us refuse for longer than the
        // store would.
        let refusal = Refusal {
            limit: check.limit,
            hits: check.hits,
            holds_until: asked.at + verdict.reset_after.min(self.max_ttl),
            reset_at: asked.at + verdict.reset_after,
            retry_at: asked.at + retry_after,
        };
        let name = (check.key.clone(), check.limit.window_ms());
        refusals.insert(name.clone(), refusal);
        // Looked at last: a refund that comes now finds the entry, one that came is seen here.
        if self.refunds.load(Ordering::Acquire) != asked.refunds {
            refusals.invalidate(&name);
        }
        self.metrics.l1_entries.set(i64::try_from(refusals.entry_count()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Mode;

    fn check(limit: u64, hits: i64) -> Check {
        Check {
            key: QuotaKey::of_identity(b"k", b"u"),
            limit: Limit::new(limit, Duration::from_secs(10)).unwrap(),
            hits,
            mode: Mode::Enforce,
            count_denied: false,
        }
    }

    fn refused(remaining: u64, retry_s: u64, reset_s: u64) -> Verdict {
        Verdict {
            allowed: false,
            remaining,
            retry_after: Some(Duration::from_secs(retry_s)),
            reset_after: Duration::from_secs(reset_s),
        }
    }

    #[test]
    fn it_repeats_only_what_stays_true() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let l1 = L1::new(&Settings::default(), Metrics::new());
        l1.remember(&check(5, 3), &refused(2, 4, 4), l1.asking(now));
        assert_eq!(l1.refusal(&check(5, 3), now), None, "somebody may take the two that are left");
        l1.remember(&check(5, 1), &refused(0, 4, 4), l1.asking(now));
        assert_eq!(l1.refusal(&check(5, 1), after(1)), Some(refused(0, 3, 3)));
        assert_eq!(l1.refusal(&check(6, 1), after(1)), None, "another limit");
        assert_eq!(l1.refusal(&check(5, 2), after(1)), None, "other hits wait differently");
        assert_eq!(l1.refusal(&check(5, 0), after(1)), None, "a peek");
        assert_eq!(l1.refusal(&check(5, 1), after(4)), None, "the wait is over");
        assert_eq!((l1.metrics.l1_hits.get(), l1.metrics.l1_misses.get()), (1, 4));
        let incurred = Check { count_denied: true, ..check(5, 1) };
        assert_eq!(l1.refusal(&incurred, after(1)), None, "it has to be recorded");
        l1.remember(&check(5, 3), &refused(0, 6, 2), l1.asking(now));
        assert_eq!(l1.refusal(&check(5, 3), after(1)), Some(refused(0, 5, 1)));
        assert_eq!(l1.refusal(&check(5, 3), after(2)), None, "something left the window");
        let incurred = Check { count_denied: true, ..check(5, 9) };
        l1.remember(&incurred, &refused(0, 6, 2), l1.asking(now));
        assert_eq!(l1.refusal(&check(5, 9), now), None, "each one makes the wait longer");
        let max_ttl = Duration::from_secs(1);
        let l1 = L1::new(&Settings { max_ttl, ..Settings::default() }, Metrics::new());
        l1.remember(&check(5, 1), &refused(0, 4, 4), l1.asking(now));
        assert!(l1.refusal(&check(5, 1), now).is_some());
        assert_eq!(l1.refusal(&check(5, 1), after(1)), None, "no longer than it may");
    }

    #[test]
    fn a_refund_is_not_hidden() {
        let now = Instant::now();
        let l1 = L1::new(&Settings::default(), Metrics::new());
        let asked = l1.asking(now);
        l1.remember(&check(5, 1), &refused(0, 4, 4), asked);
        drop(l1.refunding(&[check(5, 1)]));
        assert!(l1.refusal(&check(5, 1), now).is_some(), "no refund");
        drop(l1.refunding(&[check(5, 1), check(5, -1)]));
        assert_eq!(l1.refusal(&check(5, 1), now), None);
        l1.remember(&check(5, 1), &refused(0, 4, 4), asked);
        assert_eq!(l1.refusal(&check(5, 1), now), None, "asked before the refund, answered after");
    }
}
