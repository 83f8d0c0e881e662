//! What is meant by a check of no hits.

use crate::quota::{Limit, Verdict};

#[derive(Clone, Copy)]
pub(super) enum Peek {
    /// Whether more than the limit is used, as envoyproxy/ratelimit has it.
    Over,
    /// Whether one more hit would pass, as `CheckQuota` has it: a limit of one less is not over.
    NextHit,
}

impl Peek {
    /// The limit that the store is asked about.
    pub(super) fn limit(self, limit: Limit, hits: i64) -> Limit {
        match self {
            Self::NextHit if hits == 0 => limit.less_one().unwrap_or(limit),
            _ => limit,
        }
    }

    /// What its answer says of the limit itself.
    pub(super) fn verdict(self, limit: Option<Limit>, hits: i64, verdict: Verdict) -> Verdict {
        let (Self::NextHit, 0, Some(limit)) = (self, hits, limit) else { return verdict };
        match limit.max_requests() {
            0 => Verdict { allowed: false, remaining: 0, retry_after: None, ..verdict },
            most if verdict.allowed => {
                Verdict { remaining: most.min(verdict.remaining.saturating_add(1)), ..verdict }
            }
            _ => verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::check::{Check, Mode, QuotaKey};
    use crate::metrics::Metrics;
    use crate::store::Store as _;
    use crate::store::memory::{Memory, Settings};

    const SECOND: Duration = Duration::from_secs(1);

    /// What `CheckQuota` answers about a window of ten seconds.
    async fn ask(store: &Memory, most: u64, hits: i64) -> Verdict {
        let limit = Limit::new(most, 10 * SECOND).unwrap();
        let check = Check {
            key: QuotaKey::of_identity(b"k", b"bob"),
            limit: Peek::NextHit.limit(limit, hits),
            hits,
            mode: Mode::Enforce,
            count_denied: false,
        };
        let verdicts = store.acquire(&[check], None).await.unwrap();
        Peek::NextHit.verdict(Some(limit), hits, verdicts[0])
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_of_a_peek_is_that_of_one_more_hit() {
        let store = Memory::new(&Settings::default(), Metrics::new());
        assert_eq!(ask(&store, 3, 0).await.remaining, 3);
        for _ in 0..3 {
            assert!(ask(&store, 3, 1).await.allowed);
            advance(SECOND).await;
        }
        // Three are used. A limit that was lowered to two has room when two of them have left.
        for (most, wait) in [(3, 7 * SECOND), (2, 8 * SECOND), (1, 9 * SECOND)] {
            let peek = ask(&store, most, 0).await;
            assert!(!peek.allowed && peek.remaining == 0, "{most}");
            assert_eq!(peek.retry_after, Some(wait), "{most}");
            assert_eq!(ask(&store, most, 1).await.retry_after, Some(wait), "{most}");
        }
        assert_eq!((ask(&store, 4, 0).await.allowed, ask(&store, 4, 0).await.remaining), (true, 1));
        let never = ask(&store, 0, 0).await;
        assert_eq!((never.allowed, never.retry_after), (false, None));
        advance(8 * SECOND).await;
        assert_eq!((ask(&store, 2, 0).await.allowed, ask(&store, 2, 0).await.remaining), (true, 1));
    }
}
