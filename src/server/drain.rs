//! How the process ends: a signal, a delay in which it still serves, then gently, then at once.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::worker::Worker;
use crate::settings::Drain;

/// Between looks at whether the workers are done.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The signals that end the process, and the one that must not.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hang_up = signal(SignalKind::hangup())?;
        Ok(Self { terminate, interrupt, hang_up })
    }

    /// Returns when the next one comes that ends the process. SIGHUP asks servers to read their
    /// files again, and by default would kill this one, calls under way and all.
    pub(super) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => tracing::info!(
                    "SIGHUP changes nothing: rules, certificates and API keys are read when their \
                     files change, settings at start"
                ),
            }
        }
    }
}

/// Serves on for the delay, then takes no more connections, says goodbye on those there are, and
/// returns when the calls under way are done or out of time.
pub(super) async fn end(
    settings: &Drain,
    dealing: JoinHandle<()>,
    stop: watch::Sender<bool>,
    workers: Vec<Worker>,
) {
    sleep(settings.delay).await;
    dealing.abort();
    stop.send_replace(true);
    while !workers.iter().all(Worker::is_done) {
        sleep(LOOK_EVERY).await;
    }
}
