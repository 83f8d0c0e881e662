//! A real Envoy asks through its ext_authz filter: what clients get, and what they cannot do
//! about their limits.

use std::time::Duration;

use chronosdb::api::client::{Client, Question};

use crate::harness::envoy::Envoy;
use crate::harness::http::Response;
use crate::harness::redis::Redis;
use crate::harness::server::{self, Server};
use crate::harness::upstream::Upstream;
use crate::harness::{http, wait_until};

/// Limits of an hour, so that no test can see a window end.
const RULES: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { limit: 3, window: 1h }
  - key: user
    rate_limit: { limit: 2, window: 1h, name: per-user }
  - key: path
    value: /login
    rate_limit: { limit: 2, window: 1h }
";

/// Settings with these entries, a descriptor each, and what else they say.
fn settings(entries: &[&str], more: &str) -> String {
    let descriptors: Vec<String> =
        entries.iter().map(|entry| format!("{{ entries: [{entry}] }}")).collect();
    format!("ext_authz: {{ domain: edge, descriptors: [{}], {more} }}\n", descriptors.join(", "))
}

const ADDRESS: &str = "{ key: remote_address, from: remote_address }";
const USER: &str = "{ key: user, from: { header: x-user }, default: nobody }";
const PATH: &str = "{ key: path, from: path, case: lower }";

/// A server, and an Envoy that asks it.
struct Door {
    envoy: Envoy,
    server: Server,
}

impl Door {
    fn open(settings: &str) -> Self {
        Self::open_with(settings, |text| text)
    }

    /// `change` edits the bootstrap.
    fn open_with(settings: &str, change: impl FnOnce(String) -> String) -> Self {
        let server = Server::start(RULES, settings);
        let patient = |text: String| change(text.replace("timeout: 0.05s", "timeout: 5s"));
        let envoy = Envoy::start_sample("ext_authz.yaml", server.grpc_port, patient);
        envoy.wait_for_instances(1);
        Self { envoy, server }
    }

    fn ask(&self, method: &str, path: &str, headers: &[u8]) -> Response {
        http::request(self.envoy.port, method, path, headers, "").unwrap()
    }

    /// The status of a request for each of these raw header lines.
    fn statuses<H: AsRef<[u8]>>(&self, headers: &[H]) -> Vec<u16> {
        headers.iter().map(|lines| self.ask("GET", "/", lines.as_ref()).status).collect()
    }
}

/// A text in the place of another one that the sample must have.
fn with(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the sample has no {from:?}");
    text.replace(from, to)
}

#[test]
fn a_refused_client_gets_a_429_that_says_all() {
    let style = "headers: { style: ietf }\n";
    let door = Door::open(&(style.to_owned() + &settings(&[USER], "")));
    let passed = door.ask("GET", "/", b"x-user: ann\r\n");
    assert_eq!((passed.status, passed.body.as_str()), (200, "hello\n"));
    assert_eq!(passed.header("ratelimit-policy"), Some("\"per-user\";q=2;w=3600"));
    assert!(passed.header("ratelimit").unwrap().starts_with("\"per-user\";r=1;t="));
    assert_eq!(door.statuses(&["x-user: ann\r\n"]), [200]);
    let refused = door.ask("GET", "/", b"x-user: ann\r\n");
    assert_eq!(refused.status, 429);
    let wait_s: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((3_590..=3_600).contains(&wait_s), "{wait_s} s");
    assert_eq!(refused.header("ratelimit"), Some(&*format!("\"per-user\";r=0;t={wait_s}")));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(problem["violated-policies"][0], "per-user");
    assert_eq!(door.envoy.stat("http.front.ext_authz.denied"), 1);
    assert_eq!(door.statuses(&["x-user: bob\r\n"]), [200], "another user has a quota of its own");
    let head = door.ask("HEAD", "/", b"x-user: ann\r\n");
    assert_eq!((head.status, head.body.as_str()), (429, ""));
    assert!(head.header("retry-after").is_some());
}

#[test]
fn nobody_chooses_their_own_address() {
    let spoofed = |last: &str| {
        (0..5).map(|n| format!("x-forwarded-for: 1.2.3.{n}, {last}\r\n")).collect::<Vec<_>>()
    };
    let connection = Door::open(&settings(&[ADDRESS], ""));
    assert_eq!(connection.statuses(&spoofed("203.0.113.9")), [200, 200, 200, 429, 429]);
    // The Envoy of the sample appends the address of its peer, here the load balancer, so the
    // entry that the load balancer wrote is the second from the right.
    let forwarded = Door::open(&settings(&[ADDRESS], "trusted_hops: 2"));
    assert_eq!(forwarded.statuses(&spoofed("203.0.113.9")), [200, 200, 200, 429, 429]);
    assert_eq!(forwarded.statuses(&spoofed("203.0.113.10")), [200, 200, 200, 429, 429]);
    // Who comes past the load balancer has the address of its connection.
    assert_eq!(forwarded.statuses(&[""; 4]), [200, 200, 200, 429]);
    // An Envoy that leaves the header as it is: the first from the right.
    let untouched = Door::open_with(&settings(&[ADDRESS], "trusted_hops: 1"), |text| {
        with(&text, "use_remote_address: true", "use_remote_address: false")
    });
    assert_eq!(untouched.statuses(&spoofed("203.0.113.9")), [200, 200, 200, 429, 429]);
}

#[test]
fn a_path_is_one_path_however_it_is_written() {
    let door = Door::open(&settings(&[PATH], ""));
    let paths = ["/login?x=1", "/Login/?x=2", "/%6Cogin", "//login", "/a/../login", "/login#x"];
    let statuses: Vec<u16> = paths.iter().map(|path| door.ask("GET", path, b"").status).collect();
    // Envoy itself refuses a fragment.
    assert_eq!(statuses, [200, 200, 429, 429, 429, 400]);
    assert_eq!(door.ask("GET", "/other", b"").status, 200, "no rule, no limit");
    assert_eq!(door.ask("DELETE", "/login", b"").status, 429);
}

#[test]
fn to_leave_a_header_out_is_no_way_around() {
    let door = Door::open(&settings(&[USER], ""));
    assert_eq!(door.statuses(&["", "x-user:\r\n", "x-user: nobody\r\n"]), [200, 200, 429]);
    assert_eq!(door.envoy.stat("http.front.ext_authz.failure_mode_allowed"), 0);
}

#[test]
fn any_byte_is_a_byte() {
    let odd: [&[u8]; 4] = [
        b"x-user: a\xff\xfeb\r\n",
        b"x-user: a\xff\xfeb\r\n",
        b"x-user: a\xff\xfeb\r\n",
        b"x-user: a\xfe\xfeb\r\n",
    ];
    let raw = Door::open(&settings(&[USER], ""));
    assert_eq!(raw.statuses(&odd), [200, 200, 429, 200]);
    // As text Envoy puts the same in the place of every odd byte: one user, and still limited.
    let text = Door::open_with(&settings(&[USER], ""), |text| {
        with(&text, "encode_raw_headers: true", "encode_raw_headers: false")
    });
    assert_eq!(text.statuses(&odd), [200, 200, 429, 429]);
    let many = [b"x-other: \xff\r\nx-user: c\r\n".as_slice(); 3];
    assert_eq!(raw.statuses(&many), [200, 200, 429], "an odd header that nobody reads");
}

#[test]
fn a_very_long_header_is_a_user_like_any_other() {
    let room = "\n                max_request_headers_kb: 96";
    let door = Door::open_with(&settings(&[USER], ""), |text| {
        let text = with(&text, "stat_prefix: front", &format!("stat_prefix: front{room}"));
        with(&text, "stat_prefix: upstream", &format!("stat_prefix: upstream{room}"))
    });
    let long = |last: &str| format!("x-user: {}{last}\r\n", "u".repeat(64 * 1024));
    let users = [long("a"), long("a"), long("a"), long("b")];
    assert_eq!(door.statuses(&users), [200, 200, 429, 200]);
    // Beyond what Envoy takes, nobody is asked.
    let too_long = format!("x-user: {}\r\n", "u".repeat(128 * 1024));
    assert_eq!(door.statuses(&[too_long]), [431]);
}

#[test]
fn bodies_change_nothing() {
    let with_body = |partial: bool| {
        move |text: String| {
            let body = format!(
                "with_request_body: {{ max_request_bytes: 16, allow_partial_message: {partial}, pack_as_bytes: {partial} }}"
            );
            let place = "transport_api_version: V3\n";
            with(&text, place, &format!("{place}                      {body}\n"))
        }
    };
    let post = |door: &Door, bytes: usize| {
        let (headers, body) = (b"x-user: ann\r\n", "\u{e9}".repeat(bytes / 2));
        http::request(door.envoy.port, "POST", "/", headers, &body).unwrap().status
    };
    let partial = Door::open_with(&settings(&[USER], ""), with_body(true));
    assert_eq!([8, 100_000, 17].map(|bytes| post(&partial, bytes)), [200, 200, 429]);
    let whole = Door::open_with(&settings(&[USER], ""), with_body(false));
    assert_eq!([8, 100, 8, 8].map(|bytes| post(&whole, bytes)), [200, 413, 200, 429]);
}

#[test]
fn a_websocket_is_refused_before_it_opens() {
    let upstream = Upstream::start();
    let door = Door::open_with(&settings(&[USER], ""), |text| upstream.stand_behind(&text));
    let upgrade = b"x-user: ann\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for _ in 0..2 {
        let mut socket = http::upgrade(door.envoy.port, upgrade).unwrap();
        assert_eq!(socket.status, 101);
        assert_eq!(socket.echo(b"ping"), b"ping");
    }
    let refused = http::upgrade(door.envoy.port, upgrade).unwrap();
    assert_eq!(refused.status, 429);
    assert_eq!(upstream.requests(), 2, "the third never got there");
}

#[tokio::test]
async fn a_grpc_client_hears_resource_exhausted() {
    // The service behind Envoy is a ChronosDB, since it speaks gRPC; it is not the one asked.
    let behind = Server::start(RULES, "");
    let door = Door::open_with(&settings(&[USER], ""), |text| {
        Upstream::behind(&text, behind.grpc_port, "http2_protocol_options: {}")
    });
    let target = format!("127.0.0.1:{}", door.envoy.port);
    let mut client = Client::connect(&target, Duration::from_secs(5)).await.unwrap();
    let (user_id, api_key) = ("u".to_owned(), "k".to_owned());
    let question =
        Question::Quota { user_id, api_key, max_requests: 9, window_seconds: 3600, hits: 1 };
    assert!(client.ask(&question).await.unwrap().allowed);
    assert!(client.ask(&question).await.unwrap().allowed);
    let error = client.ask(&question).await.unwrap_err();
    assert!(error.contains("ResourceExhausted: over the limit: retry after "), "{error}");
}

#[test]
fn our_own_failure_is_never_the_clients_fault() {
    let mut redis = Redis::start();
    let store = |more: &str| {
        format!(
            "store: {{ kind: redis, {more} redis: {{ url: '{}', timeout: 1s }} }}\n",
            redis.url()
        ) + "l1: { enabled: false }\n"
    };
    // Envoy is not to notice by itself that an instance is not ready.
    let blind = |text: String| with(&text, "interval: 0.5s", "interval: 600s");
    let closed = Door::open_with(&(store("") + &settings(&[USER], "")), blind);
    let status = store("") + &settings(&[USER], "on_error: grpc_status");
    let status = Door::open_with(&status, blind);
    let fail_open = Door::open_with(&(store("") + &settings(&[USER], "")), |text| {
        let text = blind(text);
        let text = with(&text, "failure_mode_allow: false", "failure_mode_allow: true");
        seen(&text, "x-envoy-auth-failure-mode-allowed")
    });
    let by_policy = Door::open(&(store("on_error: allow,") + &settings(&[USER], "")));
    assert_eq!(closed.ask("GET", "/", b"").status, 200);
    redis.kill();
    let answer = closed.ask("GET", "/", b"");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert!(answer.body.contains("nobody can decide") && !answer.body.contains("127.0.0.1"));
    assert_eq!(closed.envoy.stat("http.front.ext_authz.error"), 1);
    assert_eq!(closed.envoy.stat("http.front.ext_authz.denied"), 0);
    let page = closed.server.page("/metrics").unwrap().body;
    let counted = "chronosdb_grpc_errors_total{code=\"Unavailable\",method=\"Check\"} 1";
    assert!(page.contains(counted), "{page}");
    assert_eq!(status.ask("GET", "/", b"").status, 503, "what status_on_error says");
    let answer = fail_open.ask("GET", "/", b"");
    assert_eq!((answer.status, answer.header("x-seen")), (200, Some("true")));
    let answer = by_policy.ask("GET", "/", b"");
    assert_eq!((answer.status, answer.header("x-chronosdb-source")), (200, Some("fallback")));
}

/// Tells the client what the service behind Envoy has seen of a request header.
fn seen(text: &str, header: &str) -> String {
    let place = "body: { inline_string: \"hello\\n\" } }\n";
    let text = with(
        text,
        place,
        &format!(
            "{place}                          response_headers_to_add: [{{ header: {{ key: x-seen, value: '%REQ({header})%' }} }}]\n"
        ),
    );
    let place = "failure_mode_allow: ";
    with(
        &text,
        place,
        &format!("failure_mode_allow_header_add: true\n                      {place}"),
    )
}

#[test]
fn the_service_behind_learns_what_was_decided() {
    let more = "upstream_headers: [{ name: x-left, value: remaining }], dynamic_metadata: true";
    let door = Door::open_with(&settings(&[USER], more), |text| {
        let log = "response_headers_to_add: [{ header: { key: x-log, value: '%DYNAMIC_METADATA(envoy.filters.http.ext_authz:domain)%' } }]";
        let route = "route: { cluster: upstream }\n";
        seen(&with(&text, route, &format!("{route}                          {log}\n")), "x-left")
    });
    assert_eq!(door.ask("GET", "/", b"x-user: log\r\n").header("x-log"), Some("edge"));
    let left = |headers: &[u8]| door.ask("GET", "/", headers).header("x-seen").map(str::to_owned);
    assert_eq!(left(b"x-user: ann\r\nx-left: 99\r\n").as_deref(), Some("1"));
    // Nothing is limited, so there is nothing to say: the client's own must not get through.
    let free = Door::open_with(&settings(&["{ key: none, from: path }"], more), |text| {
        seen(&text, "x-left")
    });
    let answer = free.ask("GET", "/", b"x-left: 99\r\n");
    assert_eq!((answer.status, answer.header("x-seen")), (200, None));
}

#[test]
fn routes_and_filters_of_envoy_tell_what_they_know() {
    let entries = [
        "{ key: user, from: { context_extension: plan } }",
        "{ key: user, from: { metadata: { filter: envoy.filters.http.jwt_authn, path: [payload, sub] } } }",
    ];
    let extensions = "
                      typed_per_filter_config:
                        envoy.filters.http.ext_authz:
                          \"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute
                          check_settings: { context_extensions: { plan: gold } }
                      routes:
";
    // In the place of a filter that checks tokens: it writes what such a filter would.
    let lua = "http_filters:
                  - name: envoy.filters.http.lua
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
                      default_source_code:
                        inline_string: |
                          function envoy_on_request(handle)
                            local sub = handle:headers():get('x-sub')
                            handle:streamInfo():dynamicMetadata():set('envoy.filters.http.jwt_authn', 'payload', { sub = sub })
                          end
                  - name: envoy.filters.http.ext_authz";
    let headers: [&[u8]; 2] = [b"", b"x-sub: a\xff\xfe\r\n"];
    for (entry, headers) in entries.iter().zip(headers) {
        let door = Door::open_with(&settings(&[entry], ""), |text| {
            let text = with(
                &text,
                "http_filters:\n                  - name: envoy.filters.http.ext_authz",
                lua,
            );
            text.replacen("\n                      routes:\n", extensions, 1)
        });
        assert_eq!(door.statuses(&[headers; 3]), [200, 200, 429], "{entry}");
        let page = door.server.page("/metrics").unwrap().body;
        let refused =
            "chronosdb_decisions_total{domain=\"edge\",outcome=\"refused\",rule=\"user\"} 1";
        assert!(page.contains(refused), "{entry}");
    }
}

#[tokio::test]
async fn three_doors_one_counter() {
    let rules = "\
domain: edge
descriptors:
  - key: api_key
    descriptors:
      - key: user_id
        rate_limit: { limit: 3, window: 1h }
        identity: { api_key: '{api_key}', user_id: '{user_id}' }
";
    let entries = "{ key: api_key, from: { header: x-api-key } }, { key: user_id, from: { header: x-user-id } }";
    let server = Server::start(rules, &settings(&[entries], ""));
    let patient = |text: String| text.replace("timeout: 0.05s", "timeout: 5s");
    let doors = ["ratelimit.yaml", "ext_authz.yaml"];
    let doors = doors.map(|name| Envoy::start_sample(name, server.grpc_port, patient));
    doors.iter().for_each(|envoy| envoy.wait_for_instances(1));
    let target = format!("127.0.0.1:{}", server.grpc_port);
    let mut client = Client::connect(&target, Duration::from_secs(5)).await.unwrap();
    let (user_id, api_key) = ("bob".to_owned(), "free".to_owned());
    let quota =
        Question::Quota { user_id, api_key, max_requests: 3, window_seconds: 3600, hits: 1 };
    let bob = b"x-api-key: free\r\nx-user-id: bob\r\n";
    let first = client.ask(&quota).await.unwrap();
    assert_eq!((first.allowed, first.remaining), (true, Some(2)));
    let statuses = doors.each_ref().map(|envoy| envoy.get(bob).status);
    assert_eq!(statuses, [200, 200]);
    let statuses = doors.each_ref().map(|envoy| envoy.get(bob).status);
    assert_eq!(statuses, [429, 429]);
    assert!(!client.ask(&quota).await.unwrap().allowed);
    let ann = b"x-api-key: free\r\nx-user-id: ann\r\n";
    assert_eq!(doors.each_ref().map(|envoy| envoy.get(ann).status), [200, 200]);
}

#[test]
fn a_door_that_is_not_set_up_says_what_to_do() {
    let door = Door::open_with("", |text| text);
    let service = "envoy.service.auth.v3.Authorization";
    assert_eq!(health(&door.server, service), 1);
    let open = Server::start(RULES, &settings(&[USER], ""));
    wait_until("the open door is ready", || health(&open, service) == 0);
    assert_eq!(door.ask("GET", "/", b"").status, 503);
    wait_until("it is counted", || {
        let page = door.server.page("/metrics").unwrap().body;
        page.contains("chronosdb_grpc_errors_total{code=\"FailedPrecondition\",method=\"Check\"} 1")
    });
}

/// How a probe ends that asks about a service: 0 when it is ready.
fn health(server: &Server, service: &str) -> i32 {
    let target = format!("127.0.0.1:{}", server.grpc_port);
    let arguments = ["healthcheck", "--target", &target, "--service", service];
    server::run(std::path::Path::new("."), &arguments).code
}
