//! Opens the rooms, serves, and closes them in order. It decides nothing.
//!
//! One single-threaded runtime for each worker serves connections; the main runtime accepts and
//! deals them out, and has everything that is not a decision: admin pages, reloads, signals.

mod authority;
mod connection;
mod drain;
mod export;
mod listen;
mod logging;
mod pages;
mod stores;
mod tls;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};

use self::connection::Incoming;
use self::export::Export;
use self::listen::Listeners;
use self::stores::Stores;
use self::tls::Tls;
use self::worker::{Job, Worker};
use crate::admin;
use crate::admin::guard::Guard;
use crate::admin::readiness::{Part, Readiness};
use crate::api;
use crate::api::ext_authz::Door;
use crate::api::keys::Gate;
use crate::check::OnStoreError;
use crate::l1::{self, L1};
use crate::limiter::{self, Limiter, Shared};
use crate::metrics::Metrics;
use crate::privacy::Privacy;
use crate::rules::watch::Loader;
use crate::settings::{Http, Settings, StoreKind};

/// Between looks at things that nobody tells about: expired logs, the store's health.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// Serves until a signal ends it.
///
/// # Errors
/// Something could not be opened: the message names it and says what to do.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(settings))
}

async fn serve(settings: &Settings) -> anyhow::Result<()> {
    let metrics = Metrics::new();
    let authority = authority::Watch::new(&metrics);
    logging::start(&settings.log, &authority)?;
    let mut signals = drain::Signals::listen()?;
    let tls = settings.grpc.tls.as_ref().map(|tls| Tls::open(tls, &metrics)).transpose()?;
    let guard = guard(&settings.http).await?;
    let listeners = Listeners::open(settings).await?;
    let loader =
        Loader::open(settings.rules.clone(), Arc::clone(&metrics), Privacy::new(&settings.privacy));
    let shared = Arc::new(shared(settings, &loader, &metrics));
    let export = Export::open(&settings.tracing, &metrics)?;
    let stores = Stores::open(settings, worker_count(settings), &metrics)?;
    let door = door(settings, &metrics)?;
    let readiness = Readiness::default();
    let (stop, stopping) = watch::channel(false);
    let reporter = HealthReporter::new();
    let start = |(index, store): (usize, &_)| {
        let job = Job {
            limiter: Arc::new(Limiter::new(Arc::clone(&shared), Clone::clone(store))),
            store: Clone::clone(store),
            health: HealthService::from_health_reporter(reporter.clone()),
            door: Arc::clone(&door),
            settings: settings.clone(),
            tls: tls.clone(),
            tracer: export.tracer(),
            stopping: stopping.clone(),
        };
        Worker::start(index, job)
    };
    let workers = stores.workers.iter().enumerate().map(start);
    let workers = workers
        .collect::<std::io::Result<Vec<Worker>>>()
        .context("a worker cannot start: allow more open files and threads, or set grpc.workers")?;
    let transport = tls.as_deref().map_or("plaintext", Tls::shown);
    listeners.announce(settings, &shared, &door, transport);

    let limiter = Arc::new(Limiter::new(Arc::clone(&shared), stores.main.clone()));
    let pages = admin::router(limiter, readiness.clone(), settings.headers.style, guard);
    let house = House { settings: settings.clone(), stores, shared, readiness: readiness.clone() };
    let background = [
        supervise("rules", move || loader.clone().run()),
        supervise("authority", move || authority.clone().report()),
        supervise("health", {
            let (readiness, door) = (readiness.clone(), Arc::clone(&door));
            move || report_health(readiness.clone(), Arc::clone(&door), reporter.clone())
        }),
        supervise("housekeeping", move || house.clone().keep()),
        tokio::spawn(pages::serve(listeners.http, pages)),
    ];
    let certificates = tls.map(|tls| supervise("certificates", move || Arc::clone(&tls).watch()));
    if let Some(gate) = door.gate.clone() {
        supervise("API keys", move || Arc::clone(&gate).watch());
    }
    let incoming = Incoming { tcp: listeners.grpc, uds: listeners.uds };
    let dealing = tokio::spawn(incoming.deal(workers.iter().map(Worker::inbox).collect()));

    signals.next().await;
    tracing::info!(delay = ?settings.drain.delay, "stopping: not ready any more, serving on");
    readiness.drain();
    tokio::select! {
        () = drain::end(&settings.drain, dealing, stop, workers) => tracing::info!("stopped"),
        () = signals.next() => tracing::warn!("stopped at once: a second signal came"),
    }
    export.end().await;
    background.iter().chain(&certificates).for_each(tokio::task::JoinHandle::abort);
    listen::remove_uds(settings);
    Ok(())
}

/// One for each core, unless the settings say how many.
fn worker_count(settings: &Settings) -> usize {
    match settings.grpc.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

async fn guard(settings: &Http) -> anyhow::Result<Guard> {
    let (token, file) = (settings.token.as_deref(), settings.token_file.as_deref());
    let guard = Guard::new(settings.listen, token, file);
    guard.check().await.map_err(anyhow::Error::msg)?;
    if guard == Guard::Closed {
        tracing::info!("HTTP: /rules, /explain and /json stay closed: there is no http.token_file");
    }
    Ok(guard)
}

fn shared(settings: &Settings, loader: &Loader, metrics: &Arc<Metrics>) -> Shared {
    let fallback = limiter::Settings {
        shadow_mode: settings.rules.shadow_mode,
        on_error: settings.store.on_error,
        expected_instances: settings.store.expected_instances,
        memory: settings.store.memory.clone(),
    };
    // The memory store refuses faster than the L1 could.
    let enabled = settings.l1.enabled && settings.store.kind == StoreKind::Redis;
    let max_ttl = settings.l1.max_ttl.min(settings.store.redis.refusals_hold());
    let l1 = L1::new(&l1::Settings { enabled, max_ttl, ..settings.l1 }, Arc::clone(metrics));
    let privacy = Privacy::new(&settings.privacy);
    Shared::new(loader.rules(), l1, privacy, fallback, Arc::clone(metrics))
}

/// The door of ext_authz, with its gate if there is one.
fn door(settings: &Settings, metrics: &Arc<Metrics>) -> anyhow::Result<Arc<Door>> {
    let gate = Gate::open(&settings.api_keys, metrics)
        .map_err(|error| anyhow::anyhow!("api_keys.path: {error}"))?;
    Ok(Arc::new(Door { settings: settings.ext_authz.clone(), gate: gate.map(Arc::new) }))
}

/// Runs a task for ever: one that ends or panics is started again, and somebody is told.
fn supervise<F>(
    name: &'static str,
    mut task: impl FnMut() -> F + Send + 'static,
) -> tokio::task::JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            let ended = tokio::spawn(task()).await;
            tracing::error!(task = name, ?ended, "a background task ended; it is started again");
            sleep(Duration::from_secs(1)).await;
        }
    })
}

/// What is looked after while others serve.
#[derive(Clone)]
struct House {
    settings: Settings,
    stores: Stores,
    shared: Arc<Shared>,
    readiness: Readiness,
}

impl House {
    async fn keep(self) {
        if let crate::store::AnyStore::Redis(redis) = &self.stores.main {
            let redis = redis.clone();
            supervise("redis watchdog", move || redis.clone().watch());
        }
        loop {
            self.readiness.set(Part::Rules, self.rules_trouble());
            self.readiness.set(Part::Store, self.store_trouble());
            let ready = i64::from(self.readiness.is_ready());
            self.shared.metrics.ready.set(ready);
            self.stores.reclaim();
            self.shared.fallback.reclaim();
            sleep(HOUSEKEEPING).await;
        }
    }

    /// An empty folder is a mistake more often than a wish.
    fn rules_trouble(&self) -> Option<String> {
        let rules = self.shared.rules.load();
        let Settings { rules: settings, .. } = &self.settings;
        let expected = settings.path.exists()
            || settings.path != crate::rules::watch::Settings::default().path;
        (rules.is_empty() && expected && !settings.allow_empty).then(|| {
            format!(
                "no rules are loaded from {}: put a *.yaml file there, or set rules.allow_empty: true",
                settings.path.display()
            )
        })
    }

    fn store_trouble(&self) -> Option<String> {
        let by_policy = self.settings.store.on_error != OnStoreError::Error;
        self.stores.trouble().filter(|_| !by_policy)
    }
}

/// Tells gRPC health checks what readiness says.
async fn report_health(readiness: Readiness, door: Arc<Door>, reporter: HealthReporter) {
    let mut changes = readiness.subscribe();
    loop {
        let ready = *changes.borrow_and_update();
        let status = |ready| if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        let authorizes = status(ready && door.is_open());
        reporter.set_service_status(api::AUTHORIZATION, authorizes).await;
        let status = status(ready);
        for service in api::SERVICES.iter().copied().chain([""]) {
            reporter.set_service_status(service, status).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
