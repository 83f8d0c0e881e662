//! What every gRPC call has: a deadline, a duration, an outcome.

use std::time::Duration;

use prometheus::Histogram;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::limiter::Undecided;
use crate::metrics::{Metrics, milliseconds};
use crate::store::StoreError;

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

/// A status for a call that nobody could decide. Never RESOURCE_EXHAUSTED: that would read as
/// "over the limit".
pub fn undecided(undecided: &Undecided) -> Status {
    let Undecided::Store(error) = undecided;
    let code =
        if *error == StoreError::Timeout { Code::DeadlineExceeded } else { Code::Unavailable };
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

    #[test]
    fn timeouts() {
        assert_eq!(grpc_timeout("1000m"), Some(Duration::from_secs(1)));
        assert_eq!(grpc_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in ["", "m", "1", "-1m", "1x", "123456789m", "1é", "é"] {
            assert_eq!(grpc_timeout(wrong), None, "{wrong:?}");
        }
    }
}
