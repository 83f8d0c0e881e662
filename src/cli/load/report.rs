//! What came of it, for people and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::drive::Part;

/// The result. `allowed + refused + errors = sent`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    /// How long questions were sent.
    seconds: f64,
    sent: u64,
    sent_per_second: f64,
    allowed: u64,
    refused: u64,
    /// By gRPC status.
    errors: BTreeMap<String, u64>,
    /// From when a question was due to its answer.
    latency_us: Percentiles,
    /// From when a question was due to when it was sent.
    late_us: Percentiles,
}

/// Microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Percentiles {
    p50: u64,
    p90: u64,
    p99: u64,
    #[serde(rename = "p99.9")]
    p99_9: u64,
    max: u64,
}

impl Report {
    pub(super) fn of(parts: Vec<Part>, duration: Duration) -> Self {
        let mut all = Part::default();
        parts.iter().for_each(|part| all.add(part));
        let seconds = duration.as_secs_f64();
        Self {
            seconds,
            sent: all.sent,
            sent_per_second: (all.sent as f64 / seconds * 10.0).round() / 10.0,
            allowed: all.allowed,
            refused: all.refused,
            errors: all.errors,
            latency_us: Percentiles::of(&all.latency_us),
            late_us: Percentiles::of(&all.late_us),
        }
    }

    /// Questions without an answer.
    pub(super) fn unanswered(&self) -> u64 {
        self.errors.values().sum()
    }

    pub(super) fn table(&self) -> String {
        let mut counts = Table::new();
        counts.load_preset(NOTHING);
        counts.add_row(["sent", &self.sent.to_string(), &format!("{} /s", self.sent_per_second)]);
        counts.add_row(["allowed", &self.allowed.to_string()]);
        counts.add_row(["refused", &self.refused.to_string()]);
        for (status, count) in &self.errors {
            counts.add_row(["error", &count.to_string(), status]);
        }
        let mut times = Table::new();
        times.load_preset(NOTHING).set_header(["ms", "p50", "p90", "p99", "p99.9", "max"]);
        times.add_row(self.latency_us.row("latency"));
        times.add_row(self.late_us.row("late"));
        format!("{counts}\n\n{times}")
    }
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        let (p50, p90, p99, p99_9) = (at(0.5), at(0.9), at(0.99), at(0.999));
        Self { p50, p90, p99, p99_9, max: histogram.max() }
    }

    fn row(self, name: &str) -> [String; 6] {
        let ms = |us: u64| format!("{:.3}", us as f64 / 1000.0);
        let Self { p50, p90, p99, p99_9, max } = self;
        [name.to_owned(), ms(p50), ms(p90), ms(p99), ms(p99_9), ms(max)]
    }
}
