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

use tokio::time::Instant;

use self::coalesce::{Coalescer, Single};
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
    coalescer: Arc<Coalescer>,
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
        Self::with(settings, connections, worker, Coalescer::default(), metrics)
    }

    /// One for each of several workers: they have `pool_size` connections together, and equal
    /// checks share runs whichever worker they come to.
    ///
    /// # Errors
    /// As for [`Redis::open`].
    pub fn open_for(
        settings: &Settings,
        workers: usize,
        metrics: &Arc<Metrics>,
    ) -> Result<Vec<Self>, String> {
        let share = u32::try_from(workers).unwrap_or(u32::MAX).max(1);
        let connections = settings.pool_size.div_ceil(share);
        let wider = Arc::default();
        let open = |index: usize| {
            let coalescer =
                if workers > 1 { Coalescer::within(&wider) } else { Coalescer::default() };
            Self::with(settings, connections, &index.to_string(), coalescer, Arc::clone(metrics))
        };
        (0..workers).map(open).collect()
    }

    fn with(
        settings: &Settings,
        connections: u32,
        worker: &str,
        coalescer: Coalescer,
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
            coalescer: Arc::new(coalescer),
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
        let hits = checks[0].hits.unsigned_abs();
        let share = coalesce::ask(&self.inner, &self.inner.coalescer, single, 1, deadline).await?;
        Ok(vec![share.verdict(hits)])
    }
}
