//! The script that takes back a reservation, against the oracle that never heard of it; and those
//! who were refused meanwhile.

use std::time::Duration;

use chronosdb::check::{Check, Mode};
use chronosdb::metrics::Metrics;
use chronosdb::quota::Verdict;
use chronosdb::store::Store as _;
use chronosdb::store::memory::{self, Memory};
use chronosdb::store::redis::{Settings, Topology};
use tokio::time::Instant;

use crate::harness::cluster::Cluster;
use crate::harness::counters::{Counters as _, InRedis, START_US, want};
use crate::harness::instance::{Instance, check_in, patient};
use crate::harness::oracle::Oracle;
use crate::harness::random::Random;
use crate::harness::server::Server;
use crate::harness::wait_until;

const GIVE_BACK: &str = include_str!("../../src/store/redis/give_back.lua");
const WINDOW_MS: u64 = 1_000;
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_reservation_given_back_leaves_no_trace() {
    let mut random = Random::new(3);
    let mut lua = InRedis::start();
    let script = redis::Script::new(GIVE_BACK);
    let mut now_us = START_US;
    for round in 0..150 {
        let mut oracle = Oracle::default();
        let mut reserved = None;
        let steps = random.within(1, 12);
        let reservation = random.within(1, steps);
        for step in 1..=steps {
            now_us += random.pick(&[0, 1, 1_000, 300_000]);
            let hits = i64::try_from(random.within(1, 5)).unwrap();
            let wanted = want("reserved", 1_000, WINDOW_MS, hits);
            assert!(lua.ask(now_us, &[wanted])[0].allowed);
            if step == reservation {
                reserved = Some((now_us, wanted));
            } else {
                oracle.ask(now_us, &[wanted]);
            }
        }
        let (since_us, wanted) = reserved.unwrap();
        let mut call = script.prepare_invoke();
        call.key(wanted.store_key()).arg(since_us).arg(wanted.hits).arg(WINDOW_MS * 1000);
        call.invoke::<()>(&mut lua.connection).unwrap();
        // Nothing is counted any more, or it goes at some time: then keys expire by themselves.
        for _ in 0..6 {
            for limit in [1, 3, 10, 1_000] {
                for hits in [0, 1] {
                    let question = want("reserved", limit, WINDOW_MS, hits);
                    let expected = oracle.ask(now_us, &[question])[0];
                    let answer = lua.ask(now_us, &[question])[0];
                    assert_eq!(answer, expected, "round {round}, {question:?}");
                }
            }
            now_us += random.within(1, 400_000);
        }
        now_us += 2 * WINDOW_MS * 1000;
        lua.ask(now_us, &[want("reserved", 1_000, WINDOW_MS, -1_000)]);
    }
}

/// A hit of somebody else that came before is not taken, even if the reservation is gone.
#[test]
fn what_was_counted_before_stays() {
    let mut lua = InRedis::start();
    let script = redis::Script::new(GIVE_BACK);
    let one = want("mine", 10, WINDOW_MS, 1);
    lua.ask(START_US, &[one]);
    let mut call = script.prepare_invoke();
    call.key(one.store_key()).arg(START_US + 1).arg(5).arg(WINDOW_MS * 1000);
    call.invoke::<()>(&mut lua.connection).unwrap();
    let peek = want("mine", 10, WINDOW_MS, 0);
    assert_eq!(lua.ask(START_US + 1, &[peek])[0].remaining, 9);
    lua.command::<()>(&["DEL", &one.store_key()]);
    let mut call = script.prepare_invoke();
    call.key(one.store_key()).arg(START_US).arg(5).arg(WINDOW_MS * 1000);
    call.invoke::<()>(&mut lua.connection).unwrap();
    assert_eq!(lua.command::<u64>(&["DBSIZE"]), 0);
}

/// Requests over the slots of a cluster, and the same ones in one process: the same answers.
#[tokio::test(flavor = "multi_thread")]
async fn several_slots_decide_as_one_store_does() {
    let cluster = Cluster::start();
    let (topology, nodes) = (Topology::Cluster, cluster.nodes());
    let instance =
        Instance::start(&Settings { topology, nodes, ..patient("redis://127.0.0.1") }).await;
    let memory = Memory::new(&memory::Settings::default(), Metrics::new());
    let mut random = Random::new(5);
    let (mut refused, mut users) = (0, ["a", "b", "c", "d", "e", "f"]);
    for user in users {
        instance.until_answered(&check_in(user, 9, HOUR, 0)).await;
    }
    for step in 0..400 {
        let checks: Vec<Check> = (0..random.within(1, 4))
            .map(|turn| {
                // Each user once in a request.
                users.swap(
                    usize::try_from(turn).unwrap(),
                    usize::try_from(random.within(turn, 5)).unwrap(),
                );
                let user = users[usize::try_from(turn).unwrap()];
                Check {
                    mode: random.pick(&[Mode::Enforce, Mode::Enforce, Mode::Shadow, Mode::Quota]),
                    count_denied: random.once_in(8),
                    ..check_in(
                        user,
                        9,
                        Duration::from_secs(3600),
                        random.pick(&[-3, -2, 0, 1, 2, 5]),
                    )
                }
            })
            .collect();
        let answers = instance.ask(&checks).await.unwrap();
        let expected = memory.acquire(&checks, None).await.unwrap();
        for (answer, expected) in answers.iter().zip(&expected) {
            let shown = |verdict: &Verdict| {
                let Verdict { allowed, remaining, retry_after, reset_after } = verdict;
                (*allowed, *remaining, retry_after.is_some(), reset_after.is_zero())
            };
            assert_eq!(shown(answer), shown(expected), "step {step}: {checks:#?}");
            refused += u32::from(!answer.allowed);
        }
    }
    assert!((50..1_000).contains(&refused), "{refused} were refused");
}

/// An answer that comes as the caller's time runs out is an answer, or its hits are given back.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_granted_stays_counted_however_late_it_was() {
    const PLENTY: u64 = 1_000_000;
    let cluster = Cluster::start();
    let (topology, nodes) = (Topology::Cluster, cluster.nodes());
    let settings = Settings { topology, nodes, ..patient("redis://127.0.0.1") };
    let instance = Instance::start(&settings).await;
    let both = ["a", "b"].map(|user| check_in(user, PLENTY, HOUR, 1));
    for one in &both {
        instance.until_answered(one).await;
    }
    let mut random = Random::new(11);
    let (mut granted, mut late) = (1, 0);
    for _ in 0..3_000 {
        let deadline = Instant::now() + Duration::from_micros(random.within(100, 3_000));
        match instance.store.acquire(&both, Some(deadline)).await {
            Ok(verdicts) => granted += u64::from(verdicts.iter().all(|verdict| verdict.allowed)),
            Err(_) => late += 1,
        }
    }
    assert!(granted > 100 && late > 100, "{granted} in time, {late} late");
    for one in &both {
        let look = Check { hits: 0, ..one.clone() };
        let counted = PLENTY - instance.until_answered(&look).await.remaining;
        assert!(counted >= granted, "{granted} were granted, {counted} are counted");
    }
}

/// What refused may have been a reservation that was given back a moment later.
#[test]
fn a_refusal_of_a_cluster_is_soon_doubted() {
    let cluster = Cluster::start();
    let rules = "domain: edge\ndescriptors:\n- { key: a, rate_limit: { limit: 1, window: 1h } }\n";
    let redis =
        format!("topology: cluster, nodes: ['{}'], timeout: 5s", cluster.nodes().join("', '"));
    let server = Server::start(rules, &format!("store: {{ kind: redis, redis: {{ {redis} }} }}"));
    let ask = || server.ask("edge", "a", "v").status;
    wait_until("the quota is used up", || ask() == 429);
    let slot = cluster.servers[0].command("CLUSTER KEYSLOT {edge:a:v}");
    let owner = &cluster.servers[cluster.owner(slot)];
    assert_eq!(owner.command::<u64>("DEL chronosdb:quota:{edge:a:v}:3600000"), 1);
    wait_until("it is asked again", || ask() == 200);
}
