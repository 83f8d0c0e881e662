//! Questions and answers in one line each, through a real gRPC client, and the server's metrics.

use std::time::Duration;

use chronosdb::api::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use chronosdb::api::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor as wire;
use chronosdb::api::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    DescriptorStatus, rate_limit::Unit,
};
use chronosdb::api::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use chronosdb::api::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use chronosdb::api::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::UInt64Value;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::transport::Channel;

use crate::harness::server::Server;

/// A server with the example rules, and a client.
pub(crate) struct Case {
    pub(crate) server: Server,
    runtime: Runtime,
    client: RateLimitServiceClient<Channel>,
}

impl Case {
    /// A server with the rules in `tests/data/compat`.
    pub(crate) fn new(settings: &str) -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/compat");
        let mut files =
            std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
        files.sort();
        let texts = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
        Self::with(&texts.collect::<Vec<_>>().join("---\n"), settings)
    }

    /// A server with these rules.
    pub(crate) fn with(rules: &str, settings: &str) -> Self {
        Self::of(Server::start(rules, settings))
    }

    /// A client of a server that runs.
    pub(crate) fn of(server: Server) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let target = format!("http://127.0.0.1:{}", server.grpc_port);
        let channel = runtime.block_on(Channel::from_shared(target).unwrap().connect()).unwrap();
        Self { server, runtime, client: RateLimitServiceClient::new(channel) }
    }

    /// Asks `domain | key=value > key=value | …`; see [`descriptor`].
    pub(crate) fn ask(&self, question: &str) -> Result<RateLimitResponse, tonic::Status> {
        self.send(parse(question))
    }

    /// Asks with the request's own `hits_addend`.
    pub(crate) fn ask_hits(&self, hits: u32, question: &str) -> String {
        answer(self.send(RateLimitRequest { hits_addend: hits, ..parse(question) }))
    }

    /// Asks and compares: `OK | OVER_LIMIT 0 of 5/MINUTE | …`; see [`status`].
    #[track_caller]
    pub(crate) fn says(&self, question: &str, expected: &str) {
        assert_eq!(answer(self.ask(question)), expected, "{question}");
    }

    /// Asks several times and compares the overall codes: one letter for each, `.` for OK, `x` for
    /// OVER_LIMIT.
    #[track_caller]
    pub(crate) fn passes(&self, question: &str, expected: &str) {
        let code = |_| match self.ask(question).unwrap().overall_code {
            1 => '.',
            2 => 'x',
            other => panic!("overall code {other}"),
        };
        assert_eq!(expected.chars().map(code).collect::<String>(), expected, "{question}");
    }

    /// Seconds until the reset of each status.
    pub(crate) fn resets_s(&self, question: &str) -> Vec<i64> {
        let statuses = self.ask(question).unwrap().statuses;
        let seconds = |status: DescriptorStatus| {
            status.duration_until_reset.map_or(-1, |reset| reset.seconds)
        };
        statuses.into_iter().map(seconds).collect()
    }

    /// The headers of an answer: `name: value`.
    pub(crate) fn headers(&self, question: &str) -> Vec<String> {
        let headers = self.ask(question).unwrap().response_headers_to_add;
        headers.into_iter().map(|header| format!("{}: {}", header.key, header.value)).collect()
    }

    /// A series of the metrics page; `None` when it is not there.
    pub(crate) fn metric(&self, series: &str) -> Option<u64> {
        let page = self.server.page("/metrics").unwrap().body;
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(value.parse().unwrap())
    }

    /// Allowed, refused, shadow and blocked descriptors of a rule; `None` without such a series.
    pub(crate) fn counts(&self, domain: &str, rule: &str) -> Option<[u64; 4]> {
        let outcome = |outcome: &str| {
            self.metric(&format!(
                "chronosdb_decisions_total{{domain=\"{domain}\",outcome=\"{outcome}\",rule=\"{rule}\"}}"
            ))
        };
        Some([outcome("allowed")?, outcome("refused")?, outcome("shadow")?, outcome("blocked")?])
    }

    /// Whether asking this question is counted for that rule of the domain `domain`.
    #[track_caller]
    pub(crate) fn counted_as(&self, question: &str, domain: &str, rule: &str) {
        let before = self.counts(domain, rule).unwrap_or_default();
        self.ask(question).unwrap();
        let after = self.counts(domain, rule);
        let expected = [before[0] + 1, before[1], before[2], before[3]];
        assert_eq!(after, Some(expected), "{question} is not counted as {domain} {rule}");
    }

    /// What gRPC health checks say of a service.
    pub(crate) fn health(&self, service: &str) -> i32 {
        use tonic_health::pb::HealthCheckRequest;
        use tonic_health::pb::health_client::HealthClient;
        let target = format!("http://127.0.0.1:{}", self.server.grpc_port);
        self.runtime.block_on(async {
            let channel = Channel::from_shared(target).unwrap().connect().await.unwrap();
            let request = HealthCheckRequest { service: service.to_owned() };
            HealthClient::new(channel).check(request).await.unwrap().into_inner().status
        })
    }

    /// Asks many times at the same time; how many passed.
    pub(crate) fn ask_at_once(&self, times: usize, question: &str) -> usize {
        let calls = (0..times).map(|_| {
            let mut client = self.client.clone();
            let request = parse(question);
            async move { client.should_rate_limit(request).await.unwrap().into_inner() }
        });
        let answers = self.runtime.block_on(futures_util::future::join_all(calls));
        answers.iter().filter(|answer| answer.overall_code == 1).count()
    }

    /// Asks with any message.
    pub(crate) fn send(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        let mut request = tonic::Request::new(request);
        request.set_timeout(Duration::from_secs(20));
        let mut client = self.client.clone();
        let answer = self.runtime.block_on(client.should_rate_limit(request));
        answer.map(tonic::Response::into_inner)
    }
}

/// `domain | descriptor | descriptor`; nothing after the first bar is no descriptor.
pub(crate) fn parse(question: &str) -> RateLimitRequest {
    let (domain, descriptors) = question.split_once(" | ").unwrap_or((question, ""));
    let descriptors = descriptors.split(" | ").filter(|descriptor| !descriptor.is_empty());
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// `key=value > key=value`, then perhaps ` @10/DAY` for a limit that comes with the request, and
/// ` +3` or ` -3` for hits of its own (`+0` peeks).
fn descriptor(text: &str) -> RateLimitDescriptor {
    let mut words = text.rsplit(' ').peekable();
    let mut descriptor = RateLimitDescriptor::default();
    let mut length = text.len();
    while let Some(word) = words.next_if(|word| word.starts_with(['+', '-', '@'])) {
        length -= word.len() + 1;
        let (sign, rest) = word.split_at(1);
        if sign == "@" {
            let (requests, unit) = rest.split_once('/').unwrap();
            let unit = RateLimitUnit::from_str_name(unit).unwrap_or_default();
            descriptor.limit = Some(wire::RateLimitOverride {
                requests_per_unit: requests.parse().unwrap(),
                unit: unit.into(),
                unit_multiplier: None,
            });
        } else {
            descriptor.hits_addend = Some(UInt64Value { value: rest.parse().unwrap() });
            descriptor.is_negative_hits = sign == "-";
        }
    }
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        wire::Entry { key: key.into(), value: value.into() }
    };
    descriptor.entries = text[..length].split(" > ").map(entry).collect();
    descriptor
}

/// `OK | status | status`, or `INVALID_ARGUMENT message`.
fn answer(answer: Result<RateLimitResponse, tonic::Status>) -> String {
    match answer {
        Ok(response) => {
            let statuses = response.statuses.iter().map(|answer| format!(" | {}", status(answer)));
            format!("{}{}", code(response.overall_code), statuses.collect::<String>())
        }
        Err(error) if error.code() == Code::InvalidArgument => {
            format!("INVALID_ARGUMENT {}", error.message())
        }
        Err(error) => format!("{:?} {}", error.code(), error.message()),
    }
}

/// `OK` with no limit, `OK unlimited`, or `OK 4 of 5/MINUTE`, with the rule's name if it has one.
fn status(status: &DescriptorStatus) -> String {
    let code = code(status.code);
    let Some(limit) = &status.current_limit else {
        let unlimited = status.limit_remaining == u32::MAX;
        return format!("{code}{}", if unlimited { " unlimited" } else { "" });
    };
    let unit = Unit::try_from(limit.unit).unwrap().as_str_name();
    let multiplier = limit.unit_multiplier.map_or(1, |multiplier| multiplier.value);
    let times = if multiplier == 1 { String::new() } else { format!("{multiplier}x") };
    let name = if limit.name.is_empty() { String::new() } else { format!(" {}", limit.name) };
    format!("{code} {} of {}/{times}{unit}{name}", status.limit_remaining, limit.requests_per_unit)
}

fn code(number: i32) -> &'static str {
    ["UNKNOWN", "OK", "OVER_LIMIT"][usize::try_from(number).unwrap()]
}
