//! The log in Rust, the log in Lua and the oracle give the same answers, to the microsecond.

use chronosdb::quota::{Mode, sliding_log};

use crate::harness::counters::{Counters as _, InRedis, InRust, START_US, Wanted, want};
use crate::harness::oracle::Oracle;
use crate::harness::random::Random;

/// A log that is about to be merged, behind a few entries that have left.
const MOST_ENTRIES: usize = sliding_log::COMPACT_AT + 1 + 128;

const KEYS: [&str; 3] = ["alice", "bob", "carol"];

/// `CHRONOSDB_TEST_SEED` repeats one failure, or tries other sequences.
fn seed() -> u64 {
    std::env::var("CHRONOSDB_TEST_SEED").map_or(20_260_101, |seed| seed.parse().unwrap())
}

#[test]
fn the_twins_and_the_oracle_agree_on_random_requests() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut lua = InRedis::start();
    let mut steps_back = 0;
    for round in 0..250 {
        lua.command::<()>(&["FLUSHALL"]);
        let (mut rust, mut oracle) = (InRust::default(), Oracle::default());
        let window_ms = random.pick(&[1, 7, 16, 100, 1_000, 60_000, 86_400_000]);
        let max_requests = random.pick(&[0, 1, 3, 10, 100, 5_000_000_000]);
        let mut now_us = START_US + random.within(0, 3_000_000);
        let mut story = Vec::new();
        for _ in 0..random.within(5, 80) {
            let next_us = later(&mut random, window_ms * 1000, now_us);
            // A log may forget what left the window before the clock stepped back, or remember it.
            if !oracle.would_revive(window_ms * 1000, now_us, next_us) {
                steps_back += u32::from(next_us < now_us);
                now_us = next_us;
            }
            let wanted = request(&mut random, max_requests, window_ms);
            story.push((now_us, wanted.clone()));
            let expected = oracle.ask(now_us, &wanted);
            for (name, verdicts) in
                [(rust.name(), rust.ask(now_us, &wanted)), (lua.name(), lua.ask(now_us, &wanted))]
            {
                assert!(
                    verdicts == expected,
                    "{name}, seed {seed}, round {round}: {story:#?}\n{verdicts:#?}\n{expected:#?}"
                );
            }
        }
    }
    assert!(steps_back > 100, "only {steps_back} steps back were tried");
}

/// Some time on, often exactly where something leaves the window; at times a step back.
fn later(random: &mut Random, window_us: u64, now_us: u64) -> u64 {
    match random.within(0, 11) {
        0..=2 => now_us,
        3 => now_us + window_us,
        4 => now_us + window_us - 1,
        5 => now_us + random.within(0, 3 * window_us),
        6 => now_us - random.within(1, 2 * window_us).min(now_us - START_US / 2),
        7 => now_us + 1,
        _ => now_us + random.within(0, window_us / 4),
    }
}

fn request(random: &mut Random, max_requests: u64, window_ms: u64) -> Vec<Wanted> {
    let asks = random.pick(&[1, 1, 1, 2, 3, 5]);
    (0..asks)
        .map(|_| {
            let hits = match random.within(0, 9) {
                0 => 0,
                1 => -random.pick(&[1, 2, 50, i64::from(u32::MAX)]),
                2 => i64::try_from(max_requests).unwrap(),
                3 => i64::from(u32::MAX),
                4 => random.pick(&[2, 5, 17]),
                _ => 1,
            };
            let mode = random.pick(&[Mode::Enforce, Mode::Enforce, Mode::Shadow, Mode::Quota]);
            let count_denied = random.once_in(8);
            Wanted { mode, count_denied, ..want(random.pick(&KEYS), max_requests, window_ms, hits) }
        })
        .collect()
}

#[test]
fn the_twins_agree_while_full_logs_are_merged() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut lua = InRedis::start();
    for (window_ms, gap_us) in [(1_000, 700), (1_000, 40), (60_000, 20_000), (7, 3)] {
        lua.command::<()>(&["FLUSHALL"]);
        let mut rust = InRust::default();
        let mut now_us = START_US;
        for step in 0..4_000 {
            now_us += random.within(0, 2 * gap_us);
            let hits = random.pick(&[1, 1, 1, 1, 9, 300, -5]);
            let wanted = want("full", 400_000, window_ms, hits);
            let expected = rust.ask(now_us, &[wanted]);
            let verdicts = lua.ask(now_us, &[wanted]);
            assert_eq!(verdicts, expected, "seed {seed}, window {window_ms} ms, step {step}");
            let entries = lua.entries(&wanted);
            assert!(entries <= MOST_ENTRIES, "{entries} entries at step {step}");
        }
    }
}

/// Runs one counter through both twins; they must agree at every step.
fn agree(wanted: impl Fn(&mut Random) -> Wanted, gap_us: impl Fn(&mut Random) -> u64) {
    let seed = seed();
    let mut random = Random::new(seed);
    let (mut lua, mut rust) = (InRedis::start(), InRust::default());
    let mut now_us = START_US;
    for step in 0..3_000 {
        now_us += gap_us(&mut random);
        let wanted = wanted(&mut random);
        let expected = rust.ask(now_us, &[wanted]);
        assert_eq!(lua.ask(now_us, &[wanted]), expected, "seed {seed}, step {step}: {wanted:?}");
    }
}

#[test]
fn the_twins_agree_when_many_hits_leave_at_once() {
    let burst_or_pause = |random: &mut Random| match random.once_in(20) {
        true => random.within(0, 1_100_000),
        false => random.within(0, 2_000),
    };
    agree(|_| want("bursts", 60, 1_000, 1), burst_or_pause);
}

#[test]
fn the_twins_agree_where_sums_reach_what_a_double_can_count() {
    let max_requests = chronosdb::quota::MAX_HITS;
    let third = i64::try_from(max_requests / 3).unwrap();
    let wanted = move |random: &mut Random| {
        want("large", max_requests, 1_000, random.pick(&[third, third - 7, 1, 0]))
    };
    agree(wanted, |random| random.within(0, 600_000));
}

#[test]
fn no_window_holds_more_than_the_limit() {
    let mut random = Random::new(seed());
    let mut lua = InRedis::start();
    let wanted = want("busy", 7, 50, 1);
    let mut oracle = Oracle::default();
    let mut now_us = START_US;
    for _ in 0..3_000 {
        now_us += random.within(0, 9_000);
        let hits = i64::try_from(random.within(1, 3)).unwrap();
        let wanted = Wanted { hits, ..wanted };
        let admitted = lua.ask(now_us, &[wanted])[0].allowed;
        assert_eq!(oracle.ask(now_us, &[wanted])[0].allowed, admitted);
    }
    assert_eq!(oracle.busiest_window(&wanted), 7);
}

#[test]
fn equal_asks_in_one_call_get_what_they_would_get_one_by_one() {
    let mut random = Random::new(seed());
    let mut lua = InRedis::start();
    let mut rust = InRust::default();
    let mut now_us = START_US;
    for step in 0..2_000 {
        now_us += random.within(0, 40_000);
        let hits = i64::try_from(random.within(0, 4)).unwrap();
        let count_denied = random.once_in(20);
        let wanted = Wanted { count_denied, ..want("many", 20, 300, hits) };
        let times = random.within(1, 9);
        let reply = lua.run(now_us, times, &[wanted]).unwrap()[0];
        let one_by_one = (0..times).map(|_| rust.ask(now_us, &[wanted])[0]).collect::<Vec<_>>();
        let granted = one_by_one.iter().filter(|verdict| verdict.allowed).count();
        let last = one_by_one.last().unwrap();
        let context = format!("step {step}: {wanted:?} × {times}");
        assert_eq!(usize::try_from(reply.granted).unwrap(), granted, "{context}");
        assert_eq!(u64::try_from(reply.remaining).unwrap(), last.remaining, "{context}");
        let retry_us = last.retry_after.map_or(0, |wait| wait.as_micros());
        assert_eq!(u128::try_from(reply.retry_us).unwrap(), retry_us, "{context}");
        let reset_us = last.reset_after.as_micros();
        assert_eq!(u128::try_from(reply.reset_us).unwrap(), reset_us, "{context}");
    }
}
