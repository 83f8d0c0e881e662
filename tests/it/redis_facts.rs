//! What the script leaves behind in a real Redis, what it costs there, and how it fails.

use crate::harness::counters::{Counters as _, InRedis, START_US, Wanted, want};
use crate::harness::random::Random;
use crate::harness::redis::Redis;
use crate::harness::wait_until;

const WINDOW_MS: u64 = 1_000;

/// Law 10: a sixteenth of the window, and what rounding to milliseconds adds.
const MOST_TTL_MS: i64 = 1_000 + 1_000 / 16 + 2;

fn ttl_ms(lua: &mut InRedis, wanted: &Wanted) -> i64 {
    lua.command(&["PTTL", &wanted.store_key()])
}

#[test]
fn law_10_expiry() {
    let mut lua = InRedis::start();
    let mut random = Random::new(7);
    let mut now_us = START_US;
    let mut newest_us = START_US;
    let mut counted = 0;
    for step in 0..5_000 {
        now_us += random.within(0, 120_000);
        let wanted = want("ttl", 9, WINDOW_MS, random.pick(&[1, 1, 2, 3, 0, -2, -100]));
        let verdict = lua.ask(now_us, &[wanted])[0];
        if wanted.hits > 0 && verdict.allowed {
            newest_us = now_us;
        }
        if verdict.remaining == 9 {
            continue;
        }
        counted += 1;
        let ttl_ms = ttl_ms(&mut lua, &wanted);
        assert!(ttl_ms > 0 && ttl_ms <= MOST_TTL_MS, "step {step}: TTL {ttl_ms} ms, {wanted:?}");
        if verdict.remaining == 0 && wanted.hits > 0 && verdict.allowed {
            // What was just taken is still counted in the last microsecond of its window.
            let last_us = newest_us + WINDOW_MS * 1000 - 1;
            let held = lua.ask(last_us, &[Wanted { hits: 0, ..wanted }])[0].remaining;
            assert!(held < 9, "step {step}: the key expired early");
            now_us = last_us;
        }
    }
    assert!(counted > 1_000, "only {counted} steps were looked at");
    lua.redis.clock.stop_at(now_us + 2 * WINDOW_MS * 1000);
    wait_until("every key expires by itself", || lua.command::<u64>(&["DBSIZE"]) == 0);
}

#[test]
fn a_short_window_expires_no_earlier_than_its_hits() {
    let mut lua = InRedis::start();
    for start_us in (0..1_000).step_by(37) {
        let start_us = START_US + start_us * 1_000_003;
        let wanted = want("short", 2, 16, 1);
        lua.ask(start_us, &[wanted]);
        for late_us in [0, 1, 500, 998, 999] {
            lua.command::<()>(&["FLUSHALL"]);
            lua.ask(start_us, &[wanted]);
            lua.ask(start_us + late_us, &[wanted]);
            let verdict = lua.ask(start_us + late_us + 15_999, &[Wanted { hits: 0, ..wanted }])[0];
            assert!(verdict.remaining < 2, "a hit of {late_us} µs was gone too early");
        }
    }
}

#[test]
fn no_helper_key_is_left_behind() {
    let mut lua = InRedis::start();
    let asks = [want("a", 3, WINDOW_MS, 1), want("b", 3, WINDOW_MS, 1), want("c", 0, WINDOW_MS, 1)];
    lua.ask(START_US, &asks[..2]);
    lua.ask(START_US, &asks);
    assert_eq!(lua.command::<u64>(&["DBSIZE"]), 2);
}

/// Commands that the script itself called so far.
fn calls(lua: &mut InRedis) -> u64 {
    let stats: String = lua.command(&["INFO", "commandstats"]);
    let of = |line: &str| -> u64 {
        let calls = line.split("calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.unwrap().parse().unwrap()
    };
    let commands = ["getrange", "setrange", "append", "set", "pexpire", "del"];
    let inside = |line: &&str| {
        let name = line.strip_prefix("cmdstat_").and_then(|line| line.split(':').next());
        name.is_some_and(|name| commands.contains(&name))
    };
    stats.lines().filter(inside).map(of).sum()
}

#[test]
fn the_cost_of_a_call_does_not_grow_with_the_log() {
    let mut lua = InRedis::start();
    let wanted = want("cost", 1_000_000, 60_000, 1);
    let mut now_us = START_US;
    let mut most = 0;
    let mut total = 0;
    for step in 0..2_000_u64 {
        now_us += 20_000;
        let before = calls(&mut lua);
        lua.ask(now_us, &[wanted]);
        let cost = calls(&mut lua) - before;
        // The merge of a full log is the one dear call, and rare.
        if cost > 12 {
            total += 1;
        } else {
            most = most.max(cost);
        }
        assert!(step > 900 || cost <= 6, "step {step} took {cost} commands");
    }
    assert!(most <= 9, "a plain call took {most} commands");
    assert!(total <= 40, "{total} merges in 2,000 calls");
}

#[test]
fn a_key_of_another_type_is_an_error_and_is_left_alone() {
    let mut lua = InRedis::start();
    let (good, bad) = (want("good", 3, WINDOW_MS, 1), want("bad", 3, WINDOW_MS, 1));
    lua.command::<()>(&["RPUSH", &bad.store_key(), "mine"]);
    let error = lua.run(START_US, 1, &[good, bad]).unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert_eq!(lua.command::<u64>(&["EXISTS", &good.store_key()]), 0, "half a request was counted");
    lua.command::<()>(&["DEL", &bad.store_key()]);
    // A log is text to Redis, so somebody else's text must be told from one.
    for text in ["mine", "a text that is as long as an entry", "a text of just thirty-two bytes!"] {
        lua.command::<()>(&["SET", &bad.store_key(), text]);
        for asks in [&[good, bad][..], &[bad]] {
            let error = lua.run(START_US, 1, asks).unwrap_err();
            assert!(error.to_string().contains("WRONGTYPE"), "{text}: {error}");
        }
        assert_eq!(lua.command::<String>(&["GET", &bad.store_key()]), text);
        assert_eq!(lua.command::<u64>(&["EXISTS", &good.store_key()]), 0, "half was counted");
    }
}

#[test]
fn a_full_redis_counts_nothing_and_says_so() {
    let mut lua = InRedis::on(Redis::start_with(&["--maxmemory-policy", "noeviction"]));
    let wanted = want("full", 3, WINDOW_MS, 1);
    lua.ask(START_US, &[wanted]);
    lua.command::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let error = lua.run(START_US + 1, 1, &[wanted, want("new", 3, WINDOW_MS, 1)]).unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error}");
    lua.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(lua.ask(START_US + 2, &[Wanted { hits: 0, ..wanted }])[0].remaining, 2);
    assert_eq!(lua.command::<u64>(&["DBSIZE"]), 1);
}

#[test]
fn a_key_without_expiry_heals() {
    let mut lua = InRedis::start();
    let wanted = want("planted", 3, WINDOW_MS, 1);
    let key = wanted.store_key();
    lua.ask(START_US, &[wanted]);
    lua.command::<()>(&["PERSIST", &key]);
    assert_eq!(ttl_ms(&mut lua, &wanted), -1);
    // Old entries only, and then live ones of an earlier sixteenth of the window.
    lua.ask(START_US + 5_000_000, &[wanted]);
    assert!(ttl_ms(&mut lua, &wanted) > 0);
    lua.command::<()>(&["PERSIST", &key]);
    lua.ask(START_US + 5_900_000, &[wanted]);
    assert!(ttl_ms(&mut lua, &wanted) > 0);
}

#[test]
fn a_restart_with_persistence_keeps_what_was_counted() {
    let mut lua =
        InRedis::on(Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]));
    let wanted = want("kept", 3, 86_400_000, 2);
    lua.ask(START_US, &[wanted]);
    lua.redis.restart();
    lua.connection = lua.redis.connect();
    assert_eq!(lua.ask(START_US + 1, &[Wanted { hits: 0, ..wanted }])[0].remaining, 1);
    assert!(ttl_ms(&mut lua, &wanted) > 86_000_000);
}

#[test]
fn a_clock_that_runs_is_stepped_back_an_hour() {
    let redis = Redis::start();
    let mut lua = InRedis::on(redis);
    let wanted = want("running", 5, WINDOW_MS, 5);
    lua.redis.clock.run_at_offset(0);
    let at = |lua: &mut InRedis| {
        let time: (u64, u64) = redis::cmd("TIME").query(&mut lua.connection).unwrap();
        time.0
    };
    let before_s = at(&mut lua);
    lua.ask(before_s * 1_000_000, &[wanted]);
    lua.redis.clock.run_at_offset(-3_600_000_000);
    let after_s = at(&mut lua);
    assert!((3_590..=3_600).contains(&(before_s - after_s)), "{before_s} {after_s}");
    let verdict = lua.ask(after_s * 1_000_000, &[Wanted { hits: 1, ..wanted }])[0];
    assert_eq!(verdict.retry_after, Some(std::time::Duration::from_secs(1)));
}
