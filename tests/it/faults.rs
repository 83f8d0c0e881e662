//! One fault at a time, on real processes: what callers are told, what is counted, and how the
//! right answers come back by themselves. `CHRONOSDB_TEST_LONG=1` makes each fault last longer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use chronosdb::check::Check;
use chronosdb::store::redis::Settings;
use tokio::time::{Instant, sleep};

use crate::harness::callers::{CALLERS, DEADLINE, RECOVERY, lasting, listen, recovers};
use crate::harness::instance::{CONNECTIONS, Instance, check, check_in};
use crate::harness::proxy::{Proxy, Weather};
use crate::harness::redis::Redis;

fn settings(url: &str) -> Settings {
    Settings { url: url.into(), timeout: DEADLINE, ..Settings::default() }
}

fn breaker(instance: &Instance) -> i64 {
    instance.metrics.breaker_open.with_label_values(&["test"]).get()
}

/// Every fault of the network, by what callers are told. No hit is counted twice, and none that
/// was answered is lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_network_breaks() {
    let table: [(Weather, &[&str]); 7] = [
        (Weather::BlackHole, &["timeout", "unavailable"]),
        (Weather::Mute, &["timeout", "unavailable"]),
        (Weather::Slow(DEADLINE * 8), &["timeout", "unavailable"]),
        // A probe is answered, and too late for any call.
        (Weather::Slow(DEADLINE * 3), &["timeout", "unavailable"]),
        (Weather::Reset, &["unavailable", "timeout"]),
        (Weather::HalfClosed, &["unavailable", "timeout"]),
        (Weather::CutAfter(3), &["unavailable", "timeout"]),
    ];
    for (number, (weather, reasons)) in table.into_iter().enumerate() {
        let redis = Redis::start();
        let proxy = Proxy::to(redis.port);
        let instance = Instance::start(&settings(&proxy.url())).await;
        let limit = 1_000_000;
        let user = check(&number.to_string(), limit, 1);
        instance.until_answered(&user).await;
        let before = instance.metrics.script_runs.get();
        proxy.set(weather);
        let heard = listen(&instance, &user).await;
        // In a pause of this machine an answer may come before anybody looks at the clock.
        assert!(heard.answers <= CALLERS && heard.is_prompt(), "{weather:?}: {heard:?}");
        let known = heard.errors.keys().all(|reason| reasons.contains(reason));
        assert!(known && heard.errors.contains_key(reasons[0]), "{weather:?}: {heard:?}");
        assert_eq!(breaker(&instance), 1, "{weather:?}");
        let sent = instance.metrics.script_runs.get() - before;
        let told: usize = heard.errors.values().sum();
        assert!((sent as usize) < told / 4, "{weather:?}: {sent} of {told} were sent");
        proxy.set(Weather::Fair);
        let remaining = heard.healed(&format!("{weather:?}"), &instance, &user).await;
        let counted = limit - remaining;
        // The first, the last, and at most once what was sent in between.
        let most = 2 + instance.metrics.script_checks.get();
        assert!((2..=most).contains(&counted), "{weather:?}: {counted} of at most {most}");
        assert_eq!(breaker(&instance), 0, "{weather:?}");
        // Calls under way share few connections, also after all this.
        let clients: String = redis.command("CLIENT LIST TYPE normal");
        let most = 2 * CONNECTIONS as usize + 1;
        assert!(clients.lines().count() <= most, "{weather:?}: {clients}");
    }
}

/// The hits were counted, and the reply was lost: the caller is told so, and nothing is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_not_asked_for_again() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let patient = Settings { timeout: Duration::from_secs(5), ..settings(&proxy.url()) };
    let instance = Instance::start(&patient).await;
    let user = check("bob", 1_000, 1);
    let (mut met, mut known) = (0, 0);
    for _ in 0..20 {
        instance.until_answered(&check("dials", 1_000, 1)).await;
        proxy.set(Weather::ResetOnce);
        let answer = instance.ask(std::slice::from_ref(&user)).await;
        let counted = redis.command::<usize>("ZCARD chronosdb:quota:{k:bob}:60000");
        // Now and then the watchdog's own probe meets the reset, and this call is not even sent.
        assert!(counted <= known + 1 && (answer.is_err() || counted > known), "{answer:?}");
        met += usize::from(answer.is_err() && counted > known);
        known = counted;
    }
    assert!(met > 10, "only {met} replies were lost");
}

/// The process is gone, and comes back without its scripts and without its data.
#[tokio::test(flavor = "multi_thread")]
async fn redis_is_killed_and_comes_back_empty() {
    let mut redis = Redis::start();
    let instance = Instance::start(&settings(&redis.url())).await;
    let user = check("bob", 1_000_000, 1);
    instance.until_answered(&user).await;
    redis.kill();
    let heard = listen(&instance, &user).await;
    assert!(heard.answers == 0 && heard.is_prompt(), "{heard:?}");
    // Those who wait behind a call that dials cannot know that it was never sent; after five such
    // calls nobody waits.
    let waited = heard.errors.get("timeout").copied().unwrap_or(0);
    assert!(waited <= 6 * CALLERS && heard.errors.contains_key("unavailable"), "{heard:?}");
    redis.restart();
    let remaining = heard.healed("process killed", &instance, &user).await;
    assert_eq!(remaining, 999_999, "it forgot, and counts anew");
}

/// Stopped, and going on as if nothing had been.
#[tokio::test(flavor = "multi_thread")]
async fn redis_is_stopped_for_a_while() {
    let redis = Redis::start();
    let instance = Instance::start(&settings(&redis.url())).await;
    let user = check("bob", 1_000_000, 1);
    instance.until_answered(&user).await;
    redis.freeze();
    let heard = listen(&instance, &user).await;
    assert!(heard.answers == 0 && heard.is_prompt(), "{heard:?}");
    assert!(heard.errors.contains_key("timeout") && heard.errors.contains_key("unavailable"));
    redis.thaw();
    let counted = 1_000_000 - heard.healed("process stopped", &instance, &user).await;
    assert!(counted <= 2 + instance.metrics.script_checks.get(), "{counted}");
}

/// Slow, but within the deadline: nobody notices but the clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_redis_answers_while_the_deadline_allows() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let patient = Settings { timeout: Duration::from_secs(5), ..settings(&proxy.url()) };
    let instance = Instance::start(&patient).await;
    proxy.set(Weather::Slow(Duration::from_millis(100)));
    let user = check("bob", 1_000_000, 1);
    let until = Instant::now() + lasting();
    let mut asked = 0;
    while Instant::now() < until {
        let calls = (0..50).map(|_| instance.ask(std::slice::from_ref(&user)));
        let answers = futures_util::future::join_all(calls).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        asked += 50;
    }
    proxy.set(Weather::Fair);
    assert_eq!(1_000_000 - recovers(&instance, &user).await, asked + 1);
    assert_eq!(breaker(&instance), 0);
}

/// The script is thrown away again and again under load: every call has its right answer.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_flushed_under_load() {
    let redis = Redis::start();
    let patient = Settings { timeout: Duration::from_secs(5), ..settings(&redis.url()) };
    let instance = Instance::start(&patient).await;
    let user = check("bob", 1_000_000, 1);
    let (done, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = async {
        while !done.load(Ordering::Relaxed) {
            // Of different users too: equal ones would share a run.
            let users: Vec<Check> = (0..50).map(|n| check(&n.to_string(), 1_000_000, 1)).collect();
            let mut calls: Vec<_> =
                users.iter().map(|user| instance.ask(std::slice::from_ref(user))).collect();
            calls.push(instance.ask(std::slice::from_ref(&user)));
            for answer in futures_util::future::join_all(calls).await {
                assert!(answer.unwrap()[0].allowed);
            }
            asked.fetch_add(1, Ordering::Relaxed);
        }
    };
    let flush = async {
        let until = Instant::now() + lasting();
        let mut flushes = 0;
        while Instant::now() < until || flushes < 20 {
            redis.command::<()>("SCRIPT FLUSH");
            flushes += 1;
            // As often as somebody gets on, however slow this machine is.
            let before = asked.load(Ordering::Relaxed);
            while asked.load(Ordering::Relaxed) == before {
                sleep(Duration::from_millis(5)).await;
            }
        }
        done.store(true, Ordering::Relaxed);
        flushes
    };
    let ((), flushes) = tokio::join!(load, flush);
    let asked = asked.into_inner();
    assert_eq!(instance.until_answered(&user).await.remaining, 1_000_000 - asked - 1);
    // Sent whole about once for each flush, not once for each call.
    let stats: String = redis.command("INFO commandstats");
    let evals = stats.lines().find(|line| line.starts_with("cmdstat_eval:")).unwrap();
    let evals = evals.split(['=', ',']).nth(1).unwrap().parse::<usize>().unwrap();
    assert!(evals <= 4 * flushes + 4, "{evals} times for {flushes} flushes");
}

/// FLUSHALL forgives what was counted, once; nothing else happens.
#[tokio::test]
async fn a_flushed_redis_counts_anew() {
    let redis = Redis::start();
    let instance = Instance::start(&settings(&redis.url())).await;
    let ask = async || instance.until_answered(&check("bob", 2, 1)).await.allowed;
    assert_eq!([ask().await, ask().await, ask().await], [true, true, false]);
    redis.command::<()>("FLUSHALL");
    assert_eq!([ask().await, ask().await, ask().await], [true, true, false]);
}

/// What Redis refuses by itself: each has its own reason, none of them counts anything, a peek
/// and a refusal are still true, and the end of it is noticed by the next call.
#[tokio::test]
async fn redis_refuses_writes() {
    let redis = Redis::start();
    let instance = Instance::start(&settings(&redis.url())).await;
    let full = check_in("full", 1, Duration::from_secs(3600), 1);
    assert!(instance.until_answered(&full).await.allowed);
    let table = [
        ("CONFIG SET maxmemory 1mb", "CONFIG SET maxmemory 0", "oom"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "noreplicas"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "read_only"),
    ];
    for (user, (cause, end, reason)) in table.into_iter().enumerate() {
        redis.command::<()>(cause);
        let check = check(&user.to_string(), 5, 1);
        let heard = listen(&instance, &check).await;
        assert!(heard.is_told(reason), "{heard:?}");
        if reason != "read_only" {
            let still = instance.until_answered(&full).await;
            assert!(!still.allowed, "{reason}: a refusal writes nothing");
        }
        redis.command::<()>(end);
        assert_eq!(heard.healed(reason, &instance, &check).await, 4, "{reason}");
    }
}

/// A background save cannot write its file, and then it can.
#[tokio::test]
async fn redis_could_not_save() {
    let redis = Redis::start_with(&["--save", "3600 1000000"]);
    let instance = Instance::start(&settings(&redis.url())).await;
    let full = check_in("full", 1, Duration::from_secs(3600), 1);
    assert!(instance.until_answered(&full).await.allowed);
    let in_the_way = redis.folder().join("dump.rdb");
    std::fs::create_dir(&in_the_way).unwrap();
    let saved = |how: &str| {
        redis.try_command::<()>("BGSAVE").is_ok() && redis.info("rdb_last_bgsave_status") == how
    };
    crate::harness::wait_until("a save fails", || saved("err"));
    let user = check("bob", 5, 1);
    let heard = listen(&instance, &user).await;
    assert!(heard.is_told("misconf"), "{heard:?}");
    assert!(!instance.until_answered(&full).await.allowed);
    std::fs::remove_dir(&in_the_way).unwrap();
    crate::harness::wait_until("a save succeeds", || saved("ok"));
    assert_eq!(heard.healed("misconf", &instance, &user).await, 4);
}

/// Somebody else's script runs for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_of_somebody_else_blocks_redis() {
    let redis = Redis::start_with(&["--busy-reply-threshold", "50"]);
    let instance = Instance::start(&settings(&redis.url())).await;
    let user = check("bob", 5, 1);
    instance.until_answered(&user).await;
    let mut blocking = redis.connect();
    let blocker = std::thread::spawn(move || {
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut blocking)
    });
    let ask = async || {
        let error = instance.ask(std::slice::from_ref(&user)).await.err();
        error.map(|error| error.reason())
    };
    instance.until("it is told", async || ask().await == Some("busy")).await;
    let heard = listen(&instance, &user).await;
    assert!(heard.is_told("busy"), "{heard:?}");
    redis.command::<()>("SCRIPT KILL");
    assert!(blocker.join().unwrap().is_err());
    heard.healed("busy", &instance, &user).await;
}

/// A restart with much data: LOADING is told until it is over.
#[tokio::test(flavor = "multi_thread")]
async fn redis_loads_its_data() {
    let delays = "--key-load-delay 1000 --loading-process-events-interval-bytes 1024";
    let mut redis = Redis::start_with(&delays.split(' ').collect::<Vec<_>>());
    let instance = Instance::start(&settings(&redis.url())).await;
    let user = check("bob", 5, 1);
    assert_eq!(instance.until_answered(&user).await.remaining, 4);
    redis.command::<()>("DEBUG POPULATE 2000");
    redis.command::<()>("SAVE");
    redis.relaunch();
    let told = async || {
        let error = instance.ask(std::slice::from_ref(&user)).await.err();
        error.is_some_and(|error| error.reason() == "loading")
    };
    instance.until("LOADING is told", told).await;
    crate::harness::wait_until("the data are loaded", || redis.info("loading") == "0");
    assert_eq!(recovers(&instance, &user).await, 3, "what was saved is known");
}

/// Behind one address another server is promoted; the old one keeps its connections and says
/// READONLY to them.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_primary_is_left() {
    let (old, new) = (Redis::start(), Redis::start());
    let proxy = Proxy::to(old.port);
    let patient = Settings { timeout: Duration::from_secs(5), ..settings(&proxy.url()) };
    let instance = Instance::start(&patient).await;
    let user = check("bob", 1_000_000, 1);
    instance.until_answered(&user).await;
    proxy.point_at(new.port);
    old.command::<()>(&format!("REPLICAOF 127.0.0.1 {}", new.port));
    // The call itself finds the new one: READONLY proves that nothing was counted.
    let answer = instance.ask(std::slice::from_ref(&user)).await;
    assert_eq!(answer.unwrap()[0].remaining, 999_999);
}

/// A window that is nearly over when the fault comes is over after it.
#[tokio::test(flavor = "multi_thread")]
async fn hits_leave_their_window_also_while_nobody_is_asked() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let instance = Instance::start(&settings(&proxy.url())).await;
    let user = check_in("bob", 1, Duration::from_millis(500), 1);
    assert!(instance.until_answered(&user).await.allowed);
    proxy.set(Weather::BlackHole);
    let heard = listen(&instance, &user).await;
    assert_eq!(heard.answers, 0);
    proxy.set(Weather::Fair);
    let started = Instant::now();
    while !instance.until_answered(&user).await.allowed {
        assert!(started.elapsed() < RECOVERY);
        sleep(Duration::from_millis(5)).await;
    }
}
