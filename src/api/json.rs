//! The rate limit service as JSON, in protobuf's spelling of it, for people and for scripts.

use envoy_types::pb::google::protobuf::{UInt32Value, UInt64Value};
use serde::{Deserialize, Serialize};

use super::headers::Style;
use super::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor as wire,
};
use super::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use super::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::ratelimit::{Invalid, question, response};
use crate::check;
use crate::limiter::Decision;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    domain: String,
    descriptors: Vec<Descriptor>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Descriptor {
    #[serde(default)]
    entries: Vec<Entry>,
    limit: Option<Override>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<u64>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Override {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: u32,
    unit: String,
    #[serde(alias = "unit_multiplier")]
    unit_multiplier: Option<u32>,
}

/// An answer, ready to be written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    overall_code: &'static str,
    statuses: Vec<DescriptorStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<Header>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DescriptorStatus {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<CurrentLimit>,
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CurrentLimit {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    requests_per_unit: u32,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_multiplier: Option<u32>,
}

#[derive(Serialize)]
struct Header {
    key: String,
    value: String,
}

/// Reads a request.
///
/// # Errors
/// A sentence that names what is wrong.
pub fn read(body: &[u8]) -> Result<check::Request, String> {
    let request: Request = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let descriptors = request.descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?;
    let request =
        RateLimitRequest { domain: request.domain, descriptors, hits_addend: request.hits_addend };
    question(request).map_err(|error: Invalid| error.to_string())
}

fn descriptor(descriptor: Descriptor) -> Result<RateLimitDescriptor, String> {
    let entry = |Entry { key, value }| wire::Entry { key: key.into(), value: value.into() };
    let limit = |limit: Override| {
        let unit = Unit::from_str_name(&limit.unit.to_ascii_uppercase());
        let unit = unit.ok_or_else(|| format!("limit.unit: {} is not a unit", limit.unit))?;
        let unit_multiplier = limit.unit_multiplier.map(|value| UInt32Value { value });
        let requests_per_unit = limit.requests_per_unit;
        Ok::<_, String>(wire::RateLimitOverride {
            requests_per_unit,
            unit: unit.into(),
            unit_multiplier,
        })
    };
    Ok(RateLimitDescriptor {
        entries: descriptor.entries.into_iter().map(entry).collect(),
        limit: descriptor.limit.map(limit).transpose()?,
        hits_addend: descriptor.hits_addend.map(|value| UInt64Value { value }),
        is_negative_hits: descriptor.is_negative_hits,
    })
}

/// Writes an answer.
pub fn write(decision: &Decision, style: Style) -> Response {
    let RateLimitResponse { statuses, response_headers_to_add, .. } = response(decision, style);
    let code = |code: i32| if code == 1 { "OK" } else { "OVER_LIMIT" };
    Response {
        overall_code: if decision.allowed { "OK" } else { "OVER_LIMIT" },
        statuses: statuses
            .into_iter()
            .map(|status| DescriptorStatus {
                code: code(status.code),
                limit_remaining: status.limit_remaining,
                duration_until_reset: status
                    .duration_until_reset
                    .map(|reset| format!("{}s", reset.seconds)),
                current_limit: status.current_limit.map(|limit| CurrentLimit {
                    unit: limit.unit().as_str_name(),
                    name: limit.name,
                    requests_per_unit: limit.requests_per_unit,
                    unit_multiplier: limit.unit_multiplier.map(|multiplier| multiplier.value),
                }),
            })
            .collect(),
        response_headers_to_add: response_headers_to_add
            .into_iter()
            .map(|header| Header { key: header.key, value: header.value })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let request = read(
            br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":3}]}"#,
        );
        assert_eq!(request.unwrap().descriptors[0].hits, 3);
        let table = [
            ("", "EOF"),
            ("{}", "missing field `domain`"),
            (r#"{"domain":"","descriptors":[]}"#, "domain: "),
            (r#"{"domain":"d","descriptors":[{}]}"#, "descriptors[0].entries"),
            (r#"{"domain":"d","descriptors":[{"entry":[]}]}"#, "unknown field `entry`"),
            (
                r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"unit":"eon"}}]}"#,
                "limit.unit: eon",
            ),
        ];
        for (body, expected) in table {
            let error = read(body.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }
}
