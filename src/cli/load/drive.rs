//! One thread that asks: its own runtime, its own connections, its own counts.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hdrhistogram::Histogram;

use super::PLACE;
use super::pace;
use crate::api::client::{Client, Question, Unanswered};
use crate::api::trust::Trust;
use crate::check::Entry;

/// What one thread does.
pub(super) struct Plan {
    pub(super) target: String,
    pub(super) trust: Option<Trust>,
    pub(super) question: Question,
    pub(super) keys: u64,
    pub(super) connections: u32,
    pub(super) pace: Pace,
    pub(super) duration: Duration,
    pub(super) timeout: Duration,
}

/// How often to ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// An open loop: evenly, whatever the answers do.
    PerSecond(f64),
    /// A closed loop: so many under way at all times.
    InFlight(u32),
}

/// How far all threads are.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) began: OnceLock<Instant>,
    pub(super) answered: AtomicU64,
}

/// What one thread saw.
pub(super) struct Part {
    pub(super) sent: u64,
    pub(super) allowed: u64,
    pub(super) refused: u64,
    /// By gRPC status.
    pub(super) errors: BTreeMap<String, u64>,
    /// From when a question was due to its answer, in µs.
    pub(super) latency_us: Histogram<u64>,
    /// From when a question was due to when it was sent, in µs.
    pub(super) late_us: Histogram<u64>,
}

/// Longer than this is not told apart: an hour.
const MOST_US: u64 = 3_600_000_000;

/// An answer, and when its question was due.
type Outcome = (Instant, Result<bool, Unanswered>);

/// Asks by plan; `seed` tells threads apart.
pub(super) fn run(plan: &Plan, seed: u64, progress: &Progress) -> Result<Part, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(drive(plan, seed, progress))
}

async fn drive(plan: &Plan, seed: u64, progress: &Progress) -> Result<Part, String> {
    let mut clients = Vec::new();
    for _ in 0..plan.connections {
        clients
            .push(Client::connect_trusting(&plan.target, plan.trust.as_ref(), plan.timeout).await?);
    }
    let mut turns = clients.iter().cycle();
    let mut random = Random(seed + 1);
    let mut part = Part::default();
    let mut under_way = FuturesUnordered::new();
    let mut ask = |due: Instant, part: &mut Part| {
        part.sent += 1;
        part.late_us.saturating_record(microseconds(due.elapsed()));
        let question = filled(&plan.question, random.below(plan.keys));
        let client = turns.next();
        async move { Some((due, client?.passes(question).await)) }
    };
    let began = *progress.began.get_or_init(Instant::now);
    match plan.pace {
        Pace::PerSecond(per_second) => {
            let mut moments = pace::evenly(per_second, plan.duration);
            let mut is_open = true;
            while is_open || !under_way.is_empty() {
                tokio::select! {
                    due = moments.recv(), if is_open => match due {
                        Some(due) => under_way.push(ask(due, &mut part)),
                        None => is_open = false,
                    },
                    Some(outcome) = under_way.next(), if !under_way.is_empty() => {
                        part.count(outcome, progress);
                    }
                }
            }
        }
        Pace::InFlight(count) => {
            for _ in 0..count {
                under_way.push(ask(Instant::now(), &mut part));
            }
            while let Some(outcome) = under_way.next().await {
                part.count(outcome, progress);
                if began.elapsed() < plan.duration {
                    under_way.push(ask(Instant::now(), &mut part));
                }
            }
        }
    }
    Ok(part)
}

impl Default for Part {
    fn default() -> Self {
        // Bounds, since one that grows by itself does not grow for a value that saturates.
        let histogram = || Histogram::new_with_bounds(1, MOST_US, 3).expect("the bounds are sound");
        let (latency_us, late_us) = (histogram(), histogram());
        Self { sent: 0, allowed: 0, refused: 0, errors: BTreeMap::new(), latency_us, late_us }
    }
}

impl Part {
    fn count(&mut self, outcome: Option<Outcome>, progress: &Progress) {
        let Some((due, answer)) = outcome else { return };
        progress.answered.fetch_add(1, Ordering::Relaxed);
        self.latency_us.saturating_record(microseconds(due.elapsed()));
        match answer {
            Ok(true) => self.allowed += 1,
            Ok(false) => self.refused += 1,
            Err(error) => *self.errors.entry(format!("{:?}", error.status)).or_default() += 1,
        }
    }

    /// Takes in what another thread saw.
    pub(super) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.allowed += other.allowed;
        self.refused += other.refused;
        for (status, count) in &other.errors {
            *self.errors.entry(status.clone()).or_default() += count;
        }
        for (all, part) in
            [(&mut self.latency_us, &other.latency_us), (&mut self.late_us, &other.late_us)]
        {
            all.add(part).expect("histograms of equal bounds add up");
        }
    }
}

/// The question about one of the keys.
fn filled(question: &Question, key: u64) -> Question {
    let mut question = question.clone();
    let key = key.to_string();
    let fill = |text: &mut String| {
        if text.contains(PLACE) {
            *text = text.replace(PLACE, &key);
        }
    };
    match &mut question {
        Question::Quota { user_id, api_key, .. } => [user_id, api_key].into_iter().for_each(fill),
        Question::Descriptors { descriptors, .. } => {
            for Entry { value, .. } in descriptors.iter_mut().flatten() {
                let mut text = String::from_utf8_lossy(value).into_owned();
                fill(&mut text);
                *value = text.into_bytes();
            }
        }
    }
    question
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Marsaglia's xorshift: which key is next need not be hard to guess.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The high bits of the first numbers of small seeds are poor.
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_about_one_key() {
        let entries = vec![Entry::new("user", "u{key}"), Entry::new("path", "/")];
        let descriptors = vec![entries];
        let question = Question::Descriptors { domain: "d".into(), descriptors, hits: 1 };
        let Question::Descriptors { descriptors, .. } = filled(&question, 7) else {
            panic!("it became another question");
        };
        assert_eq!(descriptors, [[Entry::new("user", "u7"), Entry::new("path", "/")]]);
    }

    #[test]
    fn a_slow_answer_is_counted_as_slow() {
        let (mut part, mut all) = (Part::default(), Part::default());
        let due = Instant::now() - Duration::from_secs(2);
        part.count(Some((due, Ok(true))), &Progress::default());
        all.add(&part);
        assert!(all.latency_us.max() >= 2_000_000, "{} µs", all.latency_us.max());
    }

    #[test]
    fn every_key_has_its_turn() {
        let mut random = Random(1);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[usize::try_from(random.below(10)).unwrap()] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }

    #[test]
    fn moments_are_even_and_none_comes_early() {
        let mut moments = pace::evenly(2_000.0, Duration::from_millis(100));
        let first = moments.blocking_recv().unwrap();
        let mut count = 1;
        while let Some(moment) = moments.blocking_recv() {
            assert_eq!(moment - first, Duration::from_secs_f64(f64::from(count) / 2_000.0));
            assert!(Instant::now() >= moment);
            count += 1;
        }
        assert_eq!(count, 200);
    }
}
