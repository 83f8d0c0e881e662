//! What envoyproxy/ratelimit's own tests say of its behaviour, row by row: where ChronosDB does the
//! same, where it differs on purpose and why, and what is not there. Every row is asked through
//! the gRPC front of the program, as Envoy asks.

mod asking;
mod ends;
mod limiting;
mod loading;
mod matching;
mod operating;
mod service;

pub(crate) use asking::Case;

/// How many behaviours the reference's tests have.
const BEHAVIOURS: u32 = 145;

/// One behaviour of the reference.
pub(crate) struct Row {
    pub(crate) numbers: std::ops::RangeInclusive<u32>,
    pub(crate) behaviour: &'static str,
    pub(crate) verdict: Verdict,
    /// Asks a server, and fails if the verdict is not true.
    pub(crate) proof: fn(&Case),
}

/// How ChronosDB stands to a behaviour.
pub(crate) enum Verdict {
    /// As there.
    Same,
    /// Otherwise, for this reason.
    Differs(&'static str),
    /// There is no such thing, and this is used instead.
    Absent(&'static str),
}

use Verdict::{Absent, Differs, Same};

/// A row for one behaviour.
const fn row(number: u32, behaviour: &'static str, verdict: Verdict, proof: fn(&Case)) -> Row {
    Row { numbers: number..=number, behaviour, verdict, proof }
}

/// A row for behaviours that are one thing.
const fn rows(
    first: u32,
    last: u32,
    behaviour: &'static str,
    verdict: Verdict,
    proof: fn(&Case),
) -> Row {
    Row { numbers: first..=last, behaviour, verdict, proof }
}

/// Runs each row's proof; all that fail are named.
fn prove(rows: &[Row], case: &Case) {
    let mut failed = Vec::new();
    for row in rows {
        let proof = std::panic::AssertUnwindSafe(|| (row.proof)(case));
        if std::panic::catch_unwind(proof).is_err() {
            failed.push(format!("{:?} {}", row.numbers, row.behaviour));
        }
    }
    assert!(failed.is_empty(), "rows that do not hold:\n{}", failed.join("\n"));
}

#[test]
fn every_behaviour_of_the_reference_has_its_row() {
    let sections =
        [loading::ROWS, matching::ROWS, limiting::ROWS, service::ROWS, operating::ROWS, ends::ROWS];
    let mut next = 1;
    let (mut same, mut differs, mut absent) = (0, 0, 0);
    for row in sections.into_iter().flatten() {
        assert_eq!(*row.numbers.start(), next, "{}", row.behaviour);
        next = row.numbers.end() + 1;
        let count = row.numbers.clone().count();
        let reason = match row.verdict {
            Same => {
                same += count;
                continue;
            }
            Differs(reason) => {
                differs += count;
                reason
            }
            Absent(reason) => {
                absent += count;
                reason
            }
        };
        assert!(reason.split(' ').count() >= 4, "{:?}: why? {reason}", row.numbers);
    }
    assert_eq!(next, BEHAVIOURS + 1);
    println!("{same} the same, {differs} different on purpose, {absent} not there");
}
