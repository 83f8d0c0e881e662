//! The nouns that travel: what is asked, whose quota it is, and what the store must check.
//! Nothing here decides, parses or does I/O.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::quota::Limit;
pub use crate::quota::Mode;

/// One question of a caller: may these descriptors pass, together?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Which set of rules applies.
    pub domain: String,
    /// Decided together, answered in this order.
    pub descriptors: Vec<Descriptor>,
}

/// A path of entries that a rule may match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Outermost first.
    pub entries: Vec<Entry>,
    /// Hits to take; 0 only peeks, a negative number gives back.
    pub hits: i64,
    /// A limit that came with the request and replaces the rules' own.
    pub limit_override: Option<Limit>,
}

/// One key and value of a descriptor. Any bytes: Envoy passes on what a client sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The descriptor key.
    pub key: Vec<u8>,
    /// The descriptor value.
    pub value: Vec<u8>,
}

impl Entry {
    /// An entry from anything that is bytes.
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}

/// Who answers when the store cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStoreError {
    /// Nobody: the caller gets an error and decides itself (Envoy: `failure_mode_deny`).
    #[default]
    Error,
    /// Everything passes, marked as a fallback.
    Allow,
    /// Everything is refused, marked as a fallback.
    Deny,
    /// This instance's own window, with its share of the limit.
    Local,
}

/// One counter to ask, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Whose quota.
    pub key: QuotaKey,
    /// How much of it there is.
    pub limit: Limit,
    /// Hits to take; 0 only peeks, a negative number gives back.
    pub hits: i64,
    /// What a refusal means for the request.
    pub mode: Mode,
    /// Record the hits even when they are refused: for costs that were already incurred.
    pub count_denied: bool,
}

/// Whose quota: an identity, or the path of a descriptor. Two different ones never render alike.
///
/// Parts are joined by `:` and percent-encoded, so an identity has exactly two of them and a path
/// three or more: a rule shares a counter with `CheckQuota` only when it says so.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct QuotaKey(Arc<[u8]>);

/// A key in the making: on the stack, unless it is unusually long.
type Key = SmallVec<[u8; 192]>;

/// A part that encodes to more bytes than this is replaced by its hash.
const MAX_PART_BYTES: usize = 128;

impl QuotaKey {
    /// The quota of `user_id` under `api_key`: what `CheckQuota` names.
    pub fn of_identity(api_key: &[u8], user_id: &[u8]) -> Self {
        let mut key = Key::new();
        push_part(&mut key, api_key);
        key.push(b':');
        push_part(&mut key, user_id);
        Self(key[..].into())
    }

    /// The quota of a descriptor: its domain and its full path.
    pub fn of_path<'a>(domain: &str, entries: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut key = Key::new();
        push_part(&mut key, domain.as_bytes());
        let path_start = key.len();
        for (name, value) in entries {
            key.push(b':');
            push_part(&mut key, name);
            key.push(b':');
            push_part(&mut key, value);
        }
        if key.len() - path_start > MAX_PART_BYTES {
            let digest = Sha256::digest(&key[path_start..]);
            key.truncate(path_start);
            // Two tildes: a hashed path is not a path whose first key is hashed.
            key.extend_from_slice(b":~~");
            push_hex(&mut key, &digest);
            // A third part keeps a hashed path apart from a hashed user of an identity.
            key.push(b':');
        }
        Self(key[..].into())
    }

    /// The rendered key, without prefix and window.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for QuotaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for QuotaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Appends one part, percent-encoded, or its hash when it is long.
fn push_part(key: &mut Key, part: &[u8]) {
    let start = key.len();
    if part.len() <= MAX_PART_BYTES {
        // A leading `~` marks a hash, so a literal one is escaped.
        if part.first() != Some(&b'~') && !part.iter().any(|&byte| is_reserved(byte)) {
            key.extend_from_slice(part);
            return;
        }
        for (index, &byte) in part.iter().enumerate() {
            if is_reserved(byte) || (index == 0 && byte == b'~') {
                key.push(b'%');
                push_hex(key, &[byte]);
            } else {
                key.push(byte);
            }
        }
    }
    if part.len() > MAX_PART_BYTES || key.len() - start > MAX_PART_BYTES {
        key.truncate(start);
        key.push(b'~');
        push_hex(key, &Sha256::digest(part));
    }
}

fn is_reserved(byte: u8) -> bool {
    byte <= b' ' || matches!(byte, b'%' | b':' | b'{' | b'}' | 0x7f)
}

fn push_hex(key: &mut Key, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        key.push(DIGITS[usize::from(byte >> 4)]);
        key.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Bytes as a person reads them: text stays text, the rest is escaped.
pub fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for symbol in chunk.valid().chars() {
            if symbol.is_control() {
                text.extend(symbol.escape_default())
            } else {
                text.push(symbol)
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(domain: &str, entries: &[(&str, &str)]) -> String {
        let entries = entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()));
        QuotaKey::of_path(domain, entries).to_string()
    }

    #[test]
    fn keys_read_like_what_they_count() {
        assert_eq!(QuotaKey::of_identity(b"free", b"bob").to_string(), "free:bob");
        assert_eq!(path("edge", &[("path", "/a b"), ("user", "")]), "edge:path:/a%20b:user:");
    }

    #[test]
    fn different_identities_never_render_alike() {
        let long = "x".repeat(10_000);
        // What a long part becomes, as somebody's name.
        let of_long = QuotaKey::of_identity(long.as_bytes(), b"");
        let hashed = of_long.as_bytes().strip_suffix(b":").unwrap();
        let parts: Vec<&[u8]> = vec![
            b"",
            b"a",
            b"a:b",
            b"b",
            b"b:c",
            b"c",
            b"%3A",
            b":",
            b"{",
            b"}",
            b"%",
            b"\0",
            b"~",
            b" ",
            b"\xff",
            b"\xc3\xbf",
            long.as_bytes(),
            &long.as_bytes()[1..],
            b"a%3Ab",
            b"~A",
            &[b':'; 100],
            hashed,
        ];
        let mut seen = std::collections::HashMap::new();
        for api_key in &parts {
            for user_id in &parts {
                let key = QuotaKey::of_identity(api_key, user_id);
                assert!(key.as_bytes().len() <= 2 * MAX_PART_BYTES + 1);
                assert!(!key.as_bytes().iter().any(|byte| b"{}".contains(byte)), "{key}");
                assert_eq!(seen.insert(key, (api_key, user_id)), None);
                let text = std::str::from_utf8(api_key).unwrap_or("?");
                let path = QuotaKey::of_path(text, [(*user_id, *user_id)].into_iter());
                assert!(!seen.contains_key(&path), "a path and an identity share {path}");
            }
        }
    }

    #[test]
    fn a_long_path_is_hashed_and_stays_apart_from_identities() {
        let long = "v".repeat(125);
        let hashed = path("edge", &[("a", &long), ("b", "c")]);
        assert_eq!(hashed.len(), "edge:~~".len() + 64 + 1);
        assert_ne!(hashed, path("edge", &[("a", &long), ("b", "d")]));
    }
}
