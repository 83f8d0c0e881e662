//! The one path: a question becomes a `Decision`. It knows neither a wire nor Redis.
//! Rules say what to check, the L1 what is refused anyway, the store decides; where the store
//! cannot, the policy does (`fallback.rs`).

mod decision;
mod fallback;
mod peek;
mod strangers;
mod tally;

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::future::try_join_all;
use smallvec::SmallVec;
use tokio::time::Instant;

pub use self::decision::{Decision, Source, Status};
use self::fallback::Fallback;
pub use self::fallback::{Settings, Undecided};
use self::peek::Peek;
use self::strangers::Strangers;
use self::tally::{count_request, count_status};
use crate::check::{Check, OnStoreError, QuotaKey, Request};
use crate::l1::L1;
use crate::metrics::{ApiKeyStats, Metrics, RuleStats};
use crate::privacy::Privacy;
use crate::quota::{Limit, Mode, Verdict};
use crate::rules::{Ceiling, Charge, Match, Rule, RuleSet};
use crate::store::{AnyStore, Store as _, StoreError};
use crate::trace::{self, Step};

/// A question that brings its own limit: what `CheckQuota` asks.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Under which key the user is known.
    pub api_key: String,
    /// Whose quota.
    pub user_id: String,
    /// How much of it there is.
    pub limit: Limit,
    /// Hits to take; 0 peeks: it says whether one more hit would pass.
    pub hits: u32,
}

/// What every worker's limiter shares.
pub struct Shared {
    /// The rules in use; swapped whole by a reload.
    pub rules: Arc<ArcSwap<RuleSet>>,
    /// Remembered refusals.
    pub l1: L1,
    /// Which values are secrets.
    pub privacy: Privacy,
    /// Where everything is counted.
    pub metrics: Arc<Metrics>,
    /// Who answers when the store cannot.
    pub fallback: Fallback,
    shadow_mode: bool,
    strangers: Strangers,
    native: Arc<RuleStats>,
    nobody: Arc<ApiKeyStats>,
}

/// The one path from a question to an answer.
pub struct Limiter {
    shared: Arc<Shared>,
    store: AnyStore,
}

impl Shared {
    /// Nothing remembered, nothing counted.
    pub fn new(
        rules: Arc<ArcSwap<RuleSet>>,
        l1: L1,
        privacy: Privacy,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let native = metrics.rule("native", "CheckQuota");
        let nobody = metrics.api_key("");
        let shadow_mode = settings.shadow_mode;
        let fallback = Fallback::new(settings, Arc::clone(&metrics));
        Self {
            rules,
            l1,
            privacy,
            metrics,
            fallback,
            shadow_mode,
            strangers: Strangers::default(),
            native,
            nobody,
        }
    }

    /// What the rules decided, as far as it is more than a trial run.
    fn decision(&self, mut decision: Decision) -> Decision {
        if self.shadow_mode {
            decision.pass_in_shadow();
        }
        decision
    }
}

impl Limiter {
    /// A limiter over a store of its own; the rest is shared.
    pub fn new(shared: Arc<Shared>, store: AnyStore) -> Self {
        Self { shared, store }
    }

    /// What this limiter shares with the others.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Decides a request by the rules. `deadline`: the caller's own, if it has one.
    ///
    /// # Errors
    /// The store could not answer, and the policy is to say so.
    pub async fn decide(
        &self,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Decision, Undecided> {
        self.decide_for(None, request, deadline).await
    }

    /// Decides by the rules, and means by a peek what `CheckQuota` does: would one more hit pass?
    ///
    /// # Errors
    /// The store could not answer, and the policy is to say so.
    pub async fn decide_next_hit(
        &self,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Decision, Undecided> {
        self.decide_as(Peek::NextHit, None, request, deadline).await
    }

    /// Decides a request by the rules, and counts it for this API key, if one is known, rather
    /// than for the one that the rules name.
    ///
    /// # Errors
    /// The store could not answer, and the policy is to say so.
    pub async fn decide_for(
        &self,
        api_key: Option<&str>,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Decision, Undecided> {
        self.decide_as(Peek::Over, api_key, request, deadline).await
    }

    async fn decide_as(
        &self,
        peek: Peek,
        api_key: Option<&str>,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Decision, Undecided> {
        let metrics = &self.shared.metrics;
        let api_key = api_key.map(|api_key| metrics.api_key(api_key));
        let rules = self.shared.rules.load_full();
        let Some(domain) = rules.domain(&request.domain) else {
            metrics.unknown_domain.inc();
            self.shared.strangers.meet(&request.domain, &rules);
            api_key.as_ref().unwrap_or(&self.shared.nobody).allowed.inc();
            let statuses = request.descriptors.iter().map(|_| Status::unlimited(None)).collect();
            return Ok(Decision::of(statuses));
        };
        let step = Step::start("match");
        let mut matches = domain.matches(request, &self.shared.privacy);
        drop(step);
        let mut statuses = Vec::with_capacity(matches.len());
        let mut asked: SmallVec<[usize; 4]> = SmallVec::new();
        let mut checks: SmallVec<[Check; 2]> = SmallVec::new();
        for (index, matched) in matches.iter().enumerate() {
            let Some(Match { rule, ceiling, key, .. }) = matched else {
                statuses.push(Status::unlimited(None));
                continue;
            };
            let mut status = Status::unlimited(Some(Arc::clone(rule)));
            if let Ceiling::Limit(limit) = *ceiling {
                let Rule { mode, count_denied, .. } = **rule;
                (status.limit, status.mode) = (Some(limit), mode);
                let hits = request.descriptors[index].hits;
                let limit = peek.limit(limit, hits);
                checks.push(Check { key: key.clone(), limit, hits, mode, count_denied });
                asked.push(index);
            }
            statuses.push(status);
        }
        let policy = |check: usize| matches[asked[check]].as_ref()?.rule.on_store_error;
        let answers = match domain.charge {
            Charge::Together => self.ask(&checks, policy, deadline).await?,
            Charge::Independent => {
                let alone =
                    |index| self.ask(&checks[index..=index], move |_| policy(index), deadline);
                try_join_all((0..checks.len()).map(alone)).await?.concat()
            }
        };
        for (index, (verdict, source)) in asked.iter().zip(answers) {
            let (status, hits) = (&mut statuses[*index], request.descriptors[*index].hits);
            (status.verdict, status.source) = (peek.verdict(status.limit, hits, verdict), source);
        }
        let decision = self.shared.decision(Decision::of(statuses));
        self.count(&decision, &mut matches, &domain.name, api_key.as_ref());
        trace::note("chronosdb.allowed", decision.allowed);
        Ok(decision)
    }

    /// Decides a question that brings its own limit; the decision has one status.
    ///
    /// # Errors
    /// The store could not answer, and the policy is to say so.
    pub async fn check_quota(
        &self,
        quota: &Quota,
        deadline: Option<Instant>,
    ) -> Result<Decision, Undecided> {
        let shared = &*self.shared;
        let api_key = shared.privacy.shown(b"api_key", quota.api_key.as_bytes());
        let user_id = shared.privacy.shown(b"user_id", quota.user_id.as_bytes());
        let hits = i64::from(quota.hits);
        let check = Check {
            key: QuotaKey::of_identity(&api_key, &user_id),
            limit: Peek::NextHit.limit(quota.limit, hits),
            hits,
            mode: Mode::Enforce,
            count_denied: false,
        };
        let answers = self.ask(&[check], |_| None, deadline).await?;
        let status = |(verdict, source)| {
            let limit = Some(quota.limit);
            let verdict = Peek::NextHit.verdict(limit, hits, verdict);
            Status { limit, verdict, source, ..Status::unlimited(None) }
        };
        let decision = Decision::of(answers.into_iter().map(status).collect());
        let api_key = shared.metrics.api_key(&String::from_utf8_lossy(&api_key));
        count_request(&api_key, &decision);
        trace::note("chronosdb.allowed", decision.allowed);
        for status in &decision.statuses {
            count_status(&shared.native, status, &decision);
        }
        Ok(decision)
    }

    /// Answers checks that are decided together, in order; `policy` is who answers each of them
    /// when the store cannot.
    async fn ask(
        &self,
        checks: &[Check],
        policy: impl Fn(usize) -> Option<OnStoreError>,
        deadline: Option<Instant>,
    ) -> Result<Vec<(Verdict, Source)>, Undecided> {
        if checks.is_empty() {
            return Ok(Vec::new());
        }
        let l1 = &self.shared.l1;
        let now = Instant::now();
        let asked = l1.asking(now);
        let step = Step::start("l1");
        let known = checks.iter().map(|check| known_refusal(l1, check, now));
        let known = known.collect::<Option<_>>();
        drop(step);
        if let Some(known) = known {
            return Ok(known);
        }
        let _refunding = l1.refunding(checks);
        match self.acquire(checks, deadline).await {
            Ok(verdicts) => {
                for (check, verdict) in checks.iter().zip(&verdicts) {
                    l1.remember(check, verdict, asked);
                }
                Ok(verdicts.into_iter().map(|verdict| (verdict, Source::Store)).collect())
            }
            Err(error) => {
                let policies: Vec<_> = (0..checks.len()).map(policy).collect();
                self.shared.fallback.answer(checks, &policies, error).await
            }
        }
    }

    async fn acquire(
        &self,
        checks: &[Check],
        deadline: Option<Instant>,
    ) -> Result<Vec<Verdict>, StoreError> {
        let mut step = Step::start("store");
        let verdicts = self.acquire_after_outage(checks, deadline).await;
        step.note("chronosdb.checks", i64::try_from(checks.len()).unwrap_or(i64::MAX));
        if let Err(error) = &verdicts {
            step.fail(error.reason());
        }
        verdicts
    }

    /// Asks the store; before that, tells it what was admitted without it.
    async fn acquire_after_outage(
        &self,
        checks: &[Check],
        deadline: Option<Instant>,
    ) -> Result<Vec<Verdict>, StoreError> {
        if let Some(owed) = self.shared.fallback.owed(checks)? {
            self.store.acquire(&owed.checks, deadline).await?;
            owed.settle().await;
        }
        self.store.acquire(checks, deadline).await
    }

    fn count(
        &self,
        decision: &Decision,
        matches: &mut [Option<Match>],
        domain: &str,
        caller: Option<&Arc<ApiKeyStats>>,
    ) {
        let mut whose = None;
        for (status, matched) in decision.statuses.iter().zip(matches) {
            let Some(Match { stats, api_key, .. }) = matched else {
                self.shared.metrics.no_rule.with_label_values(&[domain]).inc();
                continue;
            };
            count_status(stats, status, decision);
            // The one who refuses, else the first who was asked.
            if whose.is_none() || status.refuses {
                whose = Some(&*api_key);
            }
        }
        match caller.or(whose) {
            Some(api_key) => count_request(api_key, decision),
            None => self.shared.metrics.api_key(domain).allowed.inc(),
        }
    }
}

/// What nobody needs to be asked about: a limit of 0, and a refusal that the L1 remembers.
fn known_refusal(l1: &L1, check: &Check, now: Instant) -> Option<(Verdict, Source)> {
    if check.limit.max_requests() == 0 && check.hits > 0 && !check.count_denied {
        return Some((fallback::NEVER, Source::Rules));
    }
    l1.refusal(check, now).map(|verdict| (verdict, Source::L1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Descriptor, Entry};
    use crate::l1;
    use crate::store::memory::{self, Memory};

    fn limiter(rules: &str, shadow_mode: bool) -> Limiter {
        let (metrics, privacy) = (Metrics::new(), Privacy::new(&Default::default()));
        let rules = RuleSet::from_text(rules, &metrics, &privacy).unwrap();
        let l1 = L1::new(&l1::Settings::default(), Arc::clone(&metrics));
        let memory = memory::Settings::default();
        let store = Memory::new(&memory, Arc::clone(&metrics));
        let (on_error, expected_instances) = (OnStoreError::Error, 1);
        let settings = Settings { shadow_mode, on_error, expected_instances, memory };
        let rules = Arc::new(ArcSwap::from_pointee(rules));
        let shared = Shared::new(rules, l1, privacy, settings, metrics);
        Limiter::new(Arc::new(shared), AnyStore::Memory(Arc::new(store)))
    }

    const ONE: &str =
        "domain: d\ndescriptors: [{ key: k, rate_limit: { limit: 1, window: 1m } }]\n";

    fn request(hits: i64) -> Request {
        let entries = vec![Entry::new("k", "v")];
        let descriptors = vec![Descriptor { entries, hits, limit_override: None }];
        Request { domain: "d".into(), descriptors }
    }

    #[tokio::test]
    async fn a_refund_opens_what_the_l1_had_closed() {
        let limiter = limiter(ONE, false);
        let ask = async |hits| {
            let decision = limiter.decide(&request(hits), None).await.unwrap();
            (decision.allowed, decision.statuses[0].source)
        };
        assert_eq!(ask(1).await, (true, Source::Store));
        assert_eq!(ask(1).await, (false, Source::Store));
        assert_eq!(ask(1).await, (false, Source::L1));
        assert_eq!(ask(-1).await, (true, Source::Store));
        assert_eq!(ask(1).await, (true, Source::Store));
    }

    #[tokio::test]
    async fn in_a_trial_run_nothing_is_refused_to_who_only_looks_either() {
        for shadow_mode in [false, true] {
            let limiter = limiter(ONE, shadow_mode);
            assert!(limiter.decide_next_hit(&request(0), None).await.unwrap().allowed);
            assert!(limiter.decide(&request(1), None).await.unwrap().allowed);
            let peek = limiter.decide_next_hit(&request(0), None).await.unwrap();
            assert_eq!((peek.allowed, peek.retry_after.is_none()), (shadow_mode, shadow_mode));
            assert_eq!(limiter.decide(&request(1), None).await.unwrap().allowed, shadow_mode);
        }
    }
}
