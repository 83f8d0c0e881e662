//! What a decision adds to the metrics. It decides nothing.

use super::{Decision, Status};
use crate::metrics::{ApiKeyStats, RuleStats};
use crate::quota::Limit;

/// One request of an API key.
pub(super) fn count_request(api_key: &ApiKeyStats, decision: &Decision) {
    if decision.allowed { api_key.allowed.inc() } else { api_key.denied.inc() }
}

/// One descriptor that a rule matched.
pub(super) fn count_status(stats: &RuleStats, status: &Status, decision: &Decision) {
    if status.refuses && !decision.allowed {
        stats.refused.inc();
    } else if !status.verdict.allowed {
        stats.shadow.inc();
    } else if !decision.allowed {
        stats.blocked.inc();
    } else {
        stats.allowed.inc();
        let near = |limit: Limit| status.verdict.remaining < limit.max_requests().div_ceil(5);
        if status.limit.is_some_and(near) {
            stats.near_limit.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::Metrics;
    use crate::quota::{Mode, Verdict};

    fn status(mode: Mode, allowed: bool, remaining: u64, limit: u64) -> Status {
        let window = Duration::from_secs(1);
        let verdict = Verdict { allowed, remaining, retry_after: None, reset_after: window };
        let limit = Some(Limit::new(limit, window).unwrap());
        Status { mode, verdict, limit, ..Status::unlimited(None) }
    }

    #[test]
    fn each_descriptor_has_one_outcome() {
        use Mode::{Enforce, Quota, Shadow};
        let table = [
            (Enforce, true, "allowed"),
            (Enforce, false, "refused"),
            (Shadow, false, "shadow"),
            (Quota, false, "shadow"),
        ];
        for (mode, allowed, outcome) in table {
            let room = status(Quota, true, 1, 1);
            let mut decision = Decision::of(vec![status(mode, allowed, 0, 9), room]);
            let is_refused = outcome == "refused";
            for in_trial_run in [false, true] {
                let stats = Metrics::new().rule("d", "r");
                let key = Metrics::new().api_key("k");
                for status in &decision.statuses {
                    count_status(&stats, status, &decision);
                }
                count_request(&key, &decision);
                let counted = [&stats.allowed, &stats.refused, &stats.shadow, &stats.blocked];
                let expected = match (outcome, in_trial_run) {
                    ("allowed", _) => [2, 0, 0, 0],
                    ("refused", false) => [0, 1, 0, 1],
                    _ => [1, 0, 1, 0],
                };
                assert_eq!(counted.map(|counter| counter.get()), expected, "{outcome}");
                let denied = u64::from(is_refused && !in_trial_run);
                assert_eq!((key.allowed.get(), key.denied.get()), (1 - denied, denied));
                decision.pass_in_shadow();
            }
        }
    }

    /// As envoyproxy/ratelimit has it: more than four fifths are used.
    #[test]
    fn near_the_limit() {
        let table = [
            (10, 2, 0),
            (10, 1, 1),
            (10, 0, 1),
            (3, 1, 0),
            (3, 0, 1),
            (1, 0, 1),
            (9, 1, 1),
            (9, 2, 0),
        ];
        for (limit, remaining, expected) in table {
            let decision = Decision::of(vec![status(Mode::Enforce, true, remaining, limit)]);
            let stats = Metrics::new().rule("d", "r");
            count_status(&stats, &decision.statuses[0], &decision);
            assert_eq!(stats.near_limit.get(), expected, "{remaining} of {limit}");
        }
    }
}
