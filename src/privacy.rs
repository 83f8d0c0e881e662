//! Which entry values are secrets, and what stands in their place in keys, logs and labels.

use std::borrow::Cow;

use hmac::{Hmac, Mac as _};
use serde::Deserialize;
use sha2::Sha256;

/// Settings of `privacy:`.
#[derive(Clone, Debug, Deserialize, serde::Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Entry keys whose values are replaced by a fingerprint, compared without case.
    pub fingerprint: Vec<String>,
    /// The key of the fingerprint; the same on every instance. Without it, short values can be guessed.
    pub key: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let fingerprint = ["authorization", "cookie", "proxy-authorization", "set-cookie"];
        Self { fingerprint: fingerprint.map(str::to_owned).to_vec(), key: None }
    }
}

/// Replaces secret values by keyed fingerprints.
#[derive(Clone)]
pub struct Privacy {
    secret_keys: Vec<Box<[u8]>>,
    mac: Hmac<Sha256>,
}

impl Privacy {
    /// Ready to fingerprint by these settings.
    pub fn new(settings: &Settings) -> Self {
        let key = settings.key.as_deref().unwrap_or("chronosdb");
        let mac = Hmac::new_from_slice(key.as_bytes()).expect("HMAC takes a key of any length");
        let secret_keys = settings.fingerprint.iter().map(|key| key.as_bytes().into()).collect();
        Self { secret_keys, mac }
    }

    /// Whether values under this entry key are secrets.
    pub fn is_secret(&self, key: &[u8]) -> bool {
        self.secret_keys.iter().any(|secret| secret.eq_ignore_ascii_case(key))
    }

    /// The value itself, or `fp-` and 32 hex digits of its HMAC-SHA-256 when the key is secret.
    pub fn shown<'a>(&self, key: &[u8], value: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.is_secret(key) {
            return Cow::Borrowed(value);
        }
        let mut mac = self.mac.clone();
        mac.update(value);
        let digest = mac.finalize().into_bytes();
        let hex = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
        Cow::Owned(format!("fp-{hex}").into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_and_the_rest_is_not() {
        let privacy = Privacy::new(&Settings::default());
        assert_eq!(privacy.shown(b"path", b"/a"), b"/a".as_slice());
        let shown = privacy.shown(b"Authorization", b"Bearer x");
        assert!(shown.starts_with(b"fp-") && shown.len() == 35, "{shown:?}");
        let other = Settings { key: Some("k".into()), ..Settings::default() };
        assert_ne!(shown, Privacy::new(&other).shown(b"authorization", b"Bearer x"));
    }
}
