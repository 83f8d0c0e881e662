//! Envoy's rate limit service, version 3.
//! <https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ratelimit/v3/rls.proto>

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::google::protobuf::{Duration as WireDuration, UInt32Value};
use prometheus::Histogram;
use serde::{Deserialize, Serialize};
use tonic::{Request, Response, Status};

use super::call::{Call, undecided};
use super::headers::{Style, headers, remaining, reset_s};
use super::metadata::metadata;
use super::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use super::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit as CurrentLimit,
};
use super::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use super::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::unit;
use crate::check::{self, Descriptor, Entry};
use crate::limiter::{self, Decision, Limiter};
use crate::quota::{Limit, Mode};

/// Settings of `ratelimit:`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether answers carry what was asked and who refused it, for access logs.
    pub dynamic_metadata: bool,
}

/// The front.
pub struct RateLimit {
    limiter: Arc<Limiter>,
    style: Style,
    settings: Settings,
    latency: Histogram,
}

impl RateLimit {
    /// A front over a limiter.
    pub fn new(limiter: Arc<Limiter>, style: Style, settings: &Settings) -> Self {
        let metrics = &limiter.shared().metrics;
        let latency = metrics.grpc_latency_ms.with_label_values(&["ShouldRateLimit"]);
        Self { limiter, style, settings: settings.clone(), latency }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let metrics = &self.limiter.shared().metrics;
        let call = Call::start(metrics, "ShouldRateLimit", &self.latency);
        let deadline = call.deadline(request.metadata());
        let request = question(request.into_inner()).map_err(|error| {
            metrics.empty_requests.inc_by(u64::from(error.is_empty_request()));
            call.failed(Status::invalid_argument(error.to_string()))
        })?;
        let decision = self.limiter.decide(&request, deadline).await;
        let decision = decision.map_err(|error| call.failed(undecided(&error, deadline)))?;
        let mut response = response(&decision, self.style);
        if self.settings.dynamic_metadata {
            let privacy = &self.limiter.shared().privacy;
            response.dynamic_metadata = Some(metadata(&request, &decision, privacy));
        }
        Ok(Response::new(response))
    }
}

/// So many descriptors are decided together: ten thousand would keep Redis from everybody else.
const MAX_DESCRIPTORS: usize = 256;

/// What is wrong with a request, by the name of its field.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// Nobody is asked about.
    #[error("domain: it must not be empty")]
    Domain,
    /// Nothing is asked.
    #[error("descriptors: there must be at least one")]
    Descriptors,
    /// Too much is asked.
    #[error("descriptors: there are {0}, at most {MAX_DESCRIPTORS} are decided together")]
    TooMany(usize),
    /// A descriptor that says nothing.
    #[error("descriptors[{0}].entries: there must be at least one")]
    Entries(usize),
    /// A limit that is none.
    #[error("descriptors[{0}].limit: {1}")]
    Limit(usize, String),
}

impl Invalid {
    /// Whether the request says nothing, rather than something wrong.
    pub fn is_empty_request(&self) -> bool {
        !matches!(self, Self::TooMany(..) | Self::Limit(..))
    }
}

/// The wire's request as ours. Keys and values are moved, not copied.
///
/// # Errors
/// The field that is wrong.
pub fn question(request: RateLimitRequest) -> Result<check::Request, Invalid> {
    if request.domain.is_empty() {
        return Err(Invalid::Domain);
    }
    if request.descriptors.is_empty() {
        return Err(Invalid::Descriptors);
    }
    if request.descriptors.len() > MAX_DESCRIPTORS {
        return Err(Invalid::TooMany(request.descriptors.len()));
    }
    let hits = i64::from(request.hits_addend.max(1));
    let descriptors = request.descriptors.into_iter().enumerate();
    let descriptors = descriptors.map(|(index, wire)| descriptor(index, wire, hits));
    Ok(check::Request {
        domain: request.domain,
        descriptors: descriptors.collect::<Result<_, _>>()?,
    })
}

fn descriptor(index: usize, wire: RateLimitDescriptor, hits: i64) -> Result<Descriptor, Invalid> {
    if wire.entries.is_empty() {
        return Err(Invalid::Entries(index));
    }
    // More hits than any limit has stay more: they are refused, not an error that lets them pass.
    let own = |hits: u64| i64::try_from(hits).unwrap_or(i64::MAX);
    let hits = wire.hits_addend.map_or(hits, |addend| own(addend.value));
    let limit_override = wire.limit.map(|limit| override_of(limit, index)).transpose()?;
    let entries = wire.entries.into_iter();
    Ok(Descriptor {
        entries: entries.map(|entry| Entry { key: entry.key, value: entry.value }).collect(),
        hits: if wire.is_negative_hits { -hits } else { hits },
        limit_override,
    })
}

fn override_of(wire: RateLimitOverride, index: usize) -> Result<Limit, Invalid> {
    let wrong = |what: String| Invalid::Limit(index, what);
    let Some(seconds) = unit::of_request_s(wire.unit) else {
        return Err(wrong(format!("unit {} is none of SECOND (1) to YEAR (6)", wire.unit)));
    };
    let multiplier = wire.unit_multiplier.map_or(1, |multiplier| multiplier.value);
    let window = Duration::from_secs(seconds * u64::from(multiplier));
    Limit::new(u64::from(wire.requests_per_unit), window).map_err(|error| wrong(error.into()))
}

/// Our decision as the wire's answer.
pub fn response(decision: &Decision, style: Style) -> RateLimitResponse {
    let header = |(key, value): (&str, String)| HeaderValue {
        key: key.to_owned(),
        value,
        ..HeaderValue::default()
    };
    RateLimitResponse {
        overall_code: code(decision.allowed).into(),
        statuses: decision.statuses.iter().map(status).collect(),
        response_headers_to_add: headers(decision, style).into_iter().map(header).collect(),
        ..RateLimitResponse::default()
    }
}

fn code(allowed: bool) -> Code {
    if allowed { Code::Ok } else { Code::OverLimit }
}

fn status(status: &limiter::Status) -> DescriptorStatus {
    let Some(limit) = status.limit else {
        // An unlimited rule has the most there is left; no rule has nothing to say.
        let limit_remaining = if status.rule.is_some() { u32::MAX } else { 0 };
        return DescriptorStatus { code: Code::Ok.into(), limit_remaining, ..Default::default() };
    };
    DescriptorStatus {
        code: code(!is_over(status)).into(),
        current_limit: Some(current_limit(limit, status.rule.as_deref())),
        limit_remaining: u32::try_from(remaining(status)).unwrap_or(u32::MAX),
        // Envoy cuts fractions off, so there are none.
        duration_until_reset: Some(WireDuration {
            seconds: i64::try_from(reset_s(status)).unwrap_or(i64::MAX),
            nanos: 0,
        }),
    }
}

/// Over its own limit, whatever becomes of the request: one quota of several may be over and the
/// request still pass, as with envoyproxy/ratelimit. A limit in shadow mode never says so.
fn is_over(status: &limiter::Status) -> bool {
    status.refuses || (status.mode == Mode::Quota && !status.verdict.allowed)
}

fn current_limit(limit: Limit, rule: Option<&crate::rules::Rule>) -> CurrentLimit {
    let name = rule.and_then(|rule| rule.name.as_deref()).unwrap_or_default().to_owned();
    let requests_per_unit = u32::try_from(limit.max_requests()).unwrap_or(u32::MAX);
    let (unit, multiplier) = unit::of_window(limit.window());
    let unit_multiplier = (multiplier > 1).then_some(UInt32Value { value: multiplier });
    CurrentLimit { name, requests_per_unit, unit: unit.into(), unit_multiplier }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::protobuf::UInt64Value;
    use prost::Message as _;

    use super::*;
    use crate::api::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor as wire;
    use crate::quota::Verdict;

    fn request() -> RateLimitRequest {
        let entry = wire::Entry { key: b"k".to_vec(), value: b"a\xff\xfe".to_vec() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 0 }
    }

    #[test]
    fn hits() {
        let own = |value| Some(UInt64Value { value });
        let table = [
            (0, None, false, 1),
            (7, None, false, 7),
            (7, own(0), false, 0),
            (7, own(3), true, -3),
            (0, own(u64::MAX), false, i64::MAX),
            (0, own(u64::MAX), true, -i64::MAX),
        ];
        for (hits_addend, own, is_negative_hits, expected) in table {
            let mut request = RateLimitRequest { hits_addend, ..request() };
            request.descriptors[0].hits_addend = own;
            request.descriptors[0].is_negative_hits = is_negative_hits;
            assert_eq!(question(request).unwrap().descriptors[0].hits, expected);
        }
    }

    #[test]
    fn an_odd_byte_is_no_error() {
        let decoded = RateLimitRequest::decode(&request().encode_to_vec()[..]).unwrap();
        assert_eq!(question(decoded).unwrap().descriptors[0].entries[0].value, b"a\xff\xfe");
    }

    #[test]
    fn a_bad_field_is_named() {
        let error = |change: fn(&mut RateLimitRequest)| {
            let mut request = request();
            change(&mut request);
            question(request).unwrap_err().to_string()
        };
        assert!(error(|wire| wire.domain.clear()).starts_with("domain: "));
        assert!(error(|wire| wire.descriptors.clear()).starts_with("descriptors: "));
        let many = error(|wire| wire.descriptors = vec![wire.descriptors[0].clone(); 257]);
        assert!(many.starts_with("descriptors: there are 257, at most 256"), "{many}");
        assert!(
            error(|wire| wire.descriptors[0].entries.clear()).starts_with("descriptors[0].entries")
        );
        for unit in [0, 7, 77, -1] {
            let mut request = request();
            let limit = RateLimitOverride { requests_per_unit: 1, unit, unit_multiplier: None };
            request.descriptors[0].limit = Some(limit);
            let error = question(request).unwrap_err().to_string();
            assert!(error.starts_with("descriptors[0].limit: unit"), "{error}");
        }
        let mut zero = request();
        let unit_multiplier = Some(UInt32Value::default());
        zero.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit: 1, unit: 1, unit_multiplier });
        assert!(question(zero).unwrap_err().to_string().contains("at least 1ms"));
    }

    /// Envoy's own messages, as another generator sees them.
    use envoy_types::pb::envoy::service::ratelimit::v3 as envoy;

    #[test]
    fn envoy_reads_what_we_write() {
        let verdict = Verdict {
            allowed: false,
            remaining: 2,
            retry_after: Some(Duration::from_millis(57_001)),
            reset_after: Duration::from_secs(3),
        };
        let limit = Some(Limit::new(10, Duration::from_secs(60)).unwrap());
        let refused = limiter::Status { limit, verdict, ..limiter::Status::unlimited(None) };
        let decision = Decision::of(vec![refused, limiter::Status::unlimited(None)]);
        let bytes = response(&decision, Style::RetryAfter).encode_to_vec();
        let read = envoy::RateLimitResponse::decode(&bytes[..]).unwrap();
        assert_eq!(read.overall_code, 2);
        let headers = read.response_headers_to_add;
        let headers = headers.iter().map(|header| (&*header.key, &*header.value));
        assert_eq!(headers.collect::<Vec<_>>(), [("retry-after", "58")]);
        assert_eq!(read.statuses.iter().map(|status| status.code).collect::<Vec<_>>(), [2, 1]);
        let status = &read.statuses[0];
        assert_eq!(status.limit_remaining, 0);
        assert_eq!(
            status.duration_until_reset.map(|reset| (reset.seconds, reset.nanos)),
            Some((58, 0))
        );
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit), (10, 2));
        assert_eq!(read.statuses[1].current_limit, None);
    }

    #[test]
    fn we_read_what_envoy_writes() {
        use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as common;
        let limit =
            common::rate_limit_descriptor::RateLimitOverride { requests_per_unit: 42, unit: 3 };
        let entry =
            common::rate_limit_descriptor::Entry { key: "user".into(), value: "élise".into() };
        let descriptor = common::RateLimitDescriptor {
            entries: vec![entry],
            limit: Some(limit),
            hits_addend: Some(UInt64Value { value: 5 }),
            is_negative_hits: true,
        };
        let request = envoy::RateLimitRequest {
            domain: "edge".into(),
            descriptors: vec![descriptor],
            hits_addend: 7,
        };
        let read = RateLimitRequest::decode(&request.encode_to_vec()[..]).unwrap();
        let read = question(read).unwrap();
        let expected = Descriptor {
            entries: vec![Entry::new("user", "élise")],
            hits: -5,
            limit_override: Some(Limit::new(42, Duration::from_secs(3600)).unwrap()),
        };
        assert_eq!((read.domain, read.descriptors), ("edge".to_owned(), vec![expected]));
    }

    #[test]
    fn a_status_says_over_unless_it_is_in_shadow_mode() {
        use Mode::{Enforce, Quota, Shadow};
        let status = |(mode, allowed): (Mode, bool)| {
            let (remaining, wait) = (u64::from(allowed), Duration::from_millis(1));
            let retry_after = (!allowed).then_some(wait);
            let verdict = Verdict { allowed, remaining, retry_after, reset_after: wait };
            let limit = Some(Limit::new(10, Duration::from_secs(60)).unwrap());
            limiter::Status { limit, verdict, mode, ..limiter::Status::unlimited(None) }
        };
        type Row<'a> = (&'a [(Mode, bool)], Code, &'a [Code]);
        let table: [Row<'_>; 4] = [
            (&[(Shadow, false), (Enforce, true)], Code::Ok, &[Code::Ok, Code::Ok]),
            (&[(Quota, false), (Quota, true)], Code::Ok, &[Code::OverLimit, Code::Ok]),
            (&[(Quota, false)], Code::OverLimit, &[Code::OverLimit]),
            (&[(Enforce, true), (Enforce, false)], Code::OverLimit, &[Code::Ok, Code::OverLimit]),
        ];
        for (asked, overall, codes) in table {
            let decision = Decision::of(asked.iter().copied().map(status).collect());
            let response = response(&decision, Style::Off);
            assert_eq!(response.overall_code(), overall, "{asked:?}");
            for ((status, code), (_, allowed)) in response.statuses.iter().zip(codes).zip(asked) {
                assert_eq!(status.code(), *code, "{asked:?}");
                assert_eq!(status.limit_remaining, u32::from(*allowed), "{asked:?}");
                assert_eq!(status.duration_until_reset.map(|reset| reset.seconds), Some(1));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            if let Ok(request) = RateLimitRequest::decode(&bytes[..]) {
                let _ = question(request);
            }
        }
    }
}
