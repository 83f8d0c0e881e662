//! Several instances and many clients hammer a few keys while faults strike. Afterwards no window
//! may hold more hits that somebody was granted than its limit, and nothing was counted twice.
//! `CHRONOSDB_TEST_LONG=1` makes it a minute.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chronosdb::check::Check;
use chronosdb::store::redis::{Settings, Topology};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::harness::cluster::Cluster;
use crate::harness::instance::{Instance, check_in};
use crate::harness::proxy::{Proxy, Weather};
use crate::harness::random::Random;
use crate::harness::redis::Redis;
use crate::harness::sentinels::Sentinels;

const LIMIT: u64 = 20;
const WINDOW: Duration = Duration::from_millis(400);

/// Keys with that limit; one more has a limit that is never reached, and shows what was counted.
const KEYS: u64 = 4;
const LEDGER: Duration = Duration::from_secs(3600);
const PLENTY: u64 = 1_000_000;

fn key(number: u64, hits: i64) -> Check {
    match number {
        KEYS => check_in("ledger", PLENTY, LEDGER, hits),
        _ => check_in(&format!("key-{number}"), LIMIT, WINDOW, hits),
    }
}

/// A hit that was granted at some time between two others.
#[derive(Clone, Copy, Debug)]
struct Granted {
    key: u64,
    hits: u64,
    asked: Instant,
    answered: Instant,
}

/// What clients saw.
#[derive(Default)]
struct History {
    granted: Mutex<Vec<Granted>>,
    /// Hits of the ledger that may have been counted, or not.
    unknown: AtomicU64,
    refused: AtomicU64,
    done: AtomicBool,
}

impl History {
    /// One client, until all is done. Some requests ask for two keys, in two slots of a cluster.
    async fn client(&self, instance: &Instance, seed: u64) {
        let mut random = Random::new(seed);
        while !self.done.load(Ordering::Relaxed) {
            let first = random.within(0, KEYS);
            let mut keys = vec![first];
            if random.once_in(4) {
                keys.push((first + 1) % (KEYS + 1));
            }
            let hits = random.within(1, 3);
            let checks: Vec<Check> =
                keys.iter().map(|number| key(*number, i64::try_from(hits).unwrap())).collect();
            let asked = Instant::now();
            match instance.ask(&checks).await {
                Ok(verdicts) if verdicts.iter().all(|verdict| verdict.allowed) => {
                    let answered = Instant::now();
                    let grant = |key| Granted { key, hits, asked, answered };
                    self.granted.lock().unwrap().extend(keys.into_iter().map(grant));
                }
                Ok(_) => _ = self.refused.fetch_add(1, Ordering::Relaxed),
                Err(_) if keys.contains(&KEYS) => {
                    self.unknown.fetch_add(hits, Ordering::Relaxed);
                }
                Err(_) => {}
            }
            sleep(Duration::from_micros(random.within(0, 4_000))).await;
        }
    }

    fn of(&self, key: u64) -> Vec<Granted> {
        let granted = self.granted.lock().unwrap();
        let mut granted: Vec<_> = granted.iter().copied().filter(|hit| hit.key == key).collect();
        granted.sort_by_key(|hit| hit.asked);
        granted
    }

    /// The most hits that were surely granted within one window.
    fn busiest(&self, key: u64) -> u64 {
        let granted = self.of(key);
        let held = |first: &Granted| -> u64 {
            let inside =
                |hit: &&Granted| hit.asked >= first.asked && hit.answered < first.asked + WINDOW;
            granted.iter().filter(inside).map(|hit| hit.hits).sum()
        };
        granted.iter().map(held).max().unwrap_or(0)
    }

    /// No window held more; and the ledger knows each grant once, and at most once what nobody
    /// heard the end of.
    async fn is_lawful(&self, instances: &[Arc<Instance>], most: u64) {
        let instance = &instances[0];
        for key in 0..KEYS {
            let busiest = self.busiest(key);
            assert!(busiest <= most, "key {key}: {busiest} hits in one window of {most}");
            assert!(self.of(key).len() > 5, "key {key} was hardly used");
        }
        let peek = instance.until_answered(&key(KEYS, 0)).await;
        let counted = PLENTY - peek.remaining;
        let granted: u64 = self.of(KEYS).iter().map(|hit| hit.hits).sum();
        // A reservation that could not be given back stays.
        let lost = |instance: &Arc<Instance>| {
            3 * instance.metrics.give_backs.with_label_values(&["lost"]).get()
        };
        let unknown =
            self.unknown.load(Ordering::Relaxed) + instances.iter().map(lost).sum::<u64>();
        assert!(counted <= granted + unknown, "{counted} counted, {granted} + {unknown} asked");
        if most == LIMIT {
            assert!(counted >= granted, "{counted} counted, {granted} granted");
        }
        assert!(self.refused.load(Ordering::Relaxed) > 20, "the limits were hardly reached");
    }
}

fn lasting() -> Duration {
    match std::env::var_os("CHRONOSDB_TEST_LONG") {
        Some(_) => Duration::from_secs(60),
        None => Duration::from_secs(5),
    }
}

/// Three instances with eight clients each, while `chaos` goes on. Clients have tasks of their own:
/// chaos may wait for a process.
async fn hammered(
    settings: &[Settings; 3],
    chaos: impl AsyncFnOnce(),
) -> (Arc<History>, Vec<Arc<Instance>>) {
    let mut instances = Vec::new();
    for settings in settings {
        instances.push(Arc::new(Instance::start(settings).await));
    }
    let history = Arc::new(History::default());
    let clients: Vec<_> = (0..24)
        .map(|client: usize| {
            let (history, instance) = (Arc::clone(&history), Arc::clone(&instances[client % 3]));
            tokio::spawn(async move {
                history.client(&instance, u64::try_from(client).unwrap()).await;
            })
        })
        .collect();
    chaos().await;
    history.done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    (history, instances)
}

fn standalone(url: &str) -> Settings {
    Settings { url: url.into(), timeout: Duration::from_millis(100), ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_faults_everything_is_admitted_that_may_be() {
    let redis = Redis::start();
    let settings = Settings { timeout: Duration::from_secs(5), ..standalone(&redis.url()) };
    let instance = Instance::start(&settings).await;
    let ask = key(0, 1);
    let history = History::default();
    let questions = Mutex::new((Vec::new(), Vec::new()));
    let started = Instant::now();
    let clients = (0..8).map(|_| async {
        while started.elapsed() < WINDOW * 10 + WINDOW / 2 {
            let asked = Instant::now();
            let verdict = instance.ask(std::slice::from_ref(&ask)).await.unwrap()[0];
            let answered = Instant::now();
            {
                let mut questions = questions.lock().unwrap();
                questions.0.push(asked);
                questions.1.push(answered);
            }
            if verdict.allowed {
                let hit = Granted { key: 0, hits: 1, asked, answered };
                history.granted.lock().unwrap().push(hit);
            }
            sleep(Duration::from_millis(1)).await;
        }
    });
    join_all(clients).await;
    let granted = history.of(0).len();
    assert!(history.busiest(0) <= LIMIT);
    // It decided at some time between a question and its answer.
    let (asked, answered) = questions.into_inner().unwrap();
    let ideal = ideally_granted(asked).min(ideally_granted(answered));
    assert!(ideal > LIMIT as usize * 5, "only {ideal} could be granted");
    assert!(granted * 100 >= ideal * 99, "{granted} of {ideal}");
}

/// How many of these questions a limiter grants that decides each in no time.
fn ideally_granted(mut questions: Vec<Instant>) -> usize {
    questions.sort_unstable();
    let mut granted: Vec<Instant> = Vec::new();
    for now in questions {
        let oldest = granted.len().checked_sub(LIMIT as usize).map(|index| granted[index]);
        if oldest.is_none_or(|oldest| now >= oldest + WINDOW) {
            granted.push(now);
        }
    }
    granted.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_overflows_while_the_network_breaks() {
    let redis = Redis::start();
    let proxies = [(); 3].map(|()| Proxy::to(redis.port));
    let settings = std::array::from_fn(|index| standalone(&proxies[index].url()));
    let chaos = async || {
        let mut random = Random::new(9);
        let until = Instant::now() + lasting();
        while Instant::now() < until {
            let proxy = &proxies[usize::try_from(random.within(0, 2)).unwrap()];
            let weathers = [
                Weather::BlackHole,
                Weather::Mute,
                Weather::Reset,
                Weather::HalfClosed,
                Weather::CutAfter(7),
                Weather::Slow(Duration::from_millis(20)),
            ];
            proxy.set(random.pick(&weathers));
            match random.within(0, 3) {
                0 => redis.command::<()>("SCRIPT FLUSH"),
                1 => _ = redis.try_command::<()>("CLIENT KILL TYPE normal"),
                2 => {
                    redis.freeze();
                    sleep(Duration::from_millis(150)).await;
                    redis.thaw();
                }
                _ => {}
            }
            sleep(Duration::from_millis(random.within(10, 250))).await;
            proxy.set(Weather::Fair);
            sleep(Duration::from_millis(random.within(100, 400))).await;
        }
    };
    let (history, instances) = hammered(&settings, chaos).await;
    history.is_lawful(&instances, LIMIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_overflows_while_slots_move() {
    let cluster = Cluster::start();
    // Nobody fails here, however late a busy machine lets them answer each other.
    for server in &cluster.servers {
        server.command::<()>("CONFIG SET cluster-node-timeout 10000");
    }
    let settings = Settings {
        topology: Topology::Cluster,
        nodes: cluster.nodes(),
        ..standalone("redis://127.0.0.1")
    };
    let chaos = async || {
        let until = Instant::now() + lasting();
        let slots = ["key-0", "key-1", "key-2", "key-3", "ledger"].map(|user| {
            cluster.servers[0].command::<usize>(&format!("CLUSTER KEYSLOT {{k:{user}}}"))
        });
        let mut owners = slots.map(|slot| cluster.owner(slot));
        while Instant::now() < until {
            for (slot, owner) in slots.iter().zip(&mut owners) {
                let (from, to) = (*owner, (*owner + 1) % 3);
                cluster.begin_move(*slot, from, to);
                sleep(Duration::from_millis(20)).await;
                cluster.move_keys(*slot, from, to);
                sleep(Duration::from_millis(20)).await;
                cluster.move_keys(*slot, from, to);
                cluster.end_move(*slot, from, to);
                *owner = to;
            }
        }
    };
    let (history, instances) = hammered(&[(); 3].map(|()| settings.clone()), chaos).await;
    history.is_lawful(&instances, LIMIT).await;
    let give_backs = |result: &str| -> u64 {
        let of =
            |instance: &Arc<Instance>| instance.metrics.give_backs.with_label_values(&[result]);
        instances.iter().map(|instance| of(instance).get()).sum()
    };
    let (done, lost) = (give_backs("done"), give_backs("lost"));
    assert!(done > 20 * lost, "{done} were given back, {lost} were not");
    let redirections = &instances[0].metrics.redirections;
    for kind in ["moved", "ask"] {
        assert!(redirections.with_label_values(&[kind]).get() > 0, "{kind}");
    }
}

/// Hits that were not replicated when a primary ended are forgiven: at most one limit more.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_forgives_at_most_one_limit() {
    let mut sentinels = Sentinels::start();
    let settings = Settings {
        topology: Topology::Sentinel,
        nodes: sentinels.nodes(),
        master_name: Some("quotas".into()),
        ..standalone("redis://127.0.0.1")
    };
    let chaos = async || {
        sleep(WINDOW * 3).await;
        sentinels.servers[0].kill();
        sentinels.wait_until_chosen(1);
        sleep(lasting()).await;
    };
    let (history, instances) = hammered(&[(); 3].map(|()| settings.clone()), chaos).await;
    history.is_lawful(&instances, 2 * LIMIT).await;
}

/// The same where a primary of a cluster is killed: its replica goes on with what it heard.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_of_a_cluster_is_forgiven_at_most_one_limit() {
    let mut cluster = Cluster::start();
    let settings = Settings {
        topology: Topology::Cluster,
        nodes: cluster.nodes(),
        ..standalone("redis://127.0.0.1")
    };
    let chaos = async || {
        sleep(WINDOW * 3).await;
        cluster.servers[0].kill();
        crate::harness::wait_until("the replica takes over", || {
            cluster.servers[3].command::<Vec<redis::Value>>("ROLE")[0]
                == redis::Value::BulkString(b"master".into())
        });
        sleep(lasting()).await;
    };
    let (history, instances) = hammered(&[(); 3].map(|()| settings.clone()), chaos).await;
    history.is_lawful(&instances, 2 * LIMIT).await;
}
