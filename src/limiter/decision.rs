//! What was decided, for whom, and by whom. Data only, and the arithmetic over several verdicts.

use std::sync::Arc;
use std::time::Duration;

use crate::quota::{Limit, Mode, Verdict};
use crate::rules::Rule;

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Whether the request may pass.
    pub allowed: bool,
    /// One for each descriptor, in order.
    pub statuses: Vec<Status>,
    /// On a refusal: when this same request could pass. `None`: never.
    pub retry_after: Option<Duration>,
}

/// The answer to one descriptor.
#[derive(Clone, Debug)]
pub struct Status {
    /// The rule that matched; `None` where none did, and for a question with its own limit.
    pub rule: Option<Arc<Rule>>,
    /// The limit held to; `None` where no rule matched, or where it is unlimited.
    pub limit: Option<Limit>,
    /// What a refusal means for the request.
    pub mode: Mode,
    /// What the counter said; `allowed: false` in shadow mode too.
    pub verdict: Verdict,
    /// Whether this descriptor refuses the request.
    pub refuses: bool,
    /// Who answered.
    pub source: Source,
}

/// Who answered a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody had to be asked: no rule, unlimited, or a limit of 0.
    Rules,
    /// A remembered refusal.
    L1,
    /// The store.
    Store,
    /// The policy, because the store could not.
    Fallback,
}

impl Decision {
    /// The overall answer: refused when an enforced check is, or when there are quota checks and
    /// all of them are (the rule of envoyproxy/ratelimit's `quota_mode`).
    pub fn of(mut statuses: Vec<Status>) -> Self {
        let mut quotas = statuses.iter().filter(|status| status.mode == Mode::Quota);
        let quotas_over = quotas.all(|quota| !quota.verdict.allowed);
        for status in &mut statuses {
            status.refuses = !status.verdict.allowed
                && match status.mode {
                    Mode::Enforce => true,
                    Mode::Quota => quotas_over,
                    Mode::Shadow => false,
                };
        }
        let allowed = !statuses.iter().any(|status| status.refuses);
        let retry_after = if allowed { None } else { retry_after(&statuses) };
        Self { allowed, statuses, retry_after }
    }

    /// Lets a refused request pass, as in a trial run; its statuses still say who would refuse.
    pub fn pass_in_shadow(&mut self) {
        self.allowed = true;
        self.retry_after = None;
    }

    /// Whether a policy answered for the store, in any part.
    pub fn is_fallback(&self) -> bool {
        self.statuses.iter().any(|status| status.source == Source::Fallback)
    }

    /// The status to tell the caller about: the refusal that lasts longest, else the limit that
    /// is closest to biting. `None`: nothing is limited.
    pub fn deciding(&self) -> Option<&Status> {
        let never = Duration::MAX;
        let refusal = self
            .statuses
            .iter()
            .filter(|status| status.refuses)
            .rev()
            .max_by_key(|status| status.verdict.retry_after.unwrap_or(never));
        let limited = || self.statuses.iter().filter(|status| status.limit.is_some());
        refusal.or_else(|| limited().min_by_key(|status| status.verdict.remaining))
    }
}

/// Every enforced refusal must have ended, and one of the quotas must have room again.
fn retry_after(statuses: &[Status]) -> Option<Duration> {
    let waits = |mode: Mode| {
        let refusing = move |status: &&Status| status.refuses && status.mode == mode;
        statuses.iter().filter(refusing).map(|status| status.verdict.retry_after)
    };
    let enforced = waits(Mode::Enforce)
        .try_fold(Duration::ZERO, |longest, wait| wait.map(|wait| longest.max(wait)))?;
    if waits(Mode::Quota).next().is_none() {
        return Some(enforced);
    }
    Some(enforced.max(waits(Mode::Quota).flatten().min()?))
}

impl Status {
    /// A descriptor that nothing limits.
    pub fn unlimited(rule: Option<Arc<Rule>>) -> Self {
        let reset_after = Duration::ZERO;
        let verdict =
            Verdict { allowed: true, remaining: u64::MAX, retry_after: None, reset_after };
        let (mode, source) = (Mode::Enforce, Source::Rules);
        Self { rule, limit: None, mode, verdict, refuses: false, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(mode: Mode, allowed: bool, retry_s: Option<u64>) -> Status {
        let verdict = Verdict {
            allowed,
            remaining: 0,
            retry_after: retry_s.map(Duration::from_secs),
            reset_after: Duration::ZERO,
        };
        Status { mode, verdict, limit: None, ..Status::unlimited(None) }
    }

    #[test]
    fn the_caller_is_told_of_the_longest_refusal_else_of_the_tightest_limit() {
        use Mode::{Enforce, Shadow};
        let second = Duration::from_secs(1);
        // Whether each is allowed, what is left, and how long it waits; and who is told of.
        type Row<'a> = (&'a [(Mode, bool, u64, Option<u64>)], Option<usize>);
        let table: &[Row<'_>] = &[
            (
                &[(Enforce, true, 9, None), (Enforce, true, 3, None), (Enforce, true, 3, None)],
                Some(1),
            ),
            (&[(Enforce, true, 1, None), (Enforce, false, 5, Some(1))], Some(1)),
            (&[(Enforce, false, 0, Some(2)), (Enforce, false, 0, Some(2))], Some(0)),
            (&[(Enforce, false, 0, Some(2)), (Enforce, false, 0, Some(3))], Some(1)),
            (&[(Enforce, false, 0, None), (Enforce, false, 0, Some(3))], Some(0)),
            (&[(Enforce, true, 4, None), (Shadow, false, 0, Some(3))], Some(1)),
            (&[], None),
        ];
        for (rows, expected) in table {
            let status = |(at, &(mode, allowed, remaining, wait_s)): (usize, &(_, _, _, _))| {
                let status = status(mode, allowed, wait_s);
                let verdict = Verdict { remaining, ..status.verdict };
                // Its place in the request, to be known by.
                let limit = Some(Limit::new(at as u64, second).unwrap());
                Status { limit, verdict, ..status }
            };
            let mut statuses: Vec<_> = rows.iter().enumerate().map(status).collect();
            statuses.push(Status::unlimited(None));
            let decision = Decision::of(statuses);
            let told = decision.deciding().and_then(|status| status.limit);
            assert_eq!(told.map(Limit::max_requests), expected.map(|at| at as u64), "{rows:?}");
        }
    }

    #[test]
    fn the_overall_answer_and_its_wait() {
        use Mode::{Enforce, Quota, Shadow};
        let never = None;
        type Row<'a> = (&'a [(Mode, bool, Option<u64>)], Result<(), Option<u64>>);
        let table: &[Row<'_>] = &[
            (&[], Ok(())),
            (&[(Enforce, true, None), (Shadow, false, Some(1))], Ok(())),
            (&[(Enforce, false, Some(3)), (Enforce, false, Some(5))], Err(Some(5))),
            (&[(Enforce, false, Some(5)), (Enforce, false, Some(3))], Err(Some(5))),
            (&[(Enforce, false, Some(3)), (Enforce, false, never)], Err(None)),
            (&[(Quota, false, Some(3)), (Quota, true, None)], Ok(())),
            (&[(Quota, false, Some(3)), (Quota, false, Some(2))], Err(Some(2))),
            (&[(Quota, false, Some(3)), (Quota, false, never)], Err(Some(3))),
            (&[(Quota, false, never), (Quota, false, never)], Err(None)),
            (&[(Enforce, false, Some(9)), (Quota, false, Some(2))], Err(Some(9))),
            (&[(Enforce, false, Some(9)), (Quota, true, None)], Err(Some(9))),
            (&[(Enforce, true, None), (Quota, false, Some(2))], Err(Some(2))),
        ];
        for (statuses, expected) in table {
            let decision = Decision::of(
                statuses.iter().map(|&(mode, ok, wait)| status(mode, ok, wait)).collect(),
            );
            let wait = decision.retry_after.map(|wait| wait.as_secs());
            let answer = if decision.allowed { Ok(()) } else { Err(wait) };
            assert_eq!(answer, *expected, "{statuses:?}");
        }
    }
}
