//! Who is asked what. The first contestant of a scenario is what the others are divided by.

use tempfile::TempDir;

use super::contestant::Server;
use super::harness::redis::Redis;

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) contestants: &'static [Contestant],
    /// Whether PINGs are timed at the same load.
    pub(crate) pings: bool,
}

pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) server: Which,
    /// Arguments of `chronosdb load`.
    pub(crate) load: &'static [&'static str],
}

#[derive(Clone, Copy)]
pub(crate) enum Which {
    Empty,
    Naive,
    Memory,
    /// Memory store, 2,200 rules instead of 22.
    ManyRules,
    Redis,
    /// Redis, without the L1.
    Plain,
}

macro_rules! edge {
    ($keys:literal, $($descriptor:literal),+) => {
        &["--domain", "edge", "--keys", $keys, $($descriptor),+]
    };
}

const USERS: &[&str] = edge!("1000", "user={key}");
const ONE_USER: &[&str] = edge!("1", "user=hot-{key}");
const SLOW: &[&str] = edge!("1000", "slow={key}");
const FOUR: &[&str] = edge!("1000", "user={key}", "a={key}", "b={key}", "c={key}");
const SMALL: &[&str] = edge!("1000", "small={key}");
const FULL: &[&str] = edge!("2", "full={key}");

const fn by(name: &'static str, server: Which, load: &'static [&'static str]) -> Contestant {
    Contestant { name, server, load }
}

#[rustfmt::skip]
pub(crate) static SCENARIOS: [Scenario; 9] = [
    Scenario { name: "memory", what: "memory store, 1,000 keys", pings: false, contestants: &[
        by("empty", Which::Empty, USERS), by("ours", Which::Memory, USERS)] },
    Scenario { name: "redis", what: "Redis, 1,000 keys, all granted", pings: true, contestants: &[
        by("empty", Which::Empty, USERS), by("ours", Which::Redis, USERS)] },
    Scenario { name: "naive", what: "Redis, 1,000 keys, all granted", pings: false, contestants: &[
        by("naive", Which::Naive, USERS), by("ours", Which::Redis, USERS)] },
    Scenario { name: "hot", what: "one key under its limit, 256 in flight", pings: false, contestants: &[
        by("naive", Which::Naive, ONE_USER), by("ours", Which::Redis, ONE_USER)] },
    Scenario { name: "refused", what: "mostly refused, L1", pings: false, contestants: &[
        by("empty", Which::Empty, SLOW), by("ours", Which::Redis, SLOW)] },
    Scenario { name: "no-l1", what: "mostly refused, without L1", pings: false, contestants: &[
        by("naive", Which::Naive, SLOW), by("ours", Which::Plain, SLOW)] },
    Scenario { name: "four", what: "four descriptors in one request", pings: false, contestants: &[
        by("one", Which::Redis, USERS), by("four", Which::Redis, FOUR)] },
    Scenario { name: "rules", what: "22 rules, 2,200 rules (memory store)", pings: false, contestants: &[
        by("22", Which::Memory, USERS), by("2,200", Which::ManyRules, USERS)] },
    Scenario { name: "limits", what: "limit 100 (1,000 keys), full log of limit 1,000,000 (2 keys)", pings: false,
        contestants: &[by("100", Which::Plain, SMALL), by("1,000,000", Which::Plain, FULL)] },
];

/// Everything that runs.
pub(crate) struct House {
    pub(crate) redis: Redis,
    empty: Server,
    naive: Server,
    memory: Server,
    many_rules: Server,
    with_redis: Server,
    plain: Server,
    _folder: TempDir,
}

impl House {
    pub(crate) fn open() -> Self {
        let (redis, folder) = (Redis::start(), TempDir::new().expect("there is room for a folder"));
        let store = format!(
            "store: {{ kind: redis, redis: {{ url: 'redis://127.0.0.1:{}', timeout: 1s }} }}",
            redis.port
        );
        let plain = format!("{store}\nl1: {{ enabled: false }}");
        let ours = |name: &str, count, settings: &str| {
            Server::ours(folder.path(), name, &rules(count), settings)
        };
        let (memory, many_rules) = (ours("memory", 22, ""), ours("many", 2_200, ""));
        let (with_redis, plain) = (ours("redis", 22, &store), ours("plain", 22, &plain));
        let (empty, naive) = (Server::stand_in(None), Server::stand_in(Some(&redis)));
        Self { redis, empty, naive, memory, many_rules, with_redis, plain, _folder: folder }
    }

    pub(crate) fn server(&self, which: Which) -> &Server {
        match which {
            Which::Empty => &self.empty,
            Which::Naive => &self.naive,
            Which::Memory => &self.memory,
            Which::ManyRules => &self.many_rules,
            Which::Redis => &self.with_redis,
            Which::Plain => &self.plain,
        }
    }
}

/// `count` rules: those that are asked about, and the rest beside them.
pub(crate) fn rules(count: usize) -> String {
    let mut text = "domain: edge\ndescriptors:\n".to_owned();
    let asked = [
        ("user", "1000000", "1m"),
        ("slow", "5", "1h"),
        ("a", "1000000", "1m"),
        ("b", "1000000", "1m"),
        ("c", "1000000", "1m"),
        ("small", "100", "1s"),
        ("full", "1000000", "1s"),
    ];
    for (key, limit, window) in asked {
        text +=
            &format!("- {{ key: {key}, rate_limit: {{ limit: {limit}, window: {window} }} }}\n");
    }
    for index in asked.len()..count {
        // Some beside the ones that are asked about, exact and with wildcards.
        let key = ["user", "path"][index % 2];
        let star = ["", "*"][index / 2 % 2];
        text += &format!(
            "- {{ key: {key}, value: \"v-{index:05}{star}\", rate_limit: {{ limit: 1, window: 1s }} }}\n"
        );
    }
    text
}
