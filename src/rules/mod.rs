//! Rules: which descriptor has which limit. Pure: YAML text in, a `RuleSet` out, and matching.
//! It never knows a store; only `watch.rs` touches files.

use std::collections::HashMap;
use std::sync::Arc;

use crate::check::{Mode, OnStoreError, QuotaKey, Request};
use crate::metrics::{ApiKeyStats, RuleStats};
use crate::privacy::Privacy;
use crate::quota::Limit;

/// Everything loaded, ready to be matched. Never changed: a reload makes a new one.
#[derive(Default)]
pub struct RuleSet {
    domains: HashMap<Box<str>, Arc<Domain>>,
}

/// The rules of one domain.
pub struct Domain {
    pub name: Arc<str>,
    pub charge: Charge,
}

/// Whether the descriptors of one request are charged together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charge {
    /// Refused overall: nothing is consumed on any of them.
    #[default]
    Together,
    /// Each on its own, as envoyproxy/ratelimit does.
    Independent,
}

/// What a matched descriptor is held to.
#[derive(Debug)]
pub struct Rule {
    /// `rate_limit.name`.
    pub name: Option<Arc<str>>,
    /// The rule's path as a metric label, `key=value` parts joined by `,`: `path=/api/*,user`.
    pub label: Arc<str>,
    /// How much, or no limit at all.
    pub ceiling: Ceiling,
    pub mode: Mode,
    pub count_denied: bool,
    pub on_store_error: Option<OnStoreError>,
    pub stats: RuleStats,
}

/// A rule's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// At most so many.
    Limit(Limit),
    /// Never refused, never counted.
    Unlimited,
}

/// A descriptor's rule, and the counter that it is held to.
pub struct Match {
    pub rule: Arc<Rule>,
    /// The rule's ceiling, or the limit that came with the request.
    pub ceiling: Ceiling,
    pub key: QuotaKey,
    pub stats: RuleStats,
    pub api_key: ApiKeyStats,
}

impl RuleSet {
    /// The rules of a domain.
    pub fn domain(&self, name: &str) -> Option<&Arc<Domain>> {
        self.domains.get(name)
    }
}

impl Domain {
    /// The rule of each descriptor, in order, after `replaces`.
    pub fn matches(&self, request: &Request, privacy: &Privacy) -> Vec<Option<Match>> {
        let _ = (request, privacy);
        unimplemented!("skeleton")
    }
}
