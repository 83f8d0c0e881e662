//! Spans that leave the process: below the caller's own, whole, and never in anybody's way.

use chronosdb::api::pb::chronosdb::v1::CheckQuotaRequest;
use chronosdb::api::pb::chronosdb::v1::rate_limiter_client::RateLimiterClient;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::harness::collector::{Collector, Span};
use crate::harness::envoy::Envoy;
use crate::harness::redis::Redis;
use crate::harness::server::Server;
use crate::harness::wait_until;

const RULES: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { limit: 1000, window: 1h }
";

const CHECK_QUOTA: &str = "chronosdb.v1.RateLimiter/CheckQuota";
const SHOULD_RATE_LIMIT: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

fn settings(port: u16) -> String {
    format!("tracing: {{ otlp_endpoint: 'http://127.0.0.1:{port}', sample_ratio: 1 }}")
}

async fn client(server: &Server) -> RateLimiterClient<Channel> {
    RateLimiterClient::connect(format!("http://127.0.0.1:{}", server.grpc_port)).await.unwrap()
}

fn question(user: &str, traceparent: &str) -> Request<CheckQuotaRequest> {
    let mut request = Request::new(CheckQuotaRequest {
        user_id: user.into(),
        api_key: "k".into(),
        max_requests: 1_000_000,
        window_seconds: 1,
        hits: None,
    });
    if !traceparent.is_empty() {
        request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
    }
    request
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    found.map(|found| format!("{:?}", found.value)).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_continues_the_trace_of_its_caller() {
    let (collector, redis) = (Collector::start().await, Redis::start());
    let store =
        format!("store: {{ kind: redis, redis: {{ url: '{}', timeout: 1s }} }}", redis.url());
    let server = Server::start(RULES, &format!("{store}\n{}", settings(collector.port)));
    let mut client = client(&server).await;
    let trace =
        |number: u8| format!("00-4bf92f3577b34da6a3ce929d0e0e47{number:02x}-00f067aa0ba902b7");
    client.check_quota(question("unsampled", &format!("{}-00", trace(1)))).await.unwrap();
    let wrong = client.check_quota(question("", &format!("{}-01", trace(2)))).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    client.check_quota(question("secret-user", &format!("{}-01", trace(3)))).await.unwrap();

    wait_until("all have come", || collector.spans("chronosdb").len() >= 4);
    let spans = collector.spans("chronosdb");
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let named = |name: &str, trace: u8| {
        let is_it = |span: &&Span| span.name == name && span.trace_id.ends_with(&[trace]);
        spans.iter().find(is_it).unwrap_or_else(|| panic!("no {name} of {trace}: {spans:#?}"))
    };
    let failed = named(CHECK_QUOTA, 2);
    assert_eq!(failed.status.as_ref().unwrap().code, 2, "an error");
    assert!(attribute(failed, "rpc.grpc.status_code").contains('3'));
    let front = named(CHECK_QUOTA, 3);
    assert_eq!(hex(&front.trace_id), "4bf92f3577b34da6a3ce929d0e0e4703");
    assert_eq!(hex(&front.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(front.kind, 2, "a server's");
    assert!(attribute(front, "chronosdb.allowed").contains("true"), "{front:?}");
    for step in ["l1", "store"] {
        let step = named(step, 3);
        assert_eq!(step.parent_span_id, front.span_id);
        assert!(step.start_time_unix_nano >= front.start_time_unix_nano);
        assert!(step.end_time_unix_nano <= front.end_time_unix_nano);
    }
    assert!(!format!("{spans:?}").contains("secret-user"), "values are the caller's");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_spans_are_sent_at_the_end() {
    let collector = Collector::start().await;
    let mut server = Server::start(RULES, &settings(collector.port));
    let mut client = client(&server).await;
    client.check_quota(question("u", "")).await.unwrap();
    drop(client);
    assert!(server.terminate().success());
    let front = collector.span("chronosdb", CHECK_QUOTA);
    assert_eq!(hex(&front.parent_span_id), "", "it begins its own trace");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_a_real_envoy_is_continued() {
    let collector = Collector::start().await;
    let server = Server::start(RULES, &settings(collector.port).replace("ratio: 1", "ratio: 0"));
    let port = collector.port;
    let traced = |text: String| {
        let text = text.replace("timeout: 0.05s", "timeout: 5s").replace(
            "                stat_prefix: front\n",
            "                stat_prefix: front
                tracing:
                  provider:
                    name: envoy.tracers.opentelemetry
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                      grpc_service: { envoy_grpc: { cluster_name: collector } }
                      service_name: edge\n",
        );
        let collector = format!(
            "  clusters:
    - name: collector
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
      load_assignment:
        cluster_name: collector
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}] }}]\n"
        );
        text.replace("  clusters:\n", &collector)
    };
    let envoy = Envoy::start(server.grpc_port, traced);
    wait_until("Envoy finds the service healthy", || {
        envoy.stat("cluster.chronosdb.membership_healthy") == 1
    });
    assert_eq!(envoy.get(b"").status, 200);
    let front = collector.span("chronosdb", SHOULD_RATE_LIMIT);
    assert!(!front.parent_span_id.is_empty());
    let is_parent =
        |span: &Span| (&span.span_id, &span.trace_id) == (&front.parent_span_id, &front.trace_id);
    wait_until("Envoy tells about its own span above it", || {
        collector.spans("edge").iter().any(is_parent)
    });
    let steps: Vec<String> = ["match", "l1", "store"]
        .map(|name| hex(&collector.span("chronosdb", name).trace_id))
        .into();
    assert_eq!(steps, vec![hex(&front.trace_id); 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_gone_or_silent_harms_nobody() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    for port in [crate::harness::free_port(), silent.local_addr().unwrap().port()] {
        let mut server = Server::start(RULES, &settings(port));
        let client = client(&server).await;
        // Each call is three spans: more than may wait to be sent.
        for _ in 0..40 {
            let calls = (0..50).map(|_| {
                let mut client = client.clone();
                tokio::spawn(async move { client.check_quota(question("u", "")).await })
            });
            for call in calls.collect::<Vec<_>>() {
                assert!(call.await.unwrap().unwrap().into_inner().allowed);
            }
        }
        assert_eq!(server.page("/readyz").unwrap().status, 200);
        let lost = || server.metric("chronosdb_trace_spans_total{result=\"lost\"}");
        wait_until("what is lost is counted", || lost() > 0);
        let lines = server.log().matches("the collector takes no spans").count();
        assert_eq!(lines, 1, "{}", server.log());
        drop(client);
        assert!(server.terminate().success());
    }
}
