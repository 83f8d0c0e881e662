//! Many callers ask the same at once: they share runs, whichever worker they came to.

use std::sync::Arc;
use std::time::Duration;

use chronosdb::api::pb::chronosdb::v1::CheckQuotaRequest;
use chronosdb::api::pb::chronosdb::v1::rate_limiter_client::RateLimiterClient;
use chronosdb::metrics::Metrics;
use chronosdb::quota::Verdict;
use chronosdb::store::redis::{Redis as Store, Settings};
use chronosdb::store::{Store as _, StoreError};
use futures_util::future::join_all;
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::harness::instance::{Instance, check};
use crate::harness::proxy::{Proxy, Weather};
use crate::harness::redis::Redis;
use crate::harness::server::Server;

fn patient(url: String) -> Settings {
    Settings { url, timeout: Duration::from_secs(5), ..Settings::default() }
}

/// What is left after each that was granted, in order.
fn left(verdicts: &[Verdict]) -> Vec<u64> {
    let granted = verdicts.iter().filter(|verdict| verdict.allowed);
    let mut left: Vec<u64> = granted.map(|verdict| verdict.remaining).collect();
    left.sort_unstable();
    left
}

/// Each gets the answer of some serial order.
#[tokio::test]
async fn what_is_ready_at_one_moment_shares_a_run() {
    let redis = Redis::start();
    let instance = Instance::start(&patient(redis.url())).await;
    let hot = [check("hot", 1_200, 2)];
    let before = instance.metrics.script_runs.get();
    let answers = join_all((0..1000).map(|_| instance.ask(&hot))).await;
    let verdicts: Vec<Verdict> = answers.into_iter().map(|answer| answer.unwrap()[0]).collect();
    let granted = verdicts.iter().take_while(|verdict| verdict.allowed);
    let left: Vec<u64> = granted.map(|verdict| verdict.remaining).collect();
    assert_eq!(
        left,
        (0..600).rev().map(|left| left * 2).collect::<Vec<u64>>(),
        "first come first served"
    );
    assert!(verdicts.iter().all(|verdict| verdict.allowed == verdict.retry_after.is_none()));
    assert!(
        verdicts[left.len()..].iter().all(|verdict| !verdict.allowed && verdict.remaining == 0)
    );
    let runs = instance.metrics.script_runs.get() - before;
    assert_eq!(runs, 1, "all of them were ready at one moment");
}

/// The callers of four workers, each asking again when it has its answer.
#[tokio::test]
async fn workers_share_the_runs_of_a_hot_key() {
    const TURNS: usize = 10;
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let metrics = Metrics::new();
    let workers = Store::open_for(&patient(proxy.url()), 4, &metrics).unwrap();
    for worker in &workers {
        tokio::spawn(worker.clone().watch());
    }
    while workers.iter().any(|worker| !worker.answers()) {
        sleep(Duration::from_millis(2)).await;
    }
    proxy.set(Weather::Slow(Duration::from_millis(50)));
    let before = metrics.script_runs.get();
    let hot = [check("hot", 500, 1)];
    let callers = (0..80).map(|caller: usize| {
        let (worker, hot) = (&workers[caller % workers.len()], &hot);
        async move {
            let mut verdicts = Vec::new();
            for _ in 0..TURNS {
                verdicts.push(worker.acquire(hot, None).await.unwrap()[0]);
            }
            verdicts
        }
    });
    let verdicts = join_all(callers).await.concat();
    assert_eq!(left(&verdicts), (0..500).collect::<Vec<u64>>());
    // Each for itself they would need a run for each turn of each worker.
    let runs = metrics.script_runs.get() - before;
    assert!(runs < (workers.len() * TURNS) as u64, "{runs} runs");
}

/// A caller that goes away does not strand those who wait behind it.
#[tokio::test]
async fn a_cancelled_leader_does_not_strand_the_others() {
    let redis = Redis::start();
    let store = Arc::new(Instance::start(&patient(redis.url())).await);
    redis.freeze();
    let ask = |store: Arc<Instance>| async move { store.ask(&[check("hot", 10, 1)]).await };
    let leader = tokio::spawn(ask(Arc::clone(&store)));
    sleep(Duration::from_millis(20)).await;
    let waiting: tokio::task::JoinHandle<Result<_, StoreError>> =
        tokio::spawn(ask(Arc::clone(&store)));
    sleep(Duration::from_millis(20)).await;
    leader.abort();
    redis.thaw();
    assert!(waiting.await.unwrap().unwrap()[0].allowed);
}

/// While it stops: a worker whose callers have gone leads a run that another worker's wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_callers_stays_for_those_of_others() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port);
    let store =
        format!("store: {{ kind: redis, redis: {{ url: '{}', timeout: 5s }} }}", proxy.url());
    let mut server = Server::launch_with("domain: edge\n", ", workers: 2", "", &store).ready();
    let target = format!("http://127.0.0.1:{}", server.grpc_port);
    // Connections are dealt out in turn.
    let first = RateLimiterClient::connect(target.clone()).await.unwrap();
    let second = RateLimiterClient::connect(target).await.unwrap();
    let ask = |mut client: RateLimiterClient<Channel>| {
        let (user_id, api_key) = ("hot".to_owned(), "k".to_owned());
        let question =
            CheckQuotaRequest { user_id, api_key, max_requests: 9, window_seconds: 60, hits: None };
        tokio::spawn(async move { client.check_quota(question).await })
    };
    proxy.set(Weather::Slow(Duration::from_millis(500)));
    // On each worker one leads, and another waits for the next run.
    let one = ask(first.clone());
    sleep(Duration::from_millis(50)).await;
    let two = ask(second.clone());
    sleep(Duration::from_millis(50)).await;
    let gone = ask(first.clone());
    sleep(Duration::from_millis(50)).await;
    let last = ask(second);
    one.await.unwrap().unwrap();
    two.await.unwrap().unwrap();
    // The first worker leads the next run, and its caller goes away.
    sleep(Duration::from_millis(50)).await;
    gone.abort();
    drop(first);
    server.signal("TERM");
    last.await.unwrap().expect("who waits gets an answer");
    assert!(server.ends().success());
}
