//! RESP2 and RESP3: the same contract, whichever a URL asks for; on one server and on a cluster.

use std::time::Duration;

use chronosdb::check::{Check, Mode};
use chronosdb::store::redis::{Settings, Topology};

use crate::harness::cluster::Cluster;
use crate::harness::instance::{Instance, check, check_in, patient};
use crate::harness::redis::Redis;
use crate::harness::wait_until;

/// What a URL says, and what Redis then says of the connection.
const PROTOCOLS: [(&str, &str); 3] =
    [("", "resp=3"), ("?protocol=resp3", "resp=3"), ("?protocol=resp2", "resp=2")];

/// Whom an instance speaks to, the servers that have its quotas, and its settings.
type Setting<'a> = (&'a str, &'a [Redis], Settings);

/// One server, and a cluster.
fn settings<'a>(asked: &str, one: &'a Redis, cluster: &'a Cluster) -> [Setting<'a>; 2] {
    let standalone = patient(&format!("{}{asked}", one.url()));
    let many = Settings {
        topology: Topology::Cluster,
        nodes: cluster.nodes(),
        ..patient(&format!("redis://unused{asked}"))
    };
    [
        ("one server", std::slice::from_ref(one), standalone),
        ("a cluster", &cluster.servers[..3], many),
    ]
}

/// How many are left to a user.
async fn left(instance: &Instance, user: &str) -> u64 {
    instance.until_answered(&check(user, 10, 0)).await.remaining
}

/// A decision, a refusal, a peek, a refund, several keys together, and what is given back.
async fn decides(instance: &Instance) {
    let ask = async |checks: &[Check]| {
        let verdicts = instance.ask(checks).await.unwrap();
        verdicts.iter().map(|verdict| (verdict.allowed, verdict.remaining)).collect::<Vec<_>>()
    };
    assert_eq!(ask(&[check("a", 10, 3)]).await, [(true, 7)]);
    assert_eq!(ask(&[check("a", 10, 8)]).await, [(false, 7)]);
    assert_eq!(ask(&[check("a", 10, 11)]).await, [(false, 7)]);
    assert_eq!(ask(&[check("a", 10, 0)]).await, [(true, 7)]);
    assert_eq!(ask(&[check("a", 10, -2)]).await, [(true, 9)]);
    let full = instance.ask(&[check("full", 1, 1), check("full", 1, 1)]).await.unwrap();
    assert!(full[1].retry_after.is_none_or(|wait| wait <= Duration::from_secs(60)));
    let all = ["a", "b", "c", "d"].map(|user| check(user, 10, 1));
    assert_eq!(ask(&all).await, [(true, 8), (true, 9), (true, 9), (true, 9)]);
    assert_eq!(ask(&[check("d", 10, 9)]).await, [(true, 0)]);
    assert_eq!(ask(&all).await, [(true, 8), (true, 9), (true, 9), (false, 0)], "and given back");
    assert_eq!((left(instance, "a").await, left(instance, "b").await), (8, 9));
    let shadow = Check { mode: Mode::Shadow, ..check("d", 10, 1) };
    assert_eq!(ask(&[all[0].clone(), shadow]).await, [(true, 7), (false, 0)]);
    let windows = [check("a", 10, 1), check_in("a", 10, Duration::from_secs(3600), 1)];
    assert_eq!(ask(&windows).await, [(true, 6), (true, 9)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_protocols_decide_alike() {
    let (one, cluster) = (Redis::start(), Cluster::start());
    for (asked, spoken) in PROTOCOLS {
        for (whom, servers, settings) in settings(asked, &one, &cluster) {
            let instance = Instance::start(&settings).await;
            decides(&instance).await;
            for server in servers {
                let clients: String = server.command("CLIENT LIST TYPE normal");
                let ours = clients.lines().filter(|client| client.contains("cmd=eval"));
                let other = ours.clone().find(|client| !client.contains(spoken));
                assert!(other.is_none() && ours.count() > 0, "{whom} {asked}: {clients}");
                // Nobody's script is known, and then no connection lives.
                server.command::<()>("SCRIPT FLUSH");
            }
            let flushed = ["a", "b", "c", "d"].map(|user| check(user, 10, 0));
            let answers = instance.ask(&flushed).await.unwrap();
            assert_eq!(answers[0].remaining, 6, "{whom} {asked}: NOSCRIPT");
            for server in servers {
                server.command::<()>("CLIENT KILL TYPE normal");
            }
            assert_eq!(left(&instance, "a").await, 6, "{whom} {asked}: new connections");
            for server in servers {
                server.command::<()>("FLUSHALL");
            }
        }
    }
}

/// Errors have the same meaning: a server that loads, one without room, one that lacks a command.
#[tokio::test(flavor = "multi_thread")]
async fn both_protocols_tell_errors_alike() {
    for (asked, _) in PROTOCOLS {
        let delays = "--key-load-delay 1000 --loading-process-events-interval-bytes 1024";
        let mut redis = Redis::start_with(&delays.split(' ').collect::<Vec<_>>());
        let settings = Settings {
            timeout: Duration::from_millis(200),
            ..patient(&format!("{}{asked}", redis.url()))
        };
        let instance = Instance::start(&settings).await;
        let user = check("bob", 5, 1);
        let reason = async || {
            let error = instance.ask(std::slice::from_ref(&user)).await.err();
            error.map(|error| error.reason())
        };
        assert_eq!(instance.until_answered(&user).await.remaining, 4);
        redis.command::<()>("CONFIG SET maxmemory 1mb");
        assert_eq!(reason().await, Some("oom"), "{asked}");
        redis.command::<()>("CONFIG SET maxmemory 0");
        redis.command::<()>("DEBUG POPULATE 2000");
        redis.command::<()>("SAVE");
        redis.relaunch();
        instance.until("LOADING is told", async || reason().await == Some("loading")).await;
        wait_until("the data are loaded", || redis.info("loading") == "0");
        assert_eq!(instance.until_answered(&user).await.remaining, 3, "{asked}");
        redis.command::<()>("ACL SETUSER default -zcard -zadd");
        redis.command::<()>("CLIENT KILL TYPE normal");
        let says = async || {
            let _ = reason().await;
            instance.store.trouble().is_some_and(|why| why.contains("the command ZADD"))
        };
        instance.until("what is missing is named", says).await;
    }
}
