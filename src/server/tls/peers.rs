//! Who may call: a client whose certificate is signed by a CA that we know, and carries one of the
//! names that the settings list.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use x509_parser::extensions::GeneralName;

use crate::settings::tls::{Name, San};

/// Asks the signature first, then the names.
#[derive(Debug)]
pub(super) struct Peers {
    signed: Arc<dyn ClientCertVerifier>,
    allowed: Vec<San>,
}

/// A certificate that is good, but nobody's who may call.
#[derive(Debug, thiserror::Error)]
#[error("none of its names is in grpc.tls.client_sans: {0}")]
pub(super) struct Stranger(String);

impl Peers {
    pub(super) fn new(signed: Arc<dyn ClientCertVerifier>, allowed: Vec<San>) -> Self {
        Self { signed, allowed }
    }

    fn admit(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let bad = || Error::InvalidCertificate(CertificateError::BadEncoding);
        let parsed = x509_parser::parse_x509_certificate(certificate);
        let (_, certificate) = parsed.map_err(|_| bad())?;
        let names = certificate.subject_alternative_name().map_err(|_| bad())?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let names: Vec<Name<'_>> = names.filter_map(name).collect();
        if names.iter().any(|name| self.allowed.iter().any(|san| san.is(*name))) {
            return Ok(());
        }
        let text = |name: &Name<'_>| match name {
            Name::Dns(text) | Name::Uri(text) => text.escape_default().to_string(),
        };
        let names: Vec<String> = names.iter().map(text).collect();
        let shown = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
        let stranger = OtherError(Arc::new(Stranger(shown)));
        Err(Error::InvalidCertificate(CertificateError::Other(stranger)))
    }
}

fn name<'a>(name: &GeneralName<'a>) -> Option<Name<'a>> {
    match name {
        GeneralName::DNSName(name) => Some(Name::Dns(name)),
        GeneralName::URI(name) => Some(Name::Uri(name)),
        _ => None,
    }
}

impl ClientCertVerifier for Peers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        self.admit(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
