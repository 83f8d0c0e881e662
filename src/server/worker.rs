//! A worker: one thread, one single-threaded runtime, its own connections to the store.
//! It serves the connections that it is dealt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use opentelemetry_sdk::trace::SdkTracer;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

use super::connection::{Accepted, adopt_all};
use super::tls::Tls;
use crate::api::ext_authz::Door;
use crate::api::{self, traced::traced};
use crate::limiter::Limiter;
use crate::settings::Settings;
use crate::store::AnyStore;

/// Streams of one connection at once, which is Envoy's own cap.
const MAX_CONCURRENT_STREAMS: u32 = 1024;

/// A call that takes longer, apart from the store's time, does not arrive: memory waits for it.
const CALL: Duration = Duration::from_secs(10);

/// A running worker.
pub(super) struct Worker {
    inbox: mpsc::UnboundedSender<Accepted>,
    served: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What a worker needs to serve.
pub(super) struct Job {
    pub(super) limiter: Arc<Limiter>,
    pub(super) store: AnyStore,
    pub(super) health: HealthService,
    pub(super) door: Arc<Door>,
    pub(super) settings: Settings,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) tracer: Option<SdkTracer>,
    /// Turns true when connections are to be closed gently.
    pub(super) stopping: watch::Receiver<bool>,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start(index: usize, job: Job) -> std::io::Result<Self> {
        let (inbox, accepted) = mpsc::unbounded_channel();
        let name = format!("worker-{index}");
        // Here and not in the thread: who starts the worker hears of it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&served);
        let work = async move {
            serve(job, accepted).await;
            done.store(true, Ordering::Release);
            // Others may wait for a run of the store that this one leads.
            std::future::pending::<()>().await;
        };
        let thread =
            std::thread::Builder::new().name(name).spawn(move || runtime.block_on(work))?;
        Ok(Self { inbox, served, thread })
    }

    /// Where to deal connections.
    pub(super) fn inbox(&self) -> mpsc::UnboundedSender<Accepted> {
        self.inbox.clone()
    }

    /// Whether the worker has served its last call. Its thread goes on until the process ends.
    pub(super) fn is_done(&self) -> bool {
        self.served.load(Ordering::Acquire) || self.thread.is_finished()
    }
}

async fn serve(job: Job, accepted: mpsc::UnboundedReceiver<Accepted>) {
    let Job { limiter, store, health, door, settings, tls, tracer, mut stopping } = job;
    if let AnyStore::Redis(redis) = &store {
        let redis = redis.clone();
        super::supervise("redis watchdog", move || redis.clone().watch());
    }
    let (adopted, connections) = mpsc::unbounded_channel();
    tokio::spawn(adopt_all(accepted, tls, adopted));
    let connections = UnboundedReceiverStream::new(connections).map(Ok::<_, std::io::Error>);
    let mut stopped = stopping.clone();
    let stop = async move {
        let _ = stopping.wait_for(|stop| *stop).await;
    };
    let routes = api::routes(limiter, &settings.headers, &settings.ratelimit, door);
    let serving = Server::builder()
        .max_concurrent_streams(Some(MAX_CONCURRENT_STREAMS))
        .timeout(CALL + settings.store.redis.timeout)
        // No grace: with one, tonic 0.14.9 sends no GOAWAY and cuts calls that are under way.
        .max_connection_age(spread(settings.grpc.max_connection_age))
        .add_routes(traced(routes, tracer))
        .add_service(HealthServer::new(health))
        .serve_with_incoming_shutdown(connections, stop);
    let patience = async {
        let _ = stopped.wait_for(|stop| *stop).await;
        sleep(settings.drain.timeout).await;
    };
    tokio::select! {
        ended = serving => {
            if let Err(error) = ended {
                tracing::error!(%error, "a worker stopped serving");
            }
        }
        // A client that never reads would keep the drain waiting for ever.
        () = patience => tracing::warn!("calls were cut: they took longer than drain.timeout"),
    }
}

/// The age, up to a tenth less: instances that started together do not lose their connections
/// together.
fn spread(age: Duration) -> Duration {
    let random = ahash::RandomState::new().hash_one(std::process::id()) % 1000;
    age - age.mul_f64(random as f64 / 10_000.0)
}
