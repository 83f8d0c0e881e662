//! Asks one server how it is, closes its breaker when it answers, and says in the log what is
//! wrong. One probe at a time; callers never pay for one.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use super::node::Node;
use super::script::Work;
use super::slots;
use crate::check::{Check, QuotaKey};
use crate::quota::{Limit, Mode};
use crate::store::StoreError;

/// Between probes of a server that answers.
const CALM: Duration = Duration::from_secs(1);

/// Between probes of one that does not: doubled each time, with jitter.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// A probe may take this long, and as long as a decision: a server that is only late is told from
/// one that is away.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Between looks at Redis' memory settings.
const INSPECT_EVERY: Duration = Duration::from_secs(30);

/// Whether a server of a cluster has this slot; of others, each has all.
pub(super) type Serves = Box<dyn Fn(usize) -> bool + Send + Sync>;

/// Watches for as long as the server is there.
pub(super) async fn run(node: Arc<Node>, serves: Serves) {
    let mut retry = FIRST_RETRY;
    let mut inspected: Option<Instant> = None;
    // The reason that was told last; `None`: all is well, and that was told.
    let mut told: Option<&'static str> = Some("");
    let mut probe = Probe::default();
    loop {
        follow(&node, &mut probe).await;
        let mut answer = probe.ask(&node, &serves).await;
        if answer == Err(StoreError::Timeout) {
            // It may be a black hole, or only this connection is: new ones find out.
            node.links.hang_up();
            if !node.breaker.is_open() {
                answer = probe.ask(&node, &serves).await;
            }
        }
        let reason = answer.as_ref().err().map(StoreError::reason);
        if node.common.speaks && reason != told {
            match &answer {
                Ok(()) => tracing::info!(server = node.name, "Redis answers"),
                Err(error) => tracing::warn!(
                    server = node.name,
                    %error,
                    "Redis does not do its work; the policy answers (store.on_error)"
                ),
            }
        }
        told = reason;
        match answer {
            Err(error) if !is_still_true(&error) => {
                probe.knows_features = false;
                node.breaker.trip(&error);
                sleep(jittered(retry)).await;
                retry = if probe.is_late { FIRST_RETRY } else { (retry * 2).min(LAST_RETRY) };
            }
            _ => {
                node.breaker.close();
                retry = FIRST_RETRY;
                if inspected.is_none_or(|at| at.elapsed() >= INSPECT_EVERY) {
                    inspect(&node, inspected.is_none() && node.common.speaks).await;
                    inspected = Some(Instant::now());
                }
                tokio::select! {
                    () = sleep(CALM) => {}
                    () = node.breaker.opened() => sleep(jittered(retry)).await,
                }
            }
        }
    }
}

/// Whether a server that says this still tells the truth when it refuses or is only looked at:
/// it takes no writes.
fn is_still_true(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::OutOfMemory(_) | StoreError::NotSaving(_) | StoreError::NoReplicas(_)
    )
}

/// What is known of a server between probes.
#[derive(Default)]
struct Probe {
    /// Whether this server has everything that the scripts need.
    knows_features: bool,
    /// Makes the key of the self-test, so that it lives in a slot of this server.
    number: u32,
    /// The primary that the sentinels named last.
    primary: Option<String>,
    /// The server answered when no caller would have waited any more.
    is_late: bool,
}

impl Probe {
    /// One hit on a key of its own shows that the script runs and writes.
    async fn ask(&mut self, node: &Node, serves: &Serves) -> Result<(), StoreError> {
        let timeout = node.common.timeout;
        let patience = PROBE_TIMEOUT.max(timeout);
        let Some(check) = self.check(serves) else {
            return node.query(&redis::cmd("PING"), patience).await.map(|_| ());
        };
        let work = Work::Decide { checks: std::slice::from_ref(&check), times: 1 };
        let asked = Instant::now();
        let answer = node.probe(work, patience).await;
        // Calls that were let through now would only wait in vain. While they pass, one late probe
        // does not cut them short.
        self.is_late = answer.is_ok() && node.breaker.is_open() && asked.elapsed() > timeout;
        match answer {
            Ok(()) if self.is_late => Err(StoreError::Unavailable(format!(
                "it answers after {:?}, later than store.redis.timeout ({timeout:?})",
                asked.elapsed()
            ))),
            // The slot has just gone elsewhere: the server is well.
            Err(StoreError::ClusterDown(_)) => Ok(()),
            Ok(()) if self.knows_features => Ok(()),
            Ok(()) | Err(StoreError::Misconfigured(_)) => {
                let trouble = self.missing(node, &check).await;
                self.knows_features = trouble.is_ok();
                trouble
            }
            error => error,
        }
    }

    /// Names what the server does not have, or does not let us use.
    async fn missing(&self, node: &Node, check: &Check) -> Result<(), StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("features.lua")).arg(1).arg(node.scripts.key("features:", check));
        match node.query(&command, PROBE_TIMEOUT).await? {
            Value::BulkString(missing) if missing.is_empty() => Ok(()),
            Value::BulkString(missing) => Err(StoreError::Misconfigured(format!(
                "{} does not let us use {}: Redis 6 or newer is needed, and an account that may run these",
                node.name,
                String::from_utf8_lossy(&missing)
            ))),
            odd => Err(StoreError::Misconfigured(format!("the self-test answered {odd:?}"))),
        }
    }

    fn check(&mut self, serves: &Serves) -> Option<Check> {
        let key = |number: u32| {
            QuotaKey::of_identity(b"chronosdb", format!("self-test-{number}").as_bytes())
        };
        let is_served = |number: &u32| serves(slots::of(key(*number).as_bytes()));
        if !is_served(&self.number) {
            self.number = (0..10 * slots::COUNT as u32).find(is_served)?;
        }
        let limit = Limit::new(1_000_000, Duration::from_secs(1)).expect("a second is a window");
        let key = key(self.number);
        Some(Check { key, limit, hits: 1, mode: Mode::Enforce, count_denied: false })
    }
}

/// Leaves a server that is the primary no more, also while it still believes to be.
async fn follow(node: &Node, probe: &mut Probe) {
    let Some(sentinels) = node.sentinels() else { return };
    // Without a sentinel the connections there are go on.
    let Ok(primary) = sentinels.primary().await else { return };
    let primary = primary.to_string();
    let known = probe.primary.replace(primary.clone());
    if known.is_some_and(|known| known != primary) {
        node.links.hang_up();
        node.common.metrics.topology_changes.inc();
        if node.common.speaks {
            tracing::warn!(%primary, "the sentinels chose another primary");
        }
    }
}

/// Says what would make quotas restart at random.
async fn inspect(node: &Node, first: bool) {
    // An account without INFO is no fault: the rest works.
    let Ok(info) = node.query(&redis::cmd("INFO"), PROBE_TIMEOUT).await else { return };
    let Ok(info) = redis::from_redis_value::<String>(info) else { return };
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    if let Some(evicted) = field("evicted_keys").and_then(|keys| keys.parse().ok()) {
        node.common.metrics.redis_evicted_keys.set(evicted);
    }
    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    if first && policy != "noeviction" && field("maxmemory").is_some_and(|bytes| bytes != "0") {
        tracing::warn!(
            server = node.name,
            policy,
            "Redis may evict quotas under memory pressure, and they would start anew: set maxmemory-policy noeviction"
        );
    }
}

/// Between half of it and all of it: instances that lost Redis together do not come back together.
pub(super) fn jittered(wait: Duration) -> Duration {
    let random = ahash::RandomState::new().hash_one(Instant::now());
    wait / 2 + wait.mul_f64((random % 1000) as f64 / 2000.0)
}
