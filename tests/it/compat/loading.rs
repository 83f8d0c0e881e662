//! Rows 1 to 18: which files load, and what is said of those that do not.

use super::{Case, Differs, Row, Same, Verdict, row};
use crate::harness::server::run;
use crate::harness::wait_until;

/// Why a message is another one.
const SAID_BETTER: Verdict =
    Differs("refused as there, in our words: with file, line, column and what to write instead");

#[test]
fn loading() {
    super::prove(ROWS, &Case::new(""));
}

/// `validate` says this of a file with these rules, at that place, and a server that finds it
/// beside good files serves the good ones only.
#[track_caller]
fn refused(case: &Case, rules: &str, place_and_message: &str) {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("broken.yaml"), rules).unwrap();
    let output = run(folder.path(), &["validate", "broken.yaml"]);
    assert_eq!(output.code, 1, "{}", output.text);
    let expected = format!("broken.yaml:{place_and_message}");
    assert!(output.text.contains(&expected), "not {expected}:\n{}", output.text);

    beside_the_others(case, &[rules], || {
        let shown = serde_json::Value::from(expected.as_str()).to_string();
        let problems = case.server.page("/rules").unwrap().body;
        wait_until("the server says so too", || problems.contains(shown.trim_matches('"')));
        case.says("test-domain | key1=value1", "OK | OK");
        case.says("basic | key6=still", "OK | OK unlimited");
    });
}

/// Runs `proof` while these files lie beside those of the server, then takes them away.
fn beside_the_others(case: &Case, files: &[&str], proof: impl Fn()) {
    let server = &case.server;
    let version = || {
        let page: serde_json::Value =
            serde_json::from_str(&server.page("/rules").unwrap().body).unwrap();
        page["version"].as_str().unwrap().to_owned()
    };
    let before = version();
    // The last name alone is `broken.yaml`, as in the messages.
    let names = (0..files.len()).map(|index| match index + 1 == files.len() {
        true => "broken.yaml".to_owned(),
        false => format!("another-{index}.yaml"),
    });
    let names = names.collect::<Vec<_>>();
    for (name, text) in names.iter().zip(files) {
        let loaded = version();
        server.write_rules(name, text);
        wait_until("the file is noticed", || version() != loaded);
    }
    proof();
    for name in names {
        std::fs::remove_file(server.rules_folder().join(name)).unwrap();
    }
    wait_until("the files are gone", || version() == before);
}

/// A whole file with one descriptor.
macro_rules! one {
    ($descriptor:literal) => {
        concat!("domain: test-domain\ndescriptors:\n- {", $descriptor, "}\n")
    };
}

pub(super) const ROWS: &[Row] = &[
    row(1, "the basic example loads, and can be shown", Same, |case| {
        let page = case.server.page("/rules").unwrap().body;
        assert!(page.contains("key4_rate_limit") && page.contains("key5=value5,subkey5=subvalue5"));
        case.says("basic | key5=value5 > subkey5=subvalue5", "OK | OK 24 of 25/DAY");
    }),
    row(2, "a file must name its domain", SAID_BETTER, |case| {
        let rules = "descriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n";
        refused(case, rules, "1:1: missing top-level \"domain\"");
    }),
    row(
        3,
        "two files may not have one domain",
        Differs("files of one domain are always put together; only a conflict is an error"),
        |case| {
            let files = [one!("key: a, rate_limit: {unit: day, requests_per_unit: 10}"); 2];
            beside_the_others(case, &files, || {
                assert!(!case.server.page("/rules").unwrap().body.contains("broken.yaml:"));
                case.says("test-domain | a=row3", "OK | OK 9 of 10/DAY");
            });
        },
    ),
    row(4, "two files of one domain are put together", Same, |case| {
        let files = [
            one!("key: a, rate_limit: {unit: minute, requests_per_unit: 10}"),
            one!("key: b, rate_limit: {unit: minute, requests_per_unit: 20}"),
        ];
        beside_the_others(case, &files, || {
            case.says("test-domain | a=row4", "OK | OK 9 of 10/MINUTE");
            case.says("test-domain | b=row4", "OK | OK 19 of 20/MINUTE");
        });
    }),
    row(
        5,
        "the same descriptor in two files is an error",
        Differs("the same limit twice is no conflict; two limits are, and both places are named"),
        |case| {
            let first =
                one!("key: key1, value: value1, rate_limit: {unit: day, requests_per_unit: 1}");
            let second = first.replace("requests_per_unit: 1", "requests_per_unit: 2");
            beside_the_others(case, &[first, &second], || {
                let page = case.server.page("/rules").unwrap().body;
                assert!(page.contains("is defined differently at"), "{page}");
                assert!(page.contains("another-0.yaml:3") && page.contains("broken.yaml:3:3"));
                case.says("test-domain | key1=value1", "OK | OK 0 of 1/DAY");
            });
        },
    ),
    row(6, "a value needs a key", SAID_BETTER, |case| {
        let rules = one!("value: v, rate_limit: {unit: day, requests_per_unit: 1}");
        refused(case, rules, "3:3: descriptor has a value but no \"key\"");
    }),
    row(7, "one descriptor may not have two limits", SAID_BETTER, |case| {
        let rules = one!("key: key1, value: value1, rate_limit: {unit: day, requests_per_unit: 1}");
        let twice = format!("{rules}{}", rules.lines().last().unwrap());
        refused(case, &twice, "4:3: descriptor \"key1=value1\" is defined twice");
    }),
    row(8, "an unknown unit", SAID_BETTER, |case| {
        let rules = one!("key: key1, rate_limit: {unit: foo, requests_per_unit: 5}");
        refused(case, rules, "3:34: rate_limit.unit \"foo\" is not a unit");
    }),
    row(9, "a rule may not replace itself", SAID_BETTER, |case| {
        let rules = one!(
            "key: key1, rate_limit: {unit: day, requests_per_unit: 5, name: a, replaces: [{name: a}]}"
        );
        refused(case, rules, "3:81: replaces entry \"a\" is this rule's own name");
    }),
    row(10, "an entry of replaces needs a name", SAID_BETTER, |case| {
        let rules = one!(
            "key: key1, rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: ''}]}"
        );
        refused(case, rules, "3:72: replaces entry has no name");
    }),
    row(11, "text that is no YAML", SAID_BETTER, |case| {
        let rules = "domain: test-domain\ndescriptors:\n- key: \"key1\n";
        refused(case, rules, "3:8: unclosed quote");
    }),
    row(12, "an unknown key of a descriptor", SAID_BETTER, |case| {
        let rules = one!("key: key1, ratelimit: {unit: day, requests_per_unit: 5}");
        refused(case, rules, "3:15: unknown key \"ratelimit\" in a descriptor");
    }),
    row(13, "an unknown key of a limit", SAID_BETTER, |case| {
        let rules = one!("key: key1, rate_limit: {unit: day, requestsperunit: 5}");
        refused(case, rules, "3:39: unknown key \"requestsperunit\" in rate_limit");
    }),
    row(14, "a key that is a number", SAID_BETTER, |case| {
        refused(case, one!("key: key1, 0.25: x"), "3:15: unknown key \"0.25\" in a descriptor");
    }),
    row(15, "a list of descriptors that are none", SAID_BETTER, |case| {
        let rules = "domain: test-domain\ndescriptors: [a, b]\n";
        refused(case, rules, "2:15: descriptors must be a list of blocks with \"key\"");
        refused(case, rules, "2:18: descriptors must be a list of blocks with \"key\"");
    }),
    row(16, "unlimited, and a unit", SAID_BETTER, |case| {
        let rules = one!("key: key1, rate_limit: {unlimited: true, unit: day}");
        refused(case, rules, "3:28: rate_limit has both unlimited: true and unit");
    }),
    row(17, "metadata is kept with its rule", Same, |_| {
        let case = Case::new("ratelimit: { dynamic_metadata: true }");
        let answer = case.ask("rl | service=service_1").unwrap();
        let metadata = format!("{:?}", answer.dynamic_metadata.unwrap());
        assert!(metadata.contains("backend") && metadata.contains("\"first\""), "{metadata}");
    }),
    row(
        18,
        "the same parent in two blocks of one file is an error",
        Differs("blocks of one parent are put together: only two limits for one path conflict"),
        |case| {
            let rules = "domain: test-domain\ndescriptors:\n\
                - {key: a, value: b, descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 1}}]}\n\
                - {key: a, value: b, descriptors: [{key: d, rate_limit: {unit: day, requests_per_unit: 2}}]}\n";
            beside_the_others(case, &[rules], || {
                case.says("test-domain | a=b > c=1", "OK | OK 0 of 1/DAY");
                case.says("test-domain | a=b > d=1", "OK | OK 1 of 2/DAY");
            });
        },
    ),
];
