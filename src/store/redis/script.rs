//! The scripts' language: checks to arguments, a reply to verdicts. One run is one command.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisResult, Value};
use smallvec::{SmallVec, smallvec};
use tokio::sync::Mutex;

use super::dial::Link;
use super::fault::Fault;
use super::node::Node;
use crate::check::Check;
use crate::quota::sliding_log::SCRIPT;
use crate::quota::{Mode, Verdict};
use crate::store::StoreError;

/// What the script calls ASK and REPLY.
const ASK_BYTES: usize = 30;
const REPLY_BYTES: usize = 32;

/// What one run does. Its keys live in one slot.
#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    /// Decides checks together; `times` equal asks when there is one check.
    Decide { checks: &'a [Check], times: usize },
    /// The same for a part of a request. Whether its quotas refuse is for the whole to say, so
    /// they count like shadow.
    Reserve { checks: &'a [Check] },
    /// Takes back the hits of checks that were reserved no earlier than `since_us`.
    GiveBack { checks: &'a [Check], since_us: u64 },
}

impl<'a> Work<'a> {
    pub(super) fn checks(&self) -> &'a [Check] {
        match *self {
            Self::Decide { checks, .. } | Self::Reserve { checks } => checks,
            Self::GiveBack { checks, .. } => checks,
        }
    }

    /// How many asks it answers.
    pub(super) fn asks(&self) -> usize {
        match *self {
            Self::Decide { checks, times } => checks.len() * times,
            Self::Reserve { checks } => checks.len(),
            Self::GiveBack { .. } => 0,
        }
    }
}

/// The scripts, ready to be run on one server.
pub(super) struct Scripts {
    sliding_log: Script,
    give_back: Script,
    key_prefix: Vec<u8>,
}

struct Script {
    sha: String,
    text: &'static str,
    /// Held while the script is sent whole: once is enough for all who find it missing.
    loading: Mutex<()>,
}

impl Script {
    fn new(text: &'static str) -> Self {
        let sha = redis::Script::new(text).get_hash().to_owned();
        Self { sha, text, loading: Mutex::default() }
    }
}

/// What a run answered: for each check, or for each of the equal asks of one check.
pub(super) struct Answer {
    replies: SmallVec<[Reply; 1]>,
    /// For [`Work::Reserve`]: the server's time just before, in µs since 1970.
    pub(super) since_us: u64,
    /// The server that answered.
    pub(super) by: Option<Arc<Node>>,
}

#[derive(Clone, Copy)]
struct Reply {
    granted: usize,
    remaining: u64,
    retry_us: i64,
    reset_us: u64,
}

impl Scripts {
    pub(super) fn new(key_prefix: &str) -> Self {
        Self {
            sliding_log: Script::new(SCRIPT),
            give_back: Script::new(include_str!("give_back.lua")),
            key_prefix: key_prefix.as_bytes().to_vec(),
        }
    }

    /// Runs once; sends again only when Redis says that it did not run for want of the script.
    /// `asking`: the server is only just taking the slot over.
    pub(super) async fn run(
        &self,
        link: &mut Link,
        work: Work<'_>,
        asking: bool,
    ) -> Result<Answer, Fault> {
        let script = match work {
            Work::GiveBack { .. } => &self.give_back,
            Work::Decide { .. } | Work::Reserve { .. } => &self.sliding_log,
        };
        let by_hash = self.command("EVALSHA", &script.sha, work);
        let timed = matches!(work, Work::Reserve { .. });
        let mut reply = query(link, &by_hash, timed, asking).await;
        if is_missing(&reply) {
            let _loading = script.loading.lock().await;
            reply = query(link, &by_hash, timed, asking).await;
            if is_missing(&reply) {
                let whole = self.command("EVAL", script.text, work);
                reply = query(link, &whole, timed, asking).await;
            }
        }
        let (since_us, reply) = reply.map_err(|error| Fault::of(&error))?;
        let expected = if matches!(work, Work::GiveBack { .. }) { 0 } else { work.checks().len() };
        let replies = Reply::all(&reply).filter(|replies| replies.len() == expected);
        let odd = || StoreError::Misconfigured(format!("the script answered {reply:?}"));
        Ok(Answer { replies: replies.ok_or_else(|| Fault::told(odd()))?, since_us, by: None })
    }

    /// A key that no quota has, in the slot of this check.
    pub(super) fn key(&self, name: &str, check: &Check) -> Vec<u8> {
        let tag = [b"{", check.key.as_bytes(), b"}"].concat();
        [&self.key_prefix, name.as_bytes(), &tag].concat()
    }

    fn command(&self, verb: &str, script: &str, work: Work<'_>) -> Cmd {
        let checks = work.checks();
        let mut command =
            Cmd::with_capacity(3 + checks.len() * 4, script.len() + checks.len() * 128);
        command.arg(verb).arg(script).arg(checks.len());
        let mut key = Vec::with_capacity(128);
        for check in checks {
            key.clear();
            self.write_key(&mut key, check);
            command.arg(&key[..]);
        }
        let (times, quota) = match work {
            Work::Decide { times, .. } => (times, 2),
            Work::Reserve { .. } => (1, 1),
            Work::GiveBack { since_us, .. } => {
                for check in checks {
                    command.arg(since_us).arg(check.hits).arg(check.limit.window_us());
                }
                return command;
            }
        };
        for check in checks {
            let mode = match check.mode {
                Mode::Enforce => 0,
                Mode::Shadow => 1,
                Mode::Quota => quota,
            };
            command.arg(&packed(check, times, mode)[..]);
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
    /// The same, with the server's name on it.
    pub(super) fn by(self, node: Arc<Node>) -> Self {
        Self { by: Some(node), ..self }
    }

    /// One verdict for each check.
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        self.replies.iter().map(|reply| reply.verdict(reply.granted > 0, 0)).collect()
    }

    /// Which checks were granted, in order.
    pub(super) fn granted(&self) -> impl Iterator<Item = bool> {
        self.replies.iter().map(|reply| reply.granted > 0)
    }

    /// What a run for equal asks answered.
    pub(super) fn share(&self) -> Result<Share, StoreError> {
        let reply = self.replies.first().copied();
        let odd = || StoreError::Misconfigured("the script answered nothing".into());
        Ok(Share { reply: reply.ok_or_else(odd)?, before: 0 })
    }
}

/// A part in a run of equal asks.
#[derive(Clone, Copy)]
pub(super) struct Share {
    reply: Reply,
    /// Asks of the run that come before.
    before: usize,
}

impl Share {
    /// The part that begins so many asks later.
    pub(super) fn after(self, asks: usize) -> Self {
        Self { before: self.before + asks, ..self }
    }

    /// The verdict for its first ask, of `hits`: those that come first are granted first.
    pub(super) fn verdict(self, hits: u64) -> Verdict {
        let later = self.reply.granted.saturating_sub(self.before + 1) as u64;
        self.reply.verdict(self.before < self.reply.granted, later * hits)
    }
}

impl Reply {
    /// What a run answered: one after the other, or a lone refusal's wait.
    fn all(reply: &Value) -> Option<SmallVec<[Self; 1]>> {
        match reply {
            Value::BulkString(packed) => packed.chunks(REPLY_BYTES).map(Self::read).collect(),
            &Value::Int(wait_us) => {
                let reset_us = u64::try_from(wait_us).ok()?;
                Some(smallvec![Self { granted: 0, remaining: 0, retry_us: wait_us, reset_us }])
            }
            _ => None,
        }
    }

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
fn packed(check: &Check, times: usize, mode: u8) -> [u8; ASK_BYTES] {
    let mut packed = [0; ASK_BYTES];
    packed[..8].copy_from_slice(&check.limit.max_requests().to_be_bytes());
    packed[8..16].copy_from_slice(&check.limit.window_us().to_be_bytes());
    packed[16..24].copy_from_slice(&check.hits.to_be_bytes());
    packed[24..28].copy_from_slice(&u32::try_from(times).unwrap_or(u32::MAX).to_be_bytes());
    packed[28..].copy_from_slice(&[mode, u8::from(check.count_denied)]);
    packed
}

/// Sends one command and reads its reply. TIME and ASKING go ahead of it in one write, so that
/// nothing of others comes between; the time is 0 when it was not asked for.
async fn query(
    link: &mut Link,
    command: &Cmd,
    timed: bool,
    asking: bool,
) -> RedisResult<(u64, Value)> {
    if !timed && !asking {
        return Ok((0, command.query_async(&mut link.connection).await?));
    }
    let mut pipeline = Pipeline::new();
    if timed {
        pipeline.cmd("TIME");
    }
    if asking {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(command.clone());
    let count = pipeline.len();
    let replies = link.connection.send_packed_commands(&pipeline, 0, count).await?;
    let mut replies = replies.into_iter();
    let mut since_us = 0;
    if timed {
        let time = replies.next().unwrap_or(Value::Nil).extract_error()?;
        let (seconds, micros): (u64, u64) = redis::from_redis_value(time)?;
        since_us = seconds * 1_000_000 + micros;
    }
    let reply = replies.next_back().unwrap_or(Value::Nil).extract_error()?;
    Ok((since_us, reply))
}

fn is_missing<T>(reply: &RedisResult<T>) -> bool {
    reply.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT"))
}
