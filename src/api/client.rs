//! A client of both doors, for the command line and for tests.

use std::error::Error;
use std::time::Duration;

use envoy_types::pb::google::protobuf::UInt64Value;
use tonic::Code as Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::pb::chronosdb::v1::rate_limiter_client::RateLimiterClient;
use super::pb::chronosdb::v1::{CheckQuotaRequest, CheckQuotaResponse};
use super::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor,
};
use super::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, RateLimit, rate_limit::Unit,
};
use super::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use super::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::trust::Trust;
use crate::check::Entry;

/// A connection to a server.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    target: String,
    is_tls: bool,
}

/// What to ask.
#[derive(Clone, Debug)]
pub enum Question {
    /// CheckQuota.
    Quota {
        /// Whose quota.
        user_id: String,
        /// Under which key.
        api_key: String,
        /// Hits in each window.
        max_requests: i32,
        /// The window, in seconds.
        window_seconds: i32,
        /// Hits to take; 0 looks.
        hits: u32,
    },
    /// ShouldRateLimit.
    Descriptors {
        /// Which rules.
        domain: String,
        /// Decided together.
        descriptors: Vec<Vec<Entry>>,
        /// Hits for each; 0 looks.
        hits: u32,
    },
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether it passes.
    pub allowed: bool,
    /// What is left of the tightest limit; `None`: nothing is limited.
    pub remaining: Option<u64>,
    /// On a refusal: when to come back. `None`: never, or not said.
    pub retry_after: Option<Duration>,
    /// The limit, for people.
    pub limit: String,
}

/// A call without an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{target}: {status:?}: {message}")]
pub struct Unanswered {
    /// Who was asked.
    pub target: String,
    /// What kind of failure it is.
    pub status: Status,
    /// What the server, or the connection, said.
    pub message: String,
}

impl Client {
    /// Connects to `address:port`, `unix:path`, `http://…` or `https://…`.
    ///
    /// # Errors
    /// A sentence that says what could not be reached, or why TLS failed.
    pub async fn connect(target: &str, timeout: Duration) -> Result<Self, String> {
        Self::connect_trusting(target, None, timeout).await
    }

    /// Connects as `connect` does; with `trust` by TLS, and not without.
    ///
    /// # Errors
    /// The same, and files of `trust` that cannot be used.
    pub async fn connect_trusting(
        target: &str,
        trust: Option<&Trust>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let uri = match (target.contains("://") || target.starts_with("unix:"), trust) {
            (true, _) => target.to_owned(),
            (false, None) => format!("http://{target}"),
            (false, Some(_)) => format!("https://{target}"),
        };
        let address = uri.strip_prefix("http://").filter(|rest| !rest.contains([':', '/']));
        if let Some(host) = address {
            return Err(format!("{target} has no port: write {host}:50051"));
        }
        let wrong =
            |error| format!("{target} is not an address: write host:port or unix:path ({error})");
        let is_tls = uri.starts_with("https://");
        let endpoint = Endpoint::from_shared(uri).map_err(wrong)?;
        let mut endpoint = endpoint.connect_timeout(timeout).timeout(timeout);
        if is_tls {
            endpoint = trust.cloned().unwrap_or_default().protect(endpoint)?;
        } else if trust.is_some() {
            return Err(format!("{target} has no TLS: write https://host:port"));
        }
        let connected = tokio::time::timeout(timeout, endpoint.connect()).await;
        let channel = match connected {
            Ok(channel) => channel.map_err(|error| chain(&error)),
            Err(late) => Err(late.to_string()),
        };
        let channel = channel.map_err(|error| match error.contains("InvalidContentType") {
            true => format!("{target} speaks no TLS: leave https:// out ({error})"),
            false => format!("nobody answers at {target}: is the server running? ({error})"),
        })?;
        Ok(Self { channel, target: target.to_owned(), is_tls })
    }

    /// Asks once.
    ///
    /// # Errors
    /// A sentence with the server's status.
    pub async fn ask(&mut self, question: &Question) -> Result<Answer, String> {
        match question.clone() {
            Question::Quota { user_id, api_key, max_requests, window_seconds, hits } => {
                let hits = Some(hits);
                let request =
                    CheckQuotaRequest { user_id, api_key, max_requests, window_seconds, hits };
                let answer = self.check_quota(request).await.map_err(|error| error.to_string())?;
                let wait = u64::try_from(answer.retry_after_ms).ok().map(Duration::from_millis);
                Ok(Answer {
                    allowed: answer.allowed,
                    remaining: u64::try_from(answer.remaining_quota).ok(),
                    retry_after: wait.filter(|_| !answer.allowed),
                    limit: match (max_requests, window_seconds) {
                        (0, 0) => "by the rules".to_owned(),
                        _ => format!("{max_requests} per {window_seconds}s"),
                    },
                })
            }
            Question::Descriptors { domain, descriptors, hits } => {
                let answer = self.should_rate_limit(domain, descriptors, hits).await;
                Ok(read(&answer.map_err(|error| error.to_string())?))
            }
        }
    }

    /// Asks once, and only whether it passes: for those who ask very often.
    ///
    /// # Errors
    /// The server's status.
    pub async fn passes(&self, question: Question) -> Result<bool, Unanswered> {
        match question {
            Question::Quota { user_id, api_key, max_requests, window_seconds, hits } => {
                let hits = Some(hits);
                let request =
                    CheckQuotaRequest { user_id, api_key, max_requests, window_seconds, hits };
                Ok(self.check_quota(request).await?.allowed)
            }
            Question::Descriptors { domain, descriptors, hits } => {
                let answer = self.should_rate_limit(domain, descriptors, hits).await?;
                Ok(answer.overall_code() != Code::OverLimit)
            }
        }
    }

    async fn check_quota(
        &self,
        request: CheckQuotaRequest,
    ) -> Result<CheckQuotaResponse, Unanswered> {
        let mut client = RateLimiterClient::new(self.channel.clone());
        let answer = client.check_quota(request).await;
        Ok(answer.map_err(|status| self.failed(&status))?.into_inner())
    }

    async fn should_rate_limit(
        &self,
        domain: String,
        descriptors: Vec<Vec<Entry>>,
        hits: u32,
    ) -> Result<RateLimitResponse, Unanswered> {
        let hits_addend = Some(UInt64Value { value: u64::from(hits) });
        let descriptor = |entries: Vec<Entry>| RateLimitDescriptor {
            entries: entries
                .into_iter()
                .map(|Entry { key, value }| rate_limit_descriptor::Entry { key, value })
                .collect(),
            hits_addend,
            ..Default::default()
        };
        let descriptors = descriptors.into_iter().map(descriptor).collect();
        let request = RateLimitRequest { domain, descriptors, hits_addend: 0 };
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let answer = client.should_rate_limit(request).await;
        Ok(answer.map_err(|status| self.failed(&status))?.into_inner())
    }

    /// Whether a service says that it serves; empty: the whole server.
    ///
    /// # Errors
    /// A sentence with the server's status.
    pub async fn is_serving(&mut self, service: &str) -> Result<bool, String> {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = HealthClient::new(self.channel.clone()).check(request).await;
        let answer = answer.map_err(|status| self.failed(&status).to_string())?;
        Ok(answer.into_inner().status() == ServingStatus::Serving)
    }

    fn failed(&self, status: &tonic::Status) -> Unanswered {
        let causes = causes(status.message().to_owned(), status.source());
        // Under TLS 1.3 a client learns only so that its certificate was refused.
        let hint = match (self.is_tls, status.source()) {
            (true, Some(_)) => {
                " (does the server accept this client's certificate? its log says why not)"
            }
            (false, Some(_)) => " (is it the gRPC port, and one without TLS?)",
            (_, None) => "",
        };
        let (target, message) = (self.target.clone(), format!("{causes}{hint}"));
        Unanswered { target, status: status.code(), message }
    }
}

/// An error and what caused it, each said once.
pub(super) fn chain(error: &dyn Error) -> String {
    causes(error.to_string(), error.source())
}

fn causes(mut text: String, mut cause: Option<&dyn Error>) -> String {
    while let Some(error) = cause {
        let what = error.to_string();
        if !text.contains(&what) {
            text = format!("{text}: {what}");
        }
        cause = error.source();
    }
    text
}

fn read(response: &RateLimitResponse) -> Answer {
    let allowed = response.overall_code() != Code::OverLimit;
    let limited = || response.statuses.iter().filter(|status| status.current_limit.is_some());
    let tightest = limited()
        .filter(|status| status.code() == Code::OverLimit)
        .max_by_key(|status| status.duration_until_reset.map_or(0, |reset| reset.seconds))
        .or_else(|| limited().min_by_key(|status| status.limit_remaining));
    let seconds =
        tightest.and_then(|status| status.duration_until_reset).map(|reset| reset.seconds);
    let wait = seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    Answer {
        allowed,
        remaining: tightest.map(|status| u64::from(status.limit_remaining)),
        retry_after: wait.filter(|_| !allowed),
        limit: tightest
            .and_then(|status| status.current_limit.as_ref())
            .map_or_else(|| "no rule matches, or it is unlimited".to_owned(), limit),
    }
}

fn limit(limit: &RateLimit) -> String {
    let unit = match limit.unit() {
        Unit::Unknown => "window".to_owned(),
        unit => unit.as_str_name().to_ascii_lowercase(),
    };
    let times = limit.unit_multiplier.as_ref().map_or(1, |multiplier| multiplier.value);
    let name = if limit.name.is_empty() { String::new() } else { format!(" ({})", limit.name) };
    match times {
        1 => format!("{} per {unit}{name}", limit.requests_per_unit),
        _ => format!("{} per {times} {unit}s{name}", limit.requests_per_unit),
    }
}
