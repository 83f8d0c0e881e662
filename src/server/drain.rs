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

/// The signals that end the process.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { terminate, interrupt })
    }

    /// Returns when the next one comes.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
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
