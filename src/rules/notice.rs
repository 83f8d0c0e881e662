//! When to look at the files again: soon after the system says that something changed, and every
//! now and then because it does not always say so.

use std::path::{Path, PathBuf};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::watch::{Loader, SETTLE};

impl Loader {
    /// Reloads the rules whenever they change, until the future is dropped.
    pub async fn run(mut self) {
        let mut watch = Watch::new(&self.settings.path);
        let mut poll = interval(self.settings.poll.max(SETTLE));
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        poll.tick().await;
        loop {
            // Also at first: what changed before the watch began was not announced.
            let Some(loader) = self.reload().await else { return };
            self = loader;
            tokio::select! {
                Some(()) = watch.changes.recv() => watch.settle().await,
                _ = poll.tick() => watch.arm(),
            }
        }
    }

    /// Reading files may block, so it happens elsewhere. `None`: the process ends.
    async fn reload(mut self) -> Option<Self> {
        let read = tokio::task::spawn_blocking(move || {
            self.load();
            self
        });
        match read.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(loader) => Some(loader),
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => None,
        }
    }
}

/// Watches the folders around the rules: a watch on a file, or on a link, dies with the first
/// swap of a `ConfigMap`.
struct Watch {
    path: PathBuf,
    watcher: Option<RecommendedWatcher>,
    changes: Receiver<()>,
    /// Said once, not at every poll.
    has_complained: bool,
}

impl Watch {
    fn new(path: &Path) -> Self {
        let (sender, changes) = channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Our own reading of a file is an `Access` event: to follow it would never end.
            let is_change = match event {
                Ok(event) => event.need_rescan() || !matches!(event.kind, EventKind::Access(_)),
                Err(_) => true,
            };
            if is_change {
                // A full channel says the same already.
                let _ = sender.try_send(());
            }
        });
        let watcher = watcher
            .inspect_err(
                |error| tracing::warn!(%error, "rules are polled, files cannot be watched"),
            )
            .ok();
        let mut watch = Self { path: path.to_owned(), watcher, changes, has_complained: false };
        watch.arm();
        watch
    }

    /// Watches what is there now. Called again and again: a folder may appear, or be replaced by
    /// another one of its name, and the old watch would say nothing.
    fn arm(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let folders = [parent, &*self.path];
        let mut failed = None;
        for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
                failed = Some(error);
            }
        }
        if let (Some(error), false) = (failed, self.has_complained) {
            self.has_complained = true;
            tracing::warn!(%error, "rules are polled, their folder cannot be watched");
        }
    }

    /// Waits until nothing has changed for a moment, but no longer than a second.
    async fn settle(&mut self) {
        let latest = Instant::now() + 10 * SETTLE;
        loop {
            let quiet = (Instant::now() + SETTLE).min(latest);
            tokio::select! {
                () = sleep_until(quiet) => break,
                Some(()) = self.changes.recv() => {}
            }
            if Instant::now() >= latest {
                break;
            }
        }
        self.arm();
    }
}
