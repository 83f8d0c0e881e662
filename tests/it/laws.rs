//! The laws of `ARCHITECTURE.md` that the log alone keeps, each under its number, on both twins.

use std::time::Duration;

use chronosdb::quota::Mode;
use chronosdb::quota::sliding_log::{COMPACT_AT, MAX_ENTRIES};

use crate::harness::counters::{Counters, InRedis, START_US, Wanted, both_twins, want};

const SECOND_US: u64 = 1_000_000;

/// Time in µs since the start, hits, and what must come of them.
struct Step(u64, i64, Outcome);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// Allowed; so much remains.
    Left(u64),
    /// Refused; try again after so many µs.
    RetryUs(u64),
    /// Refused; it can never pass.
    Never,
}
use Outcome::{Left, Never, RetryUs};

/// Plays the steps on one counter of each twin.
fn play(max_requests: u64, window_ms: u64, count_denied: bool, steps: &[Step]) {
    for mut twin in both_twins() {
        for Step(at_us, hits, expected) in steps {
            let wanted = Wanted { count_denied, ..want("law", max_requests, window_ms, *hits) };
            let outcome = ask_one(twin.as_mut(), START_US + at_us, wanted);
            assert_eq!(outcome, *expected, "{}: {hits} hits at {at_us} µs", twin.name());
        }
    }
}

fn ask_one(twin: &mut dyn Counters, now_us: u64, wanted: Wanted) -> Outcome {
    let verdict = twin.ask(now_us, &[wanted])[0];
    match (verdict.allowed, verdict.retry_after) {
        (true, _) => Left(verdict.remaining),
        (false, Some(wait)) => RetryUs(u64::try_from(wait.as_micros()).unwrap()),
        (false, None) => Never,
    }
}

#[test]
fn law_01_window() {
    play(
        2,
        1_000,
        false,
        &[
            Step(0, 1, Left(1)),
            Step(500_000, 1, Left(0)),
            Step(SECOND_US - 1, 1, RetryUs(1)),
            Step(SECOND_US, 1, Left(0)),
            Step(1_499_999, 1, RetryUs(1)),
            Step(1_500_000, 1, Left(0)),
        ],
    );
}

#[test]
fn law_02_all_or_nothing() {
    play(
        10,
        1_000,
        false,
        &[
            Step(0, 8, Left(2)),
            Step(1, 3, RetryUs(SECOND_US - 1)),
            Step(2, 2, Left(0)),
            Step(SECOND_US, 8, Left(0)),
        ],
    );
    // A cost that was incurred anyway is recorded though it is refused.
    play(
        10,
        1_000,
        true,
        &[Step(0, 8, Left(2)), Step(1, 3, RetryUs(SECOND_US - 1)), Step(SECOND_US, 7, Left(0))],
    );
}

#[test]
fn law_03_one_request_one_decision() {
    for mut twin in both_twins() {
        let (wide, narrow) = (want("wide", 5, 1_000, 1), want("narrow", 1, 1_000, 1));
        assert!(twin.ask(START_US, &[wide, narrow]).iter().all(|verdict| verdict.allowed));
        let refused = twin.ask(START_US, &[wide, narrow]);
        assert_eq!([refused[0].allowed, refused[1].allowed], [true, false], "{}", twin.name());
        assert_eq!(refused[0].remaining, 4, "{}: a refused request took a hit", twin.name());
        // In shadow mode the same refusal refuses nobody, and the other counter is charged.
        let shadow = Wanted { mode: Mode::Shadow, ..narrow };
        assert_eq!(twin.ask(START_US, &[wide, shadow])[0].remaining, 3, "{}", twin.name());
        // Quota checks refuse only all together.
        let quota = Wanted { mode: Mode::Quota, ..narrow };
        let fresh = Wanted { mode: Mode::Quota, ..want("fresh", 1, 1_000, 1) };
        assert_eq!(twin.ask(START_US, &[wide, quota, fresh])[0].remaining, 2, "{}", twin.name());
        assert_eq!(twin.ask(START_US, &[wide, quota, fresh])[0].remaining, 2, "{}", twin.name());
        // The same counter twice in one request: both or none.
        let twice = want("twice", 3, 1_000, 2);
        assert_eq!(twin.ask(START_US, &[twice, twice])[1].remaining, 3, "{}", twin.name());
    }
}

#[test]
fn law_04_retry() {
    for mut twin in both_twins() {
        for at_us in [0, 1, 250_000, 999_999] {
            twin.ask(START_US + at_us, &[want("retry", 4, 1_000, 1)]);
        }
        let now_us = START_US + 999_999;
        for (hits, leaves_us) in [(1, 0), (2, 1), (3, 250_000), (4, 999_999)] {
            let wanted = want("retry", 4, 1_000, hits);
            let outcome = ask_one(twin.as_mut(), now_us, wanted);
            let RetryUs(wait_us) = outcome else { panic!("{}: {outcome:?}", twin.name()) };
            assert_eq!(wait_us, leaves_us + SECOND_US - 999_999, "{}, {hits} hits", twin.name());
        }
        // Waiting exactly so long passes, 1 µs less does not.
        let wanted = want("retry", 4, 1_000, 3);
        let early = ask_one(twin.as_mut(), START_US + SECOND_US + 249_999, wanted);
        assert_eq!(early, RetryUs(1), "{}", twin.name());
        let exact = ask_one(twin.as_mut(), START_US + SECOND_US + 250_000, wanted);
        assert_eq!(exact, Left(0), "{}", twin.name());
        let outcome = ask_one(twin.as_mut(), now_us, want("retry", 4, 1_000, 5));
        assert_eq!(outcome, Never, "{}", twin.name());
    }
}

#[test]
fn law_05_the_stores_clock() {
    const HOUR_US: u64 = 3_600 * SECOND_US;
    play(
        5,
        1_000,
        false,
        &[
            Step(HOUR_US, 5, Left(0)),
            // The clock steps back an hour: nothing early, and nobody blocked for an hour.
            Step(10_000, 1, RetryUs(SECOND_US)),
            Step(10_000 + SECOND_US - 1, 1, RetryUs(1)),
            Step(10_000 + SECOND_US, 1, Left(4)),
            // And an hour forward.
            Step(2 * HOUR_US, 5, Left(0)),
        ],
    );
    let mut lua = InRedis::start();
    let wanted = want("clock", 5, 1_000, 1);
    lua.ask(START_US + HOUR_US, &[wanted]);
    lua.ask(START_US, &[wanted]);
    let ttl_ms: u64 = lua.command(&["PTTL", &wanted.store_key()]);
    assert!(ttl_ms <= 1_063, "the expiry stayed in the future: {ttl_ms} ms");
}

#[test]
fn law_07_identity() {
    for mut twin in both_twins() {
        twin.ask(START_US, &[want("changed", 10, 60_000, 8)]);
        // A changed limit keeps its history, a changed window begins anew.
        let lower = ask_one(twin.as_mut(), START_US + 1, want("changed", 8, 60_000, 1));
        assert_eq!(lower, RetryUs(60 * SECOND_US - 1), "{}", twin.name());
        let higher = ask_one(twin.as_mut(), START_US + 1, want("changed", 12, 60_000, 1));
        assert_eq!(higher, Left(3), "{}", twin.name());
        let window = ask_one(twin.as_mut(), START_US + 1, want("changed", 10, 1_000, 1));
        assert_eq!(window, Left(9), "{}", twin.name());
    }
}

#[test]
fn law_08_weights() {
    let limit = (1 << 53) - 1;
    let most = i64::from(u32::MAX);
    for mut twin in both_twins() {
        let mut left = limit;
        for _ in 0..500 {
            left -= u64::from(u32::MAX);
            let outcome = ask_one(twin.as_mut(), START_US, want("heavy", limit, 1_000, most));
            assert_eq!(outcome, Left(left), "{}", twin.name());
        }
        let wanted = want("heavy", limit, 1_000, i64::try_from(left).unwrap());
        assert_eq!(ask_one(twin.as_mut(), START_US, wanted), Left(0), "{}", twin.name());
        let one = want("heavy", limit, 1_000, 1);
        assert_eq!(ask_one(twin.as_mut(), START_US, one), RetryUs(SECOND_US), "{}", twin.name());
        assert_eq!(twin.entries(&one), 501, "{}", twin.name());
        // Costs that were incurred anyway are recorded up to what can be counted exactly.
        let most = i64::try_from(limit).unwrap();
        let incurred = Wanted { count_denied: true, ..want("incurred", limit, 1_000, most) };
        assert_eq!(ask_one(twin.as_mut(), START_US, incurred), Left(0), "{}", twin.name());
        let outcome = ask_one(twin.as_mut(), START_US, incurred);
        assert_eq!(outcome, RetryUs(SECOND_US), "{}", twin.name());
        let back = want("incurred", limit, 1_000, -most);
        assert_eq!(ask_one(twin.as_mut(), START_US, back), Left(limit), "{}", twin.name());
    }
}

#[test]
fn law_09_bounded_log() {
    let slice_us = 1_000_000_u64.div_ceil(MAX_ENTRIES as u64);
    for mut twin in both_twins() {
        let wanted = want("long", 1_000_000, 1_000, 1);
        let mut taken_us = Vec::new();
        for index in 0..3_000 {
            let now_us = START_US + index * 331;
            let verdict = twin.ask(now_us, &[wanted])[0];
            taken_us.push(now_us);
            let used = 1_000_000 - verdict.remaining;
            let within = |age_us: u64| {
                taken_us.iter().filter(|at_us| now_us - **at_us < age_us).count() as u64
            };
            let (least, most) = (within(SECOND_US), within(SECOND_US + slice_us + 1));
            assert!((least..=most).contains(&used), "{}: {least} {used} {most}", twin.name());
            assert!(twin.entries(&wanted) <= COMPACT_AT + 1, "{}", twin.name());
        }
        let outcome = ask_one(twin.as_mut(), START_US + 3 * SECOND_US, wanted);
        assert_eq!(outcome, Left(999_999), "{}: something is never freed", twin.name());
    }
    // Up to 1,024 nothing is ever merged.
    for mut twin in both_twins() {
        let wanted = want("exact", 1_024, 1_000, 1);
        for index in 0..1_024 {
            assert_eq!(ask_one(twin.as_mut(), START_US + index, wanted), Left(1_023 - index));
        }
        for index in 0..1_024 {
            let now_us = START_US + SECOND_US + index;
            assert_eq!(ask_one(twin.as_mut(), now_us - 1, wanted), RetryUs(1), "{}", twin.name());
            assert_eq!(ask_one(twin.as_mut(), now_us, wanted), Left(0), "{}", twin.name());
        }
    }
}

#[test]
fn law_11_zero_and_none() {
    play(0, 1_000, false, &[Step(0, 1, Never), Step(1, 0, Left(0)), Step(2, 5, Never)]);
    play(
        2,
        1_000,
        false,
        &[
            Step(0, 0, Left(2)),
            Step(0, 2, Left(0)),
            Step(1, 0, Left(0)),
            Step(2, 1, RetryUs(SECOND_US - 2)),
        ],
    );
    for mut twin in both_twins() {
        // A peek is over only when more is used than the (lowered) limit allows.
        twin.ask(START_US, &[want("peek", 5, 1_000, 5)]);
        let peek = twin.ask(START_US, &[want("peek", 3, 1_000, 0)])[0];
        assert_eq!((peek.allowed, peek.remaining), (false, 0), "{}", twin.name());
        assert_eq!(peek.retry_after, Some(Duration::from_secs(1)), "{}", twin.name());
    }
}

#[test]
fn law_12_refunds() {
    play(
        10,
        1_000,
        false,
        &[
            Step(0, -3, Left(10)),
            Step(0, 4, Left(6)),
            Step(500_000, 4, Left(2)),
            // Newest first: what is left is the hits of time 0.
            Step(600_000, -5, Left(7)),
            Step(600_001, 8, RetryUs(SECOND_US - 600_001)),
            Step(SECOND_US, 10, Left(0)),
            Step(SECOND_US, -1_000, Left(10)),
            Step(SECOND_US, 11, Never),
        ],
    );
}
