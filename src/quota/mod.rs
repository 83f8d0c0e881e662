//! The arithmetic of a quota: a limit, the answer to a check, the sliding log.
//! Pure: it never reads a clock, never does I/O, and uses std only.

pub mod sliding_log;

use std::time::Duration;

/// The largest limit and the largest sum of hits that stay exact: Lua numbers are doubles.
pub const MAX_HITS: u64 = (1 << 53) - 1;

/// The shortest window a limit may have.
pub const MIN_WINDOW: Duration = Duration::from_millis(1);

/// The longest window a limit may have: ten years of 365 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(10 * 365 * 86_400);

/// At most `max_requests` hits in any `window`, wherever the window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    max_requests: u64,
    window_ms: u64,
}

impl Limit {
    /// `max_requests` of 0 refuses everything.
    ///
    /// # Errors
    /// A sentence for the person who wrote the limit: the window is not whole milliseconds, is
    /// out of range, or the number is too large to be counted exactly.
    pub fn new(max_requests: u64, window: Duration) -> Result<Self, &'static str> {
        if max_requests > MAX_HITS {
            return Err("a limit must be at most 9007199254740991 (2^53 - 1)");
        }
        if window < MIN_WINDOW {
            return Err("a window must be at least 1ms");
        }
        if window > MAX_WINDOW {
            return Err("a window must be at most 3650 days");
        }
        if !window.subsec_nanos().is_multiple_of(1_000_000) {
            return Err("a window must be a whole number of milliseconds");
        }
        Ok(Self { max_requests, window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX) })
    }

    /// One hit less in the same window; none where there is none to take.
    pub fn less_one(self) -> Option<Self> {
        Some(Self { max_requests: self.max_requests.checked_sub(1)?, ..self })
    }

    /// Hits admitted in any window.
    pub fn max_requests(self) -> u64 {
        self.max_requests
    }

    /// The window's length.
    pub fn window(self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// The window's length in milliseconds, as it stands in a store key.
    pub fn window_ms(self) -> u64 {
        self.window_ms
    }

    /// The window's length in microseconds, the unit of the log.
    pub fn window_us(self) -> u64 {
        self.window_ms * 1000
    }

    /// This instance's part of the limit when `instances` decide on their own: rounded down, so
    /// that the parts never add up to more than the whole.
    pub fn share(self, instances: u32) -> Self {
        Self { max_requests: self.max_requests / u64::from(instances.max(1)), ..self }
    }
}

/// What a check does to the overall answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A refusal refuses the request.
    #[default]
    Enforce,
    /// Counted and reported; never refuses.
    Shadow,
    /// Refuses the request only when every `Quota` check of it refuses.
    Quota,
}

/// Whether a request is refused as a whole, by the mode of each check and whether it fits.
pub fn is_refused(checks: impl Iterator<Item = (Mode, bool)>) -> bool {
    let (mut quotas, mut quotas_over) = (0, 0);
    for (mode, fits) in checks {
        match mode {
            Mode::Enforce if !fits => return true,
            Mode::Enforce | Mode::Shadow => {}
            Mode::Quota => {
                quotas += 1;
                quotas_over += u32::from(!fits);
            }
        }
    }
    quotas > 0 && quotas_over == quotas
}

/// The answer to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether these hits fit.
    pub allowed: bool,
    /// Hits left after this decision.
    pub remaining: u64,
    /// On a refusal: earliest time the same hits could pass. `None`: never, they exceed the limit.
    pub retry_after: Option<Duration>,
    /// When the oldest counted hit leaves the window; zero when nothing is counted.
    pub reset_after: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let (ms, days) = (Duration::from_millis, |days: u64| Duration::from_secs(days * 86_400));
        for (max_requests, window) in [(0, ms(1)), (MAX_HITS, days(3650))] {
            let limit = Limit::new(max_requests, window).unwrap();
            assert_eq!((limit.max_requests(), limit.window()), (max_requests, window));
        }
        let table = [
            (MAX_HITS + 1, ms(1), "at most 9007199254740991"),
            (1, ms(0), "at least 1ms"),
            (1, Duration::from_micros(999), "at least 1ms"),
            (1, Duration::from_micros(1_001), "whole number of milliseconds"),
            (1, days(3650) + ms(1), "at most 3650 days"),
        ];
        for (max_requests, window, expected) in table {
            let error = Limit::new(max_requests, window).unwrap_err();
            assert!(error.contains(expected), "{max_requests} in {window:?}: {error}");
        }
    }

    #[test]
    fn the_shares_never_add_up_to_more_than_the_limit() {
        let limit = |most| Limit::new(most, MIN_WINDOW).unwrap();
        for (instances, share) in [(0, 10), (1, 10), (3, 3), (10, 1), (11, 0)] {
            assert_eq!(limit(10).share(instances), limit(share), "{instances}");
        }
    }

    #[test]
    fn what_refuses_a_request() {
        use Mode::{Enforce, Quota, Shadow};
        let table: [(&[(Mode, bool)], bool); 8] = [
            (&[], false),
            (&[(Enforce, true), (Shadow, false)], false),
            (&[(Enforce, true), (Enforce, false)], true),
            (&[(Quota, false), (Quota, true)], false),
            (&[(Quota, true), (Quota, false)], false),
            (&[(Quota, false), (Enforce, true), (Quota, false)], true),
            (&[(Quota, true), (Enforce, false)], true),
            (&[(Quota, true)], false),
        ];
        for (checks, expected) in table {
            assert_eq!(is_refused(checks.iter().copied()), expected, "{checks:?}");
        }
    }
}
