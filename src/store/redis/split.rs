//! A request over several slots of a cluster: each slot reserves its part, and gives it back when
//! another one refuses. It never admits more than one script would; for the time between the two
//! steps it may admit less, and if the second never comes, until the hits leave their window.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::Inner;
use super::script::{Answer, Work};
use super::slots;
use crate::check::Check;
use crate::quota::{Mode, Verdict, is_refused};
use crate::store::StoreError;

/// How long an answer is waited for after the caller has given up, so that what was reserved can
/// be given back.
const PATIENCE: Duration = Duration::from_secs(1);

/// The checks of one slot, by their place in the request.
struct Part {
    places: Vec<usize>,
    checks: Vec<Check>,
}

/// Decides checks of several slots. It runs to its end also when the caller goes away: hits that
/// nobody was told about are given back.
pub(super) async fn decide(
    inner: Arc<Inner>,
    checks: &[Check],
    deadline: Instant,
) -> Result<Vec<Verdict>, StoreError> {
    let checks = checks.to_vec();
    let task = tokio::spawn(async move { reserve(&inner, &checks, deadline).await });
    match timeout_at(deadline, task).await {
        Ok(Ok(verdicts)) => verdicts,
        Ok(Err(ended)) => Err(StoreError::Unavailable(ended.to_string())),
        Err(_) => Err(StoreError::Timeout),
    }
}

async fn reserve(
    inner: &Inner,
    checks: &[Check],
    deadline: Instant,
) -> Result<Vec<Verdict>, StoreError> {
    let parts = parts(checks, |check| check.hits >= 0);
    let patience = deadline + PATIENCE;
    let answers = run(inner, &parts, patience).await;
    let mut verdicts: Vec<Option<Verdict>> = vec![None; checks.len()];
    // A late answer may still be heard, and what is given back must not be taken for granted.
    let mut trouble = (Instant::now() >= deadline).then_some(StoreError::Timeout);
    for (part, answer) in parts.iter().zip(&answers) {
        match answer {
            Ok(answer) => place(&mut verdicts, part, answer),
            Err(error) => trouble = Some(error.clone()),
        }
    }
    let fits = checks.iter().zip(&verdicts);
    let fits = fits.map(|(check, verdict)| (check.mode, verdict.is_none_or(|it| it.allowed)));
    let refused = trouble.is_some() || is_refused(fits);
    if refused {
        give_back(inner, &parts, &answers, patience).await;
    }
    if let Some(trouble) = trouble {
        return Err(trouble);
    }
    // What the caller itself gives back waits for the decision: lost on the way, it only refuses.
    let refunds = self::parts(checks, |check| check.hits < 0);
    let refunds = match refused {
        true => refunds.into_iter().map(Part::looking).collect(),
        false => refunds,
    };
    for (part, answer) in refunds.iter().zip(run(inner, &refunds, patience).await) {
        place(&mut verdicts, part, &answer?);
    }
    let back = |(check, verdict): (&Check, Option<Verdict>)| {
        let verdict = verdict.expect("every check is in one part");
        if refused { without(check, verdict) } else { verdict }
    };
    Ok(checks.iter().zip(verdicts).map(back).collect())
}

/// The checks that are wanted, slot by slot.
fn parts(checks: &[Check], wanted: impl Fn(&Check) -> bool) -> Vec<Part> {
    let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
    for (place, check) in checks.iter().enumerate().filter(|(_, check)| wanted(check)) {
        let slot = slots::of(check.key.as_bytes());
        let part = parts.entry(slot).or_insert(Part { places: Vec::new(), checks: Vec::new() });
        part.places.push(place);
        part.checks.push(check.clone());
    }
    parts.into_values().collect()
}

impl Part {
    /// The same, taking and giving nothing.
    fn looking(self) -> Self {
        let looks = |check| Check { hits: 0, mode: Mode::Shadow, ..check };
        Self { checks: self.checks.into_iter().map(looks).collect(), ..self }
    }
}

async fn run(inner: &Inner, parts: &[Part], until: Instant) -> Vec<Result<Answer, StoreError>> {
    let run = |part: &Part| {
        let work = part.checks.clone();
        async move { inner.servers.run(Work::Reserve { checks: &work }, until).await }
    };
    join_all(parts.iter().map(run)).await
}

fn place(verdicts: &mut [Option<Verdict>], part: &Part, answer: &Answer) {
    for (place, verdict) in part.places.iter().zip(answer.verdicts()) {
        verdicts[*place] = Some(verdict);
    }
}

/// Each slot gives back what it granted.
async fn give_back(
    inner: &Inner,
    parts: &[Part],
    answers: &[Result<Answer, StoreError>],
    until: Instant,
) {
    let give_back = |(part, answer): (&Part, &Result<Answer, StoreError>)| {
        let answer = answer.as_ref().ok()?;
        // A part that refuses itself has consumed nothing.
        let refuses = part.checks.iter().zip(answer.granted());
        let mut refuses = refuses.filter(|(check, _)| check.mode == Mode::Enforce);
        if refuses.any(|(_, granted)| !granted) {
            return None;
        }
        let taken = part.checks.iter().zip(answer.granted());
        let taken = taken.filter(|(check, granted)| *granted && is_returned(check));
        let checks: Vec<Check> = taken.map(|(check, _)| check.clone()).collect();
        let since_us = answer.since_us;
        let node = answer.by.clone()?;
        (!checks.is_empty()).then_some(async move {
            let work = Work::GiveBack { checks: &checks, since_us };
            let result = match inner.servers.give_back(work, node, until).await {
                Ok(()) => "done",
                Err(_) => "lost",
            };
            inner.metrics.give_backs.with_label_values(&[result]).inc();
        })
    };
    join_all(parts.iter().zip(answers).filter_map(give_back)).await;
}

/// Whether a reservation of this check is given back: costs that were already incurred stay.
fn is_returned(check: &Check) -> bool {
    check.hits > 0 && !check.count_denied
}

/// The verdict once the reservation is given back.
fn without(check: &Check, verdict: Verdict) -> Verdict {
    if check.hits < 0 {
        // It was only looked at, and to give back is always allowed.
        return Verdict { allowed: true, retry_after: None, ..verdict };
    }
    if !verdict.allowed || !is_returned(check) {
        return verdict;
    }
    let limit = check.limit.max_requests();
    let remaining = (verdict.remaining + check.hits.unsigned_abs()).min(limit);
    let reset_after = if remaining == limit { Duration::ZERO } else { verdict.reset_after };
    Verdict { remaining, reset_after, ..verdict }
}
