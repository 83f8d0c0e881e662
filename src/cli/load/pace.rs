//! When questions are due. A thread of its own says so: a runtime's timer has steps of 1 ms.

use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

/// How often to ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// An open loop: evenly, whatever the answers do.
    PerSecond(f64),
    /// A closed loop: so many under way at all times.
    InFlight(u32),
}

/// The moments at which questions are due, evenly spread over a duration, each when it comes.
/// Ends early when nobody listens.
pub(super) fn evenly(per_second: f64, duration: Duration) -> mpsc::UnboundedReceiver<Instant> {
    let (due, moments) = mpsc::unbounded_channel();
    thread::spawn(move || {
        let began = Instant::now();
        let count = (per_second * duration.as_secs_f64()).round().max(1.0) as u64;
        for index in 0..count {
            let moment = began + Duration::from_secs_f64(index as f64 / per_second);
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            if due.send(moment).is_err() {
                return;
            }
        }
    });
    moments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_even_and_none_comes_early() {
        let mut moments = evenly(2_000.0, Duration::from_millis(100));
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
