//! A decision as an answer of ext_authz. Envoy takes an unset status for OK, an unset HTTP status
//! for 403, and sends every header as it is: so each is set, and valid. Pure.

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::google::rpc::Status as WireStatus;
use serde_json::json;
use tonic::Code;

use super::settings::{Settings, UpstreamValue};
use super::words::HeaderName;
use crate::api::headers::{Style, headers, policy, policy_name, remaining, whole_seconds};
use crate::api::keys::Caller as Client;
use crate::api::metadata::source;
use crate::api::pb::envoy::service::auth::v3::check_response::HttpResponse;
use crate::api::pb::envoy::service::auth::v3::{CheckResponse, DeniedHttpResponse, OkHttpResponse};
use crate::api::pb::envoy::r#type::v3::{HttpStatus, StatusCode};
use crate::limiter::Decision;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// HTTP: reads status and body.
    Http,
    /// gRPC: reads `grpc-status` and, as its message, the body.
    Grpc,
}

/// The answer to a request that passes.
pub(super) fn passed(decision: &Decision, settings: &Settings, style: Style) -> CheckResponse {
    let mut ok = OkHttpResponse::default();
    for wanted in &settings.upstream_headers {
        let name = wanted.name.as_str();
        match upstream_value(decision, wanted.value) {
            Some(value) => ok.headers.push(header(name, value)),
            // A client's own must not be taken for ours.
            None => ok.headers_to_remove.push(name.to_owned()),
        }
    }
    let to_client = headers(decision, style).into_iter();
    ok.response_headers_to_add = to_client.map(|(name, value)| header(name, value)).collect();
    CheckResponse {
        status: Some(WireStatus::default()),
        http_response: Some(HttpResponse::OkResponse(ok)),
        dynamic_metadata: None,
    }
}

/// The answer to a request that is over its limit.
pub(super) fn refused(
    decision: &Decision,
    settings: &Settings,
    style: Style,
    caller: Caller,
) -> CheckResponse {
    let wait_s = decision.retry_after.map(whole_seconds);
    let sentence = match wait_s {
        Some(wait_s) => format!("over the limit: retry after {wait_s} s"),
        None => "over the limit: it never allows so many hits".to_owned(),
    };
    let names = decision.statuses.iter().filter(|status| status.refuses).map(policy);
    let problem = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": sentence,
        "violated-policies": names.collect::<Vec<_>>(),
    });
    let body = match (&settings.refusal.body, caller) {
        (_, Caller::Grpc) => Body::plain(sentence),
        (None, Caller::Http) => Body::problem(&problem),
        (Some(text), Caller::Http) => Body {
            text: text.replace("{retry_after}", &wait_s.map_or("-".into(), |s| s.to_string())),
            content_type: settings.refusal.content_type.as_str().to_owned(),
        },
    };
    let headers = headers(decision, style).into_iter();
    let headers = headers.map(|(name, value)| header(name, value)).collect();
    let denied = response(StatusCode::TooManyRequests, headers, body, caller);
    answer(Code::ResourceExhausted, HttpResponse::DeniedResponse(denied))
}

/// The answer when nobody can decide: Envoy lets it pass if it is told to fail open. Why is for
/// the log; the client learns nothing about what stands behind.
pub(super) fn undecided(why: &str, caller: Caller) -> CheckResponse {
    let sentence = "nobody can decide at the moment whether the quota has room";
    let problem = json!({
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": sentence,
    });
    let body = match caller {
        Caller::Http => Body::problem(&problem),
        Caller::Grpc => Body::plain(sentence.to_owned()),
    };
    let error = response(StatusCode::ServiceUnavailable, Vec::new(), body, caller);
    let mut answer = answer(Code::Unavailable, HttpResponse::ErrorResponse(error));
    answer.status.get_or_insert_default().message = why.to_owned();
    answer
}

/// The answer to a client whose key is missing, or nobody's.
pub(super) fn stranger(client: &Client, place: &HeaderName, caller: Caller) -> CheckResponse {
    let place = place.as_str();
    let (code, status, title, sentence) = match client {
        Client::Missing => (
            Code::Unauthenticated,
            StatusCode::Unauthorized,
            "Unauthorized",
            format!("an API key is needed, in the header {place}"),
        ),
        Client::Unknown | Client::Known(_) => (
            Code::PermissionDenied,
            StatusCode::Forbidden,
            "Forbidden",
            "this API key is not known".to_owned(),
        ),
    };
    let problem = json!({
        "type": "about:blank",
        "title": title,
        "status": i32::from(status),
        "detail": sentence,
    });
    let body = match caller {
        Caller::Http => Body::problem(&problem),
        Caller::Grpc => Body::plain(sentence),
    };
    let mut headers = Vec::new();
    if status == StatusCode::Unauthorized {
        let scheme = if place == "authorization" { "Bearer" } else { "ApiKey" };
        headers.push(header("www-authenticate", scheme.to_owned()));
    }
    answer(code, HttpResponse::DeniedResponse(response(status, headers, body, caller)))
}

struct Body {
    text: String,
    /// Empty: the answer says nothing of it.
    content_type: String,
}

impl Body {
    fn plain(text: String) -> Self {
        Self { text, content_type: String::new() }
    }

    fn problem(problem: &serde_json::Value) -> Self {
        Self { text: problem.to_string(), content_type: "application/problem+json".into() }
    }
}

fn response(
    status: StatusCode,
    mut headers: Vec<HeaderValueOption>,
    body: Body,
    caller: Caller,
) -> DeniedHttpResponse {
    if caller == Caller::Grpc {
        // Envoy would make it UNAVAILABLE, which clients retry.
        let code = match status {
            StatusCode::TooManyRequests => Code::ResourceExhausted,
            StatusCode::Unauthorized => Code::Unauthenticated,
            StatusCode::Forbidden => Code::PermissionDenied,
            StatusCode::ServiceUnavailable | StatusCode::Empty => Code::Unavailable,
        };
        headers.push(header("grpc-status", i32::from(code).to_string()));
    } else if !body.text.is_empty() {
        headers.push(header("content-type", body.content_type));
    }
    let status = Some(HttpStatus { code: status.into() });
    DeniedHttpResponse { status, headers, body: body.text }
}

fn answer(code: Code, response: HttpResponse) -> CheckResponse {
    let status = WireStatus { code: code.into(), ..WireStatus::default() };
    CheckResponse { status: Some(status), http_response: Some(response), dynamic_metadata: None }
}

fn header(name: &str, value: String) -> HeaderValueOption {
    let (key, raw_value) = (name.to_owned(), Vec::new());
    HeaderValueOption {
        header: Some(HeaderValue { key, value, raw_value }),
        // One of the same name, from whoever, would contradict it.
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

fn upstream_value(decision: &Decision, wanted: UpstreamValue) -> Option<String> {
    let deciding = decision.deciding();
    match wanted {
        UpstreamValue::Limit => Some(deciding?.limit?.max_requests().to_string()),
        UpstreamValue::Remaining => Some(remaining(deciding?).to_string()),
        UpstreamValue::Rule => Some(policy_name(deciding?)),
        UpstreamValue::Source => Some(source(deciding?.source).to_owned()),
        UpstreamValue::Shadow => {
            let is_over = decision.statuses.iter().any(|status| !status.verdict.allowed);
            is_over.then(|| "true".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use envoy_types::pb::envoy::service::auth::v3 as envoy;
    use prost::Message as _;

    use super::*;
    use crate::limiter::{Source, Status};
    use crate::quota::{Limit, Mode, Verdict};

    fn decision(wait_ms: Result<u64, Option<u64>>) -> Decision {
        let verdict = Verdict {
            allowed: wait_ms.is_ok(),
            remaining: wait_ms.unwrap_or(0),
            retry_after: wait_ms.err().flatten().map(Duration::from_millis),
            reset_after: Duration::from_secs(3),
        };
        let limit = Some(Limit::new(10, Duration::from_secs(60)).unwrap());
        let status = Status { limit, verdict, source: Source::Store, ..Status::unlimited(None) };
        Decision::of(vec![status, Status::unlimited(None)])
    }

    /// As Envoy's own messages, made by another generator.
    fn read(response: &CheckResponse) -> envoy::CheckResponse {
        envoy::CheckResponse::decode(&*response.encode_to_vec()).unwrap()
    }

    fn lines(headers: &[HeaderValueOption]) -> String {
        let line = |header: &HeaderValueOption| {
            let HeaderValue { key, value, .. } = header.header.clone().unwrap();
            format!("{key}: {value}")
        };
        headers.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn denied(response: &CheckResponse) -> (i32, i32, String, String) {
        let read = read(response);
        use envoy::check_response::HttpResponse::{DeniedResponse, ErrorResponse, OkResponse};
        let denied = match read.http_response.unwrap() {
            DeniedResponse(denied) | ErrorResponse(denied) => denied,
            OkResponse(ok) => panic!("{ok:?}"),
        };
        let status = denied.status.unwrap().code;
        (read.status.unwrap().code, status, lines(&denied.headers), denied.body)
    }

    #[test]
    fn a_refusal_says_429_and_when_to_come_back() {
        let settings = Settings::default();
        let over = decision(Err(Some(1_001)));
        let (code, status, headers, body) =
            denied(&refused(&over, &settings, Style::RetryAfter, Caller::Http));
        assert_eq!((code, status), (8, 429));
        assert_eq!(headers, "retry-after: 2\ncontent-type: application/problem+json");
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["status"], 429);
        assert_eq!(problem["detail"], "over the limit: retry after 2 s");
        assert_eq!(problem["violated-policies"], json!(["default"]));

        let (code, status, headers, body) =
            denied(&refused(&over, &settings, Style::Off, Caller::Grpc));
        assert_eq!((code, status), (8, 429));
        assert_eq!(headers, "grpc-status: 8");
        assert_eq!(body, "over the limit: retry after 2 s");

        let never = decision(Err(None));
        let (.., headers, body) = denied(&refused(&never, &settings, Style::Ietf, Caller::Http));
        assert!(!headers.contains("retry-after"), "{headers}");
        assert!(headers.contains("ratelimit: \"default\";r=0"), "{headers}");
        assert!(body.contains("never allows"), "{body}");
    }

    #[test]
    fn a_body_of_ones_own() {
        let settings: Settings = serde_yaml::from_str(
            "{ refusal: { body: '<p>{retry_after}</p>', content_type: text/html } }",
        )
        .unwrap();
        let over = decision(Err(Some(5_000)));
        let (.., headers, body) =
            denied(&refused(&over, &settings, Style::RetryAfter, Caller::Http));
        assert_eq!(
            (headers.as_str(), body.as_str()),
            ("retry-after: 5\ncontent-type: text/html", "<p>5</p>")
        );
        let none: Settings = serde_yaml::from_str("{ refusal: { body: '' } }").unwrap();
        let (.., headers, body) = denied(&refused(&over, &none, Style::Off, Caller::Http));
        assert_eq!((headers.as_str(), body.as_str()), ("", ""));
    }

    #[test]
    fn our_own_failure_is_a_503_and_keeps_its_reason() {
        for (caller, expected) in [
            (Caller::Http, "content-type: application/problem+json"),
            (Caller::Grpc, "grpc-status: 14"),
        ] {
            let response = undecided("redis://secret is away", caller);
            let (code, status, headers, body) = denied(&response);
            assert_eq!((code, status, headers.as_str()), (14, 503, expected));
            assert!(!body.contains("secret"), "{body}");
            assert!(matches!(response.http_response, Some(HttpResponse::ErrorResponse(_))));
        }
    }

    #[test]
    fn a_stranger_is_told_what_is_missing() {
        let header = |name: &str| HeaderName::try_from(name.to_owned()).unwrap();
        let table = [
            (
                Client::Missing,
                "x-api-key",
                Caller::Http,
                16,
                401,
                "www-authenticate: ApiKey\ncontent-type: application/problem+json",
            ),
            (
                Client::Missing,
                "authorization",
                Caller::Grpc,
                16,
                401,
                "www-authenticate: Bearer\ngrpc-status: 16",
            ),
            (
                Client::Unknown,
                "x-api-key",
                Caller::Http,
                7,
                403,
                "content-type: application/problem+json",
            ),
            (Client::Unknown, "x-api-key", Caller::Grpc, 7, 403, "grpc-status: 7"),
        ];
        for (client, place, caller, code, status, headers) in table {
            let found = denied(&stranger(&client, &header(place), caller));
            assert_eq!((found.0, found.1, &*found.2), (code, status, headers), "{client:?}");
            assert!(found.3.contains("API key"), "{}", found.3);
        }
    }

    #[test]
    fn what_passes_carries_what_was_chosen() {
        let settings: Settings = serde_yaml::from_str(
            "{ upstream_headers: [ { name: x-left, value: remaining }, { name: x-limit, value: limit },
               { name: x-rule, value: rule }, { name: x-by, value: source }, { name: x-over, value: shadow } ] }",
        )
        .unwrap();
        let ok = |decision: &Decision, style| {
            let read = read(&passed(decision, &settings, style));
            assert_eq!(read.status.unwrap().code, 0);
            match read.http_response.unwrap() {
                envoy::check_response::HttpResponse::OkResponse(ok) => ok,
                other => panic!("{other:?}"),
            }
        };
        let passed = ok(&decision(Ok(7)), Style::XRatelimit);
        assert_eq!(
            lines(&passed.headers),
            "x-left: 7\nx-limit: 10\nx-rule: \"default\"\nx-by: store"
        );
        assert_eq!(passed.headers_to_remove, ["x-over"]);
        let headers = lines(&passed.response_headers_to_add);
        assert!(headers.contains("x-ratelimit-remaining: 7"), "{headers}");

        let unlimited = ok(&Decision::of(vec![Status::unlimited(None)]), Style::XRatelimit);
        assert_eq!(lines(&unlimited.headers), "");
        assert_eq!(unlimited.headers_to_remove.len(), 5);

        let mut shadow = decision(Err(Some(1)));
        shadow.statuses[0].mode = Mode::Shadow;
        let shadow = ok(&Decision::of(shadow.statuses), Style::Off);
        assert!(lines(&shadow.headers).contains("x-over: true"));
    }
}
