//! All the servers there are, behind one call: it goes to the right one, and is sent again only
//! where an error proves that nothing ran.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::address::Access;
use super::breaker::State;
use super::cluster::Cluster;
use super::dial::Target;
use super::fault::Next;
use super::node::{Common, Node};
use super::script::{Answer, Work};
use super::sentinel::Sentinels;
use super::settings::{Settings, Topology};
use super::{slots, watchdog};
use crate::store::StoreError;

/// Servers that one call may be sent to: a slot that moves is two, and may move once more.
const MAX_HOPS: usize = 5;

/// Before a call is sent again to a server that could not take it.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) enum Servers {
    One(Arc<Node>),
    Many(Box<Cluster>),
}

/// Where a call goes next.
struct Route {
    node: Arc<Node>,
    /// The server is only just taking the slot over.
    asking: bool,
}

impl Servers {
    pub(super) fn new(settings: &Settings, common: Common) -> Result<Self, String> {
        let target = match settings.topology {
            Topology::Standalone => Target::Fixed(Box::new(Access::of_url(settings)?)),
            Topology::Sentinel => Target::Chosen(Arc::new(Sentinels::new(settings)?)),
            Topology::Cluster => return Ok(Self::Many(Box::new(Cluster::new(settings, common)?))),
        };
        Ok(Self::One(Arc::new(Node::new(settings.place(), target, common, State::Open))))
    }

    /// Whether these keys are decided by one script.
    pub(super) fn are_together(&self, work: Work<'_>) -> bool {
        let Self::Many(_) = self else { return true };
        let mut slots = work.checks().iter().map(|check| slots::of(check.key.as_bytes()));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// One script run, at the server that has the keys.
    pub(super) async fn run(
        &self,
        work: Work<'_>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let mut route = self.route(work)?;
        let mut hops = 1;
        loop {
            let fault = match route.node.run(work, route.asking, deadline).await {
                Ok(answer) => return Ok(answer.by(route.node)),
                Err(fault) => fault,
            };
            if matches!(fault.meaning, StoreError::Timeout | StoreError::Unavailable(_)) {
                self.suspect();
            }
            route = match &fault.next {
                Next::Tell => return Err(fault.meaning),
                Next::Again if Instant::now() + PAUSE >= deadline => return Err(fault.meaning),
                Next::Again => {
                    self.suspect();
                    sleep(PAUSE).await;
                    self.route(work)?
                }
                Next::Moved { .. } | Next::Ask { .. } if hops == MAX_HOPS => {
                    return Err(fault.meaning);
                }
                Next::Moved { to } => {
                    self.suspect();
                    hops += 1;
                    self.redirected(to, &route.node, "moved").ok_or(fault.meaning)?
                }
                Next::Ask { to } => {
                    hops += 1;
                    let route = self.redirected(to, &route.node, "ask").ok_or(fault.meaning)?;
                    Route { asking: true, ..route }
                }
            };
        }
    }

    /// Takes back what `node` granted, there or where the keys have been moved from there. Never
    /// from a server that took over after a failover: the reservation may be lost, and hits of
    /// others would be taken instead.
    pub(super) async fn give_back(
        &self,
        work: Work<'_>,
        node: Arc<Node>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let mut route = Route { node, asking: false };
        for _ in 0..MAX_HOPS {
            let Err(fault) = route.node.run(work, route.asking, deadline).await else {
                return Ok(());
            };
            route = match (&fault.next, &fault.meaning) {
                // A server that is a primary still has handed the slot over with its keys.
                (Next::Moved { to }, _) if route.node.is_primary().await => {
                    self.redirected(to, &route.node, "moved").ok_or(fault.meaning)?
                }
                (Next::Ask { to }, _) => {
                    let route = self.redirected(to, &route.node, "ask").ok_or(fault.meaning)?;
                    Route { asking: true, ..route }
                }
                (Next::Again, StoreError::ClusterDown(_)) => {
                    sleep(PAUSE).await;
                    route
                }
                _ => return Err(fault.meaning),
            };
        }
        Err(StoreError::ClusterDown("the slot moves on and on".into()))
    }

    fn route(&self, work: Work<'_>) -> Result<Route, StoreError> {
        let node = match self {
            Self::One(node) => Arc::clone(node),
            Self::Many(cluster) => {
                let slot = work.checks().first().map_or(0, |check| slots::of(check.key.as_bytes()));
                cluster.owner(slot)?
            }
        };
        Ok(Route { node, asking: false })
    }

    fn redirected(&self, to: &str, by: &Node, kind: &str) -> Option<Route> {
        by.common.metrics.redirections.with_label_values(&[kind]).inc();
        match self {
            Self::One(_) => None,
            Self::Many(cluster) => Some(Route { node: cluster.named(to, by)?, asking: false }),
        }
    }

    fn suspect(&self) {
        if let Self::Many(cluster) = self {
            cluster.suspect();
        }
    }

    /// Why nothing is answered, for people.
    pub(super) fn trouble(&self) -> Option<String> {
        match self {
            Self::One(node) => node.breaker.trouble().map(|trouble| trouble.to_string()),
            Self::Many(cluster) => cluster.trouble(),
        }
    }

    /// Keeps an eye on all of them for as long as the process runs.
    pub(super) async fn watch(&self) {
        match self {
            Self::One(node) => watchdog::run(Arc::clone(node), Box::new(|_| true)).await,
            Self::Many(cluster) => cluster.watch().await,
        }
    }
}
