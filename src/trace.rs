//! Where the time of a sampled request went: spans for OpenTelemetry. A request that is not
//! sampled has none, and costs a look at the current context. No caller's value is in a span.

use std::borrow::Cow;

use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    FutureExt as _, Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, Span};
use serde::{Deserialize, Serialize};

/// Settings of `tracing:`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The collector, for OTLP over gRPC; `None`: nothing is traced.
    pub otlp_endpoint: Option<String>,
    /// The part of calls that is traced, of those whose caller leaves the choice to us.
    pub sample_ratio: Ratio,
}

/// From 0, none, to 1, all.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Ratio(f64);

// A ratio is never NaN.
impl Eq for Ratio {}

impl Default for Ratio {
    fn default() -> Self {
        Self(0.01)
    }
}

impl TryFrom<f64> for Ratio {
    type Error = &'static str;

    fn try_from(ratio: f64) -> Result<Self, Self::Error> {
        let known = (0.0..=1.0).contains(&ratio).then_some(Self(ratio));
        known.ok_or("a ratio is from 0, none, to 1, all")
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> Self {
        ratio.0
    }
}

/// A sampled call: the span of its front, and what it takes to make those of its steps.
#[derive(Clone)]
pub struct Call(Context);

impl Call {
    /// Starts the span of a call, below the caller's own if `headers` (W3C `traceparent`) name
    /// one. `None`: it is not sampled, by the caller's choice if it made one.
    pub fn start(tracer: &SdkTracer, name: String, headers: &dyn Extractor) -> Option<Self> {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), headers);
        let is_unwanted = {
            let span = parent.span();
            span.span_context().is_valid() && !span.span_context().is_sampled()
        };
        if is_unwanted {
            return None;
        }
        let builder = tracer.span_builder(name).with_kind(SpanKind::Server);
        let span = tracer.build_with_context(builder, &parent);
        let call = Context::new().with_value(tracer.clone());
        span.is_recording().then(|| Self(call.with_span(span)))
    }

    /// Runs the call: steps inside are its steps.
    pub async fn run<F: Future>(&self, call: F) -> F::Output {
        call.with_context(self.0.clone()).await
    }

    /// Says something about it.
    pub fn note(&self, key: &'static str, value: impl Into<Value>) {
        self.0.span().set_attribute(KeyValue::new(key, value));
    }

    /// It ended in an error.
    pub fn fail(&self, what: impl Into<Cow<'static, str>>) {
        self.0.span().set_status(Status::error(what));
    }
}

/// Says something about the call under way, if it is sampled.
pub fn note(key: &'static str, value: impl Into<Value>) {
    Context::map_current(|context| {
        if context.has_active_span() {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    });
}

/// A step of the call under way; it ends when this is dropped.
pub struct Step(Option<Span>);

impl Step {
    /// Starts it, if the call is sampled.
    pub fn start(name: &'static str) -> Self {
        let sampled = Context::map_current(|context| {
            context.get::<SdkTracer>().map(|tracer| (tracer.clone(), context.clone()))
        });
        Self(sampled.map(|(tracer, context)| tracer.start_with_context(name, &context)))
    }

    /// Says something about it.
    pub fn note(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// It ended in an error.
    pub fn fail(&mut self, what: &'static str) {
        if let Some(span) = &mut self.0 {
            span.set_status(Status::error(what));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

    use super::*;

    fn tracer(ratio: f64) -> SdkTracer {
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)));
        SdkTracerProvider::builder().with_sampler(sampler).build().tracer("test")
    }

    fn headers(flags: &str) -> HashMap<String, String> {
        let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        HashMap::from([("traceparent".to_owned(), parent)])
    }

    #[test]
    fn the_callers_choice_counts() {
        let start = |ratio, headers: &HashMap<String, String>| {
            Call::start(&tracer(ratio), "call".into(), headers).is_some()
        };
        assert!(start(0.0, &headers("01")), "the caller samples");
        assert!(!start(1.0, &headers("00")), "the caller does not");
        assert!(start(1.0, &HashMap::new()) && !start(0.0, &HashMap::new()));
        let garbage = HashMap::from([("traceparent".to_owned(), "00-x".to_owned())]);
        assert!(start(1.0, &garbage), "as if there were none");
    }

    #[tokio::test]
    async fn steps_belong_to_the_call_and_to_nothing_else() {
        let call = Call::start(&tracer(0.0), "call".into(), &headers("01")).unwrap();
        let inside = async { Step::start("match").0 };
        let span = call.run(inside).await.unwrap();
        let context = span.span_context();
        assert_eq!(context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(Step::start("match").0.is_none());
    }

    #[test]
    fn ratios() {
        assert!(Ratio::try_from(0.0).is_ok() && Ratio::try_from(1.0).is_ok());
        for wrong in [-0.1, 1.1, f64::NAN] {
            assert!(Ratio::try_from(wrong).is_err(), "{wrong}");
        }
    }
}
