//! One server: its links, its breaker, and one run on it. It follows nobody elsewhere.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Semaphore;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::DIAL_TIMEOUT;
use super::address::Access;
use super::breaker::{Breaker, State};
use super::dial::{Link, Target};
use super::fault::Fault;
use super::links::Links;
use super::script::{Answer, Scripts, Work};
use super::sentinel::{self, Sentinels};
use crate::metrics::{Metrics, milliseconds};
use crate::store::StoreError;

/// Calls that may wait for one server at once, on each worker: beyond, callers are told at once.
const MAX_IN_FLIGHT: usize = 4096;

/// What all servers of one worker have in common.
#[derive(Clone)]
pub(super) struct Common {
    /// Names the worker in metrics.
    pub(super) worker: Arc<str>,
    /// Connections to each server.
    pub(super) connections: u32,
    /// How long callers wait.
    pub(super) timeout: Duration,
    pub(super) key_prefix: Arc<str>,
    /// One line in the log for each change is enough, however many workers notice it.
    pub(super) speaks: bool,
    pub(super) metrics: Arc<Metrics>,
}

pub(super) struct Node {
    /// For people.
    pub(super) name: String,
    pub(super) breaker: Breaker,
    pub(super) scripts: Scripts,
    pub(super) common: Common,
    pub(super) links: Links,
    target: Arc<Target>,
    in_flight: Semaphore,
}

impl Node {
    pub(super) fn new(name: String, target: Target, common: Common, state: State) -> Self {
        let target = Arc::new(target);
        let gauge = common.metrics.breaker_open.with_label_values(&[&*common.worker]);
        Self {
            name,
            breaker: Breaker::new(gauge, state),
            scripts: Scripts::new(&common.key_prefix),
            links: Links::new(Arc::clone(&target), common.connections),
            common,
            target,
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
        }
    }

    /// One script run.
    pub(super) async fn run(
        &self,
        work: Work<'_>,
        asking: bool,
        deadline: Instant,
    ) -> Result<Answer, Fault> {
        if let Some(trouble) = self.breaker.trouble() {
            return Err(Fault::told(trouble));
        }
        let Ok(_permit) = self.in_flight.try_acquire() else {
            let waiting = format!("{MAX_IN_FLIGHT} wait already");
            return Err(Fault::told(StoreError::Overloaded(waiting)));
        };
        let asked = Instant::now();
        let mut link = None;
        let answer = timeout_at(deadline, self.send(work, asking, &mut link)).await;
        let metrics = &self.common.metrics;
        metrics.redis_latency_ms.observe(milliseconds(asked.elapsed()));
        metrics.script_runs.inc();
        metrics.script_checks.inc_by(work.asks() as u64);
        let answer = self.outcome(answer, link);
        self.breaker.observe(answer.as_ref().err().map(|fault| &fault.meaning));
        answer
    }

    /// The same for a watchdog, whatever the breaker says.
    pub(super) async fn probe(&self, work: Work<'_>, patience: Duration) -> Result<(), StoreError> {
        let mut link = None;
        let answer = timeout(patience, self.send(work, false, &mut link)).await;
        self.outcome(answer, link).map(|_| ()).map_err(|fault| fault.meaning)
    }

    async fn send(
        &self,
        work: Work<'_>,
        asking: bool,
        used: &mut Option<Link>,
    ) -> Result<Answer, Fault> {
        let link = used.insert(self.links.link().await.map_err(Fault::unsent)?);
        self.scripts.run(link, work, asking).await
    }

    /// One command that touches no quota.
    pub(super) async fn query(
        &self,
        command: &Cmd,
        patience: Duration,
    ) -> Result<Value, StoreError> {
        let mut used = None;
        let ask = async {
            let link = used.insert(self.links.link().await.map_err(Fault::unsent)?);
            let reply = command.query_async(&mut link.connection).await;
            reply.map_err(|error| Fault::of(&error))
        };
        let reply = timeout(patience, ask).await;
        self.outcome(reply, used).map_err(|fault| fault.meaning)
    }

    /// What became of something that had its time, and what that says of the connection.
    fn outcome<T>(
        &self,
        tried: Result<Result<T, Fault>, Elapsed>,
        used: Option<Link>,
    ) -> Result<T, Fault> {
        let Some(link) = used else {
            return tried.unwrap_or_else(|_| Err(Fault::told(self.links.trouble())));
        };
        let outcome = tried.unwrap_or_else(|_| Err(Fault::told(StoreError::Timeout)));
        link.learn(outcome.as_ref().err().map(|fault| &fault.meaning));
        outcome
    }

    /// Whether it is a primary, as it says itself.
    pub(super) async fn is_primary(&self) -> bool {
        let role = self.query(&redis::cmd("ROLE"), DIAL_TIMEOUT).await;
        role.is_ok_and(|role| sentinel::is_primary(&role))
    }

    /// Those who say which server this is, if it is not always the same.
    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &*self.target {
            Target::Fixed(_) => None,
            Target::Chosen(sentinels) => Some(sentinels),
        }
    }

    /// Where it is, if it is always the same server.
    pub(super) fn access(&self) -> Option<&Access> {
        match &*self.target {
            Target::Fixed(access) => Some(access),
            Target::Chosen(_) => None,
        }
    }
}
