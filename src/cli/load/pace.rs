//! When questions are due. A thread of its own says so: a runtime's timer has steps of 1 ms.

use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

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
