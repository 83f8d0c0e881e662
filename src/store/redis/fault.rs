//! What an error of Redis means for a caller.

use redis::RedisError;

use crate::store::StoreError;

/// The course of action that an error leaves.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    let text = error.to_string();
    if error.is_timeout() {
        return StoreError::Timeout;
    }
    match error.code().map(|code| meant(code, &text)) {
        Some("READONLY" | "MASTERDOWN") => StoreError::ReadOnly(text),
        Some("LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN") => StoreError::Busy(text),
        Some("OOM") => StoreError::OutOfMemory(text),
        Some(_) => StoreError::Misconfigured(text),
        None => StoreError::Unavailable(text),
    }
}

/// Redis 6 and older hide the code of an inner command in the text of the script's error.
fn meant<'a>(code: &'a str, text: &str) -> &'a str {
    if code != "ERR" {
        return code;
    }
    let inner = ["OOM", "READONLY", "MISCONF", "NOREPLICAS"];
    inner.into_iter().find(|inner| text.contains(&format!("-{inner} "))).unwrap_or(code)
}
