//! The places where a server listens, and what it says when it does.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::Context as _;
use tokio::net::{TcpListener, UnixListener};

use crate::api::ext_authz::Door;
use crate::limiter::Shared;
use crate::settings::{Settings, StoreKind};

/// Open, but nobody is served yet.
pub(super) struct Listeners {
    pub(super) grpc: TcpListener,
    pub(super) uds: Option<UnixListener>,
    pub(super) http: TcpListener,
}

impl Listeners {
    pub(super) async fn open(settings: &Settings) -> anyhow::Result<Self> {
        let grpc = tcp(settings.grpc.listen, "grpc.listen").await?;
        let http = tcp(settings.http.listen, "http.listen").await?;
        let uds = settings.grpc.uds.as_deref().map(uds).transpose()?;
        Ok(Self { grpc, uds, http })
    }

    /// One line for each thing that a person who starts it wants to know.
    pub(super) fn announce(
        &self,
        settings: &Settings,
        shared: &Shared,
        door: &Door,
        transport: &str,
    ) {
        let store = match settings.store.kind {
            StoreKind::Memory => "memory, for this process alone".to_owned(),
            StoreKind::Redis => settings.store.redis.place(),
        };
        tracing::info!(version = env!("CARGO_PKG_VERSION"), %store, "chronosdb starts");
        let rules = shared.rules.load();
        for domain in rules.domains() {
            let files: Vec<&str> = domain.files().iter().map(|file| &**file).collect();
            let (rules, files) = (domain.rules().len(), files.join(", "));
            tracing::info!(domain = %domain.name, rules, files, "rules loaded");
        }
        if let Some(domain) = &door.settings.domain {
            let descriptors = door.settings.descriptors.len();
            tracing::info!(domain, descriptors, "Envoy's ext_authz filter is answered");
            if rules.domain(domain).is_none() {
                tracing::warn!(
                    domain,
                    "no rules have the domain of ext_authz: nothing is limited there"
                );
            }
        }
        if let Ok(address) = self.http.local_addr() {
            tracing::info!(%address, "HTTP: /metrics /readyz /rules /explain /json");
        }
        if let Some(path) = &settings.grpc.uds {
            tracing::info!(path = %path.display(), "gRPC on a unix socket");
        }
        if let Ok(address) = self.grpc.local_addr() {
            tracing::info!(%address, transport, "gRPC: Envoy's rate limit service and CheckQuota");
            let scheme = if settings.grpc.tls.is_some() { "https://" } else { "" };
            let program = std::env::args().next().unwrap_or_default();
            tracing::info!("try: {program} check --target {scheme}{address}");
        }
    }
}

async fn tcp(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}: choose another {key}, or stop who listens there")
    })
}

/// A socket file that nobody listens on any more is replaced; anything else there is left alone.
fn uds(path: &Path) -> anyhow::Result<UnixListener> {
    let is_socket = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))?;
    }
    UnixListener::bind(path).with_context(|| {
        let path = path.display();
        format!("cannot listen on {path}: grpc.uds is a new file in a folder that is there, or a socket that nobody listens on")
    })
}

/// Leaves no socket file behind.
pub(super) fn remove_uds(settings: &Settings) {
    if let Some(path) = &settings.grpc.uds {
        let _ = std::fs::remove_file(path);
    }
}
