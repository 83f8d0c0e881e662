//! A real Envoy that asks under load, while rules change and instances go away; and the callers
//! that get no answer, each with a reason that can be acted on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chronosdb::api::client::{Client, Question};
use chronosdb::check::Entry;

use crate::harness::envoy::Envoy;
use crate::harness::redis::Redis;
use crate::harness::server::{self, Server};
use crate::harness::{free_port, wait_until};

const PLENTY: &str = "
domain: edge
descriptors:
  - { key: remote_address, rate_limit: { limit: 1000000, window: 1s } }
";

fn patient(text: String) -> String {
    text.replace("timeout: 0.05s", "timeout: 5s")
        .replace("failure_mode_deny: false", "failure_mode_deny: true")
}

fn healthy(envoy: &Envoy, instances: u64) {
    wait_until("Envoy finds the instances healthy", || {
        envoy.stat("cluster.chronosdb.membership_healthy") == instances
    });
}

/// Requests without a pause until `done`; how often each status came.
fn load(envoy: &Envoy, done: &AtomicBool) -> Vec<u16> {
    let mut statuses = Vec::new();
    while !done.load(Ordering::Relaxed) {
        statuses.push(envoy.get(b"").status);
    }
    statuses
}

#[test]
fn who_waits_as_told_passes() {
    let rules = PLENTY.replace("1000000", "2");
    let server = Server::start(&rules, "");
    let envoy = Envoy::start(server.grpc_port, patient);
    healthy(&envoy, 1);
    let burst: Vec<_> = (0..6).map(|_| envoy.get(b"")).collect();
    let statuses: Vec<u16> = burst.iter().map(|response| response.status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    let retry_after_s: u64 = burst[5].header("retry-after").unwrap().parse().unwrap();
    let until = Instant::now() + Duration::from_secs(retry_after_s);
    wait_until("the wait is over", || Instant::now() >= until);
    assert_eq!(envoy.get(b"").status, 200);
}

#[test]
fn rules_change_under_load_and_no_request_fails() {
    let server = Server::start(PLENTY, "");
    let envoy = Envoy::start(server.grpc_port, patient);
    healthy(&envoy, 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads = [(); 2].map(|()| scope.spawn(|| load(&envoy, &done)));
        for _ in 0..5 {
            server.change_rules(&PLENTY.replace("1000000", "0"));
            wait_until("the ban applies", || envoy.get(b"").status == 429);
            server.change_rules(PLENTY);
            wait_until("the ban is lifted", || envoy.get(b"").status == 200);
        }
        done.store(true, Ordering::Relaxed);
        for load in loads {
            let statuses = load.join().unwrap();
            assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
        }
    });
}

#[test]
fn an_instance_leaves_under_load_and_no_request_fails() {
    let settings = "drain: { delay: 2s, timeout: 5s }";
    let mut leaving = Server::start(PLENTY, settings);
    let staying = Server::start(PLENTY, settings);
    let second = format!("port_value: {} }}", leaving.grpc_port);
    let both = |text: String| {
        let line = text.lines().find(|line| line.contains(&second)).unwrap().to_owned();
        let other = line.replace(&leaving.grpc_port.to_string(), &staying.grpc_port.to_string());
        patient(text.replace(&line, &format!("{line}\n{other}")))
    };
    let envoy = Envoy::start(leaving.grpc_port, both);
    healthy(&envoy, 2);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads = [(); 2].map(|()| scope.spawn(|| load(&envoy, &done)));
        assert!(leaving.terminate().success());
        let gone = Instant::now();
        wait_until("some time without it", || gone.elapsed() > Duration::from_secs(1));
        done.store(true, Ordering::Relaxed);
        for load in loads {
            let statuses = load.join().unwrap();
            assert!(statuses.len() > 100, "only {} requests", statuses.len());
            assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        }
    });
}

#[test]
fn a_bad_authority_is_noticed() {
    let server = Server::start(PLENTY, "");
    let envoy = Envoy::start(server.grpc_port, |text| {
        patient(text).replace(
            "                            authority: chronosdb",
            "                            authority: 'outbound|50051||chronosdb'",
        )
    });
    healthy(&envoy, 1);
    assert_eq!(envoy.get(b"").status, 500, "nothing decides, so the filter's failure mode does");
    wait_until("the counter says so", || {
        let page = server.page("/metrics").unwrap().body;
        page.lines().any(|line| line == "chronosdb_bad_authority_total 1")
    });
}

#[tokio::test]
async fn a_bad_question_names_the_field() {
    let server = Server::start(PLENTY, "");
    let target = format!("127.0.0.1:{}", server.grpc_port);
    let mut client = Client::connect(&target, Duration::from_secs(5)).await.unwrap();
    let quota = |user_id: &str, api_key: &str, max_requests, window_seconds| Question::Quota {
        user_id: user_id.into(),
        api_key: api_key.into(),
        max_requests,
        window_seconds,
        hits: 1,
    };
    let asked = |domain: &str, descriptors| Question::Descriptors {
        domain: domain.into(),
        descriptors,
        hits: 1,
    };
    let entry = || vec![Entry::new("k", b"\xff\xfe".to_vec())];
    let table = [
        (quota("", "k", 1, 1), "user_id"),
        (quota("u", "", 1, 1), "api_key"),
        (quota("u", "k", -1, 1), "max_requests"),
        (quota("u", "k", 1, -1), "window_seconds"),
        (asked("", vec![entry()]), "domain"),
        (asked("edge", vec![]), "descriptors"),
        (asked("edge", vec![vec![]]), "entries"),
    ];
    for (question, field) in table {
        let error = client.ask(&question).await.unwrap_err();
        assert!(error.contains("InvalidArgument") && error.contains(field), "{error}");
    }
    assert!(client.ask(&asked("edge", vec![entry()])).await.unwrap().allowed);
    for service in ["", "chronosdb.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert!(client.is_serving(service).await.unwrap(), "{service}");
    }
}

/// Random bytes on either port end that connection at most.
#[test]
fn noise_harms_nobody() {
    use std::io::{Read as _, Write as _};

    let server = Server::start(PLENTY, "");
    let mut random = crate::harness::random::Random::new(7);
    for round in 0..200 {
        let port = if round % 2 == 0 { server.grpc_port } else { server.http_port };
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut noise = Vec::new();
        if round % 4 == 0 {
            noise.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        }
        let length = random.within(1, 400);
        noise.extend((0..length).map(|_| random.next().to_le_bytes()[0]));
        let _ = stream.write_all(&noise);
        let _ = stream.read(&mut [0; 1024]);
    }
    assert_eq!(server.ask("edge", "remote_address", "10.0.0.1").status, 200);
}

#[test]
fn what_cannot_start_says_why() {
    let folder = tempfile::TempDir::new().unwrap();
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = format!("127.0.0.1:{}", free_port());
    let table: [(&[&str], &str); 4] = [
        (&["--grpc-listen", &taken, "--http-listen", &free], "grpc.listen"),
        (&["--config", "missing.yaml"], "missing.yaml cannot be read: No such file"),
        (&["--redis", "http://nowhere", "--print-config"], "kind: redis"),
        (
            &["--redis", "nonsense", "--grpc-listen", &free, "--http-listen", "127.0.0.1:0"],
            "store.redis.url",
        ),
    ];
    for (arguments, expected) in table {
        let output = server::run(folder.path(), &[&["serve"], arguments].concat());
        assert!(output.text.contains(expected), "{arguments:?}: {}", output.text);
        let code = if arguments.contains(&"--print-config") { 0 } else { 2 };
        assert_eq!(output.code, code, "{arguments:?}: {}", output.text);
    }
}

#[test]
fn without_redis_it_waits_and_becomes_ready_by_itself() {
    let mut redis = Redis::start();
    redis.kill();
    let settings = format!("store: {{ kind: redis, redis: {{ url: '{}' }} }}", redis.url());
    let server = Server::launch(PLENTY, &settings);
    assert_eq!(server.page("/livez").unwrap().status, 200);
    let page = server.page("/readyz").unwrap();
    assert_eq!(page.status, 503);
    assert!(page.body.contains("store: "), "{}", page.body);
    redis.restart();
    wait_until("it is ready", || server.page("/readyz").unwrap().status == 200);
    assert_eq!(server.ask("edge", "remote_address", "10.0.0.1").status, 200);
}
