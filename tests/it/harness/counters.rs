//! The sliding log in three forms that must agree: the Rust twin, the Lua twin on a real Redis,
//! and the brute-force oracle.

use std::collections::HashMap;
use std::time::Duration;

use chronosdb::quota::sliding_log::{Ask, Log, SCRIPT, decide};
use chronosdb::quota::{Limit, Mode, Verdict};

use super::redis::Redis;

/// When tests begin: 2026-01-01, in µs since 1970, with an odd microsecond.
pub(crate) const START_US: u64 = 1_767_225_600_000_007;

/// One check on a named counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: &'static str,
    pub(crate) limit: Limit,
    pub(crate) hits: i64,
    pub(crate) mode: Mode,
    pub(crate) count_denied: bool,
}

/// `hits` of `max_requests` in `window_ms`, enforced.
pub(crate) fn want(key: &'static str, max_requests: u64, window_ms: u64, hits: i64) -> Wanted {
    let limit = Limit::new(max_requests, Duration::from_millis(window_ms)).unwrap();
    Wanted { key, limit, hits, mode: Mode::Enforce, count_denied: false }
}

impl Wanted {
    /// The store key, without prefix.
    pub(crate) fn store_key(&self) -> String {
        format!("{{{}}}:{}", self.key, self.limit.window_ms())
    }
}

/// Answers the checks of one request, together, at a time the test chooses.
pub(crate) trait Counters {
    fn ask(&mut self, now_us: u64, wanted: &[Wanted]) -> Vec<Verdict>;

    fn name(&self) -> &'static str;

    /// Entries that the log of this check holds.
    fn entries(&mut self, wanted: &Wanted) -> usize;
}

/// Both twins, empty.
pub(crate) fn both_twins() -> [Box<dyn Counters>; 2] {
    [Box::<InRust>::default(), Box::new(InRedis::start())]
}

/// `sliding_log.rs`.
#[derive(Default)]
pub(crate) struct InRust {
    logs: HashMap<String, Log>,
}

impl Counters for InRust {
    fn ask(&mut self, now_us: u64, wanted: &[Wanted]) -> Vec<Verdict> {
        let mut keys: Vec<String> = Vec::new();
        let mut logs = Vec::new();
        let mut asks = Vec::new();
        for one in wanted {
            let key = one.store_key();
            let log = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                let mut log = self.logs.remove(&key).unwrap_or_default();
                log.advance(one.limit.window_us(), now_us);
                logs.push(log);
                keys.push(key);
                keys.len() - 1
            });
            let Wanted { limit, hits, mode, count_denied, .. } = *one;
            asks.push(Ask { log, limit, hits, mode, count_denied });
        }
        let verdicts = decide(&mut logs, &asks, now_us);
        self.logs.extend(keys.into_iter().zip(logs));
        verdicts
    }

    fn name(&self) -> &'static str {
        "sliding_log.rs"
    }

    fn entries(&mut self, wanted: &Wanted) -> usize {
        self.logs.get(&wanted.store_key()).map_or(0, Log::len)
    }
}

/// `sliding_log.lua`, on a Redis whose clock stands still.
pub(crate) struct InRedis {
    pub(crate) redis: Redis,
    pub(crate) connection: redis::Connection,
}

/// What the script says about one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) granted: i64,
    pub(crate) remaining: i64,
    pub(crate) retry_us: i64,
    pub(crate) reset_us: i64,
}

impl InRedis {
    pub(crate) fn start() -> Self {
        Self::on(Redis::start())
    }

    pub(crate) fn on(redis: Redis) -> Self {
        redis.clock.stop_at(START_US);
        let connection = redis.connect();
        Self { redis, connection }
    }

    /// Runs the script as the store does; `times` equal asks in one.
    pub(crate) fn run(
        &mut self,
        now_us: u64,
        times: u64,
        wanted: &[Wanted],
    ) -> redis::RedisResult<Vec<Reply>> {
        self.redis.clock.stop_at(now_us);
        let script = redis::Script::new(SCRIPT);
        let mut call = script.prepare_invoke();
        for one in wanted {
            let mode = match one.mode {
                Mode::Enforce => 0,
                Mode::Shadow => 1,
                Mode::Quota => 2,
            };
            call.key(one.store_key());
            let mut ask = one.limit.max_requests().to_be_bytes().to_vec();
            ask.extend(one.limit.window_us().to_be_bytes());
            ask.extend(one.hits.to_be_bytes());
            ask.extend(u32::try_from(times).unwrap().to_be_bytes());
            ask.extend([mode, u8::from(one.count_denied)]);
            call.arg(ask);
        }
        let packed: Vec<u8> = match call.invoke(&mut self.connection)? {
            redis::Value::BulkString(packed) => packed,
            // Of a lone refusal only the wait.
            redis::Value::Int(wait) => {
                [0, 0, wait, wait].iter().flat_map(|number| number.to_be_bytes()).collect()
            }
            other => panic!("the script answered {other:?}"),
        };
        let numbers =
            packed.chunks_exact(8).map(|part| i64::from_be_bytes(part.try_into().unwrap()));
        let numbers = numbers.collect::<Vec<_>>();
        assert_eq!(numbers.len(), 4 * wanted.len());
        Ok(numbers
            .chunks(4)
            .map(|part| Reply {
                granted: part[0],
                remaining: part[1],
                retry_us: part[2],
                reset_us: part[3],
            })
            .collect())
    }

    /// One command, for looking at what the script left behind.
    pub(crate) fn command<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection).unwrap()
    }
}

impl Counters for InRedis {
    fn ask(&mut self, now_us: u64, wanted: &[Wanted]) -> Vec<Verdict> {
        let replies = self.run(now_us, 1, wanted).unwrap();
        replies.into_iter().map(verdict_of).collect()
    }

    fn name(&self) -> &'static str {
        "sliding_log.lua"
    }

    fn entries(&mut self, wanted: &Wanted) -> usize {
        self.command(&["ZCARD", &wanted.store_key()])
    }
}

fn verdict_of(reply: Reply) -> Verdict {
    let micros = |us: i64| Duration::from_micros(u64::try_from(us).unwrap());
    assert!((0..=1).contains(&reply.granted), "one ask was granted {} times", reply.granted);
    Verdict {
        allowed: reply.granted == 1,
        remaining: u64::try_from(reply.remaining).unwrap(),
        retry_after: (reply.retry_us > 0).then(|| micros(reply.retry_us)),
        reset_after: micros(reply.reset_us),
    }
}
