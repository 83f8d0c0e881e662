//! Notices requests that never reach us: HTTP/2 refuses an `:authority` such as
//! `outbound|8081||host` (Istio's cluster name, which Envoy sends) before any service sees it.
//! The library only tells its debug log, so this listens to that one line of it.

use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::time::{Duration, sleep};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::metrics::Metrics;

/// At most one line in this time, however many requests are refused.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Counts the refusals, and says what to do about them.
#[derive(Clone)]
pub(super) struct Watch {
    metrics: Arc<Metrics>,
    seen: Arc<AtomicU64>,
    refused: Arc<Notify>,
}

impl Watch {
    /// Nothing seen yet.
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        let metrics = Arc::clone(metrics);
        Self { metrics, seen: Arc::default(), refused: Arc::default() }
    }

    /// The part of the log that listens.
    pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        let wanted = |metadata: &Metadata<'_>| {
            metadata.target() == "h2::server" && *metadata.level() == Level::DEBUG
        };
        Ears(self.clone()).with_filter(filter_fn(wanted))
    }

    /// Writes the lines; not from inside the log, which must not log.
    pub(super) async fn report(self) {
        loop {
            self.refused.notified().await;
            let requests = self.seen.swap(0, Ordering::Relaxed);
            tracing::error!(
                requests,
                "requests were refused because their :authority is not one, such as outbound|8081||host: \
                 set `authority: chronosdb` beside cluster_name in Envoy's grpc_service.envoy_grpc"
            );
            sleep(LOG_EVERY).await;
        }
    }
}

struct Ears(Watch);

impl<S: Subscriber> Layer<S> for Ears {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        if message.0.contains("malformed authority") {
            self.0.metrics.bad_authority.inc();
            self.0.seen.fetch_add(1, Ordering::Relaxed);
            self.0.refused.notify_one();
        }
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}
