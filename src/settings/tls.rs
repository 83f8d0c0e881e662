//! Settings of `grpc.tls:`: which files hold the certificates, and who may call. It reads none.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Settings of `grpc.tls:`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate and its chain, as PEM.
    pub cert: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// Who signs clients' certificates, as PEM. `None`: clients need none.
    pub client_ca: Option<PathBuf>,
    /// Which of those clients may call; empty: all of them.
    pub client_sans: Vec<San>,
}

/// A name that a client's certificate may carry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum San {
    /// A DNS name, in lower case.
    Dns(String),
    /// A whole SPIFFE id.
    Spiffe(String),
    /// All SPIFFE ids that begin so. Never less than a whole trust domain: half of one's name is
    /// the beginning of somebody else's.
    SpiffeBelow(String),
}

/// A name as a certificate gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// A DNS name.
    Dns(&'a str),
    /// A URI, such as a SPIFFE id.
    Uri(&'a str),
}

const SCHEME: &str = "spiffe://";

impl San {
    /// Whether it is that name. DNS names are compared without case; a wildcard in a certificate
    /// is a name like any other.
    pub fn is(&self, name: Name<'_>) -> bool {
        match (self, name) {
            (Self::Dns(allowed), Name::Dns(name)) => allowed.eq_ignore_ascii_case(name),
            (Self::Spiffe(allowed), Name::Uri(name)) => allowed == name,
            (Self::SpiffeBelow(start), Name::Uri(name)) => name.starts_with(start),
            _ => false,
        }
    }
}

impl TryFrom<String> for San {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Some(id) = text.strip_prefix(SCHEME) {
            let (start, below) = id.strip_suffix('*').map_or((id, false), |start| (start, true));
            let (domain, _) = start.split_once('/').unwrap_or((start, ""));
            return match (below, start) {
                _ if domain.is_empty() || start.contains('*') => Err(format!(
                    "\"{text}\" is no SPIFFE id: write spiffe://trust-domain/path, or a * at its end"
                )),
                (true, start) if start.len() == domain.len() => {
                    Err(format!("\"{text}\" ends inside a trust domain: write {SCHEME}{domain}/*"))
                }
                (true, start) => Ok(Self::SpiffeBelow(format!("{SCHEME}{start}"))),
                (false, _) => Ok(Self::Spiffe(text)),
            };
        }
        let is_dns = |symbol: char| symbol.is_ascii_alphanumeric() || "-_.".contains(symbol);
        if text.is_empty() || !text.chars().all(is_dns) {
            return Err(format!(
                "\"{text}\" is neither a DNS name nor a SPIFFE id: write client.example.org or \
                 spiffe://trust-domain/path (a * only at the end of a SPIFFE id)"
            ));
        }
        Ok(Self::Dns(text.to_ascii_lowercase()))
    }
}

impl From<San> for String {
    fn from(san: San) -> Self {
        match san {
            San::Dns(name) | San::Spiffe(name) => name,
            San::SpiffeBelow(start) => start + "*",
        }
    }
}

impl Tls {
    /// What types cannot say: the key, and what is wrong with it.
    pub(super) fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.cert.as_os_str().is_empty() {
            return Some(("grpc.tls.cert", "it must name a PEM file with the certificate chain"));
        }
        if self.key.as_os_str().is_empty() {
            return Some(("grpc.tls.key", "it must name a PEM file with the private key"));
        }
        let unused = !self.client_sans.is_empty() && self.client_ca.is_none();
        unused.then_some((
            "grpc.tls.client_sans",
            "without grpc.tls.client_ca nobody shows a certificate: set it",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let (dns, uri) = (Name::Dns, Name::Uri);
        let table = [
            ("envoy.example.org", dns("Envoy.example.org"), true),
            ("ENVOY.example.org", dns("envoy.example.org"), true),
            ("envoy.example.org", dns("x.envoy.example.org"), false),
            ("envoy.example.org", uri("envoy.example.org"), false),
            ("spiffe://a/ns/b", uri("spiffe://a/ns/b"), true),
            ("spiffe://a/ns/b", uri("spiffe://a/ns/b/c"), false),
            ("spiffe://a/ns/b", dns("spiffe://a/ns/b"), false),
            ("spiffe://a/ns/b*", uri("spiffe://a/ns/bc"), true),
            ("spiffe://a/*", uri("spiffe://a/ns/b"), true),
            ("spiffe://a/*", uri("spiffe://a.evil/ns/b"), false),
            ("spiffe://a/*", uri("spiffe://a"), false),
        ];
        for (allowed, name, expected) in table {
            let san = San::try_from(allowed.to_owned()).unwrap();
            assert_eq!(san.is(name), expected, "{allowed} {name:?}");
        }
    }

    #[test]
    fn what_would_allow_too_much_is_refused() {
        for (text, part) in [
            ("spiffe://a*", "write spiffe://a/*"),
            ("spiffe://*", "no SPIFFE id"),
            ("spiffe:///a", "no SPIFFE id"),
            ("spiffe://a/*/b", "no SPIFFE id"),
            ("*.example.org", "only at the end of a SPIFFE id"),
            ("https://a/b", "neither"),
            ("", "neither"),
        ] {
            let error = San::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn it_is_shown_as_it_was_written() {
        for text in ["a.b", "spiffe://a/b", "spiffe://a/b/*"] {
            assert_eq!(String::from(San::try_from(text.to_owned()).unwrap()), text);
        }
    }
}
