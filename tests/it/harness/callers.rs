//! Callers without a pause while a fault lasts: what they are told, how long each one waits for it,
//! and how soon right answers are back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chronosdb::check::Check;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::instance::Instance;

/// The deadline of a decision: long enough for a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);

/// How soon after a fault's end right answers must come, and some patience with a busy machine.
pub(crate) const RECOVERY: Duration = Duration::from_secs(2 + 2);

/// How many ask at once.
pub(crate) const CALLERS: usize = 16;

/// Whether `CHRONOSDB_TEST_LONG` is set: then faults last, and what was measured is printed.
pub(crate) fn is_long() -> bool {
    std::env::var_os("CHRONOSDB_TEST_LONG").is_some()
}

/// How long a fault lasts.
pub(crate) fn lasting() -> Duration {
    if is_long() { Duration::from_secs(30) } else { Duration::from_secs(1) }
}

/// What callers heard during a fault.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) answers: usize,
    /// By reason.
    pub(crate) errors: BTreeMap<&'static str, usize>,
    /// How long each call took, the shortest first.
    waits: Vec<Duration>,
    /// The longest that this machine left a task waiting that could have gone on.
    pause: Duration,
}

/// Until the fault has lasted.
pub(crate) async fn listen(instance: &Instance, check: &Check) -> Heard {
    listen_while(instance, check, sleep(lasting())).await
}

/// Until something has happened that blocks no thread.
pub(crate) async fn listen_while(
    instance: &Instance,
    check: &Check,
    happens: impl Future<Output = ()>,
) -> Heard {
    let is_over = AtomicBool::new(false);
    let caller = async || {
        let mut heard = Heard::default();
        while !is_over.load(Ordering::Relaxed) {
            let asked = Instant::now();
            match instance.ask(std::slice::from_ref(check)).await {
                Ok(_) => heard.answers += 1,
                Err(error) => *heard.errors.entry(error.reason()).or_default() += 1,
            }
            heard.waits.push(asked.elapsed());
            // An answer in no time must not keep the others from the runtime.
            sleep(Duration::from_millis(1)).await;
        }
        heard
    };
    let happens = async {
        happens.await;
        is_over.store(true, Ordering::Relaxed);
    };
    let pauses = async {
        let mut longest = Duration::ZERO;
        while !is_over.load(Ordering::Relaxed) {
            let due = Instant::now() + Duration::from_millis(5);
            sleep_until(due).await;
            longest = longest.max(due.elapsed());
        }
        longest
    };
    let callers = join_all((0..CALLERS).map(|_| caller()));
    let (all, (), pause) = tokio::join!(callers, happens, pauses);
    let mut sum = Heard { pause, ..Heard::default() };
    for heard in all {
        sum.answers += heard.answers;
        sum.waits.extend(heard.waits);
        for (reason, times) in heard.errors {
            *sum.errors.entry(reason).or_default() += times;
        }
    }
    sum.waits.sort_unstable();
    sum
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = [0.5, 0.99, 1.0].map(|part| self.wait(part));
        let Self { answers, errors, pause, .. } = self;
        write!(f, "{answers} answers, {errors:?}, waits {waits:?}, a pause of {pause:?}")
    }
}

impl Heard {
    /// Nobody got an answer, and nearly all heard this reason; the others that there was no answer in
    /// time, and then for a while: this machine has pauses.
    pub(crate) fn is_told(&self, reason: &str) -> bool {
        let told = |reason: &str| self.errors.get(reason).copied().unwrap_or(0);
        let (told, missed) = (told(reason), told("timeout") + told("unavailable"));
        let all = self.errors.values().sum::<usize>();
        self.answers == 0 && told > missed && told + missed == all
    }

    /// 99 of 100 were told about when they had to be, or at once.
    pub(crate) fn is_prompt(&self) -> bool {
        self.wait(0.99) <= DEADLINE * 2 + self.pause
    }

    /// As long as this part of the calls took at most.
    fn wait(&self, part: f64) -> Duration {
        let last = self.waits.len().saturating_sub(1);
        self.waits.get((last as f64 * part) as usize).copied().unwrap_or_default()
    }

    /// The fault is over: a hit of this check has its right answer in time. Returns what remains.
    pub(crate) async fn healed(&self, fault: &str, instance: &Instance, check: &Check) -> u64 {
        let (remaining, after) = healed(instance, check).await;
        self.print(fault, after);
        remaining
    }

    /// In the long form, a row of docs/redis.md.
    pub(crate) fn print(&self, fault: &str, healed_after: Duration) {
        if is_long() {
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|part| shown(self.wait(part)));
            println!("| {fault} | {p50} | {p99} | {max} | {} |", shown(healed_after));
        }
    }
}

/// The same for a fault that nobody listened to.
pub(crate) async fn recovers(instance: &Instance, check: &Check) -> u64 {
    healed(instance, check).await.0
}

async fn healed(instance: &Instance, check: &Check) -> (u64, Duration) {
    let started = Instant::now();
    let answer = timeout(RECOVERY, instance.until_answered(check)).await;
    let trouble = instance.store.trouble();
    let verdict = answer.unwrap_or_else(|_| panic!("not within {RECOVERY:?}: {trouble:?}"));
    (verdict.remaining, started.elapsed())
}

/// Two digits, for people.
fn shown(wait: Duration) -> String {
    let us = wait.as_micros();
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{:.1} s", wait.as_secs_f64()),
    }
}
