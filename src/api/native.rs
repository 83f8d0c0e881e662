//! CheckQuota: the wire of `proto/chronosdb/v1/rate_limiter.proto`.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Histogram;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::call::{Call, undecided};
use super::pb::chronosdb::v1::rate_limiter_server::RateLimiter;
use super::pb::chronosdb::v1::{CheckQuotaRequest, CheckQuotaResponse};
use crate::check::{self, Descriptor, Entry};
use crate::limiter::{Decision, Limiter, Quota, Undecided};
use crate::quota::Limit;

/// The domain whose rules hold where a call brings no limit.
pub const DOMAIN: &str = "native";

/// No name is longer; what is, is refused rather than hashed.
const MAX_NAME_BYTES: usize = 64 * 1024;

/// The front.
pub struct Native {
    limiter: Arc<Limiter>,
    latency: Histogram,
}

/// What a call asks, parsed.
enum Question {
    Quota(Quota),
    Rules(check::Request),
}

impl Native {
    /// A front over a limiter.
    pub fn new(limiter: Arc<Limiter>) -> Self {
        let metrics = &limiter.shared().metrics;
        let latency = metrics.grpc_latency_ms.with_label_values(&["CheckQuota"]);
        Self { limiter, latency }
    }

    async fn ask(
        &self,
        question: &Question,
        deadline: Option<Instant>,
    ) -> Result<Decision, Undecided> {
        match question {
            Question::Quota(quota) => self.limiter.check_quota(quota, deadline).await,
            Question::Rules(request) if request.descriptors.iter().all(|it| it.hits == 0) => {
                self.limiter.decide_next_hit(request, deadline).await
            }
            Question::Rules(request) => self.limiter.decide(request, deadline).await,
        }
    }
}

#[tonic::async_trait]
impl RateLimiter for Native {
    async fn check_quota(
        &self,
        request: Request<CheckQuotaRequest>,
    ) -> Result<Response<CheckQuotaResponse>, Status> {
        let call = Call::start(&self.limiter.shared().metrics, "CheckQuota", &self.latency);
        let deadline = call.deadline(request.metadata());
        let question = question(request.into_inner())
            .map_err(|error| call.failed(Status::invalid_argument(error)))?;
        let decision = self.ask(&question, deadline).await;
        let decision = decision.map_err(|error| call.failed(undecided(&error, deadline)))?;
        Ok(Response::new(response(&decision)))
    }
}

/// What is asked, or a sentence that names the field that is wrong.
fn question(request: CheckQuotaRequest) -> Result<Question, String> {
    let CheckQuotaRequest { user_id, api_key, max_requests, window_seconds, hits } = request;
    for (name, value) in [("user_id", &user_id), ("api_key", &api_key)] {
        if value.is_empty() {
            return Err(format!("{name}: it must not be empty"));
        }
        if value.len() > MAX_NAME_BYTES {
            return Err(format!("{name}: it has {} bytes, at most {MAX_NAME_BYTES}", value.len()));
        }
    }
    let hits = hits.unwrap_or(1);
    if (max_requests, window_seconds) == (0, 0) {
        let entries = vec![Entry::new("api_key", api_key), Entry::new("user_id", user_id)];
        let descriptor = Descriptor { entries, hits: i64::from(hits), limit_override: None };
        let domain = DOMAIN.to_owned();
        return Ok(Question::Rules(check::Request { domain, descriptors: vec![descriptor] }));
    }
    let positive = |name: &str, value: i32| match u64::try_from(value) {
        Ok(0) => Err(format!("{name}: it is 0, but only both 0 leave the limit to the rules")),
        Ok(value) => Ok(value),
        Err(_) => Err(format!("{name}: {value} is negative")),
    };
    let max_requests = positive("max_requests", max_requests)?;
    let window = Duration::from_secs(positive("window_seconds", window_seconds)?);
    let limit =
        Limit::new(max_requests, window).map_err(|error| format!("window_seconds: {error}"))?;
    Ok(Question::Quota(Quota { api_key, user_id, limit, hits }))
}

fn response(decision: &Decision) -> CheckQuotaResponse {
    let remaining = decision.statuses.first().map_or(0, |status| status.verdict.remaining);
    let retry_after_ms = match decision.retry_after {
        _ if decision.allowed => 0,
        Some(wait) => i64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i64::MAX),
        None => -1,
    };
    let remaining_quota = i32::try_from(remaining).unwrap_or(i32::MAX);
    CheckQuotaResponse { allowed: decision.allowed, remaining_quota, retry_after_ms }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Status as Counted;
    use crate::quota::Verdict;

    #[test]
    fn a_bad_field_is_named() {
        let good = CheckQuotaRequest {
            user_id: "u".into(),
            api_key: "k".into(),
            max_requests: 1,
            window_seconds: 1,
            hits: None,
        };
        assert!(question(good.clone()).is_ok());
        let table = [
            (CheckQuotaRequest { user_id: String::new(), ..good.clone() }, "user_id: "),
            (CheckQuotaRequest { user_id: "x".repeat(70_000), ..good.clone() }, "user_id: "),
            (CheckQuotaRequest { api_key: String::new(), ..good.clone() }, "api_key: "),
            (CheckQuotaRequest { max_requests: -1, ..good.clone() }, "max_requests: -1 is neg"),
            (CheckQuotaRequest { max_requests: 0, ..good.clone() }, "max_requests: it is 0"),
            (CheckQuotaRequest { window_seconds: 0, ..good.clone() }, "window_seconds: it is 0"),
            (CheckQuotaRequest { window_seconds: i32::MIN, ..good.clone() }, "window_seconds: "),
            (CheckQuotaRequest { window_seconds: i32::MAX, ..good.clone() }, "window_seconds: "),
        ];
        for (request, expected) in table {
            let error = question(request).err().unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
        let by_rules = CheckQuotaRequest { max_requests: 0, window_seconds: 0, ..good };
        assert!(matches!(question(by_rules), Ok(Question::Rules(_))));
    }

    #[test]
    fn one_hit_unless_it_says_otherwise() {
        for (hits, expected) in [(None, 1), (Some(0), 0), (Some(u32::MAX), u32::MAX)] {
            let (user_id, api_key) = ("u".into(), "k".into());
            let request = |limit| CheckQuotaRequest {
                user_id,
                api_key,
                max_requests: limit,
                window_seconds: limit,
                hits,
            };
            let Ok(Question::Quota(quota)) = question(request(3)) else { panic!("it has a limit") };
            assert_eq!(quota.hits, expected);
        }
    }

    #[test]
    fn an_answer_in_numbers_that_the_wire_has() {
        let us = Duration::from_micros;
        let table = [
            (true, 3, None, (true, 3, 0)),
            (true, u64::from(u32::MAX), None, (true, i32::MAX, 0)),
            (false, 0, Some(us(1)), (false, 0, 1)),
            (false, 2, Some(us(1_000)), (false, 2, 1)),
            (false, 0, Some(us(59_999_001)), (false, 0, 60_000)),
            (false, 0, None, (false, 0, -1)),
        ];
        for (allowed, remaining, retry_after, expected) in table {
            let verdict = Verdict { allowed, remaining, retry_after, reset_after: us(7) };
            let status = Counted { verdict, ..Counted::unlimited(None) };
            let answer = response(&Decision::of(vec![status]));
            let answer = (answer.allowed, answer.remaining_quota, answer.retry_after_ms);
            assert_eq!(answer, expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            use prost::Message as _;
            if let Ok(request) = CheckQuotaRequest::decode(&bytes[..]) {
                let _ = question(request);
            }
        }
    }
}
