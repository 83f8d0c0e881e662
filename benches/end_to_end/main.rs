//! Whole servers under load, beside the empty handler of the same framework and the naive script.
//! It starts everything itself on free loopback ports: Redis, our server, the stand-ins, the load.
//! Contestants take turns, so that only ratios count and a loaded machine changes them little.
//!
//!     cargo bench --bench end_to_end                        every scenario, about five minutes
//!     cargo bench --bench end_to_end -- redis hot           those whose names begin so
//!     cargo bench --bench end_to_end -- --rounds 9 --seconds 3 memory
//!     cargo bench --bench end_to_end -- --soak 300          resident memory, a million keys, 5 min

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../../src/cli/load/pace.rs"]
mod pace;

mod contestant;
mod scenarios;
mod soak;
mod stand_in;

use std::thread;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use hdrhistogram::Histogram;

use self::contestant::{Turn, turn};
use self::harness::median;
use self::scenarios::{House, SCENARIOS, Scenario};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// PINGs beside a load that is measured: few enough to add nothing to it.
const MEANWHILE_PER_SECOND: f64 = 200.0;

/// The column of the table where latencies begin.
const LATENCY_COLUMN: usize = 9;

/// How much of each.
struct Effort {
    rounds: usize,
    seconds: u64,
}

fn main() {
    let mut effort = Effort { rounds: 5, seconds: 1 };
    let (mut names, mut soak_s) = (Vec::new(), None);
    let mut arguments = harness::arguments();
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
        match argument.as_str() {
            "--stand-in" => {
                let port = u16::try_from(number()).expect("it is a port");
                return stand_in::serve(port, arguments.next().and_then(|port| port.parse().ok()));
            }
            "--rounds" => effort.rounds = usize::try_from(number()).unwrap_or(1),
            "--seconds" => effort.seconds = number(),
            "--soak" => soak_s = Some(number()),
            name => names.push(name.to_owned()),
        }
    }
    if let Some(seconds) = soak_s {
        return soak::run(seconds);
    }
    let house = House::open();
    for scenario in &SCENARIOS {
        if names.is_empty() || names.iter().any(|name| scenario.name.starts_with(name.as_str())) {
            println!("\n{}: {}\n{}", scenario.name, scenario.what, run(scenario, &house, &effort));
        }
    }
}

/// All rounds of a scenario, as a table.
fn run(scenario: &Scenario, house: &House, effort: &Effort) -> Table {
    let seconds = format!("{}s", effort.seconds);
    let busy = ["--in-flight", "256", "--duration", &seconds];
    // Once for nothing: connections, logs and caches fill.
    rounds(scenario, house, 1, &busy);
    let busy = rounds(scenario, house, effort.rounds, &busy);
    let slowest = busy.iter().map(|turns| of(turns, |turn| turn.per_second)).reduce(f64::min);
    let per_second = (slowest.unwrap_or(0.0) / 2.0).round().max(1.0);
    let rate = per_second.to_string();
    let calm_pace = ["--rate", &rate, "--duration", &seconds];
    let calm = rounds(scenario, house, effort.rounds.div_ceil(2), &calm_pace);

    let mut table = Table::new();
    let at = format!("ms at {rate}/s: p50");
    let first = scenario.contestants[0].name;
    let ratio = [format!("server ÷ {first}"), format!("Redis ÷ {first}")];
    table.load_preset(NOTHING).set_header([
        "",
        "per s",
        "server µs",
        &ratio[0],
        "Redis µs",
        &ratio[1],
        "Redis calls",
        "calm: server µs",
        "Redis µs",
        &at,
        "p99",
        "p99.9",
    ]);
    for (index, contestant) in scenario.contestants.iter().enumerate() {
        let ratio = |cost: fn(&Turn) -> f64| {
            let pairs = busy[index].iter().zip(&busy[0]);
            median(pairs.map(|(own, first)| cost(own) / cost(first)).collect())
        };
        let (server, redis) = (ratio(|turn| turn.server_us), ratio(|turn| turn.redis_us));
        let ms = |part: fn(&Turn) -> f64| format!("{:.2}", of(&calm[index], part) / 1000.0);
        let busy = &busy[index];
        table.add_row([
            contestant.name.to_owned(),
            format!("{:.0}", of(busy, |turn| turn.per_second)),
            format!("{:.1}", of(busy, |turn| turn.server_us)),
            format!("{server:.2}"),
            format!("{:.2}", of(busy, |turn| turn.redis_us)),
            format!("{redis:.2}"),
            format!("{:.3}", of(busy, |turn| turn.redis_calls)),
            format!("{:.1}", of(&calm[index], |turn| turn.server_us)),
            format!("{:.1}", of(&calm[index], |turn| turn.redis_us)),
            ms(|turn| turn.p50_us),
            ms(|turn| turn.p99_us),
            ms(|turn| turn.p99_9_us),
        ]);
    }
    if scenario.pings {
        let duration = Duration::from_secs(effort.seconds);
        let alone = || stand_in::ping(house.redis.port, per_second, duration);
        let meanwhile = || {
            thread::scope(|scope| {
                let ping = || stand_in::ping(house.redis.port, MEANWHILE_PER_SECOND, duration);
                let pings = scope.spawn(ping);
                let busiest = scenario.contestants.last().expect("a scenario has contestants");
                turn(house.server(busiest.server), &house.redis, busiest.load, &calm_pace);
                pings.join().expect("Redis answers")
            })
        };
        table.add_row(pings("PING alone", effort, alone));
        table.add_row(pings("PING meanwhile", effort, meanwhile));
    }
    table
}

/// A row about PINGs: how long they took.
fn pings(name: &str, effort: &Effort, ping: impl Fn() -> Histogram<u64>) -> Vec<String> {
    let took: Vec<_> = (0..effort.rounds).map(|_| ping()).collect();
    let ms = |quantile| {
        let all = took.iter().map(|took| took.value_at_quantile(quantile) as f64).collect();
        format!("{:.2}", median(all) / 1000.0)
    };
    let mut row = vec![name.to_owned()];
    row.resize(LATENCY_COLUMN, String::new());
    row.extend([0.5, 0.99, 0.999].map(ms));
    row
}

/// For each contestant, one turn in each round.
fn rounds(scenario: &Scenario, house: &House, rounds: usize, pace: &[&str]) -> Vec<Vec<Turn>> {
    let count = scenario.contestants.len();
    let mut turns = vec![Vec::new(); count];
    for round in 0..rounds {
        for index in (0..count).map(|index| (index + round) % count) {
            let contestant = &scenario.contestants[index];
            let server = house.server(contestant.server);
            turns[index].push(turn(server, &house.redis, contestant.load, pace));
        }
    }
    turns
}

fn of(turns: &[Turn], part: impl Fn(&Turn) -> f64) -> f64 {
    median(turns.iter().map(part).collect())
}
