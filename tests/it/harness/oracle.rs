//! The sliding window by brute force: it keeps every hit for ever and counts anew each time.
//! It knows the laws and no trick; exact, so it agrees with the logs while those merge nothing.

use std::collections::HashMap;
use std::time::Duration;

use chronosdb::quota::{MAX_HITS, Mode, Verdict};

use super::counters::{Counters, Wanted};

/// Every hit of every key.
#[derive(Default)]
pub(crate) struct Oracle {
    taken: HashMap<String, Vec<Hits>>,
}

#[derive(Clone, Copy, Debug)]
struct Hits {
    at_us: u64,
    hits: u64,
}

impl Oracle {
    /// Whether something that had left its window would be back in it.
    pub(crate) fn would_revive(&self, window_us: u64, from_us: u64, to_us: u64) -> bool {
        self.taken
            .values()
            .flatten()
            .any(|taken| taken.at_us + window_us <= from_us && taken.at_us + window_us > to_us)
    }

    /// The most hits that any window of this length held, wherever it starts.
    pub(crate) fn busiest_window(&self, wanted: &Wanted) -> u64 {
        let taken = self.taken.get(&wanted.store_key()).map_or(&[][..], Vec::as_slice);
        let window_us = wanted.limit.window_us();
        let held = |start: &Hits| {
            let inside =
                |hits: &&Hits| (start.at_us..start.at_us + window_us).contains(&hits.at_us);
            taken.iter().filter(inside).map(|hits| hits.hits).sum()
        };
        taken.iter().map(held).max().unwrap_or(0)
    }

    fn used(&self, wanted: &Wanted, now_us: u64) -> u64 {
        let counts = |taken: &&Hits| now_us < taken.at_us + wanted.limit.window_us();
        let taken = self.taken.get(&wanted.store_key()).into_iter().flatten();
        taken.filter(counts).map(|taken| taken.hits).sum()
    }

    /// The first time at which no more than `room_for` is used.
    fn free_at(&self, wanted: &Wanted, now_us: u64, at_most: u64) -> u64 {
        let taken = self.taken.get(&wanted.store_key()).into_iter().flatten();
        let mut times = taken
            .map(|taken| taken.at_us + wanted.limit.window_us())
            .filter(|leaves_us| *leaves_us > now_us)
            .collect::<Vec<_>>();
        times.push(now_us);
        times.sort_unstable();
        let free = |at_us: &u64| self.used(wanted, *at_us) <= at_most;
        times.into_iter().find(free).expect("at last everything has left")
    }

    fn give_back(&mut self, wanted: &Wanted, now_us: u64) {
        let mut rest = wanted.hits.unsigned_abs();
        for taken in self.taken.get_mut(&wanted.store_key()).into_iter().flatten().rev() {
            if now_us < taken.at_us + wanted.limit.window_us() {
                let part = rest.min(taken.hits);
                taken.hits -= part;
                rest -= part;
            }
        }
    }
}

impl Counters for Oracle {
    fn ask(&mut self, now_us: u64, wanted: &[Wanted]) -> Vec<Verdict> {
        for one in wanted {
            for taken in self.taken.entry(one.store_key()).or_default() {
                taken.at_us = taken.at_us.min(now_us);
            }
        }
        let mut before = Vec::new();
        let mut allowed: Vec<bool> = Vec::new();
        for one in wanted {
            let earlier = wanted.iter().zip(&allowed);
            let pending = earlier
                .filter(|(earlier, allowed)| **allowed && earlier.store_key() == one.store_key())
                .map(|(earlier, _)| earlier.hits.max(0).unsigned_abs())
                .sum::<u64>();
            let sum = self.used(one, now_us) + pending + one.hits.max(0).unsigned_abs();
            before.push(pending);
            allowed.push(one.hits < 0 || sum <= one.limit.max_requests());
        }
        let over = |mode| {
            let of_mode = wanted.iter().zip(&allowed).filter(move |(one, _)| one.mode == mode);
            of_mode.map(|(_, allowed)| !*allowed).collect::<Vec<_>>()
        };
        let quotas = over(Mode::Quota);
        let refused =
            over(Mode::Enforce).contains(&true) || (!quotas.is_empty() && !quotas.contains(&false));
        for (one, allowed) in wanted.iter().zip(&allowed) {
            let passes = *allowed && !refused;
            if one.hits > 0 && (passes || one.count_denied) {
                let hits = one.hits.unsigned_abs().min(MAX_HITS - self.used(one, now_us));
                let taken = self.taken.entry(one.store_key()).or_default();
                taken.push(Hits { at_us: now_us, hits });
            } else if one.hits < 0 && passes {
                self.give_back(one, now_us);
            }
            for taken in self.taken.values_mut() {
                taken.retain(|taken| taken.hits > 0);
            }
        }
        let verdict = |(index, one): (usize, &Wanted)| {
            let (used, limit) = (self.used(one, now_us), one.limit.max_requests());
            let asked = one.hits.max(0).unsigned_abs() + if refused { before[index] } else { 0 };
            let wait = |at_us: u64| Duration::from_micros(at_us - now_us);
            let retry_after = (!allowed[index] && asked <= limit)
                .then(|| wait(self.free_at(one, now_us, limit - asked).max(now_us + 1)));
            let reset_us = if used == 0 { now_us } else { self.free_at(one, now_us, used - 1) };
            Verdict {
                allowed: allowed[index],
                remaining: limit.saturating_sub(used),
                retry_after,
                reset_after: wait(reset_us),
            }
        };
        wanted.iter().enumerate().map(verdict).collect()
    }

    fn name(&self) -> &'static str {
        "the oracle"
    }

    fn entries(&mut self, wanted: &Wanted) -> usize {
        self.taken.get(&wanted.store_key()).map_or(0, Vec::len)
    }
}
