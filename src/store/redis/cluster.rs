//! The servers of a cluster: which one has a slot, and who they are by now. It learns from
//! CLUSTER SLOTS and from redirections; it sends nothing twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::address::{Access, Address};
use super::breaker::State;
use super::dial::Target;
use super::node::{Common, Node};
use super::settings::Settings;
use super::{slots, watchdog};
use crate::store::StoreError;

/// Between looks at the slots when nothing hints at a change.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Between looks when something does: a resharding moves many slots.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A server that does not answer within this is left out.
const PATIENCE: Duration = Duration::from_millis(300);

pub(super) struct Cluster {
    map: Arc<ArcSwap<Map>>,
    /// Every server that has been named; those that the map no longer has are forgotten.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// Where the first map comes from.
    seeds: Vec<Arc<Node>>,
    /// Account and certificates of every server.
    access: Access,
    common: Common,
    /// Somebody was redirected, or found nobody.
    stale: Notify,
    trouble: Mutex<String>,
}

/// Who has which slot.
#[derive(Default)]
struct Map {
    ranges: Vec<slots::Range>,
    owners: Vec<Option<Arc<Node>>>,
}

impl Cluster {
    pub(super) fn new(settings: &Settings, common: Common) -> Result<Self, String> {
        let access = Access::of_url(settings)?;
        let mut seeds = Access::of_nodes(settings)?;
        if seeds.is_empty() {
            seeds.push(access.clone());
        }
        let once = Common { connections: 1, ..common.clone() };
        let seed = |seed: Access| {
            let address =
                seed.address().ok_or("store.redis.nodes: a cluster has no unix sockets")?;
            let target = Target::Fixed(Box::new(access.at(&address)));
            Ok(Arc::new(Node::new(address.to_string(), target, once.clone(), State::Closed)))
        };
        let seeds = seeds.into_iter().map(seed).collect::<Result<_, &str>>()?;
        Ok(Self {
            map: Arc::default(),
            nodes: Mutex::default(),
            seeds,
            access,
            common,
            stale: Notify::new(),
            trouble: Mutex::new("no server of the cluster has answered yet".into()),
        })
    }

    /// The server that has a slot, as far as is known.
    pub(super) fn owner(&self, slot: usize) -> Result<Arc<Node>, StoreError> {
        match self.map.load().owners.get(slot) {
            Some(Some(node)) => Ok(Arc::clone(node)),
            Some(None) => {
                self.suspect();
                Err(StoreError::ClusterDown(format!("nobody has slot {slot}")))
            }
            None => Err(StoreError::Unavailable(self.silence())),
        }
    }

    /// The server that another one named.
    pub(super) fn named(&self, to: &str, by: &Node) -> Option<Arc<Node>> {
        let said_by = by.access().and_then(Access::address);
        let address = Address::parse(to, &said_by.map(|by| by.host).unwrap_or_default())?;
        Some(self.node(&address))
    }

    /// Looks at the slots soon.
    pub(super) fn suspect(&self) {
        self.stale.notify_one();
    }

    /// Why nothing is answered, if nothing is. A single server that is away is told by its
    /// breaker: the others go on.
    pub(super) fn trouble(&self) -> Option<String> {
        let map = self.map.load();
        if map.owners.is_empty() {
            return Some(self.silence());
        }
        let mut troubles = Vec::new();
        for node in self.nodes.lock().expect("no code panics holding this").values() {
            troubles.push(format!("{}: {}", node.name, node.breaker.trouble()?));
        }
        Some(troubles.join("; "))
    }

    fn silence(&self) -> String {
        self.trouble.lock().expect("no code panics holding this").clone()
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock().expect("no code panics holding this");
        let made = || {
            let target = Target::Fixed(Box::new(self.access.at(address)));
            Arc::new(Node::new(address.to_string(), target, self.common.clone(), State::Closed))
        };
        Arc::clone(nodes.entry(address.clone()).or_insert_with(made))
    }

    /// Keeps the map true, and a watchdog at each server.
    pub(super) async fn watch(&self) {
        let mut watched: HashMap<Address, Watched> = HashMap::new();
        let mut turn = 0;
        loop {
            self.look(turn).await;
            turn += 1;
            let nodes = self.nodes.lock().expect("no code panics holding this").clone();
            watched.retain(|address, watched| {
                nodes.get(address).is_some_and(|node| Arc::ptr_eq(node, &watched.node))
            });
            for (address, node) in nodes {
                watched.entry(address.clone()).or_insert_with(|| self.watched(address, node));
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                () = self.stale.notified() => sleep(LOOK_AGAIN).await,
            }
        }
    }

    fn watched(&self, address: Address, node: Arc<Node>) -> Watched {
        let map = Arc::clone(&self.map);
        let serves = move |slot: usize| {
            let map = map.load();
            let has = |range: &&slots::Range| (range.first..=range.last).contains(&slot);
            map.ranges.iter().find(has).is_some_and(|range| range.primary == address)
        };
        let task = tokio::spawn(watchdog::run(Arc::clone(&node), Box::new(serves)));
        Watched { node, task: task.abort_handle() }
    }

    /// Asks one server after the other who has which slot, beginning with another one each time:
    /// one that was cut off from the rest goes on telling old news.
    async fn look(&self, turn: usize) {
        let mut asked: Vec<Arc<Node>> = {
            let nodes = self.nodes.lock().expect("no code panics holding this");
            nodes.values().cloned().collect()
        };
        asked.sort_by(|one, other| one.name.cmp(&other.name));
        if !asked.is_empty() {
            let first = turn % asked.len();
            asked.rotate_left(first);
        }
        asked.sort_by_key(|node| node.breaker.is_open());
        asked.extend(self.seeds.iter().cloned());
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut trouble = String::new();
        for node in asked {
            match node.query(&command, PATIENCE).await {
                Ok(reply) => match self.read(&reply, &node) {
                    Some(()) => return,
                    None => trouble = format!("{}: it serves no slots", node.name),
                },
                Err(error) => trouble = format!("{}: {error}", node.name),
            }
        }
        *self.trouble.lock().expect("no code panics holding this") = trouble;
    }

    fn read(&self, reply: &Value, said_by: &Node) -> Option<()> {
        let host = said_by.access().and_then(Access::address)?.host;
        let ranges = slots::read(reply, &host).filter(|ranges| !ranges.is_empty())?;
        let before = self.map.load();
        if before.ranges == ranges {
            return Some(());
        }
        let mut owners = vec![None; slots::COUNT];
        for range in &ranges {
            owners[range.first..=range.last].fill(Some(self.node(&range.primary)));
        }
        let mut nodes = self.nodes.lock().expect("no code panics holding this");
        nodes.retain(|address, _| ranges.iter().any(|range| range.primary == *address));
        drop(nodes);
        if !before.ranges.is_empty() {
            self.common.metrics.topology_changes.inc();
        }
        self.map.store(Arc::new(Map { ranges, owners }));
        Some(())
    }
}

/// A server and its watchdog, which ends with this.
struct Watched {
    node: Arc<Node>,
    task: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}
