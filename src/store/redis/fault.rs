//! What an error of Redis means: for the caller, and for the call, which is sent again only when
//! the error proves that nothing ran.

use redis::RedisError;

use crate::store::StoreError;

/// Why a call has no answer, and what may be done with it now.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) meaning: StoreError,
    pub(super) next: Next,
}

/// What may be done with a call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It may have run, or it would fail again.
    Tell,
    /// It did not run, and soon it may.
    Again,
    /// It did not run: another server has the slot for good.
    Moved { to: String },
    /// It did not run: another server is taking the slot over, and has this key.
    Ask { to: String },
}

impl Fault {
    /// Nothing to be done but to tell the caller.
    pub(super) fn told(meaning: StoreError) -> Self {
        Self { meaning, next: Next::Tell }
    }

    /// Nothing was sent.
    pub(super) fn unsent(meaning: StoreError) -> Self {
        let next = match meaning {
            StoreError::Misconfigured(_) => Next::Tell,
            _ => Next::Again,
        };
        Self { meaning, next }
    }

    /// What Redis answered, or what became of the connection.
    pub(super) fn of(error: &RedisError) -> Self {
        let text = error.to_string();
        let code = error.code().map(|code| meant(code, &text));
        let to = || error.redirect_node().map(|(to, _)| to.to_owned()).unwrap_or_default();
        let next = match code {
            Some("MOVED") => Next::Moved { to: to() },
            Some("ASK") => Next::Ask { to: to() },
            // On a replica a script fails at its first write: nothing is to be undone.
            Some("LOADING" | "READONLY" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN") => Next::Again,
            None if error.is_connection_refusal() => Next::Again,
            _ => Next::Tell,
        };
        let meaning = match code {
            _ if error.is_timeout() => StoreError::Timeout,
            Some("READONLY" | "MASTERDOWN") => StoreError::ReadOnly(text),
            Some("LOADING") => StoreError::Loading(text),
            Some("BUSY") => StoreError::Busy(text),
            Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN") => StoreError::ClusterDown(text),
            Some("OOM") => StoreError::OutOfMemory(text),
            Some("MISCONF") => StoreError::NotSaving(text),
            Some("NOREPLICAS") => StoreError::NoReplicas(text),
            Some(_) => StoreError::Misconfigured(text),
            None => StoreError::Unavailable(text),
        };
        Self { meaning, next }
    }
}

/// The course of action that an error leaves.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    Fault::of(error).meaning
}

/// Redis 6 and older hide the code of an inner command in the text of the script's error.
fn meant<'a>(code: &'a str, text: &str) -> &'a str {
    if code != "ERR" {
        return code;
    }
    let inner = ["OOM", "READONLY", "MISCONF", "NOREPLICAS"];
    inner.into_iter().find(|inner| text.contains(&format!("-{inner} "))).unwrap_or(code)
}
