//! Microbenchmarks of the rooms on the path of a request: decode, match, L1, memory store, the
//! limiter over them, encode. What belongs to sockets and Redis is measured by `end_to_end`.
//!
//!     cargo bench --bench path             everything, half a minute
//!     cargo bench --bench path -- match    what has "match" in its name

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use chronosdb::api::headers::Style;
use chronosdb::api::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor,
};
use chronosdb::api::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use chronosdb::api::ratelimit::{question, response};
use chronosdb::check::{Check, Mode, OnStoreError, QuotaKey, Request};
use chronosdb::l1::{self, L1};
use chronosdb::limiter::{self, Limiter, Shared};
use chronosdb::metrics::Metrics;
use chronosdb::privacy::{self, Privacy};
use chronosdb::quota::{Limit, Verdict};
use chronosdb::rules::RuleSet;
use chronosdb::store::memory::{self, Memory};
use chronosdb::store::{AnyStore, Store as _};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use futures_util::FutureExt as _;
use prost::Message as _;
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Users that take turns: more than a CPU's nearest cache holds.
const USERS: usize = 4096;

criterion_main!(path);
criterion_group! {
    name = path;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = loading, decode, matching, l1, memory_store, limiter, encode
}

/// What Envoy sends for a route and a user.
fn wire(route: usize, user: usize) -> RateLimitRequest {
    let entry = |key: &str, value: String| rate_limit_descriptor::Entry {
        key: key.as_bytes().to_vec(),
        value: value.into_bytes(),
    };
    let entries = vec![
        entry("route", format!("route-{route:04}")),
        entry("user", format!("6f1c2a00-0000-4000-8000-{user:012}")),
    ];
    let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

fn request(route: usize, user: usize) -> Request {
    question(wire(route, user)).expect("the request is sound")
}

/// `routes` × 11 rules: a limit for each user of a route, and ten that do not match, half of them
/// with wildcards.
fn rules(routes: usize, metrics: &Arc<Metrics>, privacy: &Privacy) -> RuleSet {
    let rules = RuleSet::from_text(&rules_text(routes), metrics, privacy);
    rules.unwrap_or_else(|problems| panic!("{}", problems[0]))
}

fn rules_text(routes: usize) -> String {
    let mut text = "domain: edge\ndescriptors:\n".to_owned();
    for route in 0..routes {
        text += &format!(
            "- {{ key: route, value: route-{route:04}, descriptors: [\
             {{ key: user, rate_limit: {{ limit: 1000000, window: 1m }} }}] }}\n"
        );
        for other in 0..5 {
            let limit = "rate_limit: { limit: 1, window: 1s }";
            text += &format!("- {{ key: path, value: /v{other}/{route:04}, {limit} }}\n");
            text += &format!("- {{ key: path, value: \"/v{other}/{route:04}/*\", {limit} }}\n");
        }
    }
    text
}

/// What a reload costs, beside the path: requests go on with the old rules until the swap.
fn loading(criterion: &mut Criterion) {
    let (metrics, privacy) = (Metrics::new(), Privacy::new(&privacy::Settings::default()));
    let mut group = criterion.benchmark_group("load");
    for (name, routes) in [("2200 rules", 200), ("5 MB of 70,000 rules", 6_400)] {
        let text = rules_text(routes);
        group.sample_size(10).bench_function(name, |bencher| {
            bencher.iter(|| RuleSet::from_text(&text, &metrics, &privacy).is_ok());
        });
    }
}

fn check(user: usize, limit: u64) -> Check {
    let limit = Limit::new(limit, Duration::from_secs(60)).expect("a minute is a window");
    let key = QuotaKey::of_identity(b"bench", format!("user-{user}").as_bytes());
    Check { key, limit, hits: 1, mode: Mode::Enforce, count_denied: false }
}

fn decode(criterion: &mut Criterion) {
    let bytes = wire(7, 42).encode_to_vec();
    criterion.bench_function("decode", |bencher| {
        bencher.iter(|| question(RateLimitRequest::decode(black_box(&bytes[..])).ok()?).ok());
    });
}

/// The two must cost the same: no rule that does not match is ever looked at.
fn matching(criterion: &mut Criterion) {
    for (name, routes) in [("match/22 rules", 2), ("match/2200 rules", 200)] {
        let (metrics, privacy) = (Metrics::new(), Privacy::new(&privacy::Settings::default()));
        let rules = rules(routes, &metrics, &privacy);
        let domain = rules.domain("edge").expect("the rules are of this domain");
        let requests: Vec<_> = (0..USERS).map(|user| request(user % routes, user)).collect();
        let mut turns = requests.iter().cycle();
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| turns.next().map(|request| domain.matches(request, &privacy)));
        });
    }
}

fn l1(criterion: &mut Criterion) {
    let l1 = L1::new(&l1::Settings::default(), Metrics::new());
    let now = Instant::now();
    let wait = Duration::from_secs(3600);
    let refused =
        Verdict { allowed: false, remaining: 0, retry_after: Some(wait), reset_after: wait };
    let checks = |from| (from..from + USERS).map(|user| check(user, 5)).collect::<Vec<_>>();
    let (known, unknown) = (checks(0), checks(USERS));
    known.iter().for_each(|check| l1.remember(check, &refused, l1.asking(now)));
    for (name, checks) in [("l1/known", &known), ("l1/unknown", &unknown)] {
        let mut turns = checks.iter().cycle();
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| turns.next().map(|check| l1.refusal(check, now)));
        });
    }
    let mut turns = known.iter().cycle();
    criterion.bench_function("l1/remember", |bencher| {
        let asked = l1.asking(now);
        bencher.iter(|| turns.next().map(|check| l1.remember(check, &refused, asked)));
    });
}

fn memory_store(criterion: &mut Criterion) {
    let fill = |limit: u64| {
        let store = Memory::new(&memory::Settings::default(), Metrics::new());
        let checks: Vec<_> = (0..USERS).map(|user| check(user, limit)).collect();
        (store, checks)
    };
    for (name, limit) in [("memory/granted", 1_000_000), ("memory/refused", 5)] {
        let (store, checks) = fill(limit);
        checks.iter().cycle().take(USERS * 5).for_each(|check| {
            store.acquire(std::slice::from_ref(check), None).now_or_never();
        });
        let mut turns = checks.iter().cycle();
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                let check = turns.next()?;
                store.acquire(std::slice::from_ref(check), None).now_or_never()
            });
        });
    }
    let (store, checks) = fill(1_000_000);
    let mut turns = checks.chunks(4).cycle();
    criterion.bench_function("memory/four together", |bencher| {
        bencher.iter(|| store.acquire(turns.next()?, None).now_or_never());
    });
}

/// From a request to a decision, with the memory store.
fn limiter(criterion: &mut Criterion) {
    let (metrics, privacy) = (Metrics::new(), Privacy::new(&privacy::Settings::default()));
    let rules = Arc::new(ArcSwap::from_pointee(rules(200, &metrics, &privacy)));
    let settings = limiter::Settings {
        shadow_mode: false,
        on_error: OnStoreError::Error,
        expected_instances: 1,
        memory: memory::Settings::default(),
    };
    let l1 = L1::new(&l1::Settings::default(), Arc::clone(&metrics));
    let shared = Shared::new(rules, l1, privacy, settings, Arc::clone(&metrics));
    let store = AnyStore::Memory(Arc::new(Memory::new(&memory::Settings::default(), metrics)));
    let limiter = Limiter::new(Arc::new(shared), store);
    let one: Vec<_> = (0..USERS).map(|user| request(user % 200, user)).collect();
    let four = |user: usize| {
        let parts = (0..4).flat_map(|part| request(user % 200, 4 * user + part).descriptors);
        Request { domain: "edge".into(), descriptors: parts.collect() }
    };
    let four: Vec<_> = (0..USERS).map(four).collect();
    for (name, requests) in [("limiter/one", one), ("limiter/four", four)] {
        let mut turns = requests.iter().cycle();
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                let request = turns.next()?;
                limiter.decide(request, None).now_or_never()
            });
        });
    }
}

fn encode(criterion: &mut Criterion) {
    let limit = Limit::new(100, Duration::from_secs(60)).ok();
    let status = |allowed: bool| limiter::Status {
        limit,
        verdict: Verdict {
            allowed,
            remaining: u64::from(allowed),
            retry_after: (!allowed).then_some(Duration::from_millis(1_234)),
            reset_after: Duration::from_millis(1_234),
        },
        ..limiter::Status::unlimited(None)
    };
    for (name, allowed) in [("encode/allowed", true), ("encode/refused", false)] {
        criterion.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || (limiter::Decision::of(vec![status(allowed)]), Vec::with_capacity(256)),
                |(decision, buffer)| response(decision, Style::RetryAfter).encode(buffer).is_ok(),
                BatchSize::SmallInput,
            );
        });
    }
}
