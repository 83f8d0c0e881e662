//! Certificates that change: looked for every second, whichever way the files are replaced; a
//! swap of a mounted Secret as well as a copy. What cannot be used changes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::files::Files;
use super::{InUse, Tls};

/// Between two looks.
const POLL: Duration = Duration::from_secs(1);

impl Tls {
    /// Follows the files until the future is dropped.
    pub(in crate::server) async fn watch(self: Arc<Self>) {
        let mut tried = Ok(self.in_use.load().files.clone());
        let mut before = tried.clone();
        loop {
            sleep(POLL).await;
            let now = self.read().await;
            // Two files are not written at once: only what two looks saw alike is whole.
            if now == before && now != tried {
                self.take(&now);
                tried = now.clone();
            }
            before = now;
        }
    }

    /// Reading may block, so it happens elsewhere.
    async fn read(&self) -> Result<Files, String> {
        let settings = self.settings.clone();
        let read = tokio::task::spawn_blocking(move || Files::read(&settings)).await;
        match read {
            Ok(files) => files.map_err(|error| format!("{error:#}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// New connections get the new certificates; those there are keep theirs.
    fn take(&self, files: &Result<Files, String>) {
        let taken = files.clone().and_then(|files| {
            let config = files.config(&self.settings).map_err(|error| format!("{error:#}"))?;
            Ok(InUse { files, config: Arc::new(config) })
        });
        let result = if taken.is_ok() { "ok" } else { "error" };
        self.metrics.tls_reloads.with_label_values(&[result]).inc();
        match taken {
            Ok(taken) => {
                tracing::info!("certificates loaded");
                taken.files.report(&self.metrics);
                self.in_use.store(Arc::new(taken));
            }
            Err(error) => tracing::error!(%error, "the certificates in use stay"),
        }
    }
}
