//! The PEM files of `grpc.tls`: read, parsed, made into what a handshake needs.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};

use super::peers::Peers;
use crate::metrics::Metrics;
use crate::settings::tls::Tls as Settings;

/// HTTP/2, and nothing else, is spoken here.
const ALPN: &[u8] = b"h2";

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    /// Reads them.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(super) fn read(settings: &Settings) -> anyhow::Result<Self> {
        let read = |key: &str, path: &Path| {
            std::fs::read(path).with_context(|| {
                let path = path.display();
                format!(
                    "grpc.tls.{key}: {path} cannot be read: put the file there, or change the path"
                )
            })
        };
        let client_ca = settings.client_ca.as_deref();
        Ok(Self {
            cert: read("cert", &settings.cert)?,
            key: read("key", &settings.key)?,
            client_ca: client_ca.map(|path| read("client_ca", path)).transpose()?,
        })
    }

    /// What a handshake needs.
    ///
    /// # Errors
    /// A file that does not hold what it should, or a key of another certificate.
    pub(super) fn config(&self, settings: &Settings) -> anyhow::Result<ServerConfig> {
        let (cert, key) = (settings.cert.display(), settings.key.display());
        let chain = certificates(&self.cert)
            .with_context(|| format!("grpc.tls.cert: {cert} is no certificate chain"))?;
        let private = PrivateKeyDer::from_pem_slice(&self.key).with_context(|| {
            format!(
                "grpc.tls.key: {key} holds no private key: it must have a section such as \
                 \"-----BEGIN PRIVATE KEY-----\", not encrypted"
            )
        })?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match (&self.client_ca, &settings.client_ca) {
            (Some(pem), Some(path)) => {
                let peers = peers(pem, settings, provider);
                let path = path.display();
                builder.with_client_cert_verifier(
                    peers
                        .with_context(|| format!("grpc.tls.client_ca: {path} is no list of CAs"))?,
                )
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, private).map_err(|error| match error {
            Error::InconsistentKeys(_) => anyhow::anyhow!(
                "grpc.tls.key: {key} is not the key of the first certificate in {cert}: \
                     give both files of one pair, the server's own certificate first"
            ),
            error => anyhow::Error::new(error)
                .context(format!("grpc.tls.cert: {cert} and {key} cannot be used")),
        })?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would not look at the client's certificate again, though it may have
        // expired. Connections are few and live long: there is nothing to gain.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Tells when certificates expire: the first of each file.
    pub(super) fn report(&self, metrics: &Metrics) {
        let client_ca = self.client_ca.as_deref().map(|pem| ("client_ca", pem));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for (file, pem) in [("cert", &*self.cert)].into_iter().chain(client_ca) {
            let Some(expiry_s) = expiry_s(pem) else { continue };
            metrics.certificate_expiry_s.with_label_values(&[file]).set(expiry_s);
            let left_s = u64::try_from(expiry_s).unwrap_or(0).saturating_sub(now.as_secs());
            let days = left_s / (24 * 3600);
            match left_s {
                0 => tracing::warn!(file, "a certificate has expired: clients will refuse it"),
                _ => tracing::info!(file, days, "the first certificate expires in so many days"),
            }
        }
    }
}

/// Who may call.
fn peers(
    pem: &[u8],
    settings: &Settings,
    provider: Arc<CryptoProvider>,
) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    if settings.client_sans.is_empty() {
        return Ok(signed);
    }
    Ok(Arc::new(Peers::new(signed, settings.client_sans.clone())))
}

/// All certificates of a file; at least one.
fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
    if certificates.is_empty() {
        bail!("it must have a section \"-----BEGIN CERTIFICATE-----\"");
    }
    Ok(certificates)
}

/// When the first of the certificates expires, in seconds since 1970.
fn expiry_s(pem: &[u8]) -> Option<i64> {
    let expiry_s = |certificate: &CertificateDer<'_>| {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        Some(certificate.validity().not_after.timestamp())
    };
    certificates(pem).ok()?.iter().filter_map(expiry_s).min()
}
