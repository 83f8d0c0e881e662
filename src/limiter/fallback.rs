//! Who answers when the store cannot: nobody, everybody passes, nobody passes, or a window of
//! this process's own. It never pretends that the store answered.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::Source;
use crate::check::{Check, OnStoreError, QuotaKey};
use crate::metrics::Metrics;
use crate::quota::{Mode, Verdict, is_refused};
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
    fallback: &'a Fallback,
}

impl Owed<'_> {
    /// The store counts them now: they are taken out of the local windows.
    pub(super) async fn settle(self) {
        for check in &self.checks {
            let back = Check { hits: -check.hits, mode: Mode::Enforce, ..check.clone() };
            // A refund needs no room.
            let _ = self.fallback.local.acquire(&[back], None).await;
        }
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        let mut telling = self.fallback.telling();
        self.checks.iter().for_each(|check| _ = telling.remove(&window(check)));
    }
}

/// One window of one key.
type Window = (QuotaKey, u64);

fn window(check: &Check) -> Window {
    (check.key.clone(), check.limit.window_ms())
}

/// Answers by policy.
pub struct Fallback {
    settings: Settings,
    local: Memory,
    /// What somebody tells the store about right now.
    telling: Mutex<HashSet<Window, ahash::RandomState>>,
    metrics: Arc<Metrics>,
}

impl Fallback {
    pub(super) fn new(settings: Settings, metrics: Arc<Metrics>) -> Self {
        // Its keys are not those of the store: it has metrics of its own that nobody reads.
        let local = Memory::new(&settings.memory, Metrics::new());
        Self { settings, local, telling: Mutex::default(), metrics }
    }

    /// What was admitted locally for these keys while the store was away, and it has to be told
    /// before it is asked.
    ///
    /// # Errors
    /// Somebody tells it this moment. Until it knows, it would grant the same quota again.
    pub(super) fn owed(&self, checks: &[Check]) -> Result<Option<Owed<'_>>, StoreError> {
        if self.local.keys() == 0 {
            return Ok(None);
        }
        // Held while looking: who has just told the store has taken its hits out by then.
        let mut telling = self.telling();
        let mut owed: Vec<Check> = Vec::new();
        for check in checks {
            let window = window(check);
            let used = self.local.used(&check.key, check.limit.window_ms());
            if used == 0 || owed.iter().any(|known| self::window(known) == window) {
                continue;
            }
            if telling.contains(&window) {
                let why = "it is being told what was admitted without it";
                return Err(StoreError::Overloaded(why.into()));
            }
            let hits = i64::try_from(used).unwrap_or(i64::MAX);
            // It has happened: it counts even where there is no room for it.
            let (mode, count_denied) = (Mode::Shadow, true);
            owed.push(Check { hits, mode, count_denied, ..check.clone() });
        }
        if owed.is_empty() {
            return Ok(None);
        }
        telling.extend(owed.iter().map(window));
        Ok(Some(Owed { checks: owed, fallback: self }))
    }

    fn telling(&self) -> MutexGuard<'_, HashSet<Window, ahash::RandomState>> {
        self.telling.lock().expect("no code panics while holding this lock")
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
        let policies: Vec<OnStoreError> =
            policies.iter().map(|own| own.unwrap_or(self.settings.on_error)).collect();
        let banned = |check: &Check| is_zero(check) && check.mode == Mode::Enforce;
        let asks_nobody = checks.iter().any(banned);
        if !asks_nobody && policies.contains(&OnStoreError::Error) {
            return Err(error.into());
        }
        let mut verdicts: Vec<Option<Verdict>> = checks
            .iter()
            .zip(&policies)
            .map(|(check, policy)| without_asking(check, *policy))
            .collect();
        self.ask_local(checks, &mut verdicts).await?;
        let answers = verdicts.into_iter().zip(&policies).map(|(verdict, policy)| {
            self.metrics.fallback.with_label_values(&[name(*policy)]).inc();
            (verdict.unwrap_or(NEVER), Source::Fallback)
        });
        Ok(answers.collect())
    }

    /// The checks that have no verdict yet, decided together, each with its share of the limit.
    async fn ask_local(
        &self,
        checks: &[Check],
        verdicts: &mut [Option<Verdict>],
    ) -> Result<(), Undecided> {
        let known = checks.iter().zip(&*verdicts);
        let known = known.map(|(check, verdict)| (check.mode, verdict.is_none_or(|it| it.allowed)));
        // What another policy refuses consumes nothing here either.
        let refused = is_refused(known);
        let open: Vec<usize> = (0..checks.len()).filter(|at| verdicts[*at].is_none()).collect();
        let share = |at: &usize| {
            let check = &checks[*at];
            let limit = check.limit.share(self.settings.expected_instances);
            let hits = if refused && !check.count_denied { 0 } else { check.hits };
            Check { limit, hits, ..check.clone() }
        };
        let shares: Vec<Check> = open.iter().map(share).collect();
        if shares.is_empty() {
            return Ok(());
        }
        for (at, verdict) in open.into_iter().zip(self.local.acquire(&shares, None).await?) {
            verdicts[at] = Some(whole(&checks[at], verdict));
        }
        Ok(())
    }
}

/// A limit of 0 refuses, whoever is away.
fn is_zero(check: &Check) -> bool {
    check.limit.max_requests() == 0 && check.hits > 0
}

/// `None`: this instance's own window has to be asked.
fn without_asking(check: &Check, policy: OnStoreError) -> Option<Verdict> {
    match policy {
        _ if is_zero(check) => Some(NEVER),
        OnStoreError::Local => None,
        OnStoreError::Deny if check.hits > 0 => {
            Some(Verdict { retry_after: Some(COME_BACK), ..NEVER })
        }
        OnStoreError::Allow | OnStoreError::Deny | OnStoreError::Error => {
            Some(Verdict { allowed: true, remaining: check.limit.max_requests(), ..NEVER })
        }
    }
}

/// What never fits into this instance's share may fit when the store is back.
fn whole(check: &Check, verdict: Verdict) -> Verdict {
    let fits = check.hits.max(0).unsigned_abs() <= check.limit.max_requests();
    let comes_back = !verdict.allowed && verdict.retry_after.is_none() && fits;
    if comes_back { Verdict { retry_after: Some(COME_BACK), ..verdict } } else { verdict }
}

fn name(policy: OnStoreError) -> &'static str {
    match policy {
        OnStoreError::Error => "error",
        OnStoreError::Allow => "allow",
        OnStoreError::Deny => "deny",
        OnStoreError::Local => "local",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Limit;

    fn fallback(expected_instances: u32) -> Fallback {
        let settings = Settings {
            shadow_mode: false,
            on_error: OnStoreError::Local,
            expected_instances,
            memory: memory::Settings::default(),
        };
        Fallback::new(settings, Metrics::new())
    }

    fn check(user: &str, limit: u64, hits: i64) -> Check {
        Check {
            key: QuotaKey::of_identity(b"k", user.as_bytes()),
            limit: Limit::new(limit, Duration::from_secs(60)).unwrap(),
            hits,
            mode: Mode::Enforce,
            count_denied: false,
        }
    }

    async fn answer(
        fallback: &Fallback,
        checks: &[Check],
        policies: &[Option<OnStoreError>],
    ) -> Vec<Verdict> {
        let answers = fallback.answer(checks, policies, StoreError::Timeout).await.unwrap();
        assert!(answers.iter().all(|(_, source)| *source == Source::Fallback));
        answers.into_iter().map(|(verdict, _)| verdict).collect()
    }

    /// All or nothing, also where each check has a policy of its own.
    #[tokio::test]
    async fn what_another_policy_refuses_takes_nothing_here() {
        let fallback = fallback(1);
        let deny = Some(OnStoreError::Deny);
        let mine = check("mine", 2, 2);
        let quota = Check { mode: Mode::Quota, ..check("quota", 2, 2) };
        let shadow = Check { mode: Mode::Shadow, ..check("shadow", 2, 2) };
        let paid = Check { count_denied: true, ..check("paid", 2, 2) };
        for refusing in [check("deny", 2, 1), check("zero", 0, 1), quota.clone()] {
            let checks = [mine.clone(), paid.clone(), refusing];
            let verdicts = answer(&fallback, &checks, &[None, None, deny]).await;
            assert_eq!((verdicts[0].remaining, verdicts[2].allowed), (2, false));
        }
        assert!(!answer(&fallback, &[paid], &[None]).await[0].allowed, "it was incurred");
        let passes = [mine.clone(), shadow, quota.clone(), Check { hits: 0, ..quota }];
        let verdicts = answer(&fallback, &passes, &[None, deny, deny, deny]).await;
        assert_eq!(verdicts[0].remaining, 0);
    }

    #[tokio::test]
    async fn a_limit_of_zero_refuses_whoever_is_away() {
        let (fallback, error) = (fallback(1), Some(OnStoreError::Error));
        let zero = check("zero", 0, 1);
        let checks = [zero.clone(), check("other", 5, 1)];
        assert!(!answer(&fallback, &checks, &[error, error]).await[0].allowed);
        let harmless = [Check { mode: Mode::Shadow, ..zero.clone() }, Check { hits: 0, ..zero }];
        for check in harmless {
            let checks = [check, checks[1].clone()];
            let undecided = fallback.answer(&checks, &[error, error], StoreError::Timeout).await;
            assert!(undecided.is_err(), "{checks:?}");
        }
    }

    #[tokio::test]
    async fn a_share_that_is_too_small_is_no_limit_that_is() {
        let fallback = fallback(4);
        let table = [(2, true, None), (3, false, Some(COME_BACK)), (9, false, None)];
        for (hits, allowed, retry_after) in table {
            let user = hits.to_string();
            let verdict = answer(&fallback, &[check(&user, 8, hits)], &[None]).await[0];
            assert_eq!((verdict.allowed, verdict.retry_after), (allowed, retry_after), "{hits}");
        }
    }

    /// Nobody asks the store about a quota that it would grant a second time.
    #[tokio::test]
    async fn one_caller_tells_and_the_others_do_not_ask() {
        let fallback = fallback(1);
        let (mine, other) = (check("mine", 5, 2), check("other", 5, 1));
        assert!(fallback.owed(std::slice::from_ref(&mine)).unwrap().is_none());
        answer(&fallback, &[mine.clone(), other.clone()], &[None, None]).await;
        let both = [mine.clone(), other.clone(), mine.clone()];
        let owed = fallback.owed(&both).unwrap().unwrap();
        assert_eq!(owed.checks.iter().map(|check| check.hits).collect::<Vec<_>>(), [2, 1]);
        assert!(owed.checks.iter().all(|check| check.count_denied && check.mode == Mode::Shadow));
        assert!(fallback.owed(std::slice::from_ref(&mine)).is_err());
        assert!(fallback.owed(&[check("third", 5, 1)]).unwrap().is_none());
        // The store did not answer: it is owed still, and what came meanwhile too.
        drop(owed);
        answer(&fallback, std::slice::from_ref(&mine), &[None]).await;
        let owed = fallback.owed(std::slice::from_ref(&mine)).unwrap().unwrap();
        assert_eq!(owed.checks[0].hits, 4);
        owed.settle().await;
        assert!(fallback.owed(std::slice::from_ref(&mine)).unwrap().is_none());
        assert!(fallback.owed(&[other]).unwrap().is_some());
        assert_eq!(answer(&fallback, &[Check { hits: 0, ..mine }], &[None]).await[0].remaining, 5);
    }
}
