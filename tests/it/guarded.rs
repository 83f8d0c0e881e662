//! Servers that ask who comes: certificates, passwords, accounts. One server, sentinels, clusters.

use std::time::Duration;

use chronosdb::check::Check;
use chronosdb::metrics::Metrics;
use chronosdb::store::redis::{Redis as Store, Settings, Tls, Topology};
use tempfile::TempDir;

use crate::harness::certs::Issued;
use crate::harness::cluster::Cluster;
use crate::harness::instance::{Instance, check, check_in, patient};
use crate::harness::redis::Redis;
use crate::harness::sentinels::Sentinels;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// What `store.redis.tls` says of an authority, and of the certificate that we show.
fn tls(authority: &Issued, client: Option<&Issued>) -> Tls {
    Tls {
        ca: Some(authority.ca.clone()),
        cert: client.map(|issued| issued.client.cert.clone()),
        key: client.map(|issued| issued.client.key.clone()),
    }
}

/// A Redis that shows a certificate of its own authority, and asks for one of us.
#[tokio::test]
async fn redis_over_tls_knows_us_and_we_know_it() {
    let folder = TempDir::new().unwrap();
    let [ours, theirs] =
        ["ours", "theirs"].map(|name| Issued::by(name, folder.path(), "localhost"));
    let redis = Redis::start_over(Some(&ours), &[]);
    let url = format!("rediss://localhost:{}", redis.door());
    let settings = |tls| Settings { tls, ..patient(&url) };
    let instance = Instance::start(&settings(tls(&ours, Some(&ours)))).await;
    assert!(instance.until_answered(&check("bob", 1, 1)).await.allowed);
    assert_eq!(redis.command::<u64>("EXISTS chronosdb:quota:{k:bob}:60000"), 1);
    for (wrong, expected) in [
        (tls(&theirs, Some(&ours)), "UnknownIssuer"),
        (tls(&ours, None), "CertificateRequired"),
        (tls(&ours, Some(&theirs)), "UnknownCA"),
        (Tls::default(), "UnknownIssuer"),
    ] {
        let instance = Instance::launch(&settings(wrong));
        let says = async || instance.store.trouble().is_some_and(|why| why.contains(expected));
        instance.until(expected, says).await;
    }
}

#[test]
fn what_is_wrong_with_a_certificate_is_said() {
    let tls = Tls { ca: Some("/nowhere/ca.pem".into()), ..Tls::default() };
    let settings = Settings { tls, ..patient("rediss://127.0.0.1:1") };
    let error = Store::open(&settings, 1, "test", Metrics::new()).err().unwrap();
    assert!(error.contains("store.redis.tls.ca: /nowhere/ca.pem: No such file"), "{error}");
}

/// A request over several slots is decided, a slot moves, a primary dies: whatever the servers ask
/// for, their answers are the same.
async fn serves_and_moves_and_fails_over(cluster: &mut Cluster, settings: &Settings) {
    let instance = Instance::start(settings).await;
    let users: Vec<Check> = (0..12).map(|user| check(&user.to_string(), 5, 1)).collect();
    for user in &users {
        instance.until_answered(user).await;
    }
    assert!(instance.ask(&users).await.unwrap().iter().all(|verdict| verdict.remaining == 3));

    let moving = &users[0];
    let slot: usize = cluster.servers[0].command("CLUSTER KEYSLOT {k:0}");
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to);
    let young = check_in("0", 5, Duration::from_secs(3600), 1);
    assert_eq!(instance.until_answered(&young).await.remaining, 4, "over there: ASK");
    cluster.move_keys(slot, from, to);
    cluster.end_move(slot, from, to);
    assert_eq!(instance.until_answered(moving).await.remaining, 2, "it went along");
    assert!(instance.metrics.redirections.with_label_values(&["ask"]).get() > 0);

    let counted = cluster.servers[0].command::<u64>("DBSIZE");
    wait_until("the hits are replicated", || {
        cluster.servers[3].command::<u64>("DBSIZE") == counted
    });
    cluster.servers[0].kill();
    for user in &users {
        // Without an answer a hit may have been counted all the same.
        let remaining = instance.until_answered(user).await.remaining;
        assert!(remaining <= 2, "{user:?}: {remaining}");
    }
}

fn of_cluster(cluster: &Cluster, url: &str) -> Settings {
    let timeout = Duration::from_millis(500);
    Settings { topology: Topology::Cluster, nodes: cluster.nodes(), timeout, ..patient(url) }
}

/// Who asks for quotas came over TLS.
fn nobody_spoke_plainly(cluster: &Cluster) {
    for server in &cluster.servers[1..] {
        let clients: String = server.command("CLIENT LIST TYPE normal");
        let door = format!(" laddr=127.0.0.1:{} ", server.door());
        let plain = clients.lines().filter(|client| !client.contains(&door));
        assert_eq!(plain.count(), 1, "only this very command: {clients}");
    }
}

/// The servers name each other by address, which the certificate must name.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_over_tls_serves_and_moves_and_fails_over() {
    let folder = TempDir::new().unwrap();
    let issued = Issued::by("ours", folder.path(), "127.0.0.1");
    let mut cluster = Cluster::start_over(Some(&issued), &[]);
    let settings = of_cluster(&cluster, "rediss://unused");
    let settings = Settings { tls: tls(&issued, Some(&issued)), ..settings };
    serves_and_moves_and_fails_over(&mut cluster, &settings).await;
    nobody_spoke_plainly(&cluster);
    let uncertain = Settings { tls: tls(&issued, None), ..settings };
    let instance = Instance::launch(&uncertain);
    let says = async || instance.store.trouble().is_some_and(|why| why.contains("Certificate"));
    instance.until("a certificate is asked for", says).await;
}

/// The program, with what its settings file says of certificates.
#[test]
fn the_program_serves_from_a_redis_over_tls() {
    let folder = TempDir::new().unwrap();
    let issued = Issued::by("ours", folder.path(), "localhost");
    let redis = Redis::start_over(Some(&issued), &[]);
    let [ca, cert, key] = [&issued.ca, &issued.client.cert, &issued.client.key];
    let settings = format!(
        "store: {{ kind: redis, redis: {{ url: 'rediss://localhost:{}', pool_size: 1, timeout: 5s, \
         tls: {{ ca: {}, cert: {}, key: {} }} }} }}",
        redis.door(),
        ca.display(),
        cert.display(),
        key.display()
    );
    let rules = "domain: edge\ndescriptors: [{ key: a, rate_limit: { limit: 2, window: 1h } }]\n";
    let server = Server::start(rules, &settings);
    assert_eq!([(); 3].map(|()| server.ask("edge", "a", "v").status), [200, 200, 429]);
}

/// The servers name each other by the name that is in the certificate.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_over_tls_is_found_by_its_names() {
    let folder = TempDir::new().unwrap();
    let issued = Issued::by("ours", folder.path(), "localhost");
    let names = "--cluster-announce-hostname localhost --cluster-preferred-endpoint-type hostname";
    let names: Vec<&str> = names.split(' ').collect();
    let mut cluster = Cluster::start_over(Some(&issued), &names);
    let settings = of_cluster(&cluster, "rediss://unused");
    let nodes = vec![format!("localhost:{}", cluster.servers[1].door())];
    let settings = Settings { nodes, tls: tls(&issued, Some(&issued)), ..settings };
    serves_and_moves_and_fails_over(&mut cluster, &settings).await;
    nobody_spoke_plainly(&cluster);
}

/// The account that docs/redis.md shows.
fn smallest_account() -> String {
    let docs = include_str!("../../docs/redis.md");
    let shown = docs.split("```").find(|block| block.contains("ACL SETUSER")).unwrap();
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn the_smallest_account_is_enough() {
    let redis = Redis::start();
    redis.command::<()>("ACL SETUSER default off");
    redis.command::<()>(&smallest_account());
    let url = redis.url().replace("://", "://limiter:secret@");
    let instance = Instance::start(&patient(&url)).await;
    redis.command::<()>("SCRIPT FLUSH");
    for remaining in [1, 0] {
        assert_eq!(instance.until_answered(&check("bob", 2, 1)).await.remaining, remaining);
    }
    assert!(!instance.until_answered(&check("bob", 2, 1)).await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_behind_an_account_serves_and_moves_and_fails_over() {
    let mut cluster = Cluster::start();
    for server in &cluster.servers {
        server.command::<()>("ACL SETUSER default off");
        server.command::<()>(&smallest_account());
    }
    let settings = of_cluster(&cluster, "redis://limiter:secret@unused");
    serves_and_moves_and_fails_over(&mut cluster, &settings).await;
    for (url, expected) in
        [("redis://limiter:wrong@unused", "WRONGPASS"), ("redis://unused", "NOAUTH")]
    {
        let instance = Instance::launch(&of_cluster(&cluster, url));
        let says = async || instance.store.trouble().is_some_and(|why| why.contains(expected));
        instance.until(expected, says).await;
    }
}

/// Sentinels, primary and replica ask for a certificate, for a password and for an account.
#[tokio::test(flavor = "multi_thread")]
async fn it_follows_the_sentinels_over_tls() {
    let folder = TempDir::new().unwrap();
    let issued = Issued::by("ours", folder.path(), "127.0.0.1");
    let mut sentinels = Sentinels::start_over(Some(&issued));
    for server in &sentinels.servers {
        server.command::<()>("ACL SETUSER default off");
        server.command::<()>(&smallest_account());
    }
    let settings = Settings {
        topology: Topology::Sentinel,
        nodes: sentinels.nodes(),
        master_name: Some("quotas".into()),
        tls: tls(&issued, Some(&issued)),
        timeout: Duration::from_millis(500),
        ..patient("rediss://limiter:secret@unused")
    };
    let instance = Instance::start(&settings).await;
    let user = check("bob", 3, 1);
    assert_eq!(instance.until_answered(&user).await.remaining, 2);
    let replica = &sentinels.servers[1];
    wait_until("the hit is replicated", || replica.command::<u64>("DBSIZE") >= 1);
    sentinels.servers[0].kill();
    sentinels.wait_until_chosen(1);
    assert!(instance.until_answered(&user).await.remaining <= 1, "what was counted is known");
}

/// What is wrong is said.
#[tokio::test]
async fn a_sentinel_with_another_password_is_named() {
    let sentinels = Sentinels::start();
    let settings = Settings {
        topology: Topology::Sentinel,
        nodes: sentinels.nodes().iter().map(|node| node.replace("guarded", "wrong")).collect(),
        master_name: Some("quotas".into()),
        ..patient("redis://unused")
    };
    let instance = Instance::launch(&settings);
    let says = async || instance.store.trouble().is_some_and(|why| why.contains("WRONGPASS"));
    instance.until("the sentinels want their password", says).await;
}
