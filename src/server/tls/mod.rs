//! TLS: connections become private, and callers show who they are, before any byte of gRPC is
//! read. A handshake has a deadline and a task of its own, so that a slow one delays nobody.

mod files;
mod peers;
mod refusals;
mod reload;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use self::files::Files;
use self::refusals::Refusals;
use crate::metrics::Metrics;
use crate::settings::tls::Tls as Settings;

/// From the first byte to the last of a handshake.
const DEADLINE: Duration = Duration::from_secs(3);

/// The certificates in use, swapped whole when the files change.
pub(super) struct Tls {
    settings: Settings,
    in_use: ArcSwap<InUse>,
    refusals: Refusals,
    metrics: Arc<Metrics>,
}

struct InUse {
    files: Files,
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them is not what it should be: which one, and what to do.
    pub(super) fn open(settings: &Settings, metrics: &Arc<Metrics>) -> anyhow::Result<Arc<Self>> {
        let files = Files::read(settings)?;
        let config = Arc::new(files.config(settings)?);
        files.report(metrics);
        Ok(Arc::new(Self {
            settings: settings.clone(),
            in_use: ArcSwap::from_pointee(InUse { files, config }),
            refusals: Refusals::new(Arc::clone(metrics)),
            metrics: Arc::clone(metrics),
        }))
    }

    /// What is asked of clients, for people.
    pub(super) fn shown(&self) -> &'static str {
        match (&self.settings.client_ca, self.settings.client_sans.is_empty()) {
            (None, _) => "TLS",
            (Some(_), true) => "mTLS: clients need a certificate",
            (Some(_), false) => "mTLS: clients need a certificate with a name of client_sans",
        }
    }

    /// Shakes hands. `None`: it did not succeed, which is counted and logged.
    pub(super) async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let peer = stream.peer_addr().ok();
        let acceptor = TlsAcceptor::from(Arc::clone(&self.in_use.load().config));
        let shaken = timeout(DEADLINE, acceptor.accept(stream)).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it took too long");
        shaken.unwrap_or_else(|_| Err(late())).map_err(|error| self.refuse(peer, &error)).ok()
    }

    fn refuse(&self, peer: Option<SocketAddr>, error: &io::Error) {
        self.refusals.note(peer, error);
    }
}
