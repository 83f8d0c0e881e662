//! What our server is measured against: the same framework in the same runtimes with an empty
//! handler, or with one that runs the naive script; and PING, the cheapest way to Redis and back.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chronosdb::api::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use chronosdb::api::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use chronosdb::api::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hdrhistogram::Histogram;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status};

use super::harness::redis::NAIVE;
use super::pace;

/// What the naive script is asked for: the same as the rule for `user`.
const LIMIT: u64 = 1_000_000;
const WINDOW_US: u64 = 60_000_000;

/// The limit of what is mostly refused: the same as the rule for `slow`.
const SLOW_LIMIT: u64 = 5;
const SLOW_WINDOW_US: u64 = 3_600_000_000;

/// Serves until it is killed; with a Redis it runs the naive script, without it says yes.
pub(crate) fn serve(port: u16, redis_port: Option<u16>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port is free");
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let inboxes: Vec<_> = (0..workers).map(|_| worker(redis_port)).collect();
    for inbox in inboxes.iter().cycle() {
        let (stream, _) = listener.accept().expect("loopback connections are accepted");
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).expect("it is TCP");
        let _ = inbox.send(stream);
    }
}

fn worker(redis_port: Option<u16>) -> mpsc::UnboundedSender<std::net::TcpStream> {
    let (inbox, accepted) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let redis = match redis_port {
                Some(port) => Some(Naive::connect(port).await),
                None => None,
            };
            let connections =
                UnboundedReceiverStream::new(accepted).map(tokio::net::TcpStream::from_std);
            tonic::transport::Server::builder()
                .max_concurrent_streams(Some(4096))
                .add_service(RateLimitServiceServer::new(StandIn { redis }))
                .serve_with_incoming(connections)
                .await
        })
    });
    inbox
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts")
}

struct StandIn {
    redis: Option<Naive>,
}

#[tonic::async_trait]
impl RateLimitService for StandIn {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let allowed = match &self.redis {
            Some(redis) => redis.ask(request.get_ref()).await?,
            None => true,
        };
        let code = if allowed { Code::Ok } else { Code::OverLimit }.into();
        let status = DescriptorStatus { code, ..Default::default() };
        Ok(Response::new(RateLimitResponse {
            overall_code: code,
            statuses: vec![status],
            ..Default::default()
        }))
    }
}

/// The naive script over one pipelining connection.
struct Naive {
    connection: MultiplexedConnection,
    sha: String,
    calls: AtomicU64,
}

impl Naive {
    async fn connect(port: u16) -> Self {
        let mut connection = connection(port).await;
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(NAIVE).to_owned();
        let sha = load.query_async(&mut connection).await.expect("Redis takes the script");
        Self { connection, sha, calls: AtomicU64::new(0) }
    }

    async fn ask(&self, request: &RateLimitRequest) -> Result<bool, Status> {
        let entry = request.descriptors.first().and_then(|descriptor| descriptor.entries.last());
        let entry = entry.ok_or_else(|| Status::invalid_argument("no entry"))?;
        let (limit, window_us) = match &entry.key[..] {
            b"slow" => (SLOW_LIMIT, SLOW_WINDOW_US),
            _ => (LIMIT, WINDOW_US),
        };
        let unique = (std::process::id() as u64) << 32 | self.calls.fetch_add(1, Ordering::Relaxed);
        let key = [b"naive:", &entry.key[..], b":", &entry.value].concat();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(key).arg(limit).arg(window_us).arg(unique);
        let answer = command.query_async::<(i64, i64)>(&mut self.connection.clone()).await;
        let (granted, _) = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(granted == 1)
    }
}

async fn connection(port: u16) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("it is a URL");
    client.get_multiplexed_async_connection().await.expect("Redis listens")
}

/// Round trips of PING at a fixed rate: how long they took, in µs.
pub(crate) fn ping(redis_port: u16, per_second: f64, duration: Duration) -> Histogram<u64> {
    let mut took_us =
        Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are sound");
    runtime().block_on(async {
        let connection = connection(redis_port).await;
        let mut moments = pace::evenly(per_second, duration);
        let mut under_way = FuturesUnordered::new();
        let mut is_open = true;
        while is_open || !under_way.is_empty() {
            tokio::select! {
                due = moments.recv(), if is_open => match due {
                    Some(due) => {
                        let mut connection = connection.clone();
                        under_way.push(async move {
                            let pong = redis::cmd("PING").query_async::<()>(&mut connection).await;
                            pong.map(|()| due)
                        });
                    }
                    None => is_open = false,
                },
                Some(pong) = under_way.next(), if !under_way.is_empty() => {
                    let due: Instant = pong.expect("Redis answers");
                    took_us.saturating_record(u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX));
                }
            }
        }
    });
    took_us
}
