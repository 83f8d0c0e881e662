//! What one decision costs Redis: our script beside the naive one, in turns on one redis-server,
//! pipelined, so that what is measured is the work in Redis and not the way to it.
//!
//!     cargo bench --bench script                     all of it, a minute
//!     cargo bench --bench script -- refused          scenarios with "refused" in their name
//!     cargo bench --bench script -- --other FILE     another version of our script instead of naive

mod harness;

use chronosdb::quota::sliding_log::SCRIPT;
use comfy_table::Table;
use comfy_table::presets::NOTHING;

use harness::redis::{NAIVE, Redis, Wire, command};

/// Turns of each contestant; the median counts.
const ROUNDS: usize = 9;

/// Commands under way at once.
const PIPELINED: usize = 100;

struct Scenario {
    name: &'static str,
    limit: u64,
    window_ms: u64,
    keys: u64,
    /// Calls of each turn.
    calls: usize,
}

#[rustfmt::skip]
const SCENARIOS: [Scenario; 7] = [
    Scenario { name: "granted, window 60 s", limit: 1_000_000, window_ms: 60_000, keys: 1_000, calls: 20_000 },
    Scenario { name: "granted, window 1 s", limit: 1_000_000, window_ms: 1_000, keys: 1_000, calls: 20_000 },
    Scenario { name: "granted, once a window", limit: 10, window_ms: 1_000, keys: 1_000_000, calls: 20_000 },
    Scenario { name: "refused", limit: 5, window_ms: 600_000, keys: 1_000, calls: 20_000 },
    Scenario { name: "refused, log of 100", limit: 100, window_ms: 600_000, keys: 100, calls: 20_000 },
    Scenario { name: "log of about 100", limit: 1_000_000, window_ms: 1_000, keys: 250, calls: 20_000 },
    Scenario { name: "log full", limit: 1_000_000, window_ms: 1_000, keys: 2, calls: 20_000 },
];

/// One of the two that take turns.
struct Contestant {
    sha: String,
    prefix: &'static str,
    is_naive: bool,
}

fn main() {
    let mut arguments = harness::arguments().peekable();
    let other = arguments.next_if(|argument| argument == "--other").and_then(|_| arguments.next());
    let other = other.map(|path| std::fs::read_to_string(path).expect("--other is a script"));
    let filter = arguments.next().unwrap_or_default();

    let redis = Redis::start();
    let mut wire = redis.connect();
    let mut load = |prefix, script: &str, is_naive| {
        let sha = wire.call(&[b"SCRIPT", b"LOAD", script.as_bytes()]);
        Contestant { sha, prefix, is_naive }
    };
    let ours = load("ours", SCRIPT, false);
    let contestants = match &other {
        Some(script) => [ours, load("other", script, false)],
        None => [ours, load("naive", NAIVE, true)],
    };
    let mut table = Table::new();
    let columns = ["scenario", "granted", "µs ours", contestants[1].prefix, "ratio"];
    table.load_preset(NOTHING).set_header(columns);
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(&filter)) {
        table.add_row(measure(scenario, &contestants, &redis, &mut wire));
    }
    println!("{table}\nCPU time of Redis for each call, median of {ROUNDS} turns");
}

fn measure(
    scenario: &Scenario,
    contestants: &[Contestant; 2],
    redis: &Redis,
    wire: &mut Wire,
) -> [String; 5] {
    wire.call(&[b"FLUSHALL"]);
    let mut random = 7;
    let mut costs_us = [Vec::new(), Vec::new()];
    let (mut ratios, mut granted) = (Vec::new(), 0);
    // The first turns fill the logs.
    for round in 0..ROUNDS + 2 {
        let mut cost_us = [0.0; 2];
        for turn in 0..2 {
            let which = (turn + round) % 2;
            let before_us = redis.cpu_us();
            granted = calls(scenario, &contestants[which], wire, &mut random);
            cost_us[which] = (redis.cpu_us() - before_us) / scenario.calls as f64;
        }
        if round >= 2 {
            costs_us[0].push(cost_us[0]);
            costs_us[1].push(cost_us[1]);
            ratios.push(cost_us[0] / cost_us[1]);
        }
    }
    let [ours, other] = costs_us.map(harness::median);
    let granted = granted * 100 / scenario.calls;
    [
        scenario.name.into(),
        format!("{granted} %"),
        format!("{ours:.2}"),
        format!("{other:.2}"),
        format!("{:.2}", harness::median(ratios)),
    ]
}

/// One turn; how many calls were granted.
fn calls(scenario: &Scenario, contestant: &Contestant, wire: &mut Wire, random: &mut u64) -> usize {
    let Scenario { limit, window_ms, keys, calls, .. } = scenario;
    let window_us = window_ms * 1000;
    // Limit, window, one hit, once, enforced: what src/store/redis/script.rs packs.
    let mut ask = [limit.to_be_bytes(), window_us.to_be_bytes(), 1_u64.to_be_bytes()].concat();
    ask.extend([0, 0, 0, 1, 0, 0]);
    let (limit, window_us) = (limit.to_string(), window_us.to_string());
    let mut granted = 0;
    let mut bytes = Vec::new();
    for _ in 0..calls / PIPELINED {
        bytes.clear();
        for _ in 0..PIPELINED {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            let key =
                format!("{}:{{bench:user-{}}}:{window_ms}", contestant.prefix, *random % keys);
            let mut arguments: Vec<&[u8]> =
                vec![b"EVALSHA", contestant.sha.as_bytes(), b"1", key.as_bytes()];
            let unique = random.to_string();
            if contestant.is_naive {
                arguments.extend([&limit, &window_us, &unique].map(|text| text.as_bytes()));
            } else {
                arguments.push(&ask);
            }
            command(&mut bytes, &arguments);
        }
        let replies = wire.pipeline(&bytes, PIPELINED);
        granted += replies.iter().filter(|reply| is_granted(reply)).count();
    }
    granted
}

/// The naive script says 1, ours eight bytes that end so.
fn is_granted(reply: &[u8]) -> bool {
    matches!(reply, b"1" | [0, 0, 0, 0, 0, 0, 0, 1, ..])
}
