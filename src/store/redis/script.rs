//! The script's language: checks to arguments, its reply to verdicts. One run is one command.

use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::Mutex;

use super::dial::Link;
use super::fault::store_error;
use crate::check::Check;
use crate::quota::sliding_log::SCRIPT;
use crate::quota::{Mode, Verdict};
use crate::store::StoreError;

/// What the script calls ASK and REPLY.
const ASK_BYTES: usize = 30;
const REPLY_BYTES: usize = 32;

/// The sliding log, ready to be run.
pub(super) struct Script {
    sha: String,
    key_prefix: Vec<u8>,
    /// Held while the script is sent whole: once is enough for all who find it missing.
    loading: Mutex<()>,
}

/// What a run answered: for each check, or for each of the equal asks of one check.
pub(super) struct Answer {
    replies: Vec<Reply>,
}

#[derive(Clone, Copy)]
struct Reply {
    granted: usize,
    remaining: u64,
    retry_us: i64,
    reset_us: u64,
}

impl Script {
    pub(super) fn new(key_prefix: &str) -> Self {
        let sha = redis::Script::new(SCRIPT).get_hash().to_owned();
        Self { sha, key_prefix: key_prefix.as_bytes().to_vec(), loading: Mutex::default() }
    }

    /// Runs once; sends again only when Redis says that it did not run.
    pub(super) async fn run(
        &self,
        link: &mut Link,
        checks: &[Check],
        times: usize,
    ) -> Result<Answer, StoreError> {
        let by_hash = self.command("EVALSHA", &self.sha, checks, times);
        let mut reply = query(link, &by_hash).await;
        if is_missing(&reply) {
            let _loading = self.loading.lock().await;
            reply = query(link, &by_hash).await;
            if is_missing(&reply) {
                reply = query(link, &self.command("EVAL", SCRIPT, checks, times)).await;
            }
        }
        let packed = reply.map_err(|error| store_error(&error))?;
        let odd = || StoreError::Misconfigured(format!("the script answered {packed:?}"));
        let replies: Option<Vec<Reply>> = packed.chunks(REPLY_BYTES).map(Reply::read).collect();
        let replies = replies.filter(|replies| replies.len() == checks.len()).ok_or_else(odd)?;
        Ok(Answer { replies })
    }

    fn command(&self, verb: &str, script: &str, checks: &[Check], times: usize) -> Cmd {
        let mut command =
            Cmd::with_capacity(3 + checks.len() * 2, script.len() + checks.len() * 128);
        command.arg(verb).arg(script).arg(checks.len());
        let mut key = Vec::with_capacity(128);
        for check in checks {
            key.clear();
            self.write_key(&mut key, check);
            command.arg(&key[..]);
        }
        for check in checks {
            command.arg(&packed(check, times)[..]);
        }
        command
    }

    /// `<prefix>{<whose>}:<window in ms>`; the braces keep one identity's windows on one node.
    fn write_key(&self, key: &mut Vec<u8>, check: &Check) {
        key.extend_from_slice(&self.key_prefix);
        key.push(b'{');
        key.extend_from_slice(check.key.as_bytes());
        key.extend_from_slice(b"}:");
        key.extend_from_slice(check.limit.window_ms().to_string().as_bytes());
    }
}

impl Answer {
    /// One verdict for each check.
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        self.replies.iter().map(|reply| reply.verdict(reply.granted > 0, 0)).collect()
    }

    /// One verdict for each of `times` equal asks of `hits`: the first ones were granted.
    pub(super) fn shares(&self, times: usize, hits: u64) -> impl Iterator<Item = Verdict> {
        let reply = self.replies.first().copied();
        (0..times).filter_map(move |turn| {
            let reply = reply?;
            let later = reply.granted.saturating_sub(turn + 1) as u64;
            Some(reply.verdict(turn < reply.granted, later * hits))
        })
    }
}

impl Reply {
    fn read(packed: &[u8]) -> Option<Self> {
        let mut integers = packed.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok());
        let mut next = || integers.next().map(i64::from_be_bytes);
        Some(Self {
            granted: usize::try_from(next()?).ok()?,
            remaining: u64::try_from(next()?).ok()?,
            retry_us: next()?,
            reset_us: u64::try_from(next()?).ok()?,
        })
    }

    /// `taken_later`: hits that equal asks took after this one.
    fn verdict(&self, allowed: bool, taken_later: u64) -> Verdict {
        let wait = u64::try_from(self.retry_us).ok().map(Duration::from_micros);
        Verdict {
            allowed,
            remaining: self.remaining + taken_later,
            retry_after: wait.filter(|_| !allowed),
            reset_after: Duration::from_micros(self.reset_us),
        }
    }
}

/// An ask as the script unpacks it.
fn packed(check: &Check, times: usize) -> [u8; ASK_BYTES] {
    let mode = match check.mode {
        Mode::Enforce => 0,
        Mode::Shadow => 1,
        Mode::Quota => 2,
    };
    let mut packed = [0; ASK_BYTES];
    packed[..8].copy_from_slice(&check.limit.max_requests().to_be_bytes());
    packed[8..16].copy_from_slice(&check.limit.window_us().to_be_bytes());
    packed[16..24].copy_from_slice(&check.hits.to_be_bytes());
    packed[24..28].copy_from_slice(&u32::try_from(times).unwrap_or(u32::MAX).to_be_bytes());
    packed[28..].copy_from_slice(&[mode, u8::from(check.count_denied)]);
    packed
}

async fn query(link: &mut Link, command: &Cmd) -> RedisResult<Vec<u8>> {
    let reply: Value = command.query_async(&mut link.connection).await?;
    redis::from_redis_value(reply).map_err(RedisError::from)
}

fn is_missing(reply: &RedisResult<Vec<u8>>) -> bool {
    reply.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT"))
}
