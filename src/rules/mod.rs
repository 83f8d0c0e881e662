//! Rules: which descriptor has which limit. Pure: YAML text in, a `RuleSet` out, and matching.
//! It never knows a store; only `watch.rs` touches files.

mod combine;
mod compile;
pub mod diagnostic;
mod draft;
pub mod explain;
mod fields;
mod gauges;
mod glob;
mod level;
mod lint;
mod load;
mod matching;
mod metadata;
mod notice;
mod rate_limit;
mod schema;
mod syntax;
mod template;
pub mod validate;
pub mod watch;
mod yaml;

use std::sync::Arc;

use ahash::AHashMap;
use serde::Serialize;

use self::compile::Node;
pub use self::diagnostic::{Diagnostic, Severity, Source};
use self::level::Level;
pub use self::load::{Input, load};
use crate::check::{Mode, OnStoreError, QuotaKey};
use crate::duration;
use crate::metrics::{ApiKeyStats, Metrics, RuleStats};
use crate::privacy::Privacy;
use crate::quota::Limit;

/// Everything loaded, ready to be matched. Never changed: a reload makes a new one.
#[derive(Default)]
pub struct RuleSet {
    domains: AHashMap<Box<str>, Arc<Domain>>,
    problems: Vec<Diagnostic>,
    version: String,
    kept: Vec<Box<str>>,
}

/// The rules of one domain.
pub struct Domain {
    pub name: Arc<str>,
    pub charge: Charge,
    root: Level<Node>,
    rules: Vec<Arc<Rule>>,
    /// The files it comes from.
    files: Vec<Arc<str>>,
    metrics: Arc<Metrics>,
    api_key: Arc<ApiKeyStats>,
}

/// Whether the descriptors of one request are charged together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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
    pub stats: Arc<RuleStats>,
    /// Returned to the proxy as dynamic metadata.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// Where it was written; empty and 0 for a limit that came with a request.
    pub file: Arc<str>,
    pub line: u32,
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
    pub stats: Arc<RuleStats>,
    pub api_key: Arc<ApiKeyStats>,
}

/// A loaded rule, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Description {
    pub domain: String,
    /// Its path: `path=/api/*,user`.
    pub label: String,
    pub name: Option<String>,
    /// `None`: unlimited.
    pub limit: Option<u64>,
    /// As text, such as `1m`.
    pub window: Option<String>,
    /// `enforce`, `shadow` or `quota`.
    pub mode: &'static str,
    pub charge: Charge,
    pub count_denied: bool,
    pub on_store_error: Option<OnStoreError>,
    pub file: String,
    pub line: u32,
}

impl RuleSet {
    /// The rules in one text, for tools and tests.
    ///
    /// # Errors
    /// Everything that is wrong with it; warnings alone are no error.
    pub fn from_text(
        text: &str,
        metrics: &Arc<Metrics>,
        privacy: &Privacy,
    ) -> Result<Self, Vec<Diagnostic>> {
        let inputs = vec![Input { name: "rules.yaml".into(), bytes: Ok(text.into()) }];
        let set = load(inputs, &Self::default(), metrics, privacy);
        if set.problems.iter().any(Diagnostic::is_error) { Err(set.problems) } else { Ok(set) }
    }

    /// The rules of a domain.
    pub fn domain(&self, name: &str) -> Option<&Arc<Domain>> {
        self.domains.get(name)
    }

    /// All domains, by name.
    pub fn domains(&self) -> Vec<&Arc<Domain>> {
        let mut domains: Vec<_> = self.domains.values().collect();
        domains.sort_by(|left, right| left.name.cmp(&right.name));
        domains
    }

    /// Whether there is nothing to match.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// What was wrong when it was loaded; errors mean that their domain has its earlier rules, or
    /// none.
    pub fn problems(&self) -> &[Diagnostic] {
        &self.problems
    }

    /// A hash of the files' names and contents, in hex; empty for the set without rules.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Domains whose files are broken, and which have the rules of an earlier load.
    pub fn kept(&self) -> &[Box<str>] {
        &self.kept
    }

    /// Every rule, by domain and place.
    pub fn describe(&self) -> Vec<Description> {
        let domains = self.domains();
        domains.into_iter().flat_map(|domain| domain.describe()).collect()
    }
}

impl Domain {
    /// The files its rules come from.
    pub fn files(&self) -> &[Arc<str>] {
        &self.files
    }

    /// Every rule of it, in the order of the files.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    fn describe(&self) -> impl Iterator<Item = Description> {
        self.rules.iter().map(|rule| {
            let limit = rule.ceiling.limit();
            Description {
                domain: self.name.to_string(),
                label: rule.label.to_string(),
                name: rule.name.as_deref().map(str::to_owned),
                limit: limit.map(Limit::max_requests),
                window: limit.map(|limit| duration::text(limit.window())),
                mode: match rule.mode {
                    Mode::Enforce => "enforce",
                    Mode::Shadow => "shadow",
                    Mode::Quota => "quota",
                },
                charge: self.charge,
                count_denied: rule.count_denied,
                on_store_error: rule.on_store_error,
                file: rule.file.to_string(),
                line: rule.line,
            }
        })
    }
}

impl Ceiling {
    /// The limit, if there is one.
    pub fn limit(self) -> Option<Limit> {
        match self {
            Self::Limit(limit) => Some(limit),
            Self::Unlimited => None,
        }
    }
}
