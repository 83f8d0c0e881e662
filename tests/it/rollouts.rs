//! Two instances that are restarted in turn, as a rollout does it, while a real Envoy asks them
//! without a pause: no client notices, at either of Envoy's doors.
//!
//! `CHRONOSDB_TEST_ROLLOUTS=10 tests/run rollouts` is the long form.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::harness::envoy::Envoy;
use crate::harness::redis::Redis;
use crate::harness::server::Server;
use crate::harness::wait_until;

const RULES: &str = "
domain: edge
descriptors:
  - { key: remote_address, rate_limit: { limit: 1000000, window: 1h } }
";

/// Requests that must come between two restarts, so that each is under load.
const LEAST_REQUESTS: usize = 100;

fn rollouts() -> usize {
    std::env::var("CHRONOSDB_TEST_ROLLOUTS").map_or(2, |times| times.parse().unwrap())
}

/// Restarts both instances in turn, again and again; nobody gets anything but 200.
fn roll(envoy: &Envoy, instances: &mut [Server; 2]) {
    envoy.wait_for_instances(2);
    let (done, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = || {
        let mut failed = Vec::new();
        while !done.load(Ordering::Relaxed) {
            let answer = envoy.get(b"");
            requests.fetch_add(1, Ordering::Relaxed);
            if answer.status != 200 {
                failed.push(answer);
            }
        }
        failed
    };
    let wait_for_load = || {
        let before = requests.load(Ordering::Relaxed);
        wait_until("requests come", || requests.load(Ordering::Relaxed) > before + LEAST_REQUESTS);
    };
    std::thread::scope(|scope| {
        let loads = [(); 3].map(|()| scope.spawn(load));
        for _ in 0..rollouts() {
            for instance in &mut *instances {
                wait_for_load();
                instance.restart();
                envoy.wait_for_instances(2);
            }
        }
        wait_for_load();
        done.store(true, Ordering::Relaxed);
        for load in loads {
            let failed = load.join().unwrap();
            assert!(failed.is_empty(), "{} failed, such as {:?}", failed.len(), failed[0]);
        }
    });
    let counted: u64 = instances.iter().map(allowed).sum();
    assert!(counted > 0, "nobody was asked");
}

/// Requests that an instance has let pass since its last start.
fn allowed(server: &Server) -> u64 {
    let page = server.page("/metrics").unwrap().body;
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("requests_allowed_total{api_key=\"edge\"} "));
    line.map_or(0, |count| count.parse().unwrap())
}

fn instances(redis: &Redis) -> [Server; 2] {
    let settings = format!(
        "store: {{ kind: redis, redis: {{ url: '{}', timeout: 1s }} }}
drain: {{ delay: 2s, timeout: 20s }}
ext_authz: {{ domain: edge, descriptors: [{{ entries: [{{ key: remote_address, from: remote_address }}] }}] }}",
        redis.url()
    );
    [(); 2].map(|()| Server::start(RULES, &settings))
}

/// Failures of the service are to show, and pauses of this machine are not.
fn strict(text: String, other_port: u16) -> String {
    text.replace("timeout: 0.05s", "timeout: 5s")
        .replace("failure_mode_deny: false", "failure_mode_deny: true")
        .replace("port_value: 50052 ", &format!("port_value: {other_port} "))
}

#[test]
fn nobody_notices_at_the_ratelimit_filter() {
    let redis = Redis::start();
    let mut instances = instances(&redis);
    let [one, other] = instances.each_ref().map(|instance| instance.grpc_port);
    let envoy = Envoy::start_sample("pair.yaml", one, |text| strict(text, other));
    roll(&envoy, &mut instances);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 0);
}

/// After a crash Envoy leaves the instance out by itself, and with nobody left it does not try.
#[test]
fn a_crash_is_noticed_and_nobody_waits_for_the_dead() {
    let redis = Redis::start();
    let instances = instances(&redis);
    let [one, other] = instances.each_ref().map(|instance| instance.grpc_port);
    let envoy = Envoy::start_sample("pair.yaml", one, |text| strict(text, other));
    envoy.wait_for_instances(2);
    instances[0].signal("KILL");
    wait_until("Envoy leaves it out", || {
        // Either may be first: the call that failed, or the health check.
        envoy.get(b"");
        envoy.stat("cluster.chronosdb.membership_healthy") == 1
    });
    let statuses: Vec<u16> = (0..LEAST_REQUESTS).map(|_| envoy.get(b"").status).collect();
    assert_eq!(statuses, [200; LEAST_REQUESTS]);
    instances[1].signal("KILL");
    envoy.wait_for_instances(0);
    assert_eq!([(); 2].map(|()| envoy.get(b"").status), [500; 2]);
    assert_eq!(envoy.stat("cluster.chronosdb.lb_healthy_panic"), 0, "Envoy asks the dead");
}

#[test]
fn nobody_notices_at_the_ext_authz_filter() {
    let redis = Redis::start();
    let mut instances = instances(&redis);
    let [one, other] = instances.each_ref().map(|instance| instance.grpc_port);
    let both = |text: String| {
        let place = format!("port_value: {one} ");
        let line = text.lines().find(|line| line.contains(&place)).unwrap().to_owned();
        let second = line.replace(&place, "port_value: 50052 ");
        strict(text.replace(&line, &format!("{line}\n{second}")), other)
    };
    let envoy = Envoy::start_sample("ext_authz.yaml", one, both);
    roll(&envoy, &mut instances);
    assert_eq!(envoy.stat("http.front.ext_authz.error"), 0);
}
