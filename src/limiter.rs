//! The one path: a `Request` becomes a `Decision`. It knows neither a wire nor Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::check::{Check, QuotaKey, Request};
use crate::quota::{Limit, Verdict};
use crate::rules::{Rule, RuleSet};
use crate::store::StoreError;

/// The answer to a request.
pub struct Decision {
    /// Whether the request may pass.
    pub allowed: bool,
    /// One for each descriptor, in order.
    pub statuses: Vec<Status>,
    /// On a refusal: when this same request could pass. `None`: never.
    pub retry_after: Option<Duration>,
}

/// The answer to one descriptor.
pub struct Status {
    /// The rule that matched; `None` with a limit that came in the request, or with no rule.
    pub rule: Option<Arc<Rule>>,
    /// The limit held to; `None` where no rule matched, or where it is unlimited.
    pub limit: Option<Limit>,
    /// What the counter said; with `allowed: false` in shadow mode too.
    pub verdict: Verdict,
    /// Whether this descriptor, by itself, refuses the request (shadow mode never does).
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

/// A question that brings its own limit: what `CheckQuota` asks.
#[derive(Clone, Debug)]
pub struct Quota {
    pub api_key: String,
    pub user_id: String,
    pub limit: Limit,
    /// Hits to take; 0 peeks: it says whether one more hit would pass.
    pub hits: u32,
}

/// The one path from a question to an answer.
pub struct Limiter {
    pub rules: Arc<ArcSwap<RuleSet>>,
}

impl Limiter {
    /// Decides a request by the rules. `deadline`: the caller's own, if it has one.
    pub async fn decide(
        &self,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Decision, Undecided> {
        let _ = (request, deadline);
        unimplemented!("skeleton")
    }

    /// Decides a question that brings its own limit; the decision has one status.
    pub async fn check_quota(
        &self,
        quota: &Quota,
        deadline: Option<Instant>,
    ) -> Result<Decision, Undecided> {
        let _ = (quota, deadline);
        unimplemented!("skeleton")
    }
}

/// Nobody can decide, and the policy is to say so.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    #[error(transparent)]
    Store(#[from] StoreError),
}
