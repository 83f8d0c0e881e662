//! Counts in Redis: one script run decides the checks of a request.
//!
//! `servers` sends a run to the right server: a `node`, or one of a `cluster`, where `split`
//! decides what one script cannot. A node has connections (`links`, `dial`, `address`,
//! `sentinel`), and a `breaker` and a `watchdog` that keep a sick one from costing every caller
//! its deadline. `script` speaks the scripts' language, `fault` reads errors, `coalesce` lets
//! equal checks share a run.

mod address;
mod breaker;
mod cluster;
mod coalesce;
mod dial;
mod fault;
mod links;
mod node;
mod script;
mod sentinel;
mod servers;
mod settings;
mod slots;
mod split;
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use self::coalesce::{Coalescer, Single, Turn};
use self::node::Common;
use self::script::Work;
use self::servers::Servers;
pub use self::settings::{Settings, Tls, Topology};
use super::{Store, StoreError};
use crate::check::Check;
use crate::metrics::Metrics;
use crate::quota::Verdict;

/// The worker that has no connections to serve.
pub const MAIN: &str = "main";

/// How long a new connection may take; longer than a call, which does not wait for it.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// A Redis, as one worker sees it. Clones share everything.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
}

struct Inner {
    servers: Servers,
    coalescer: Coalescer,
    timeout: Duration,
    metrics: Arc<Metrics>,
}

impl Redis {
    /// `worker` names it in metrics; the one called [`MAIN`] also speaks in the log. Connections
    /// are opened by [`Redis::watch`], so a Redis that is away is no error.
    ///
    /// # Errors
    /// A sentence that says what is wrong with an address or a certificate.
    pub fn open(
        settings: &Settings,
        connections: u32,
        worker: &str,
        metrics: Arc<Metrics>,
    ) -> Result<Self, String> {
        let common = Common {
            worker: worker.into(),
            connections,
            timeout: settings.timeout,
            key_prefix: settings.key_prefix.as_str().into(),
            speaks: worker == MAIN,
            metrics: Arc::clone(&metrics),
        };
        let inner = Inner {
            servers: Servers::new(settings, common)?,
            coalescer: Coalescer::default(),
            timeout: settings.timeout,
            metrics,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether Redis answered when it was last asked.
    pub fn answers(&self) -> bool {
        self.trouble().is_none()
    }

    /// Why Redis does not answer, for people.
    pub fn trouble(&self) -> Option<String> {
        self.inner.servers.trouble()
    }

    /// Keeps an eye on Redis for as long as the process runs, on the runtime that serves.
    pub async fn watch(self) {
        self.inner.servers.watch().await;
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
        let work = Work::Decide { checks, times: 1 };
        if !self.inner.servers.are_together(work) {
            return split::decide(Arc::clone(&self.inner), checks, deadline).await;
        }
        let Some(single) = Single::of(checks) else {
            let answer = self.inner.servers.run(work, deadline).await;
            return answer.map(|answer| answer.verdicts());
        };
        let turn = self.inner.coalescer.join(&single);
        let verdict = match turn {
            Turn::Lead => {
                // Also when this call is cancelled: those who wait behind it must be served.
                let _landing = coalesce::Landing::new(Arc::clone(&self.inner), single);
                self.inner.servers.run(work, deadline).await.map(|answer| answer.verdicts())?
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
