//! Who answers when the store cannot: nobody, everybody passes, nobody passes, or a window of
//! this process's own. It never pretends that the store answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use super::Source;
use crate::check::{Check, OnStoreError};
use crate::metrics::Metrics;
use crate::quota::{Mode, Verdict};
use crate::store::memory::{self, Memory};
use crate::store::{Store as _, StoreError};

/// A refusal that waiting does not end.
pub(super) const NEVER: Verdict =
    Verdict { allowed: false, remaining: 0, retry_after: None, reset_after: Duration::ZERO };

/// When to come back after a refusal by policy: about when the store is tried again.
const COME_BACK: Duration = Duration::from_secs(1);

/// The parts of `store:` that say what happens without it, and whether rules refuse at all.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether everything passes that rules refuse (`rules.shadow_mode`).
    pub shadow_mode: bool,
    /// For rules that do not say it themselves.
    pub on_error: OnStoreError,
    /// Into how many parts `local` divides a limit.
    pub expected_instances: u32,
    /// Bounds the local windows.
    pub memory: memory::Settings,
}

/// Nobody can decide, and the policy is to say so.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Undecided {
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Hits that the store has to be told about. Until it has been, they stay where they are.
pub(super) struct Owed<'a> {
    pub(super) checks: Vec<Check>,
    local: &'a Memory,
    _telling: MutexGuard<'a, ()>,
}

impl Owed<'_> {
    /// The store counts them now: they are taken out of the local windows.
    pub(super) async fn settle(self) {
        for check in self.checks {
            let back = Check { hits: -check.hits, mode: Mode::Enforce, ..check };
            // A refund needs no room.
            let _ = self.local.acquire(&[back], None).await;
        }
    }
}

/// Answers by policy.
pub struct Fallback {
    settings: Settings,
    local: Memory,
    /// Held by the one caller that tells the store what was admitted without it.
    telling: Mutex<()>,
    metrics: Arc<Metrics>,
}

impl Fallback {
    pub(super) fn new(settings: Settings, metrics: Arc<Metrics>) -> Self {
        // Its keys are not those of the store: it has metrics of its own that nobody reads.
        let local = Memory::new(&settings.memory, Metrics::new());
        Self { settings, local, telling: Mutex::default(), metrics }
    }

    /// What was admitted locally for these keys while the store was away, if it was not told yet.
    pub(super) fn owed(&self, checks: &[Check]) -> Option<Owed<'_>> {
        if self.local.keys() == 0 {
            return None;
        }
        let mut owed: Vec<Check> = Vec::new();
        for check in checks {
            let is_same = |known: &Check| {
                known.key == check.key && known.limit.window_ms() == check.limit.window_ms()
            };
            let used = self.local.used(&check.key, check.limit.window_ms());
            if used > 0 && !owed.iter().any(is_same) {
                let hits = i64::try_from(used).unwrap_or(i64::MAX);
                // It has happened: it counts even where there is no room for it.
                let (mode, count_denied) = (Mode::Shadow, true);
                owed.push(Check { hits, mode, count_denied, ..check.clone() });
            }
        }
        if owed.is_empty() {
            return None;
        }
        let telling = self.telling.try_lock().ok()?;
        Some(Owed { checks: owed, local: &self.local, _telling: telling })
    }

    /// Frees local windows that ran empty.
    pub fn reclaim(&self) {
        self.local.reclaim();
    }

    /// Answers each check by its policy; `error` is what the store said.
    pub(super) async fn answer(
        &self,
        checks: &[Check],
        policies: &[Option<OnStoreError>],
        error: StoreError,
    ) -> Result<Vec<(Verdict, Source)>, Undecided> {
        self.metrics.store_errors.with_label_values(&[error.reason()]).inc();
        let policy = |own: &Option<OnStoreError>| own.unwrap_or(self.settings.on_error);
        let banned = |check: &Check| check.limit.max_requests() == 0 && check.mode == Mode::Enforce;
        let asks_nobody = checks.iter().any(|check| banned(check) && check.hits > 0);
        if !asks_nobody && policies.iter().any(|own| policy(own) == OnStoreError::Error) {
            return Err(error.into());
        }
        let mut local = self.ask_local(checks, policies, policy).await?.into_iter();
        let answers = checks.iter().zip(policies).map(|(check, own)| {
            let policy = policy(own);
            self.metrics.fallback.with_label_values(&[name(policy)]).inc();
            let verdict = match policy {
                _ if check.limit.max_requests() == 0 && check.hits > 0 => NEVER,
                OnStoreError::Local => local.next().unwrap_or(NEVER),
                OnStoreError::Deny if check.hits > 0 => {
                    Verdict { retry_after: Some(COME_BACK), ..NEVER }
                }
                OnStoreError::Allow | OnStoreError::Deny | OnStoreError::Error => {
                    Verdict { allowed: true, remaining: check.limit.max_requests(), ..NEVER }
                }
            };
            (verdict, Source::Fallback)
        });
        Ok(answers.collect())
    }

    /// The checks whose policy is `local`, decided together, each with its share of the limit.
    async fn ask_local(
        &self,
        checks: &[Check],
        policies: &[Option<OnStoreError>],
        policy: impl Fn(&Option<OnStoreError>) -> OnStoreError,
    ) -> Result<Vec<Verdict>, Undecided> {
        let is_local = |own: &Option<OnStoreError>| policy(own) == OnStoreError::Local;
        let shares: Vec<Check> = checks
            .iter()
            .zip(policies)
            .filter(|(check, own)| is_local(own) && check.limit.max_requests() > 0)
            .map(|(check, _)| Check {
                limit: check.limit.share(self.settings.expected_instances),
                ..check.clone()
            })
            .collect();
        if shares.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.local.acquire(&shares, None).await?)
    }
}

fn name(policy: OnStoreError) -> &'static str {
    match policy {
        OnStoreError::Error => "error",
        OnStoreError::Allow => "allow",
        OnStoreError::Deny => "deny",
        OnStoreError::Local => "local",
    }
}
