//! What every gRPC call has: a deadline, a duration, an outcome.

use std::time::Duration;

use prometheus::Histogram;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::limiter::Undecided;
use crate::metrics::{Metrics, milliseconds};

/// A call under way. Counts itself when it ends, also when the caller goes away.
pub struct Call<'a> {
    metrics: &'a Metrics,
    method: &'static str,
    latency: &'a Histogram,
    started: Instant,
}

impl<'a> Call<'a> {
    /// Starts the clock.
    pub fn start(metrics: &'a Metrics, method: &'static str, latency: &'a Histogram) -> Self {
        metrics.in_flight.inc();
        Self { metrics, method, latency, started: Instant::now() }
    }

    /// When the caller stops waiting, if it said so.
    pub fn deadline(&self, metadata: &MetadataMap) -> Option<Instant> {
        let text = metadata.get("grpc-timeout")?.to_str().ok()?;
        self.started.checked_add(grpc_timeout(text)?)
    }

    /// Counts an error, and gives it back.
    pub fn failed(&self, status: Status) -> Status {
        let code = format!("{:?}", status.code());
        self.metrics.grpc_errors.with_label_values(&[self.method, &code]).inc();
        status
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        self.latency.observe(milliseconds(self.started.elapsed()));
    }
}

/// A status for a call that nobody could decide; `deadline` is the caller's own. Never
/// RESOURCE_EXHAUSTED: that would read as "over the limit".
pub fn undecided(undecided: &Undecided, deadline: Option<Instant>) -> Status {
    let Undecided::Store(error) = undecided;
    // A store that is slower than our own patience is a fault of ours, not of the caller's wait.
    let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
    let code = if is_late { Code::DeadlineExceeded } else { Code::Unavailable };
    Status::new(code, format!("no decision: {error}"))
}

/// `grpc-timeout`: at most eight digits and a unit.
/// <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    #[tokio::test(start_paused = true)]
    async fn only_the_callers_own_deadline_can_be_exceeded() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let away = StoreError::Unavailable("refused".into());
        let table = [
            (StoreError::Timeout, None, Code::Unavailable),
            (StoreError::Timeout, Some(later), Code::Unavailable),
            (StoreError::Timeout, Some(now), Code::DeadlineExceeded),
            (away.clone(), Some(later), Code::Unavailable),
            (away, Some(now), Code::DeadlineExceeded),
        ];
        for (error, deadline, expected) in table {
            let status = undecided(&Undecided::Store(error.clone()), deadline);
            assert_eq!(status.code(), expected, "{error}");
            assert!(status.message().contains(&error.to_string()), "{status}");
        }
    }

    #[test]
    fn timeouts() {
        let units = [
            ("H", Duration::from_secs(3600)),
            ("M", Duration::from_secs(60)),
            ("S", Duration::from_secs(1)),
            ("m", Duration::from_millis(1)),
            ("u", Duration::from_micros(1)),
            ("n", Duration::from_nanos(1)),
        ];
        for (unit, one) in units {
            assert_eq!(grpc_timeout(&format!("7{unit}")), Some(7 * one), "{unit}");
            assert_eq!(grpc_timeout(&format!("99999999{unit}")), Some(99_999_999 * one), "{unit}");
        }
        for wrong in ["", "m", "1", "-1m", "1x", "123456789m", "1é", "é"] {
            assert_eq!(grpc_timeout(wrong), None, "{wrong:?}");
        }
    }
}
