//! Domains that no rules file declares, each said once: a proxy whose domain is misspelt is never
//! limited, and nobody notices.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::rules::RuleSet;
use crate::rules::explain::unknown_domain;

/// So many are said; callers that invent domains must not fill the log.
const MOST: usize = 10;

/// A longer name is said cut.
const LONGEST_CHARS: usize = 100;

/// Whom the log was told about.
#[derive(Default)]
pub(super) struct Strangers {
    met: Mutex<HashSet<Box<str>>>,
    count: AtomicUsize,
}

impl Strangers {
    /// Says it, the first time.
    pub(super) fn meet(&self, domain: &str, rules: &RuleSet) {
        if self.count.load(Ordering::Relaxed) >= MOST {
            return;
        }
        let name: String = domain.chars().take(LONGEST_CHARS).collect();
        let mut met = self.met.lock().expect("no code panics while holding this lock");
        if met.len() < MOST && !met.contains(&*name) {
            let reason = unknown_domain(rules, &name);
            met.insert(name.into());
            self.count.store(met.len(), Ordering::Relaxed);
            tracing::warn!("requests pass unlimited: {reason}");
        }
    }
}
