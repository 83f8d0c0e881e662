//! A long outage costs nothing but the answers: no memory, no connections, no traffic. Each bound
//! is stated here; `CHRONOSDB_TEST_LONG=1` makes it a minute and prints what callers waited.

use std::time::{Duration, Instant};

use chronosdb::store::StoreError;
use chronosdb::store::redis::Settings;
use serde_json::Value;
use tokio::time::sleep;

use crate::harness::callers::{DEADLINE, is_long, lasting, recovers};
use crate::harness::instance::{CONNECTIONS, Instance, check};
use crate::harness::proxy::{Proxy, Traffic, Weather};
use crate::harness::redis::Redis;
use crate::harness::server::{self, Server};
use crate::harness::{PATIENCE, wait_until};

const RULES: &str = "
domain: edge
descriptors:
  - { key: user, rate_limit: { limit: 1000000, window: 1h } }
";

/// More resident memory than before that an outage may cost, in bytes: buffers, and the windows of
/// `local`. What thousands of calls leave behind would be more.
const MOST_MEMORY: u64 = 8 << 20;

/// `store.redis.pool_size` here: one for each worker on two cores, and the main one's.
const POOL: usize = 4;

/// Questions from outside about a few thousand users, always as many under way.
fn load(server: &Server, duration: &str) -> Value {
    let target = format!("127.0.0.1:{}", server.grpc_port);
    let mut words = vec!["load", "--json", "--target", &target, "--domain", "edge", "user={key}"];
    words.extend(["--keys", "5000", "--in-flight", "32", "--duration", duration]);
    let output = server::run(&std::env::temp_dir(), &words);
    let json = output.text.find('{').zip(output.text.rfind('}'));
    let (from, to) = json.unwrap_or_else(|| panic!("no report: {}", output.text));
    serde_json::from_str(&output.text[from..=to]).unwrap()
}

/// Connections of this machine that are open to a port: what the kernel waits for on each, and for
/// how many hundredths of a second yet.
fn connections_to(port: u16) -> Vec<(String, u64)> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!(":{port:04X} 01 ");
    let timer = |line: &str| {
        let timer = line.split_whitespace().nth(5).unwrap().split_once(':').unwrap();
        (timer.0.to_owned(), u64::from_str_radix(timer.1, 16).unwrap())
    };
    table.lines().filter(|line| line.contains(&remote)).map(timer).collect()
}

/// Packets are dropped without a word, and thousands go on asking.
#[test]
fn an_outage_fills_neither_memory_nor_the_pool() {
    let duration = if is_long() { "60s" } else { "5s" };
    for policy in ["error", "local"] {
        let redis = Redis::start();
        let proxy = Proxy::to(redis.port);
        let url = proxy.url();
        let settings = format!(
            "store: {{ kind: redis, on_error: {policy}, redis: {{ url: '{url}', timeout: 50ms, pool_size: {POOL} }} }}"
        );
        let server = Server::start(RULES, &settings);
        load(&server, "2s");
        let before = server.resident_bytes();
        proxy.set(Weather::BlackHole);
        let report = load(&server, duration);
        let (during, connections) = (server.resident_bytes(), connections_to(proxy.port()).len());
        let more = during.saturating_sub(before);
        assert!(more < MOST_MEMORY, "{policy}: {before} bytes before, {during} during");
        assert!(connections <= 2 * POOL, "{policy}: {connections} connections");
        let answered = report["allowed"].as_u64().unwrap() + report["refused"].as_u64().unwrap();
        assert_eq!(answered > 0, policy == "local", "{report}");
        assert!(report["sent"].as_u64().unwrap() > 1_000, "{report}");
        proxy.set(Weather::Fair);
        let started = Instant::now();
        wait_until("Redis answers again", || {
            let answer = server.ask("edge", "user", "somebody");
            answer.status == 200 && answer.header("x-chronosdb-source").is_none()
        });
        let healed = started.elapsed();
        assert!(server.resident_bytes().saturating_sub(before) < MOST_MEMORY, "{policy}");
        if is_long() {
            println!(
                "{policy}: {} asked, latency in µs {}, {more} bytes more, {connections} connections, \
                 healed after {healed:?}",
                report["sent"], report["latency_us"]
            );
        }
    }
}

/// What was said to Redis between two moments.
fn between(before: Traffic, after: Traffic) -> Traffic {
    Traffic {
        connections: after.connections - before.connections,
        bytes: after.bytes - before.bytes,
        runs: after.runs - before.runs,
    }
}

/// Twenty thousand calls and more with an open breaker: the network hears of probes only, one at a time.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_breaker_keeps_calls_from_the_network() {
    let slow = [3, 8].map(|deadlines| Weather::Slow(DEADLINE * deadlines));
    for weather in [Weather::BlackHole, Weather::Mute, Weather::Reset, slow[0], slow[1]] {
        let redis = Redis::start();
        let proxy = Proxy::to(redis.port);
        let settings = Settings { url: proxy.url(), timeout: DEADLINE, ..Settings::default() };
        let instance = Instance::start(&settings).await;
        let user = check("bob", 1_000_000, 1);
        instance.until_answered(&user).await;
        proxy.set(weather);
        let is_open = || instance.metrics.breaker_open.with_label_values(&["test"]).get() == 1;
        let opens = async || {
            let _ = instance.ask(std::slice::from_ref(&user)).await;
            is_open()
        };
        instance.until("the breaker opens", opens).await;

        let (before, started) = (proxy.traffic(), Instant::now());
        let mut calls = 0;
        while calls < 20_000 || started.elapsed() < lasting() {
            for _ in 0..100 {
                calls += 1;
                let user = check(&calls.to_string(), 10, 1);
                let error = instance.ask(&[user]).await.unwrap_err();
                assert!(matches!(error, StoreError::Unavailable(_)), "{weather:?}: {error}");
            }
            sleep(Duration::from_millis(1)).await;
        }
        let (said, lasted) = (between(before, proxy.traffic()), started.elapsed());
        // A probe waits for at least 25, 50, … 400 ms, then for half a second, after the last one,
        // or its answer took three deadlines. While it has no connection it dials again and again.
        let probes = 7 + 4 * usize::try_from(lasted.as_secs()).unwrap();
        assert!(said.runs <= probes, "{weather:?}: {said:?} in {lasted:?}");
        let dials = probes * (CONNECTIONS as usize + 12);
        assert!(said.connections <= dials, "{weather:?}: {said:?} in {lasted:?}");
        let bytes = 300 * (said.connections + said.runs + CONNECTIONS as usize);
        assert!(said.bytes <= bytes, "{weather:?}: {said:?} in {lasted:?}");
        assert!(is_open(), "{weather:?}");
        if is_long() {
            println!("{weather:?}: {calls} calls, {said:?} in {lasted:?}");
        }
        proxy.set(Weather::Fair);
        recovers(&instance, &user).await;
    }
}

/// Calls that wait for one server are bounded; those beyond are told at once.
#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_may_wait_are_told_at_once() {
    const MOST: usize = 4096;
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let settings = Settings { timeout: DEADLINE * 3, url: proxy.url(), ..Settings::default() };
    let instance = Instance::start(&settings).await;
    proxy.set(Weather::BlackHole);
    let calls = (0..MOST + 500).map(|user| {
        let instance = &instance;
        async move { instance.ask(&[check(&user.to_string(), 10, 1)]).await.unwrap_err().reason() }
    });
    let reasons = futures_util::future::join_all(calls).await;
    let told = reasons.iter().filter(|reason| **reason == "overloaded").count();
    assert_eq!(told, 500, "all others wait for their deadline");
    proxy.set(Weather::Fair);
    recovers(&instance, &check("bob", 10, 1)).await;
}

/// One connection of several gets no replies any more: three calls miss theirs, and it is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_deaf_connection_is_replaced() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let settings = Settings { url: proxy.url(), timeout: DEADLINE * 3, ..Settings::default() };
    let instance = Instance::start(&settings).await;
    let user = check("bob", 1_000_000, 1);
    let all_dialled = || proxy.traffic().connections >= CONNECTIONS as usize;
    wait_until("every connection is dialled", all_dialled);
    let mut met = 0;
    for _ in 0..5 {
        let before = proxy.traffic().connections;
        proxy.set(Weather::MuteOnce);
        let mut missed = 0;
        for _ in 0..10 * CONNECTIONS {
            missed += u32::from(instance.ask(std::slice::from_ref(&user)).await.is_err());
            // Connections take turns.
            sleep(Duration::from_millis(5)).await;
        }
        // Now and then it is the watchdog's own probe that meets the silence.
        assert!(missed <= 3, "{missed} calls had no answer");
        met += missed;
        wait_until("another is dialled", || proxy.traffic().connections > before);
    }
    assert!(met > 0, "no call met it");
}

/// Nobody asks, and the watchdog's own probe meets a deaf connection: it tries others before it
/// says that Redis is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_of_a_deaf_connection_cuts_nobody_short() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let settings = Settings { url: proxy.url(), ..Settings::default() };
    let instance = Instance::start(&settings).await;
    wait_until("every connection is dialled", || {
        proxy.traffic().connections >= CONNECTIONS as usize
    });
    let before = proxy.traffic().connections;
    proxy.set(Weather::MuteOnce);
    let started = Instant::now();
    while proxy.traffic().connections < before + CONNECTIONS as usize {
        assert!(instance.store.answers(), "{:?}", instance.store.trouble());
        assert!(started.elapsed() < PATIENCE, "no connection was replaced");
        sleep(Duration::from_millis(1)).await;
    }
}

/// The kernel asks after a silent peer, and long before its own two hours are over.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_kept_alive() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let settings = Settings { url: proxy.url(), ..Settings::default() };
    let _instance = Instance::start(&settings).await;
    // Timer 02 is that of keepalive.
    wait_until("every connection has its timer", || {
        let timers = connections_to(proxy.port());
        let is_kept = |(kind, hundredths): &(String, u64)| kind == "02" && *hundredths <= 500;
        timers.len() >= CONNECTIONS as usize && timers.iter().all(is_kept)
    });
}
