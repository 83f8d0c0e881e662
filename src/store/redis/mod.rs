//! Counts in Redis: one script run decides the checks of a request.
//! `dial` opens connections, `script` speaks the script's language, `coalesce` lets equal checks
//! share a run, `breaker` and `watchdog` keep a sick Redis from costing every caller its deadline.

mod breaker;
mod coalesce;
mod dial;
mod fault;
mod script;
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use bb8_redis::bb8::{Pool, QueueStrategy, RunError};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use self::breaker::Breaker;
use self::coalesce::{Coalescer, Single, Turn};
use self::dial::{Dialer, Link, Trouble};
use self::script::Script;
use super::{Store, StoreError};
use crate::check::Check;
use crate::metrics::{Metrics, milliseconds};
use crate::quota::Verdict;

/// Calls that may wait for Redis at once, on each worker: beyond, callers are told at once.
const MAX_IN_FLIGHT: usize = 4096;

/// The worker that has no connections to serve.
pub const MAIN: &str = "main";

/// How long a new connection may take; longer than a call, which does not wait for it.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Settings of `store.redis:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `redis://[user:password@]host:port[/db]` or `redis+unix:///path`.
    pub url: String,
    /// How Redis is laid out.
    pub topology: Topology,
    /// Further addresses, for `sentinel` and `cluster`.
    pub nodes: Vec<String>,
    /// The name that the sentinels know the primary by.
    pub master_name: Option<String>,
    /// Connections of the whole process; each worker has its part, at least one.
    pub pool_size: u32,
    /// How long a decision may wait for Redis.
    #[serde(with = "crate::duration")]
    pub timeout: Duration,
    /// Stands before every key.
    pub key_prefix: String,
}

/// How Redis is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One server.
    #[default]
    Standalone,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".into(),
            topology: Topology::Standalone,
            nodes: Vec::new(),
            master_name: None,
            pool_size: 4,
            timeout: Duration::from_millis(15),
            key_prefix: "chronosdb:quota:".into(),
        }
    }
}

impl Settings {
    /// The URL without its secrets, for logs.
    pub fn shown_url(&self) -> String {
        dial::masked(&self.url)
    }
}

/// A Redis, as one worker sees it. Clones share everything.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool<Dialer>,
    script: Script,
    breaker: Breaker,
    coalescer: Coalescer,
    in_flight: Semaphore,
    timeout: Duration,
    dial_trouble: Trouble,
    /// One line for each change is enough, however many workers notice it.
    speaks: bool,
    metrics: Arc<Metrics>,
}

impl Redis {
    /// `worker` names it in metrics; the one called [`MAIN`] also speaks in the log.
    ///
    /// Ready at once; connections are made in the background, so a Redis that is away is no error.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the URL.
    pub fn open(
        settings: &Settings,
        connections: u32,
        worker: &str,
        metrics: Arc<Metrics>,
    ) -> Result<Self, String> {
        let dial_trouble = Trouble::default();
        let dialer = Dialer::new(settings, DIAL_TIMEOUT, Arc::clone(&dial_trouble))?;
        let pool = Pool::builder()
            .max_size(connections.max(1))
            .min_idle(connections.max(1))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .connection_timeout(DIAL_TIMEOUT)
            .retry_connection(false)
            .queue_strategy(QueueStrategy::Fifo)
            .build_unchecked(dialer);
        let inner = Inner {
            pool,
            script: Script::new(&settings.key_prefix),
            breaker: Breaker::new(metrics.breaker_open.with_label_values(&[worker])),
            coalescer: Coalescer::default(),
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
            timeout: settings.timeout,
            dial_trouble,
            speaks: worker == MAIN,
            metrics,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether Redis answered when it was last asked.
    pub fn answers(&self) -> bool {
        !self.inner.breaker.is_open()
    }

    /// Why Redis does not answer, for people.
    pub fn trouble(&self) -> Option<String> {
        self.inner.breaker.trouble()
    }

    /// Keeps an eye on Redis for as long as the process runs.
    pub async fn watch(self) {
        watchdog::run(self.inner).await;
    }
}

impl Store for Redis {
    async fn acquire(
        &self,
        checks: &[Check],
        deadline: Option<Instant>,
    ) -> Result<Vec<Verdict>, StoreError> {
        let own = Instant::now() + self.inner.timeout;
        let deadline = deadline.map_or(own, |callers| callers.min(own));
        let Some(single) = Single::of(checks) else {
            return self.inner.run(checks, 1, deadline).await.map(|runs| runs.verdicts());
        };
        let turn = self.inner.coalescer.join(&single);
        let verdict = match turn {
            Turn::Lead => {
                // Also when this call is cancelled: those who wait behind it must be served.
                let _landing = coalesce::Landing::new(Arc::clone(&self.inner), single);
                self.inner.run(checks, 1, deadline).await.map(|runs| runs.verdicts())?
            }
            Turn::Wait(answer) => match timeout_at(deadline, answer).await {
                Ok(Ok(answer)) => vec![answer?],
                Ok(Err(_)) => return Err(StoreError::Unavailable("the server stops".into())),
                Err(_) => return Err(StoreError::Timeout),
            },
        };
        Ok(verdict)
    }
}

impl Inner {
    /// One script run; `times` equal asks when there is one check.
    async fn run(
        &self,
        checks: &[Check],
        times: usize,
        deadline: Instant,
    ) -> Result<script::Answer, StoreError> {
        if let Some(trouble) = self.breaker.trouble() {
            return Err(StoreError::Unavailable(trouble));
        }
        let Ok(_permit) = self.in_flight.try_acquire() else {
            return Err(StoreError::Busy(format!("{MAX_IN_FLIGHT} calls wait for Redis already")));
        };
        let asked = Instant::now();
        let mut link = None;
        let answer = timeout_at(deadline, self.send(checks, times, &mut link)).await;
        self.metrics.redis_latency_ms.observe(milliseconds(asked.elapsed()));
        self.metrics.script_runs.inc();
        self.metrics.script_checks.inc_by((checks.len() * times) as u64);
        let answer = answer.unwrap_or(Err(StoreError::Timeout));
        self.breaker.observe(answer.as_ref().err(), link.as_ref());
        answer
    }

    async fn send(
        &self,
        checks: &[Check],
        times: usize,
        used: &mut Option<Link>,
    ) -> Result<script::Answer, StoreError> {
        let link = used.insert(self.link().await?);
        self.script.run(link, checks, times).await
    }

    /// A live connection, shared with others: it pipelines.
    async fn link(&self) -> Result<Link, StoreError> {
        loop {
            match self.pool.get().await {
                // Dropping the guard of a broken one makes the pool dial another.
                Ok(link) if link.is_broken() => {}
                Ok(link) => return Ok(link.clone()),
                Err(RunError::User(error)) => return Err(fault::store_error(&error)),
                Err(RunError::TimedOut) => {
                    return Err(StoreError::Unavailable("no connection could be made".into()));
                }
            }
        }
    }
}
