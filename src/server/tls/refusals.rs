//! Handshakes that did not succeed: counted, each, and said, though not each: whoever knocks
//! cannot fill the log.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio_rustls::rustls::{CertificateError, Error, InvalidMessage};

use super::peers::Stranger;
use crate::metrics::Metrics;
use crate::seldom::Seldom;

/// The memory of what was said.
pub(super) struct Refusals {
    metrics: Arc<Metrics>,
    said: Mutex<HashMap<&'static str, Seldom>>,
}

/// Why a handshake failed: the label of the metric, and what to do about it.
type Reason = (&'static str, &'static str);

const LATE: Reason = ("timeout", "the client did not finish in time");
const CLOSED: Reason = ("closed", "the client went away, as a TCP probe does");

impl Refusals {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, said: Mutex::default() }
    }

    /// Counts one, and says it if none of its kind was said lately.
    pub(super) fn note(&self, peer: Option<SocketAddr>, error: &io::Error) {
        let (reason, remedy) = reason(error);
        self.metrics.tls_refused.with_label_values(&[reason]).inc();
        let unsaid = {
            let mut said = self.said.lock().expect("no code panics holding this");
            said.entry(reason).or_default().is_due()
        };
        let Some(unsaid) = unsaid else { return };
        let peer = peer.map(tracing::field::display);
        let error = text(error);
        if reason == CLOSED.0 {
            tracing::debug!(reason, peer, %error, unsaid, "a TLS handshake failed: {remedy}");
        } else {
            tracing::warn!(reason, peer, %error, unsaid, "a TLS handshake failed: {remedy}");
        }
    }
}

fn rustls(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

fn text(error: &io::Error) -> String {
    match rustls(error) {
        Some(Error::InvalidCertificate(CertificateError::Other(other))) => other.to_string(),
        _ => error.to_string(),
    }
}

fn reason(error: &io::Error) -> Reason {
    if error.kind() == io::ErrorKind::TimedOut {
        return LATE;
    }
    match rustls(error) {
        None => CLOSED,
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => (
            "plaintext",
            "the client does not speak TLS: give it a TLS context, or an https target",
        ),
        Some(Error::NoCertificatesPresented) => (
            "no_certificate",
            "the client showed no certificate: give it one that grpc.tls.client_ca signed",
        ),
        Some(Error::InvalidCertificate(CertificateError::Other(other)))
            if other.0.is::<Stranger>() =>
        {
            ("san", "the client is not one that may call: add its name to grpc.tls.client_sans")
        }
        Some(Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => ("expired", "the client's certificate has expired: renew it"),
        Some(Error::InvalidCertificate(_)) => {
            ("untrusted", "grpc.tls.client_ca did not sign the client's certificate for clients")
        }
        Some(Error::AlertReceived(_)) => (
            "alert",
            "the client did not like ours: does it trust the CA of grpc.tls.cert, and the name in it?",
        ),
        Some(Error::NoApplicationProtocol) => {
            ("alpn", "the client does not offer h2: gRPC is HTTP/2")
        }
        Some(Error::PeerIncompatible(_)) => {
            ("incompatible", "no protocol in common: TLS 1.2 or 1.3 is spoken here")
        }
        Some(_) => ("protocol", "the client broke the protocol"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted() {
        let metrics = Metrics::new();
        let refusals = Refusals::new(Arc::clone(&metrics));
        for _ in 0..5 {
            refusals.note(None, &io::ErrorKind::UnexpectedEof.into());
        }
        assert_eq!(metrics.tls_refused.with_label_values(&["closed"]).get(), 5);
    }
}
