//! Sends spans to a collector, from a thread of its own: a collector that is slow or gone costs
//! spans, and nothing else.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanData,
    SpanExporter,
};

use crate::metrics::Metrics;
use crate::trace::Settings;

/// Spans that wait to be sent; what comes beyond is dropped.
const MAX_QUEUED_SPANS: usize = 4096;

/// The longest that a span waits for others to be sent with.
const DELAY: Duration = Duration::from_secs(1);

/// How long the collector may take for a batch, and at the end for the last one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where spans go; nowhere when tracing is off.
pub(super) struct Export(Option<SdkTracerProvider>);

impl Export {
    /// Starts the thread. Nobody is called before there is a span.
    ///
    /// # Errors
    /// The endpoint is not one.
    pub(super) fn open(settings: &Settings, metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        let Some(endpoint) = &settings.otlp_endpoint else { return Ok(Self(None)) };
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(PATIENCE)
            .build()
            .with_context(|| format!("tracing.otlp_endpoint: {endpoint} is no gRPC endpoint"))?;
        let exporter =
            Counted { exporter, metrics: Arc::clone(metrics), is_failing: AtomicBool::new(false) };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED_SPANS)
            .with_scheduled_delay(DELAY)
            .build();
        let resource = Resource::builder()
            .with_service_name("chronosdb")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let ratio = Sampler::TraceIdRatioBased(settings.sample_ratio.into());
        let provider = SdkTracerProvider::builder()
            .with_span_processor(
                BatchSpanProcessor::builder(exporter).with_batch_config(batches).build(),
            )
            .with_sampler(Sampler::ParentBased(Box::new(ratio)))
            .with_resource(resource)
            .build();
        tracing::info!(%endpoint, "sampled calls are traced");
        Ok(Self(Some(provider)))
    }

    /// What makes the spans.
    pub(super) fn tracer(&self) -> Option<SdkTracer> {
        self.0.as_ref().map(|provider| provider.tracer("chronosdb"))
    }

    /// Sends what is left.
    pub(super) async fn end(self) {
        let Some(provider) = self.0 else { return };
        // It waits for the connection, which this runtime drives.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(PATIENCE));
        if let Ok(Err(error)) = ended.await {
            tracing::warn!(%error, "the last spans may be lost");
        }
    }
}

/// Counts what is sent and what is lost, and says when that begins and ends.
struct Counted {
    exporter: opentelemetry_otlp::SpanExporter,
    metrics: Arc<Metrics>,
    is_failing: AtomicBool,
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exporter.fmt(f)
    }
}

impl SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let sent = self.exporter.export(batch).await;
        let result = if sent.is_ok() { "sent" } else { "lost" };
        self.metrics.trace_spans.with_label_values(&[result]).inc_by(spans);
        let was_failing = self.is_failing.swap(sent.is_err(), Ordering::Relaxed);
        match &sent {
            Err(error) if !was_failing => {
                tracing::warn!(%error, "the collector takes no spans; they are lost until it does")
            }
            Ok(()) if was_failing => tracing::info!("the collector takes spans again"),
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
