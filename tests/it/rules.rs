//! Rules files as people write them: the good ones load, and each broken one says what is wrong.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chronosdb::check::{Descriptor, Entry, Request};
use chronosdb::metrics::Metrics;
use chronosdb::privacy::{Privacy, Settings};
use chronosdb::rules::validate::{self, validate};
use chronosdb::rules::{Ceiling, Diagnostic, RuleSet, watch};
use proptest::prelude::*;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn privacy() -> Privacy {
    Privacy::new(&Settings::default())
}

fn from_text(text: &str) -> Result<RuleSet, Vec<Diagnostic>> {
    RuleSet::from_text(text, &Metrics::new(), &privacy())
}

fn entries(path: &[(&str, &str)]) -> Vec<Entry> {
    path.iter().map(|(key, value)| Entry::new(*key, *value)).collect()
}

/// The limit and the window in seconds that a path is held to.
fn limit(rules: &RuleSet, domain: &str, path: &[(&str, &str)]) -> Option<(u64, u64)> {
    let descriptor = Descriptor { entries: entries(path), hits: 1, limit_override: None };
    let request = Request { domain: domain.to_owned(), descriptors: vec![descriptor] };
    let found = rules.domain(domain)?.matches(&request, &privacy()).pop().flatten()?;
    match found.ceiling {
        Ceiling::Unlimited => Some((u64::MAX, 0)),
        Ceiling::Limit(limit) => Some((limit.max_requests(), limit.window().as_secs())),
    }
}

#[test]
fn every_good_file_loads() {
    let good = folder("tests/data/configs/good");
    let report = validate(std::slice::from_ref(&good));
    assert!(report.is_good(), "{report}");
    assert_eq!((report.files.len(), report.domains.len()), (30, 30), "{report}");
    for file in watch::files(&good).unwrap() {
        let alone = validate(&[file]);
        assert!(alone.is_good() && !alone.domains.is_empty(), "{alone}");
    }
}

#[test]
fn the_shipped_rules_are_beyond_reproach() {
    let report = validate(&[folder("config/rules")]);
    assert!(report.is_good() && report.warnings.is_empty(), "{report}");
    assert_eq!(report.domains, ["edge", "native"]);
}

/// Where, what, and what to do.
type Expected = (&'static str, &'static str, &'static str);

/// Each error of a broken file, by the number in its name.
const BROKEN: [(&str, &[Expected]); 21] = [
    (
        "51",
        &[(
            "6:5",
            "\"descriptors\" is indented deeper than its sibling \"key\" (line 5)",
            "align it",
        )],
    ),
    (
        "52",
        &[("11:5", "key \"rate_limit\" appears twice in this block (first at line 8)", "keep one")],
    ),
    ("53", &[("7:13", "rate_limit.unit \"minutes\" is not a unit", "did you mean \"minute\"?")]),
    (
        "54",
        &[(
            "7:5",
            "unknown key \"ratelimit\" in a descriptor",
            "did you mean \"rate_limit\"? Without it",
        )],
    ),
    ("55", &[("11:13", "unknown key \"unlimied\" in rate_limit", "did you mean \"unlimited\"?")]),
    ("56", &[("7:1", "a tab is used for indentation", "spaces")]),
    ("57", &[("8:26", "from 0 to 4294967295, got the string \"100\"", "remove the quotes")]),
    ("58", &[("3:1", "missing top-level \"domain\"", "domain: edge")]),
    (
        "59",
        &[(
            "9:5",
            "\"foo\" (any value) is defined twice under domain \"messaging\" (first at line 5)",
            "keep one",
        )],
    ),
    (
        "60",
        &[(
            "6:5",
            "unknown key \"Value\" in a descriptor: keys are lower-case",
            "did you mean \"value\"?",
        )],
    ),
    (
        "61",
        &[(
            "3:1",
            "looks like a Kubernetes ConfigMap",
            "data.\"config.yaml\" (starting with \"domain: shop\")",
        )],
    ),
    ("62", &[("7:7", "both unlimited: true and unit/requests_per_unit", "keep one")]),
    (
        "63",
        &[
            ("12:15", "replaces entry \"self\" is this rule's own name", ""),
            ("13:15", "replaces entry has no name", ""),
        ],
    ),
    (
        "64",
        &[
            ("8:26", "requests_per_unit -5 is negative", "use 0"),
            ("12:26", "0.5 is not a whole number", "longer unit"),
        ],
    ),
    (
        "66",
        &[(
            "7:5",
            "rate_limit must be one block (unit + requests_per_unit), got a list of 2",
            "of its own",
        )],
    ),
    ("67", &[("7:5", "share_threshold needs a value with \"*\", got \"files\"", "plain value")]),
    ("68", &[("10:5", "descriptor \"plan\" has an empty rate_limit and no children", "cut short")]),
    ("69", &[("7:26", "found template text \"{{ ... }}\"", "render")]),
    ("70", &[("7:26", "4294967296 is above the maximum 4294967295", "unlimited: true")]),
    (
        "71",
        &[
            ("5:5", "descriptor has a value but no \"key\"", ""),
            ("9:9", "descriptors must be a list of blocks with \"key\", got the text \"a\"", ""),
            ("10:9", "got the text \"b\"", ""),
        ],
    ),
    (
        "72",
        &[
            ("6:5", "unknown key \"weight\"", ""),
            ("7:5", "unknown key \"always_apply\"", ""),
            ("8:5", "unknown key \"rateLimit\"", "did you mean \"rate_limit\"?"),
            ("13:7", "unknown key \"algorithm\" in rate_limit", ""),
            ("14:7", "both \"unit\" and \"window\"", "keep unit"),
        ],
    ),
];

#[test]
fn every_broken_file_says_what_is_wrong_and_where() {
    let files = watch::files(&folder("tests/data/configs/broken")).unwrap();
    assert_eq!(files.len(), BROKEN.len());
    for (file, (number, expected)) in files.iter().zip(BROKEN) {
        let report = validate(std::slice::from_ref(file));
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(number), "{name}");
        assert_eq!(report.errors.len(), expected.len(), "{report}");
        assert!(report.domains.is_empty(), "{report}");
        for (error, (place, message, remedy)) in report.errors.iter().zip(expected) {
            assert_eq!(error.place(), format!("{}:{place}", file.display()), "{error}");
            assert!(error.message.contains(message), "{error}\nshould say {message}");
            assert!(error.remedy.as_deref().unwrap_or_default().contains(remedy), "{error}");
            assert!(error.to_string().contains('^'), "{error}");
        }
    }
}

#[test]
fn all_errors_of_all_files_come_at_once() {
    let report = validate(&[folder("tests/data/configs/broken")]);
    let expected: usize = BROKEN.iter().map(|(_, errors)| errors.len()).sum();
    assert_eq!(report.errors.len(), expected, "{report}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["errors"][0]["line"], 6);
    assert_eq!(json["errors"][0]["severity"], "error");
}

#[test]
fn good_files_mean_what_they_say() {
    let (rules, _) = validate::read(&[folder("tests/data/configs/good")]);
    for (domain, path, expected) in [
        ("edge", &[("cdn-client-ip", "203.0.113.7")][..], Some((0, 1))),
        ("edge", &[("cdn-client-ip", "198.51.100.1")], Some((5, 1))),
        ("depthdemo", &[("key", "value")], None),
        ("depthdemo", &[("key", "value"), ("subkey", "x")], Some((300, 1))),
        ("internal-auth", &[("directory", "x")], Some((u64::MAX, 0))),
        ("wild", &[("path", "/api/a/resource/b/action")], Some((3, 60))),
        ("wild", &[("path", "/api/a/action")], Some((7, 60))),
        ("wild", &[("path", "/api/health")], Some((600, 60))),
        ("wild", &[("path", "/other")], Some((60, 60))),
        ("global-ratelimit", &[("PARTNER", "0042"), ("PATH", "/x")], Some((600, 60))),
        ("shop-ns/eg/http", &[("route-cart", "route-cart"), ("rule-0-match-0", "x")], Some((5, 1))),
        ("team-ns/policy-1", &[("team-ns/policy-1/rule/0", "x")], None),
        ("subscriptions", &[("plan", "archive"), ("account", "1")], Some((1, 365 * 86_400))),
        ("subscriptions", &[("plan", "basic"), ("account", "1")], Some((5, 30 * 86_400))),
        ("baseline", &[("client", "health-checker")], None),
        ("host-info", &[("custom-rl-header", "setting1")], Some((1, 60))),
        ("split-domain", &[("team", "payments")], Some((10, 60))),
        ("split-domain", &[("team", "search")], Some((20, 60))),
        ("geo", &[("country", "NO")], Some((60, 60))),
        ("geo", &[("country", "false")], None),
        ("geo", &[("feature", "on")], Some((60, 60))),
        ("geo", &[("y", "n")], Some((60, 60))),
        ("geo", &[("build", "0123")], Some((60, 60))),
        ("geo", &[("clock", "12:30")], Some((60, 60))),
        ("versions", &[("api_version", "1.10")], Some((10, 60))),
        ("versions", &[("release", "2024-06-01")], Some((10, 60))),
        ("odd-values", &[("cafe", "cafe\u{301}")], Some((1, 60))),
        (
            "odd-values",
            &[("destination_cluster", "outbound|80||cart.shop.svc.cluster.local")],
            Some((50, 1)),
        ),
        ("model-gateway", &[("org", "x")], Some((4_294_967_295, 30 * 86_400))),
    ] {
        assert_eq!(limit(&rules, domain, path), expected, "{domain} {path:?}");
    }
}

#[test]
fn single_fields() {
    let rule = |fields: &str| format!("domain: d\ndescriptors:\n- {{key: k, {fields}}}\n");
    for (fields, expected) in [
        (
            "rate_limit: {unit: Week, requests_per_unit: 5, unit_multiplier: 2}",
            Ok((5, 14 * 86_400)),
        ),
        ("rate_limit: {limit: 9007199254740991, window: 1h30m}", Ok((9_007_199_254_740_991, 5400))),
        ("rate_limit: {unit: hour, requests_per_unit: 1_000}, shadow_mode: yes", Ok((1000, 3600))),
        ("rate_limit: {unlimited: on, unit: UNKNOWN, requests_per_unit: 0}", Ok((u64::MAX, 0))),
        ("rate_limit: {unit: day}", Ok((0, 86_400))),
        (
            "value: ~, unit: day, rate_limit: {unit: day, requests_per_unit: 1, domain: x}",
            Ok((1, 86_400)),
        ),
        ("rate_limit: {limit: 1, window: 0s}", Err("a window must be at least 1ms")),
        ("rate_limit: {limit: 1, window: 1x}", Err("is not a duration")),
        ("rate_limit: {limit: 1}", Err("rate_limit has no window")),
        ("rate_limit: {window: 1s}", Err("rate_limit has no limit")),
        (
            "rate_limit: {unit: year, requests_per_unit: 1, unit_multiplier: 11}",
            Err("at most 3650 days"),
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 1, unit_multiplier: 0}",
            Err("at least 1, got 0"),
        ),
        ("rate_limit: {}", Err("rate_limit has no unit")),
        (
            "rate_limit: {unit: day, requests_per_unit: 1}, shadow_mode: 'true'",
            Err("must be true or false"),
        ),
        (
            "on_store_error: alow, rate_limit: {unit: day, requests_per_unit: 1}",
            Err("\"alow\" is not known"),
        ),
        ("identity: {api_key: '{key}', user_id: x}", Err("names no entry")),
        ("identity: {api_key: '{k}'}", Err("identity has no user_id")),
        ("metadata: [1]", Err("metadata must be a block")),
        ("descriptors: x", Err("descriptors must be a list")),
        ("value: {a: b}", Err("value must be a text, got a block")),
        ("charge: together", Err("\"charge\" has no effect in a descriptor")),
        ("rate_limit: *nobody", Err("has no anchor")),
        ("[a]: b", Err("a key must be a word")),
    ] {
        let loaded = from_text(&rule(fields));
        match (loaded, expected) {
            (Ok(rules), Ok(expected)) => {
                assert_eq!(limit(&rules, "d", &[("k", "v")]), Some(expected), "{fields}");
            }
            (Err(problems), Err(expected)) => {
                let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
                assert!(all.iter().any(|problem| problem.contains(expected)), "{fields}: {all:?}");
            }
            (Ok(_), Err(expected)) => panic!("{fields} should say: {expected}"),
            (Err(problems), Ok(_)) => panic!("{fields}: {}", problems[0]),
        }
    }
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let rule = "rate_limit: {unit: day, requests_per_unit: 1";
    for (descriptors, expected) in [
        (format!("- {{key: k, {rule}}}}}\n- {{key: k, value: '*', {rule}}}}}"), "never reached"),
        (
            format!("- {{key: k, value: 'a*', {rule}}}}}\n- {{key: k, value: 'a**', {rule}}}}}"),
            "covers the same",
        ),
        (format!("- {{key: ':path', {rule}}}}}"), "counter for every path"),
        (
            format!("- {{key: a, {rule}, name: n}}}}\n- {{key: b, {rule}, name: n}}}}"),
            "two rules are named \"n\"",
        ),
        (format!("- {{key: a, {rule}000}}}}\n- {{key: b, {rule}024}}}}"), ""),
        (format!("- {{key: a, {rule}025}}}}\n- {{key: b, {rule}025}}}}"), "exact in its number"),
        (
            format!("- {{key: a, {rule}, shadow_mode: true}}}}"),
            "\"shadow_mode\" has no effect in rate_limit",
        ),
        ("- {key: a, shadow_mode: true}".to_owned(), "no effect without rate_limit"),
        (format!("- {{key: a, value: '{{{{ .x }}}}', {rule}}}}}"), "not rendered"),
        ("- {key: a, rate_limit: {unit: day, requests_per_unit: 010}}".to_owned(), "is read as 8"),
    ] {
        let rules = from_text(&format!("domain: d\ndescriptors:\n{descriptors}\n"));
        let rules = rules.unwrap_or_else(|problems| panic!("{}", problems[0]));
        let problems: Vec<String> = rules.problems().iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), usize::from(!expected.is_empty()), "{problems:?}");
        assert!(problems.iter().all(|problem| problem.contains(expected)), "{problems:?}");
    }
}

#[test]
fn large_files_load() {
    let mut text = "domain: large\ndescriptors:\n".to_owned();
    for index in 0..9000 {
        let _ = write!(
            text,
            "  - key: client\n    value: client-{index:05}\n    rate_limit: {{unit: minute, requests_per_unit: {index}}}\n"
        );
    }
    for index in 0..200 {
        let _ = writeln!(
            text,
            "  - {{key: client, value: \"group-{index:03}-*-x\", rate_limit: {{unit: hour, requests_per_unit: {index}}}}}"
        );
    }
    // As deep as nobody writes: 60 levels.
    let indent = |level: usize| "  ".repeat(level);
    for level in 1..60 {
        let _ = write!(text, "{0}- key: deep\n{0}  descriptors:\n", indent(level));
    }
    let _ = writeln!(text, "{}- {{key: deep, rate_limit: {{limit: 1, window: 1s}}}}", indent(60));
    let started = Instant::now();
    let rules = from_text(&text).unwrap_or_else(|problems| panic!("{}", problems[0]));
    // Without optimization, and beside other tests.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(limit(&rules, "large", &[("client", "client-08999")]), Some((8999, 60)));
    assert_eq!(limit(&rules, "large", &[("client", "group-123-a-x")]), Some((123, 3600)));
    assert_eq!(limit(&rules, "large", &[("deep", ""); 60]), Some((1, 1)));
}

fn corpus() -> Vec<String> {
    let folders = ["tests/data/configs/good", "tests/data/configs/broken", "config/rules"];
    let files = folders.iter().flat_map(|name| watch::files(&folder(name)).unwrap());
    files.map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Cut, swapped, doubled or replaced text never makes it panic, and what loads is described.
    #[test]
    fn mutated_files_never_panic(
        file in 0..1000_usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, "[-:{}\\[\\]\"'*&#~<| \n\ta-c0é]{0,3}"), 1..6),
    ) {
        let corpus = corpus();
        let mut text: Vec<char> = corpus[file % corpus.len()].chars().collect();
        for (place, cut, insert) in edits {
            let start = place.index(text.len() + 1);
            let end = (start + cut).min(text.len());
            text.splice(start..end, insert.chars());
        }
        let text: String = text.into_iter().collect();
        match from_text(&text) {
            Ok(rules) => prop_assert!(rules.describe().iter().all(|rule| rule.line > 0)),
            Err(problems) => {
                prop_assert!(problems.iter().any(Diagnostic::is_error));
                prop_assert!(problems.iter().all(|problem| !problem.to_string().is_empty()));
            }
        }
    }
}
