//! The rate limit service as JSON, in protobuf's spelling of it, for people and for scripts.

use envoy_types::pb::google::protobuf::{UInt32Value, UInt64Value};
use serde::{Deserialize, Serialize};

use super::headers::Style;
use super::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor as wire,
};
use super::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::pb::envoy::r#type::v3::RateLimitUnit;
use super::ratelimit::{Invalid, question, response};
use crate::check;
use crate::limiter::Decision;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    domain: String,
    descriptors: Vec<Descriptor>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Descriptor {
    entries: Vec<Entry>,
    limit: Option<Override>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    key: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Override {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Number>,
    unit: Option<Number>,
    #[serde(alias = "unit_multiplier")]
    unit_multiplier: Option<Number>,
}

/// A number, or text: protobuf writes 64-bit numbers in quotes, and enums by name or by number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number that is not negative, or text")]
enum Number {
    Plain(u64),
    Text(String),
}

/// Why a body is no question.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is no JSON, or not of this shape.
    #[error("the body is no rate limit request: {0}")]
    Json(#[from] serde_json::Error),
    /// A field has a value that it cannot have.
    #[error("{field}: {value} is no {expected}")]
    Value {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// It can be read, and asks nothing that can be answered.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl Number {
    fn number<N: TryFrom<u64>>(&self, field: &'static str) -> Result<N, Unreadable> {
        let number = match self {
            Self::Plain(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
        };
        let expected = "whole number in this field's range";
        let wrong = || Unreadable::Value { field, value: self.shown(), expected };
        number.and_then(|number| N::try_from(number).ok()).ok_or_else(wrong)
    }

    fn shown(&self) -> String {
        match self {
            Self::Plain(number) => number.to_string(),
            Self::Text(text) => format!("{text:?}"),
        }
    }
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
/// What is wrong with it.
pub fn read(body: &[u8]) -> Result<check::Request, Unreadable> {
    let Request { domain, descriptors, hits_addend } = serde_json::from_slice(body)?;
    let descriptors = descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?;
    let hits_addend = hits_addend.map_or(Ok(0), |hits| hits.number("hitsAddend"))?;
    Ok(question(RateLimitRequest { domain, descriptors, hits_addend })?)
}

fn descriptor(descriptor: Descriptor) -> Result<RateLimitDescriptor, Unreadable> {
    let entry = |Entry { key, value }| wire::Entry { key: key.into(), value: value.into() };
    let hits = descriptor.hits_addend.map(|hits| hits.number("descriptors.hitsAddend"));
    let hits_addend = hits.transpose()?.map(|value| UInt64Value { value });
    Ok(RateLimitDescriptor {
        entries: descriptor.entries.into_iter().map(entry).collect(),
        limit: descriptor.limit.map(limit).transpose()?,
        hits_addend,
        is_negative_hits: descriptor.is_negative_hits,
    })
}

fn limit(limit: Override) -> Result<wire::RateLimitOverride, Unreadable> {
    let number = |value: Option<Number>, field| value.map(|value| value.number(field)).transpose();
    let unit = match limit.unit {
        Some(Number::Text(name)) => {
            let unit = RateLimitUnit::from_str_name(&name.to_ascii_uppercase());
            let (field, expected) = ("descriptors.limit.unit", "unit: use SECOND to YEAR");
            unit.ok_or(Unreadable::Value { field, value: format!("{name:?}"), expected })?.into()
        }
        unit => number(unit, "descriptors.limit.unit")?.map_or(0, u32::cast_signed),
    };
    let requests_per_unit = number(limit.requests_per_unit, "descriptors.limit.requestsPerUnit")?;
    let unit_multiplier = number(limit.unit_multiplier, "descriptors.limit.unitMultiplier")?;
    Ok(wire::RateLimitOverride {
        requests_per_unit: requests_per_unit.unwrap_or_default(),
        unit,
        unit_multiplier: unit_multiplier.map(|value| UInt32Value { value }),
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
    use std::time::Duration;

    use super::*;
    use crate::quota::Limit;

    #[test]
    fn requests() {
        let request = read(
            br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":3}]}"#,
        );
        assert_eq!(request.unwrap().descriptors[0].hits, 3);
        let table = [
            ("", "the body is no rate limit request: EOF"),
            ("{}", "domain: "),
            (r#"{"domain":"","descriptors":[]}"#, "domain: "),
            (r#"{"domain":"d"}"#, "descriptors: "),
            (r#"{"domain":"d","descriptors":[{}]}"#, "descriptors[0].entries"),
            (r#"{"domain":"d","descriptors":[{"entry":[]}]}"#, "unknown field `entry`"),
            (r#"{"domain":"d","hitsAddend":-1}"#, "expected a whole number"),
            (r#"{"domain":"d","hitsAddend":4294967296}"#, "hitsAddend: 4294967296 is no whole"),
            (r#"{"domain":"d","hitsAddend":"x"}"#, "hitsAddend: \"x\" is no whole number"),
        ];
        for (body, expected) in table {
            let error = read(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{body}: {error}");
        }
    }

    #[test]
    fn both_spellings_and_numbers_in_quotes() {
        let hour = Some(Limit::new(5, Duration::from_secs(2 * 3600)).unwrap());
        for limit in [
            r#""limit":{"requestsPerUnit":5,"unit":"HOUR","unitMultiplier":2}"#,
            r#""limit":{"requests_per_unit":"5","unit":3,"unit_multiplier":"2"}"#,
        ] {
            let body = format!(
                r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"k"}}],{limit},
                "hitsAddend":"18446744073709551615","is_negative_hits":true}}]}}"#
            );
            let request = read(body.as_bytes()).unwrap();
            assert_eq!(request.descriptors[0].limit_override, hour);
            assert_eq!(request.descriptors[0].hits, -i64::MAX);
        }
        for (limit, expected) in [
            (r#"{"unit":"eon"}"#, "descriptors.limit.unit: \"eon\" is no unit"),
            (r#"{"unit":"WEEK"}"#, "descriptors.limit.unit: \"WEEK\" is no unit"),
            (r#"{"unit":4294967295}"#, "descriptors[0].limit: unit -1"),
            (r#"{}"#, "descriptors[0].limit: unit 0"),
            (r#"{"unit":1,"unitMultiplier":0}"#, "at least 1ms"),
        ] {
            let body = format!(
                r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"k"}}],"limit":{limit}}}]}}"#
            );
            let error = read(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{limit}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }
}
