//! Cases from bug reports about other rate limiters, each with the answers that are right.
//! One line of `tests/data/cases.jsonl` is one case: where it was seen, what went wrong, the steps.

use std::collections::HashMap;
use std::time::Duration;

use chronosdb::check::{Check, QuotaKey};
use chronosdb::metrics::Metrics;
use chronosdb::quota::{Mode, Verdict};
use chronosdb::store::Store as _;
use chronosdb::store::memory::{self, Memory};
use serde::Deserialize;
use tokio::runtime::{Builder, Runtime};

use crate::harness::counters::{Counters, START_US, Wanted, both_twins, want};

#[derive(Deserialize)]
struct Case {
    id: u32,
    symptom: String,
    rules: HashMap<String, CaseRule>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct CaseRule {
    limit: u64,
    window_ms: u64,
    shadow: bool,
}

#[derive(Debug, Deserialize)]
struct Step {
    t_ms: u64,
    keys: Vec<String>,
    hits: i64,
    expect: String,
    remaining: u64,
    retry_ms: Option<Retry>,
}

/// Milliseconds, or the word `none`: never.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum Retry {
    AfterMs(u64),
    Never(String),
}

#[test]
fn every_case_has_its_answers() {
    let lines = include_str!("../data/cases.jsonl").lines();
    let cases = lines.map(|line| serde_json::from_str::<Case>(line).unwrap()).collect::<Vec<_>>();
    assert_eq!(cases.len(), 25);
    let memory: Box<dyn Counters> = Box::new(InMemoryStore::new());
    for mut twin in both_twins().into_iter().chain([memory]) {
        for (index, case) in cases.iter().enumerate() {
            // Far enough apart that nothing of one case is left in the next.
            let start_us = START_US + index as u64 * 400 * 86_400_000_000;
            play(case, twin.as_mut(), start_us);
        }
    }
}

/// The memory store itself, on a clock that only the test moves.
struct InMemoryStore {
    runtime: Runtime,
    store: Memory,
    now_us: u64,
}

impl InMemoryStore {
    fn new() -> Self {
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let settings = memory::Settings::default();
        let store = runtime.block_on(async { Memory::new(&settings, Metrics::new()) });
        Self { runtime, store, now_us: START_US }
    }
}

impl Counters for InMemoryStore {
    fn ask(&mut self, now_us: u64, wanted: &[Wanted]) -> Vec<Verdict> {
        let passed = Duration::from_micros(now_us - self.now_us);
        self.now_us = now_us;
        let check = |wanted: &Wanted| Check {
            key: QuotaKey::of_identity(b"cases", wanted.key.as_bytes()),
            limit: wanted.limit,
            hits: wanted.hits,
            mode: wanted.mode,
            count_denied: wanted.count_denied,
        };
        let checks = wanted.iter().map(check).collect::<Vec<_>>();
        self.runtime.block_on(async {
            tokio::time::advance(passed).await;
            self.store.acquire(&checks, None).await.unwrap()
        })
    }

    fn name(&self) -> &'static str {
        "memory store"
    }

    /// Of all logs together: the store shows how many there are, not what is in them.
    fn entries(&mut self, _: &Wanted) -> usize {
        self.store.keys()
    }
}

fn play(case: &Case, twin: &mut dyn Counters, start_us: u64) {
    for step in &case.steps {
        let context = format!("case {} ({}), {}: {step:?}", case.id, case.symptom, twin.name());
        let wanted = step.keys.iter().map(|key| check_of(case, key, step.hits)).collect::<Vec<_>>();
        let verdicts = twin.ask(start_us + step.t_ms * 1000, &wanted);
        let denier = verdicts
            .iter()
            .zip(&wanted)
            .find(|(verdict, wanted)| !verdict.allowed && wanted.mode == Mode::Enforce);
        assert_eq!(step.expect, if denier.is_some() { "DENY" } else { "ALLOW" }, "{context}");
        let tightest = verdicts.iter().min_by_key(|verdict| verdict.remaining).unwrap();
        let shown = denier.map_or(tightest, |(verdict, _)| verdict);
        assert_eq!(shown.remaining, step.remaining, "{context}");
        let retry = denier.map(|(verdict, _)| retry_of(verdict));
        assert_eq!(retry, step.retry_ms, "{context}");
    }
}

fn check_of(case: &Case, key: &str, hits: i64) -> Wanted {
    let rule = &case.rules[key];
    let mode = if rule.shadow { Mode::Shadow } else { Mode::Enforce };
    let name = format!("case {} {key}", case.id);
    Wanted { mode, ..want(name.leak(), rule.limit, rule.window_ms, hits) }
}

fn retry_of(verdict: &Verdict) -> Retry {
    let up =
        |wait: Duration| Retry::AfterMs(u64::try_from(wait.as_micros()).unwrap().div_ceil(1000));
    verdict.retry_after.map_or_else(|| Retry::Never("none".into()), up)
}
