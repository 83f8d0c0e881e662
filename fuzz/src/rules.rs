//! Any bytes as a rules file: it loads, or says what is wrong and where. No panic, no hang, and
//! memory in proportion to the file.
#![no_main]

use std::sync::{Arc, LazyLock};

use chronosdb::metrics::Metrics;
use chronosdb::privacy::{Privacy, Settings};
use chronosdb::rules::{Input, RuleSet, load};
use libfuzzer_sys::fuzz_target;

/// One for all inputs: its series are bounded, and a registry costs more than a small file.
static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(Metrics::new);

fuzz_target!(|bytes: &[u8]| {
    let metrics = &*METRICS;
    let privacy = Privacy::new(&Settings::default());
    let input = |bytes: &[u8]| Input { name: "f.yaml".into(), bytes: Ok(bytes.to_vec()) };
    let rules = load(vec![input(bytes)], &RuleSet::default(), metrics, &privacy);
    let lines = bytes.split(|byte| *byte == b'\n' || *byte == b'\r').count();
    for problem in rules.problems() {
        assert!(!problem.message.is_empty() && problem.line <= lines + 1, "{problem}");
        assert!(problem.to_string().starts_with("f.yaml:"), "{problem}");
    }
    for rule in rules.describe() {
        assert!((1..=lines).contains(&(rule.line as usize)), "{rule:?}");
    }
    let again = load(vec![input(bytes)], &rules, metrics, &privacy);
    assert_eq!(again.describe(), rules.describe(), "the same bytes mean something else");
});
