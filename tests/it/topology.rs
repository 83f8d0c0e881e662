//! Sentinels and clusters, real ones: the same answers, whoever serves them at the moment.

use std::time::Duration;

use chronosdb::check::{Check, Mode};
use chronosdb::store::Store as _;
use chronosdb::store::redis::{Settings, Topology};
use tokio::time::Instant;

use crate::harness::callers::listen_while;
use crate::harness::cluster::Cluster;
use crate::harness::instance::{Instance, check, check_in, patient};
use crate::harness::redis::{ACCOUNT, Redis};
use crate::harness::sentinels::Sentinels;
use crate::harness::server::Server;
use crate::harness::{http, wait_until};

fn of_sentinels(sentinels: &Sentinels) -> Settings {
    Settings {
        topology: Topology::Sentinel,
        nodes: sentinels.nodes(),
        master_name: Some("quotas".into()),
        timeout: Duration::from_millis(250),
        ..Settings::default()
    }
}

fn of_cluster(cluster: &Cluster) -> Settings {
    Settings { topology: Topology::Cluster, nodes: cluster.nodes(), ..patient("redis://127.0.0.1") }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_the_sentinels_to_another_primary() {
    let mut sentinels = Sentinels::start();
    let instance = Instance::start(&of_sentinels(&sentinels)).await;
    let user = check("bob", 3, 1);
    assert_eq!(instance.until_answered(&user).await.remaining, 2);
    let replica = &sentinels.servers[1];
    wait_until("the hit is replicated", || replica.command::<u64>("DBSIZE") >= 1);
    sentinels.servers[0].kill();
    let (killed, peek) = (Instant::now(), check("bob", 3, 0));
    let heard = listen_while(&instance, &peek, async {
        let remaining = instance.until_answered(&peek).await.remaining;
        assert_eq!(remaining, 2, "what was counted is known");
    });
    heard.await.print("sentinel failover", killed.elapsed());
    sentinels.wait_until_chosen(1);
    assert_eq!(instance.until_answered(&user).await.remaining, 1);
}

/// The old primary is cut off from the sentinels, goes on believing, and takes writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_does_not_know_of_its_end_is_left() {
    let sentinels = Sentinels::start();
    let instance = Instance::start(&of_sentinels(&sentinels)).await;
    let check = check("bob", 1000, 1);
    instance.until_answered(&check).await;
    // They believe that the first is away, since it does not answer their account any more.
    let [old, new] = &sentinels.servers;
    old.command::<()>(&format!("ACL SETUSER {ACCOUNT} -ping -info -publish"));
    sentinels.wait_until_chosen(1);
    let counted = |server: &Redis| {
        server.try_command::<u64>("ZCARD chronosdb:quota:{k:bob}:60000").unwrap_or(0)
    };
    let before = counted(new);
    instance
        .until("the new primary counts", async || {
            let _ = instance.ask(std::slice::from_ref(&check)).await;
            counted(new) > before
        })
        .await;
    let still_believes = old.command::<Vec<redis::Value>>("ROLE");
    assert_eq!(still_believes[0], redis::Value::BulkString(b"master".into()));
}

/// Every check alone, and all together, in whatever slots they are.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_several_slots_is_decided_as_one() {
    let cluster = Cluster::start();
    let instance = Instance::start(&of_cluster(&cluster)).await;
    let left = async |user: &str| instance.ask(&[check(user, 10, 0)]).await.unwrap()[0].remaining;
    let all = ["a", "b", "c", "d"].map(|user| check(user, 10, 1));
    let granted = instance.ask(&all).await.unwrap();
    assert!(granted.iter().all(|verdict| verdict.allowed && verdict.remaining == 9));
    assert!(instance.ask(&[check("d", 10, 9)]).await.unwrap()[0].allowed);

    let refused = instance.ask(&all).await.unwrap();
    let allowed = refused.iter().map(|verdict| verdict.allowed).collect::<Vec<_>>();
    assert_eq!(allowed, [true, true, true, false]);
    assert!(refused[3].retry_after.is_some_and(|wait| wait > Duration::from_secs(50)));
    for (index, user) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!((left(user).await, refused[index].remaining), (9, 9), "{user}");
    }

    let with = |index: usize, change: fn(&mut Check)| {
        let mut checks = all.clone();
        change(&mut checks[index]);
        checks
    };
    // Costs that were already incurred stay, whoever refuses.
    instance.ask(&with(0, |check| check.count_denied = true)).await.unwrap();
    assert_eq!((left("a").await, left("b").await), (8, 9));
    // A shadow refuses nobody; nor does a quota, unless all of them do.
    for mode in [Mode::Shadow, Mode::Quota] {
        let mut checks = all.clone();
        checks[3].mode = mode;
        checks[2].mode = mode;
        assert!(!instance.ask(&checks).await.unwrap()[3].allowed);
    }
    assert_eq!((left("a").await, left("b").await, left("c").await), (6, 7, 7));
    let only_quota = with(3, |check| check.mode = Mode::Quota);
    assert!(!instance.ask(&only_quota).await.unwrap()[3].allowed);
    assert_eq!((left("a").await, left("b").await, left("c").await), (6, 7, 7));
    // Also where the quota that refuses shares a slot with a check that takes.
    let hourly = |hits| check_in("d", 10, Duration::from_secs(3600), hits);
    let mut beside = [all[3].clone(), hourly(1), all[2].clone()];
    beside[0].mode = Mode::Quota;
    beside[2].mode = Mode::Quota;
    instance.ask(&beside).await.unwrap();
    assert_eq!(instance.ask(&[hourly(0)]).await.unwrap()[0].remaining, 9);
    // A refund beside a refusal gives nothing back; alone it does.
    instance.ask(&with(0, |check| check.hits = -1)).await.unwrap();
    assert_eq!((left("a").await, left("b").await), (6, 7));
    let refund = [check("a", 10, -1), check("b", 10, 1)];
    assert_eq!(instance.ask(&refund).await.unwrap()[0].remaining, 7);
    assert_eq!((left("a").await, left("b").await), (7, 6));
}

/// While a slot moves, keys stay where they are until they are moved, and new ones begin on the
/// other side: nothing is lost and nothing is counted twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_moves_and_every_quota_goes_on() {
    let cluster = Cluster::start();
    let instance = Instance::start(&of_cluster(&cluster)).await;
    let old = check("old", 10, 1);
    let slot: usize = cluster.servers[0].command("CLUSTER KEYSLOT {k:old}");
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    let take =
        async |check: &Check| instance.ask(std::slice::from_ref(check)).await.unwrap()[0].remaining;
    assert_eq!(take(&old).await, 9);
    cluster.begin_move(slot, from, to);
    assert_eq!(take(&old).await, 8, "the key is still here");
    let young = check_in("old", 10, Duration::from_secs(3600), 1);
    assert_eq!(take(&young).await, 9, "a new key begins over there: ASK");
    assert_eq!(take(&young).await, 8);
    assert!(instance.metrics.redirections.with_label_values(&["ask"]).get() >= 2);
    // One key here and one there: nobody can decide until the move goes on.
    let both = [old.clone(), young.clone()];
    let waiting = instance.ask(&both);
    let going_on = async {
        tokio::task::yield_now().await;
        cluster.move_keys(slot, from, to);
    };
    let (decided, ()) = tokio::join!(waiting, going_on);
    let remaining = decided.unwrap().iter().map(|verdict| verdict.remaining).collect::<Vec<_>>();
    assert_eq!(remaining, [7, 7]);
    assert_eq!(take(&old).await, 6, "the key went along");
    cluster.end_move(slot, from, to);
    assert_eq!(take(&old).await, 5, "MOVED");
    instance.until("the map is learnt", async || instance.metrics.topology_changes.get() > 0).await;
    let before = instance.metrics.redirections.with_label_values(&["moved"]).get();
    assert_eq!(take(&old).await, 4);
    assert_eq!(instance.metrics.redirections.with_label_values(&["moved"]).get(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_over_in_the_cluster() {
    let mut cluster = Cluster::start();
    let settings = Settings { timeout: Duration::from_millis(250), ..of_cluster(&cluster) };
    let instance = Instance::start(&settings).await;
    let keys: Vec<Check> = (0..12).map(|user| check(&user.to_string(), 5, 1)).collect();
    for key in &keys {
        assert_eq!(instance.until_answered(key).await.remaining, 4);
    }
    let counted = cluster.servers[0].command::<u64>("DBSIZE");
    wait_until("the hits are replicated", || {
        cluster.servers[3].command::<u64>("DBSIZE") == counted
    });
    cluster.servers[0].kill();
    let killed = Instant::now();
    let slot_of = |check: &Check| {
        let key = String::from_utf8(check.key.as_bytes().to_vec()).unwrap();
        cluster.servers[1].command::<usize>(&format!("CLUSTER KEYSLOT {{{key}}}"))
    };
    let moved = keys.iter().find(|key| cluster.owner(slot_of(key)) == 0).unwrap();
    let peek = Check { hits: 0, ..moved.clone() };
    let heard = listen_while(&instance, &peek, async {
        instance.until_answered(&peek).await;
    });
    heard.await.print("cluster: a primary killed", killed.elapsed());
    for key in &keys {
        // Without an answer a hit may have been counted all the same.
        let remaining = instance.until_answered(key).await.remaining;
        assert!(remaining <= 3, "{key:?}: {remaining}");
    }
}

/// Nobody hears of the answer, so nobody has taken anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_reserves_nothing() {
    let cluster = Cluster::start();
    let settings = Settings { timeout: Duration::from_millis(100), ..of_cluster(&cluster) };
    let instance = Instance::start(&settings).await;
    let both = ["a", "b"].map(|user| check(user, 10, 1));
    for check in &both {
        instance.until_answered(check).await;
    }
    let slot: usize = cluster.servers[0].command("CLUSTER KEYSLOT {k:a}");
    let frozen = &cluster.servers[cluster.owner(slot)];
    let other: usize = cluster.servers[0].command("CLUSTER KEYSLOT {k:b}");
    assert_ne!(cluster.owner(slot), cluster.owner(other));
    frozen.freeze();
    assert!(instance.ask(&both).await.is_err());
    frozen.thaw();
    for user in ["a", "b"] {
        let what = format!("{user} has what it had");
        let peek = check(user, 10, 0);
        instance
            .until(&what, async || {
                let answer = instance.ask(std::slice::from_ref(&peek)).await;
                answer.is_ok_and(|verdicts| verdicts[0].remaining == 9)
            })
            .await;
    }
    assert_eq!(instance.metrics.give_backs.with_label_values(&["done"]).get(), 2);
}

/// A request for two users in two slots, whose servers are the first and the second of these; the
/// answer of the second does not come.
async fn half_reserved(cluster: &Cluster) -> ([usize; 2], [Check; 2]) {
    let server = |user: &str| {
        cluster.owner(cluster.servers[0].command(&format!("CLUSTER KEYSLOT {{k:{user}}}")))
    };
    let users: Vec<String> = (0..100).map(|user| user.to_string()).collect();
    // Not on the server that has a replica.
    let first = users.iter().find(|user| server(user) == 1).unwrap();
    let second = users.iter().find(|user| server(user) == 2).unwrap();
    cluster.servers[2].freeze();
    ([1, 2], [first, second].map(|user| check_in(user, 10, Duration::from_secs(1), 1)))
}

/// Nothing is given back any more when a process ends between the two steps: the hits stay until
/// they leave their window, and no longer.
#[test]
fn a_process_that_dies_in_between_leaves_its_hits_for_one_window() {
    const NOON_US: u64 = 1_767_225_600_000_000;
    let cluster = Cluster::start();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (dying, living) = (runtime(), runtime());
    let instance = dying.block_on(Instance::start(&of_cluster(&cluster)));
    dying.block_on(async { instance.until_answered(&check("warm", 10, 1)).await });
    let ([first, second], both) = dying.block_on(half_reserved(&cluster));
    cluster.servers[first].clock.stop_at(NOON_US);
    cluster.servers[second].clock.stop_at(NOON_US);
    let keys = || cluster.servers[first].command::<u64>("DBSIZE");
    let before = keys();
    let (store, checks) = (instance.store.clone(), both.clone());
    dying.spawn(async move { store.acquire(&checks, None).await });
    wait_until("one half is reserved", || keys() > before);
    drop(instance);
    dying.shutdown_background();
    cluster.servers[second].thaw();
    let left = |after_us: u64| {
        cluster.servers[first].clock.stop_at(NOON_US + after_us);
        cluster.servers[second].clock.stop_at(NOON_US + after_us);
        living.block_on(async {
            let instance = Instance::start(&of_cluster(&cluster)).await;
            let peek = Check { hits: 0, ..both[0].clone() };
            instance.until_answered(&peek).await.remaining
        })
    };
    assert_eq!([left(0), left(999_999), left(1_000_000)], [9, 9, 10]);
}

/// The server that has the reservation is gone before it can be given back.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_given_back_is_counted() {
    let mut cluster = Cluster::start();
    let settings = Settings { timeout: Duration::from_secs(2), ..of_cluster(&cluster) };
    let instance = Instance::start(&settings).await;
    let ([first, _], both) = half_reserved(&cluster).await;
    let runs = || instance.metrics.script_runs.get();
    let before = runs();
    let gone = async {
        wait_until("one half is reserved", || runs() > before);
        cluster.servers[first].kill();
    };
    let (answer, ()) = tokio::join!(instance.ask(&both), gone);
    assert!(answer.is_err(), "{answer:?}");
    let lost = || instance.metrics.give_backs.with_label_values(&["lost"]).get() == 1;
    instance.until("it is counted", async || lost()).await;
}

/// The program, with what its settings file says of sentinels and clusters.
#[test]
fn the_program_serves_from_each_topology() {
    let rules = "
domain: edge
descriptors:
  - { key: a, rate_limit: { limit: 3, window: 60s } }
  - { key: b, rate_limit: { limit: 1, window: 60s } }
";
    let (sentinels, cluster) = (Sentinels::start(), Cluster::start());
    let list = |nodes: Vec<String>| format!("['{}']", nodes.join("', '"));
    for redis in [
        format!("topology: sentinel, master_name: quotas, nodes: {}", list(sentinels.nodes())),
        format!("topology: cluster, nodes: {}", list(cluster.nodes())),
    ] {
        let settings = format!("store: {{ kind: redis, redis: {{ {redis}, timeout: 1s }} }}");
        let server = Server::start(rules, &settings);
        let body = r#"{"domain":"edge","descriptors":[
            {"entries":[{"key":"a","value":"v"}]},{"entries":[{"key":"b","value":"v"}]}]}"#;
        let both = || http::post(server.http_port, "/json", body).unwrap().status;
        assert_eq!([both(), both(), both()], [200, 429, 429], "{redis}");
        let a = || server.ask("edge", "a", "v").status;
        assert_eq!([a(), a(), a()], [200, 200, 429], "{redis}: the refusals took nothing");
    }
}
