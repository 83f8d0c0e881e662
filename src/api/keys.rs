//! The API keys that are let in: a file of names and hashes, read at start and again whenever it
//! changes. Nobody can read a key back from it. It knows who somebody is, never what they may.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hmac::digest::{CtOutput, Output};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use super::ext_authz::HeaderName;
use crate::metrics::Metrics;

/// A shorter key could be found by trying all of them against its hash.
pub const MIN_KEY_BYTES: usize = 16;

/// Settings of `api_keys:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The file; `None`: nobody is asked for a key.
    pub path: Option<PathBuf>,
    /// Where a request brings its key. Of `authorization`, what follows `Bearer`.
    pub header: HeaderName,
    /// How often to look whether the file has changed.
    #[serde(with = "crate::duration")]
    pub poll: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let header = HeaderName::x_api_key();
        Self { path: None, header, poll: Duration::from_secs(2) }
    }
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Who has the key. One may have several, as while keys are changed.
    pub name: String,
    /// The SHA-256 of the key, in 64 hex digits.
    pub sha256: String,
}

impl Entry {
    /// The entry of a key.
    ///
    /// # Errors
    /// The key is too short, or the name is empty.
    pub fn of(name: &str, key: &[u8]) -> Result<Self, String> {
        if key.len() < MIN_KEY_BYTES {
            return Err(format!(
                "the key has {} bytes: one of fewer than {MIN_KEY_BYTES} can be guessed from its hash",
                key.len()
            ));
        }
        let sha256 = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        let entry = Self { name: name.to_owned(), sha256 };
        entry.known().map(|_| entry)
    }

    fn known(&self) -> Result<Known, String> {
        let Self { name, sha256 } = self;
        if name.is_empty() {
            return Err("a name is empty: it is what metrics and quotas know a key by".into());
        }
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let hex = sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes: Option<Vec<u8>> = sha256.as_bytes().chunks(2).map(pair).collect();
        match bytes {
            Some(bytes) if hex && bytes.len() == 32 => {
                let hash = *Output::<Sha256>::from_slice(&bytes);
                Ok(Known { hash, name: name.as_str().into() })
            }
            _ => Err(format!(
                "the sha256 of \"{name}\" is not 64 hex digits: `chronosdb key hash` makes an entry"
            )),
        }
    }
}

struct Known {
    hash: Output<Sha256>,
    name: Arc<str>,
}

/// The keys of a file, sorted by their hashes.
#[derive(Default)]
struct Keys(Vec<Known>);

impl Keys {
    fn read(text: &str) -> Result<Self, String> {
        // Below its first line the parser shows the line of the file.
        let sentence = |error: serde_yaml::Error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        };
        let entries: Vec<Entry> = serde_yaml::from_str(text).map_err(sentence)?;
        let mut known = entries.iter().map(Entry::known).collect::<Result<Vec<_>, _>>()?;
        known.sort_by_key(|key| key.hash);
        match known.windows(2).find(|pair| pair[0].hash == pair[1].hash) {
            Some([one, other]) => {
                Err(format!("\"{}\" and \"{}\" have the same key", one.name, other.name))
            }
            _ => Ok(Self(known)),
        }
    }

    /// Whose key it is. How long it takes says nothing about a key: the search goes by the hash,
    /// which cannot be steered towards a known one, and the comparison takes always as long.
    fn name_of(&self, key: &[u8]) -> Option<Arc<str>> {
        let hash = Sha256::digest(key);
        let (start, wanted) = (hash[..8].to_vec(), CtOutput::<Sha256>::new(hash));
        let first = self.0.partition_point(|known| known.hash[..8] < *start);
        let near = self.0[first..].iter().take_while(|known| known.hash[..8] == *start);
        let mut found = None;
        for known in near {
            if CtOutput::<Sha256>::new(known.hash) == wanted {
                found = Some(Arc::clone(&known.name));
            }
        }
        found
    }
}

/// Whose key a request brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// It brings none.
    Missing,
    /// Nobody's.
    Unknown,
    /// Of this name.
    Known(Arc<str>),
}

/// Lets those in whose key is in the file.
pub struct Gate {
    /// Where a request brings its key.
    pub header: HeaderName,
    path: PathBuf,
    poll: Duration,
    /// What the file held at first.
    text: String,
    keys: ArcSwap<Keys>,
    metrics: Arc<Metrics>,
}

impl Gate {
    /// Reads the file; `None` where no file is set.
    ///
    /// # Errors
    /// A sentence that names the file and what is wrong with it.
    pub fn open(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Option<Self>, String> {
        let Some(path) = &settings.path else { return Ok(None) };
        let text = read(path)?;
        let keys = parsed(path, &text)?;
        tracing::info!(path = %path.display(), keys = keys.0.len(), "API keys loaded");
        Ok(Some(Self {
            header: settings.header.clone(),
            path: path.clone(),
            poll: settings.poll,
            text,
            keys: ArcSwap::from_pointee(keys),
            metrics: Arc::clone(metrics),
        }))
    }

    /// Whose key this is: the value of the header, if there is one.
    pub fn caller(&self, value: Option<&[u8]>) -> Caller {
        let key = value.unwrap_or_default().trim_ascii();
        let key = match self.header.as_str() {
            "authorization" => match key.split_at_checked(7) {
                Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
                _ => b"",
            },
            _ => key,
        };
        let (caller, result) = match key {
            b"" => (Caller::Missing, "missing"),
            key => match self.keys.load().name_of(key) {
                Some(name) => (Caller::Known(name), "known"),
                None => (Caller::Unknown, "unknown"),
            },
        };
        self.metrics.api_keys.with_label_values(&[result]).inc();
        caller
    }

    /// Reads the file whenever it has changed. One that is bad changes nothing.
    pub async fn watch(self: Arc<Self>) {
        let mut seen = Ok(self.text.clone());
        loop {
            sleep(self.poll).await;
            let text = read(&self.path);
            if text == seen {
                continue;
            }
            let reloads = &self.metrics.api_key_reloads;
            match text.clone().and_then(|text| parsed(&self.path, &text)) {
                Ok(keys) => {
                    reloads.with_label_values(&["ok"]).inc();
                    tracing::info!(path = %self.path.display(), keys = keys.0.len(), "API keys loaded");
                    self.keys.store(Arc::new(keys));
                }
                Err(error) => {
                    reloads.with_label_values(&["error"]).inc();
                    tracing::error!(error, "the API keys in use stay");
                }
            }
            seen = text;
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn parsed(path: &Path, text: &str) -> Result<Keys, String> {
    // An editor's half-way state, or a mistake: to let nobody in, write [].
    if text.trim().is_empty() {
        return Err(format!("{}: it is empty: write [] to let nobody in", path.display()));
    }
    Keys::read(text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"a key of 24 bytes or so.";

    fn file(entries: &[Entry]) -> String {
        serde_yaml::to_string(&entries).unwrap()
    }

    #[test]
    fn a_key_is_known_by_its_hash() {
        let ann = Entry::of("ann", KEY).unwrap();
        assert!(!file(std::slice::from_ref(&ann)).contains("24 bytes"));
        let bob = Entry::of("bob", b"0123456789abcdef").unwrap();
        let again = Entry::of("ann", b"0123456789abcdeF").unwrap();
        let keys = Keys::read(&file(&[ann, bob, again])).unwrap();
        let table: [(&[u8], Option<&str>); 5] = [
            (KEY, Some("ann")),
            (b"0123456789abcdef", Some("bob")),
            (b"0123456789abcdeF", Some("ann")),
            (b"0123456789abcdeG", None),
            (&KEY[1..], None),
        ];
        for (key, name) in table {
            assert_eq!(keys.name_of(key).as_deref(), name, "{}", key.escape_ascii());
        }
        assert_eq!(Keys::read("[]").unwrap().name_of(KEY), None);
        // Nearly its hash.
        let mut near = Entry::of("ann", KEY).unwrap();
        let last = if near.sha256.ends_with('0') { "1" } else { "0" };
        near.sha256.replace_range(63.., last);
        assert_eq!(Keys::read(&file(&[near])).unwrap().name_of(KEY), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let hash = "0".repeat(64);
        let table = [
            ("[{ name: a, sha256: abc }]".to_owned(), "sha256 of \"a\" is not 64 hex digits"),
            (format!("[{{ name: a, sha256: '+{}' }}]", &hash[1..]), "not 64 hex digits"),
            (format!("[{{ name: '', sha256: '{hash}' }}]"), "a name is empty"),
            (
                format!("[{{ name: a, sha256: '{hash}' }}, {{ name: b, sha256: '{hash}' }}]"),
                "\"a\" and \"b\" have the same key",
            ),
            ("- name: a\n  sha265: b\n".to_owned(), "line 2 column 3: "),
        ];
        for (text, expected) in table {
            let error = Keys::read(&text).err().unwrap();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(Entry::of("a", b"short").unwrap_err().contains("5 bytes"));
        assert!(Entry::of("", KEY).is_err());
    }

    #[test]
    fn where_a_key_stands() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("keys.yaml");
        std::fs::write(&path, file(&[Entry::of("ann", KEY).unwrap()])).unwrap();
        let gate = |header: &str| {
            let header = HeaderName::try_from(header.to_owned()).unwrap();
            let settings = Settings { path: Some(path.clone()), header, ..Settings::default() };
            Gate::open(&settings, &Metrics::new()).unwrap().unwrap()
        };
        let ann = || Caller::Known("ann".into());
        let plain = gate("X-Api-Key");
        assert_eq!(plain.caller(Some(KEY)), ann());
        assert_eq!(plain.caller(Some(b"no key of anybody's")), Caller::Unknown);
        assert_eq!(plain.caller(Some(b" ")), Caller::Missing);
        assert_eq!(plain.caller(None), Caller::Missing);
        let bearer = gate("authorization");
        assert_eq!(bearer.caller(Some(&[b"BEARER ", KEY].concat())), ann());
        assert_eq!(bearer.caller(Some(KEY)), Caller::Missing);
        assert_eq!(bearer.caller(Some(b"Bearer")), Caller::Missing);
    }
}
