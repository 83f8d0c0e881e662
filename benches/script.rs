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
    /// Arguments after limit and window, where they are always the same.
    rest: Option<[&'static str; 4]>,
}

fn main() {
    let mut arguments = harness::arguments().peekable();
    let other = arguments.next_if(|argument| argument == "--other").and_then(|_| arguments.next());
    let other = other.map(|path| std::fs::read_to_string(path).expect("--other is a script"));
    let filter = arguments.next().unwrap_or_default();

    let redis = Redis::start();
    let mut wire = redis.connect();
    let ours = Some(["1", "1", "0", "0"]);
    let mut load = |script: &str| wire.call(&["SCRIPT", "LOAD", script]);
    let contestants = [
        Contestant { sha: load(SCRIPT), prefix: "ours", rest: ours },
        match &other {
            Some(script) => Contestant { sha: load(script), prefix: "other", rest: ours },
            None => Contestant { sha: load(NAIVE), prefix: "naive", rest: None },
        },
    ];
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
    wire.call(&["FLUSHALL"]);
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
    let (limit, window_us) = (limit.to_string(), (window_ms * 1000).to_string());
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
            let unique = random.to_string();
            let mut arguments = vec!["EVALSHA", &contestant.sha, "1", &key, &limit, &window_us];
            match &contestant.rest {
                Some(rest) => arguments.extend(rest),
                None => arguments.push(&unique),
            }
            command(&mut bytes, &arguments);
        }
        let replies = wire.pipeline(&bytes, PIPELINED);
        granted += replies.iter().filter(|reply| *reply == "1").count();
    }
    granted
}
