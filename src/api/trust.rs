//! How a client knows its server, and shows who it is itself: the TLS of `chronosdb check` and
//! `chronosdb healthcheck`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// What a client needs for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Whose signature makes a server trusted.
    pub server: Trusted,
    /// The client's own certificate and key, as PEM files, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have, where it is not the target's.
    pub server_name: Option<String>,
}

/// Which servers are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trusted {
    /// Those that the system's CAs signed.
    #[default]
    System,
    /// Those that the CAs in this PEM file signed.
    SignedBy(PathBuf),
    /// The one whose certificate is the first of this PEM file, whatever its name: for a process
    /// beside the server that reads the server's own files.
    Exactly(PathBuf),
}

impl Trust {
    /// Puts TLS on an endpoint.
    ///
    /// # Errors
    /// A file that cannot be read or used: which one.
    pub(super) fn protect(&self, endpoint: Endpoint) -> Result<Endpoint, String> {
        let mut tls = ClientTlsConfig::new();
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        if let Some((cert, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        let protected = match &self.server {
            Trusted::System => endpoint.tls_config(tls.with_native_roots()),
            Trusted::SignedBy(ca) => {
                certificate(ca)?;
                endpoint.tls_config(tls.ca_certificate(Certificate::from_pem(read(ca)?)))
            }
            Trusted::Exactly(cert) => {
                let exactly = Exactly {
                    certificate: certificate(cert)?,
                    algorithms: ring::default_provider().signature_verification_algorithms,
                };
                endpoint.tls_config_with_verifier(tls, Arc::new(exactly))
            }
        };
        protected.map_err(|error| format!("TLS cannot be used: {}", super::client::chain(&error)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// The first certificate of a file.
fn certificate(path: &Path) -> Result<CertificateDer<'static>, String> {
    CertificateDer::from_pem_slice(&read(path)?)
        .map_err(|error| format!("{} holds no certificate: {error}", path.display()))
}

/// Believes one certificate.
#[derive(Debug)]
struct Exactly {
    certificate: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Exactly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *end_entity == self.certificate {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
