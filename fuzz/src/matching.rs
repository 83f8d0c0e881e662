//! Rules and a request, after each other: what matches is what `explain` says, one answer comes
//! for each descriptor, and a wire message of any bytes is a request or an error.
#![no_main]

use std::sync::{Arc, LazyLock};

use chronosdb::api::json;
use chronosdb::api::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use chronosdb::api::ratelimit::question;
use chronosdb::check::{Descriptor, Entry, Request};
use chronosdb::metrics::Metrics;
use chronosdb::privacy::{Privacy, Settings};
use chronosdb::rules::RuleSet;
use chronosdb::rules::explain::explain;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;

/// One for all inputs: its series are bounded, and a registry costs more than a small file.
static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(Metrics::new);

/// Between the rules and the descriptors: `key=value` entries by line, an empty line between two.
const BORDER: &[u8] = b"\n%%\n";

fuzz_target!(|bytes: &[u8]| {
    if let Ok(wire) = RateLimitRequest::decode(bytes) {
        let _ = question(wire);
    }
    let _ = json::read(bytes);
    let Some(at) = bytes.windows(BORDER.len()).position(|window| window == BORDER) else { return };
    let (rules, asked) = (&bytes[..at + 1], &bytes[at + BORDER.len()..]);
    let Ok(rules) = std::str::from_utf8(rules) else { return };
    let privacy = Privacy::new(&Settings { key: Some("k".into()), ..Settings::default() });
    let Ok(rules) = RuleSet::from_text(rules, &METRICS, &privacy) else { return };
    for domain in rules.domains() {
        let request = Request { domain: domain.name.to_string(), descriptors: descriptors(asked) };
        let found = domain.matches(&request, &privacy);
        assert_eq!(found.len(), request.descriptors.len());
        let replaces = rules.describe().iter().any(|rule| rule.name.is_some());
        for (found, descriptor) in found.iter().zip(&request.descriptors) {
            let said = explain(&rules, &domain.name, &descriptor.entries, &privacy);
            match (found, &said.rule) {
                (Some(found), Some(said)) => {
                    assert_eq!(*found.rule.label, *said.label, "{descriptor:?}");
                    assert_eq!(found.key.to_string(), said.quota_key, "{descriptor:?}");
                    assert_eq!((&*found.rule.file, found.rule.line), (&*said.file, said.line));
                }
                (None, None) => assert!(said.reason.is_some(), "no rule, and no reason"),
                // Another descriptor's rule replaces this one's.
                (None, Some(_)) => assert!(replaces, "{descriptor:?}: {said:?}"),
                (Some(_), None) => panic!("{descriptor:?} matches, and explain says {said:?}"),
            }
        }
    }
});

fn descriptors(asked: &[u8]) -> Vec<Descriptor> {
    let mut descriptors = vec![Descriptor { hits: 1, ..Descriptor::default() }];
    for line in asked.split(|byte| *byte == b'\n') {
        if line.is_empty() {
            descriptors.push(Descriptor { hits: 1, ..Descriptor::default() });
            continue;
        }
        let border = line.iter().position(|byte| *byte == b'=').unwrap_or(line.len());
        let (key, value) = (&line[..border], line.get(border + 1..).unwrap_or_default());
        let last = descriptors.last_mut().expect("there is one from the start");
        last.entries.push(Entry::new(key, value));
    }
    descriptors
}
