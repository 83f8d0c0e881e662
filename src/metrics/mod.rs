//! Every metric of the service: name, help and labels, in one place.
//! Label values that come from callers are capped; nothing here decides.

mod capped;

use std::sync::Arc;
use std::time::Duration;

use prometheus::{
    Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter,
    IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use self::capped::Capped;

/// Different values that one caller-made label may take; the rest count as [`OTHER`].
pub const MAX_LABEL_VALUES: usize = 1000;

/// A longer value counts as [`OTHER`] too: a header of 60 KiB makes a page that nobody reads.
pub const MAX_LABEL_BYTES: usize = 512;

/// The label value for everything beyond the caps.
pub const OTHER: &str = "other";

/// Bounds in milliseconds: dense below Envoy's default timeout of 20 ms.
const LATENCY_BUCKETS_MS: [f64; 16] =
    [0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 50.0, 100.0, 500.0, 1000.0];

/// All metrics, and the registry that renders them.
pub struct Metrics {
    registry: Registry,
    by_api_key: Capped<Arc<ApiKeyStats>>,
    by_rule: Capped<Arc<RuleStats>>,
    /// How long a call took, by method, in ms.
    pub grpc_latency_ms: HistogramVec,
    /// How long Redis took to answer, in ms.
    pub redis_latency_ms: Histogram,
    /// Requests at the API key gate, by result.
    pub api_keys: IntCounterVec,
    /// Times that a changed file of API keys was read, by result.
    pub api_key_reloads: IntCounterVec,
    /// Calls that ended in an error, by method and code.
    pub grpc_errors: IntCounterVec,
    /// Connections that were refused because of a bad `:authority`, or that broke HTTP/2.
    pub bad_authority: IntCounter,
    /// TLS handshakes that did not succeed, by reason.
    pub tls_refused: IntCounterVec,
    /// Times that changed certificates were read, by result.
    pub tls_reloads: IntCounterVec,
    /// When the first certificate of a file expires, by file, in seconds since 1970.
    pub certificate_expiry_s: IntGaugeVec,
    /// Requests for a domain that no rule file declares.
    pub unknown_domain: IntCounter,
    /// Requests without a single descriptor, or without a domain.
    pub empty_requests: IntCounter,
    /// Descriptors that no rule matches, by (known) domain.
    pub no_rule: IntCounterVec,
    /// Refusals that the L1 answered.
    pub l1_hits: IntCounter,
    /// Questions that the L1 could not answer.
    pub l1_misses: IntCounter,
    /// Refusals the L1 holds.
    pub l1_entries: IntGauge,
    /// Store calls that failed, by reason.
    pub store_errors: IntCounterVec,
    /// Decisions that a policy took because the store could not, by policy.
    pub fallback: IntCounterVec,
    /// Servers whose circuit breaker is open, by worker.
    pub breaker_open: IntGaugeVec,
    /// Script runs sent to Redis.
    pub script_runs: IntCounter,
    /// Checks that those runs answered: above the runs when equal checks were coalesced.
    pub script_checks: IntCounter,
    /// Calls that a cluster sent elsewhere, by kind (moved, ask).
    pub redirections: IntCounterVec,
    /// Changes of the primary, or of who has which slot.
    pub topology_changes: IntCounter,
    /// Reservations of refused requests over several slots, by what became of them.
    pub give_backs: IntCounterVec,
    /// Keys the memory store holds.
    pub memory_keys: IntGauge,
    /// Checks that the memory store could not take a new key for.
    pub memory_full: IntCounter,
    /// Keys that Redis threw away, as it says itself.
    pub redis_evicted_keys: IntGauge,
    /// Rule reloads, by result.
    pub reloads: IntCounterVec,
    /// When the rules in use were loaded, in seconds since 1970.
    pub rules_loaded_at_s: Gauge,
    /// What is wrong with the rules files, as last read.
    pub rules_errors: IntGauge,
    /// Domains whose rules in use are older than their files.
    pub rules_outdated: IntGauge,
    /// Rules in use, by domain.
    pub rules: IntGaugeVec,
    /// Configured limits, by domain and rule, in hits.
    pub limits: GaugeVec,
    /// Spans of sampled calls, by result.
    pub trace_spans: IntCounterVec,
    /// Calls under way.
    pub in_flight: IntGauge,
    /// 1 while the service is ready.
    pub ready: IntGauge,
}

/// Requests by whose quota they asked for.
#[derive(Clone, Debug)]
pub struct ApiKeyStats {
    /// Requests that passed.
    pub allowed: IntCounter,
    /// Requests that were refused.
    pub denied: IntCounter,
}

/// Descriptors by the rule that matched them. `allowed + refused + shadow + blocked` is all.
#[derive(Clone, Debug)]
pub struct RuleStats {
    /// Passed.
    pub allowed: IntCounter,
    /// Refused by this rule.
    pub refused: IntCounter,
    /// Would have been refused, were the rule not in shadow or quota mode.
    pub shadow: IntCounter,
    /// Had room, but another descriptor of the request was refused.
    pub blocked: IntCounter,
    /// Passed with less than a fifth of the limit left; part of `allowed`.
    pub near_limit: IntCounter,
}

impl Metrics {
    /// A registry of its own with every metric in it.
    #[expect(clippy::too_many_lines, reason = "a table: one line for each metric")]
    pub fn new() -> Arc<Self> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| registered(&registry, IntCounter::new(name, help));
        let gauge = |name: &str, help: &str| registered(&registry, IntGauge::new(name, help));
        let counters = |name: &str, help: &str, labels: &[&str]| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            registered(&registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let latency = |name: &str, help: &str| {
            HistogramOpts::new(name, help).buckets(LATENCY_BUCKETS_MS.to_vec())
        };
        #[cfg(target_os = "linux")]
        let _ = registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()));
        let build =
            gauges("chronosdb_build_info", "Always 1; the version is a label.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);

        let allowed = counters("requests_allowed_total", "Requests that passed.", &["api_key"]);
        let denied = counters("requests_denied_total", "Requests that were refused.", &["api_key"]);
        let by_api_key = Capped::new(move |labels: &[&str]| {
            Arc::new(ApiKeyStats {
                allowed: allowed.with_label_values(labels),
                denied: denied.with_label_values(labels),
            })
        });
        let decisions = counters(
            "chronosdb_decisions_total",
            "Descriptors decided, by domain, rule and outcome (allowed, refused, shadow, blocked).",
            &["domain", "rule", "outcome"],
        );
        let near = counters(
            "chronosdb_near_limit_total",
            "Allowed descriptors with less than a fifth of the limit left.",
            &["domain", "rule"],
        );
        let by_rule = Capped::new(move |labels: &[&str]| {
            let outcome = |name| decisions.with_label_values(&[labels[0], labels[1], name]);
            Arc::new(RuleStats {
                allowed: outcome("allowed"),
                refused: outcome("refused"),
                shadow: outcome("shadow"),
                blocked: outcome("blocked"),
                near_limit: near.with_label_values(labels),
            })
        });
        let metrics = Self {
            by_api_key,
            by_rule,
            grpc_latency_ms: registered(
                &registry,
                HistogramVec::new(
                    latency("grpc_latency_ms", "How long a gRPC call took, in milliseconds."),
                    &["method"],
                ),
            ),
            redis_latency_ms: registered(
                &registry,
                Histogram::with_opts(latency(
                    "redis_latency_ms",
                    "How long Redis took to answer, in milliseconds.",
                )),
            ),
            api_keys: counters(
                "chronosdb_api_keys_total",
                "Requests at the API key gate, by result (known, unknown, missing).",
                &["result"],
            ),
            api_key_reloads: counters(
                "chronosdb_api_key_reloads_total",
                "Times that a changed file of API keys was read, by result (ok, error).",
                &["result"],
            ),
            grpc_errors: counters(
                "chronosdb_grpc_errors_total",
                "gRPC calls that ended in an error.",
                &["method", "code"],
            ),
            bad_authority: counter(
                "chronosdb_bad_authority_total",
                "Requests whose :authority HTTP/2 does not allow, such as outbound|8081||host.",
            ),
            tls_refused: counters(
                "chronosdb_tls_refused_total",
                "TLS handshakes that did not succeed.",
                &["reason"],
            ),
            tls_reloads: counters(
                "chronosdb_tls_reloads_total",
                "Times that changed certificates were read, by result (ok, error).",
                &["result"],
            ),
            certificate_expiry_s: gauges(
                "chronosdb_certificate_expiry_seconds",
                "When the first certificate of a file expires, in seconds since 1970.",
                &["file"],
            ),
            unknown_domain: counter(
                "chronosdb_unknown_domain_total",
                "Requests for a domain that no rules file declares.",
            ),
            empty_requests: counter(
                "chronosdb_empty_requests_total",
                "Requests without a domain or without a descriptor.",
            ),
            no_rule: counters(
                "chronosdb_no_rule_total",
                "Descriptors that no rule matches.",
                &["domain"],
            ),
            l1_hits: counter("chronosdb_l1_hits_total", "Refusals that the L1 cache repeated."),
            l1_misses: counter("chronosdb_l1_misses_total", "Questions the L1 could not answer."),
            l1_entries: gauge("chronosdb_l1_entries", "Refusals that the L1 cache holds."),
            store_errors: counters(
                "chronosdb_store_errors_total",
                "Store calls that failed.",
                &["reason"],
            ),
            fallback: counters(
                "chronosdb_fallback_decisions_total",
                "Decisions taken by a policy because the store could not answer.",
                &["policy"],
            ),
            breaker_open: gauges(
                "chronosdb_breaker_open",
                "Servers of the store that calls are not sent to (circuit breaker open).",
                &["worker"],
            ),
            script_runs: counter("chronosdb_script_runs_total", "Script runs sent to Redis."),
            script_checks: counter(
                "chronosdb_script_checks_total",
                "Checks answered by script runs; more than the runs when checks were coalesced.",
            ),
            redirections: counters(
                "chronosdb_redis_redirections_total",
                "Calls that a cluster sent to another server, by kind (moved, ask).",
                &["kind"],
            ),
            topology_changes: counter(
                "chronosdb_redis_topology_changes_total",
                "Times that another primary took over, or that slots changed hands, as each worker saw it.",
            ),
            give_backs: counters(
                "chronosdb_redis_give_backs_total",
                "Reservations of refused requests over several slots, by result (done, lost).",
                &["result"],
            ),
            memory_keys: gauge("chronosdb_memory_keys", "Keys that the memory store holds."),
            memory_full: counter(
                "chronosdb_memory_full_total",
                "Checks that found the memory store at max_keys.",
            ),
            redis_evicted_keys: gauge(
                "chronosdb_redis_evicted_keys",
                "Keys that Redis evicted, as it reports: each may have been somebody's quota.",
            ),
            reloads: counters(
                "chronosdb_rules_reloads_total",
                "Times that changed rules were read, by result (ok, error).",
                &["result"],
            ),
            rules_loaded_at_s: registered(
                &registry,
                Gauge::new(
                    "chronosdb_rules_loaded_timestamp_seconds",
                    "When the rules in use were loaded.",
                ),
            ),
            rules_errors: gauge(
                "chronosdb_rules_errors",
                "Errors in the rules files, as last read.",
            ),
            rules_outdated: gauge(
                "chronosdb_rules_outdated",
                "Domains whose rules in use are older than their files, because of errors there.",
            ),
            rules: gauges("chronosdb_rules", "Rules in use.", &["domain"]),
            limits: registered(
                &registry,
                GaugeVec::new(
                    Opts::new("chronosdb_limit_hits", "Configured limit, in hits for each window."),
                    &["domain", "rule", "window"],
                ),
            ),
            trace_spans: counters(
                "chronosdb_trace_spans_total",
                "Spans given to the collector, by result (sent, lost).",
                &["result"],
            ),
            in_flight: gauge("chronosdb_calls_in_flight", "gRPC calls under way."),
            ready: gauge("chronosdb_ready", "1 while the service is ready."),
            registry,
        };
        Arc::new(metrics)
    }

    /// The counters of an API key; beyond the cap, those of `other`.
    pub fn api_key(&self, api_key: &str) -> Arc<ApiKeyStats> {
        self.by_api_key.child(&[api_key])
    }

    /// The counters of a rule; beyond the cap, those of rule `other` in its domain.
    pub fn rule(&self, domain: &str, rule: &str) -> Arc<RuleStats> {
        self.by_rule.child(&[domain, rule])
    }

    /// The page that Prometheus reads, in its text format 0.0.4.
    pub fn render(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(64 * 1024);
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut page) {
            tracing::error!(%error, "the metrics page could not be written");
        }
        page
    }
}

/// A duration as the latency histograms count it.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn registered<M: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<M>,
) -> M {
    let metric = metric.expect("the names in this file are valid");
    registry.register(Box::new(metric.clone())).expect("each name in this file stands there once");
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_cannot_make_series_without_end() {
        let metrics = Metrics::new();
        for index in 0..3 * MAX_LABEL_VALUES {
            metrics.api_key(&format!("key-{index}")).allowed.inc();
        }
        let page = String::from_utf8(metrics.render()).unwrap();
        let series = page.lines().filter(|line| line.starts_with("requests_allowed_total")).count();
        assert_eq!(series, MAX_LABEL_VALUES + 1);
        let metrics = Metrics::new();
        metrics.api_key(&"x".repeat(MAX_LABEL_BYTES + 1)).allowed.inc();
        let short = String::from_utf8(metrics.render()).unwrap();
        assert!(short.contains("requests_allowed_total{api_key=\"other\"} 1"), "{short}");
        assert!(page.contains("requests_allowed_total{api_key=\"other\"} 2000"), "{page}");
    }
}
