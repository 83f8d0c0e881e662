//! The sliding window log: which hits count now, who may pass, when there is room again.
//! Twin of `sliding_log.lua`: the same steps, the same names. Time is an argument, in µs.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Limit, MAX_HITS, Mode, Verdict};

/// The Redis twin of this file.
pub const SCRIPT: &str = include_str!("sliding_log.lua");

/// A log this long merges hits of one slice; a limit up to this is exact by construction.
pub const MAX_ENTRIES: usize = 1024;

/// A log this long has its slices merged. Above `MAX_ENTRIES`, so that it happens rarely.
pub const COMPACT_AT: usize = MAX_ENTRIES + 32;

/// A refusal never says "now".
const SOONEST: Duration = Duration::from_micros(1);

/// The hits of one key, oldest first, with the window they are counted in.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: VecDeque<LogEntry>,
    /// The sum of the entries' hits.
    used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    at_us: u64,
    hits: u64,
}

/// One check of a request, on one of the logs that are decided together.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Which of the logs.
    pub log: usize,
    /// How much fits.
    pub limit: Limit,
    /// Hits to take; 0 peeks, a negative number gives back.
    pub hits: i64,
    /// What a refusal means for the request.
    pub mode: Mode,
    /// Record the hits even when they are refused.
    pub count_denied: bool,
}

impl Log {
    /// Hits counted when the log was last looked at.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// How many entries the log holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When the newest entry was dated.
    pub fn newest_at_us(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.at_us)
    }

    /// Brings the log to `now_us`: what the clock left in the future is dated now, and what is a
    /// window old leaves.
    pub fn advance(&mut self, window_us: u64, now_us: u64) {
        let mut future_hits = 0;
        while let Some(entry) = self.entries.pop_back_if(|entry| entry.at_us > now_us) {
            future_hits += entry.hits;
        }
        if future_hits > 0 {
            self.entries.push_back(LogEntry { at_us: now_us, hits: future_hits });
        }
        while let Some(entry) = self.entries.pop_front_if(|entry| entry.at_us + window_us <= now_us)
        {
            self.used -= entry.hits;
        }
    }

    fn take(&mut self, hits: u64, window_us: u64, now_us: u64) {
        self.used += hits;
        let len = self.entries.len();
        if let Some(newest) = self.entries.back_mut()
            && len >= MAX_ENTRIES
            && slice(newest.at_us, window_us) == slice(now_us, window_us)
        {
            *newest = LogEntry { at_us: now_us, hits: newest.hits + hits };
            return;
        }
        self.entries.push_back(LogEntry { at_us: now_us, hits });
        if len >= COMPACT_AT {
            self.compact(window_us);
        }
    }

    /// Entries of one slice become one, dated at its newest hit.
    fn compact(&mut self, window_us: u64) {
        let mut merged: VecDeque<LogEntry> = VecDeque::with_capacity(self.entries.len());
        for entry in self.entries.drain(..) {
            match merged.back_mut() {
                Some(last) if slice(last.at_us, window_us) == slice(entry.at_us, window_us) => {
                    *last = LogEntry { at_us: entry.at_us, hits: last.hits + entry.hits };
                }
                _ => merged.push_back(entry),
            }
        }
        self.entries = merged;
    }

    /// Newest first, and never more than the window holds.
    fn give_back(&mut self, hits: u64) {
        let mut rest = hits.min(self.used);
        self.used -= rest;
        while let Some(newest) = self.entries.back_mut()
            && rest > 0
        {
            let part = rest.min(newest.hits);
            newest.hits -= part;
            rest -= part;
            if newest.hits == 0 {
                self.entries.pop_back();
            }
        }
    }

    /// Time until `need` of the hits in the window have left it.
    fn leave(&self, need: u64, window_us: u64, now_us: u64) -> Duration {
        if need == 0 {
            return Duration::ZERO;
        }
        let mut left = 0;
        let last = self.entries.iter().find(|entry| {
            left += entry.hits;
            left >= need
        });
        let leaves_at = last.map_or(now_us, |entry| entry.at_us + window_us);
        Duration::from_micros(leaves_at.saturating_sub(now_us))
    }
}

/// Which of the 1,024 slices of the window a time falls into.
fn slice(at_us: u64, window_us: u64) -> u64 {
    let slices = u128::from(at_us) * MAX_ENTRIES as u128;
    u64::try_from(slices / u128::from(window_us)).unwrap_or(u64::MAX)
}

/// Decides the asks of one request together, in order, and takes what was granted.
/// The logs must have been advanced to `now_us`.
pub fn decide(logs: &mut [Log], asks: &[Ask], now_us: u64) -> Vec<Verdict> {
    let (grants, refused) = grant(logs, asks);
    for (ask, grant) in asks.iter().zip(&grants) {
        ask.commit(&mut logs[ask.log], grant.allowed && !refused, now_us);
    }
    let verdict = |(ask, grant): (&Ask, &Grant)| {
        let before = if refused { grant.before } else { 0 };
        ask.verdict(&logs[ask.log], grant.allowed, before, now_us)
    };
    asks.iter().zip(&grants).map(verdict).collect()
}

/// [`decide`] for one ask: in shadow mode too, what does not fit takes nothing.
pub fn decide_alone(log: &mut Log, ask: &Ask, now_us: u64) -> Verdict {
    let allowed = ask.fits(log, 0);
    ask.commit(log, allowed, now_us);
    ask.verdict(log, allowed, 0, now_us)
}

impl Ask {
    /// `before`: hits that the request wants of the same log before this ask.
    fn fits(&self, log: &Log, before: u64) -> bool {
        let hits = self.hits.max(0).unsigned_abs();
        let used = before.checked_add(log.used).and_then(|used| used.checked_add(hits));
        self.hits < 0 || used.is_some_and(|used| used <= self.limit.max_requests())
    }

    fn commit(&self, log: &mut Log, passes: bool, now_us: u64) {
        if self.hits > 0 && (passes || self.count_denied) {
            let hits = self.hits.unsigned_abs().min(MAX_HITS - log.used);
            if hits > 0 {
                log.take(hits, self.limit.window_us(), now_us);
            }
        } else if self.hits < 0 && passes {
            log.give_back(self.hits.unsigned_abs());
        }
    }

    fn verdict(&self, log: &Log, allowed: bool, before: u64, now_us: u64) -> Verdict {
        let (limit, window_us) = (self.limit.max_requests(), self.limit.window_us());
        // What was refused waits for room beside what the same request asked for before it.
        let asked = self.hits.max(0).unsigned_abs() + before;
        let wait = || log.leave((log.used + asked).saturating_sub(limit), window_us, now_us);
        Verdict {
            allowed,
            remaining: limit.saturating_sub(log.used),
            retry_after: (!allowed && asked <= limit).then(|| wait().max(SOONEST)),
            reset_after: log.leave(1, window_us, now_us),
        }
    }
}

/// Whether an ask fits, and the hits that the request wants of the same log before it.
struct Grant {
    allowed: bool,
    before: u64,
}

/// Whether each ask fits, and whether the request as a whole is refused. Changes nothing.
fn grant(logs: &[Log], asks: &[Ask]) -> (Vec<Grant>, bool) {
    let mut pending = vec![0_u64; logs.len()];
    let (mut refused, mut quotas, mut quotas_over) = (false, 0, 0);
    let mut granted = Vec::with_capacity(asks.len());
    for ask in asks {
        let before = pending[ask.log];
        let allowed = ask.fits(&logs[ask.log], before);
        if allowed {
            pending[ask.log] += ask.hits.max(0).unsigned_abs();
        }
        quotas += u32::from(ask.mode == Mode::Quota);
        match ask.mode {
            Mode::Enforce => refused |= !allowed,
            Mode::Quota => quotas_over += u32::from(!allowed),
            Mode::Shadow => {}
        }
        granted.push(Grant { allowed, before });
    }
    (granted, refused || (quotas > 0 && quotas_over == quotas))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn ask(limit: u64, hits: i64) -> Ask {
        let limit = Limit::new(limit, Duration::from_secs(1)).unwrap();
        Ask { log: 0, limit, hits, mode: Mode::Enforce, count_denied: false }
    }

    fn step(log: &mut Log, ask: Ask, now_us: u64) -> Verdict {
        log.advance(ask.limit.window_us(), now_us);
        let mut logs = [std::mem::take(log)];
        let verdict = decide(&mut logs, &[ask], now_us)[0];
        *log = std::mem::take(&mut logs[0]);
        verdict
    }

    #[test]
    fn a_log_that_cannot_count_further_gets_no_entry() {
        let mut log = Log::default();
        let all = i64::try_from(MAX_HITS).unwrap();
        for now_us in 0..3 {
            step(&mut log, Ask { count_denied: true, ..ask(1, all) }, now_us);
            assert_eq!((log.len(), log.used()), (1, MAX_HITS));
        }
    }

    #[test]
    fn a_full_log_stays_bounded_and_frees_nothing_early() {
        let mut log = Log::default();
        let mut admitted: VecDeque<u64> = VecDeque::new();
        for index in 0..12_000_u64 {
            // A dense start, then a steady stream over three windows.
            let now_us = if index < 3_000 { index } else { 3_000 + (index - 3_000) * 333 };
            let verdict = step(&mut log, ask(1_000_000, 1), now_us);
            assert!(verdict.allowed);
            admitted.push_back(now_us);
            admitted.pop_front_if(|at| *at + 2 * SECOND_US < now_us);
            let exact = admitted.iter().filter(|at| *at + SECOND_US > now_us).count() as u64;
            let late = SECOND_US / MAX_ENTRIES as u64 + 1;
            let at_most =
                admitted.iter().filter(|at| *at + SECOND_US + late > now_us).count() as u64;
            assert!((exact..=at_most).contains(&log.used()), "{exact} {} {at_most}", log.used());
            assert!(log.len() <= COMPACT_AT + 1, "{} entries", log.len());
        }
    }

    #[test]
    fn the_clock_may_step_back() {
        let mut log = Log::default();
        let hour_us = 3_600 * SECOND_US;
        assert!(step(&mut log, ask(2, 2), 2 * hour_us).allowed);
        let verdict = step(&mut log, ask(2, 1), hour_us);
        assert_eq!(verdict.retry_after, Some(Duration::from_secs(1)));
        assert!(!step(&mut log, ask(2, 1), hour_us + SECOND_US - 1).allowed);
        assert!(step(&mut log, ask(2, 1), hour_us + SECOND_US).allowed);
    }

    #[test]
    fn a_refund_gives_back_what_is_there_newest_first() {
        let mut log = Log::default();
        step(&mut log, ask(10, 4), 0);
        step(&mut log, ask(10, 4), 500);
        assert_eq!(step(&mut log, ask(10, -5), 600).remaining, 7);
        assert_eq!(log.entries, [LogEntry { at_us: 0, hits: 3 }]);
        assert_eq!(step(&mut log, ask(10, -50), 700).remaining, 10);
        assert_eq!(step(&mut log, ask(10, i64::MIN), 800).remaining, 10);
    }
}
