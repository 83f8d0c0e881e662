//! Configured rules and limits as metrics.

use std::collections::BTreeSet;

use super::RuleSet;
use crate::duration;
use crate::metrics::{MAX_LABEL_VALUES, Metrics};

/// Shows the next set's figures, and removes those of the previous set that are no more.
pub(super) fn publish(previous: &RuleSet, next: &RuleSet, metrics: &Metrics) {
    for domain in previous.domains().into_iter().filter(|old| next.domain(&old.name).is_none()) {
        // A series that is not there needs no removal.
        let _ = metrics.rules.remove_label_values(&[&domain.name]);
    }
    for domain in next.domains() {
        let rules = i64::try_from(domain.rules().len()).unwrap_or(i64::MAX);
        metrics.rules.with_label_values(&[&domain.name]).set(rules);
    }
    let shown: BTreeSet<[String; 3]> = series(next).map(|(labels, _)| labels).collect();
    for (labels, _) in series(previous).filter(|(labels, _)| !shown.contains(labels)) {
        let _ = metrics.limits.remove_label_values(&labels.each_ref().map(String::as_str));
    }
    for (labels, hits) in series(next) {
        metrics.limits.with_label_values(&labels.each_ref().map(String::as_str)).set(hits);
    }
}

/// Domain, rule and window of each limit, and its hits; as many as a label may have values.
fn series(rules: &RuleSet) -> impl Iterator<Item = ([String; 3], f64)> {
    let limits = rules.domains().into_iter().flat_map(|domain| {
        domain.rules().iter().filter_map(|rule| {
            let limit = rule.ceiling.limit()?;
            let window = duration::text(limit.window());
            let labels = [domain.name.to_string(), rule.label.to_string(), window];
            #[expect(clippy::cast_precision_loss, reason = "limits are below 2^53")]
            let hits = limit.max_requests() as f64;
            Some((labels, hits))
        })
    });
    limits.take(MAX_LABEL_VALUES)
}
