//! Several files become one `RuleSet`. A broken domain keeps the rules it had; the others load.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use ahash::AHashMap;
use sha2::{Digest as _, Sha256};

use super::combine::combine;
use super::compile::compile;
use super::diagnostic::{At, Diagnostic, Severity, Source};
use super::{Domain, RuleSet, lint, schema};
use crate::metrics::Metrics;
use crate::privacy::Privacy;

/// A file as it was read.
pub struct Input {
    /// How to name it.
    pub name: Arc<str>,
    /// Its content, or why there is none.
    pub bytes: Result<Vec<u8>, String>,
}

/// Loads all files at once. Domains with an error, and those of a file with an error that it does
/// not state cleanly now, keep their rules from `previous`.
pub fn load(
    mut inputs: Vec<Input>,
    previous: &RuleSet,
    metrics: &Arc<Metrics>,
    privacy: &Privacy,
) -> RuleSet {
    inputs.sort_by(|left, right| left.name.cmp(&right.name));
    let version = version(&inputs);
    let mut problems = Vec::new();
    let mut drafts = Vec::new();
    // Domains of which a part may stand in a file that is not YAML.
    let mut suspects: BTreeSet<Box<str>> = BTreeSet::new();
    for input in inputs {
        let Some(source) = source(input, &mut problems) else { continue };
        let source = Arc::new(source);
        let (more, found) = schema::read(&source);
        if found.iter().any(Diagnostic::is_error) {
            let is_clean =
                |name: &&str| more.iter().any(|draft| !draft.is_broken && *draft.domain == **name);
            let names = guessed_domains(source.text()).filter(|name| !is_clean(name));
            suspects.extend(names.map(Box::from));
        }
        drafts.extend(more);
        problems.extend(found);
    }
    let trees = combine(drafts, &mut problems);
    lint::check(&trees, &mut problems);
    let errors = problems.iter().filter(|problem| problem.is_error());
    let broken_files: BTreeSet<Arc<str>> =
        errors.map(|problem| Arc::clone(&problem.file)).collect();

    let mut domains: AHashMap<Box<str>, Arc<Domain>> = AHashMap::new();
    let mut kept: BTreeSet<Box<str>> = BTreeSet::new();
    for (name, tree) in trees {
        let vanished = |file: &Arc<str>| !tree.files.contains(file) && broken_files.contains(file);
        let existing = previous.domains.get(&name);
        // Part of the domain may stand in a file that nobody can read now.
        let is_partial = existing.is_some_and(|domain| domain.files.iter().any(vanished));
        if tree.is_broken || is_partial || suspects.contains(&name) {
            kept.insert(name);
        } else {
            let domain = compile(&name, tree, metrics, privacy);
            domains.insert(name, Arc::new(domain));
        }
    }
    for (name, domain) in &previous.domains {
        let is_broken = domain.files.iter().any(|file| broken_files.contains(file));
        if is_broken && !domains.contains_key(name) {
            kept.insert(name.clone());
        }
    }
    for name in &kept {
        if let Some(domain) = previous.domains.get(name) {
            domains.insert(name.clone(), Arc::clone(domain));
        }
    }
    report_kept(&kept, previous, &mut problems);
    problems.sort_by(|left, right| {
        (&left.file, left.line, left.column).cmp(&(&right.file, right.line, right.column))
    });
    let kept = kept.into_iter().filter(|name| domains.contains_key(name)).collect();
    RuleSet { domains, problems, version, kept }
}

/// Says in the diagnostics what is in use instead: once for each domain, at its first error.
fn report_kept(kept: &BTreeSet<Box<str>>, previous: &RuleSet, problems: &mut [Diagnostic]) {
    for name in kept {
        let Some(domain) = previous.domains.get(name) else { continue };
        let is_concerned =
            |problem: &&mut Diagnostic| problem.is_error() && domain.files.contains(&problem.file);
        let errors = problems.iter_mut().filter(is_concerned);
        let Some(problem) = errors.min_by_key(|problem| problem.consequence.is_some()) else {
            continue;
        };
        let kept = format!("domain \"{name}\" keeps the rules it had before");
        problem.consequence = Some(match problem.consequence.take() {
            Some(consequence) => format!("{consequence}; {kept}"),
            None => kept,
        });
    }
}

/// Domains that a file which is not YAML seems to be about.
fn guessed_domains(text: &str) -> impl Iterator<Item = &str> {
    let values = text.lines().filter_map(|line| line.strip_prefix("domain:"));
    values.map(|value| {
        let value = value.split(" #").next().unwrap_or_default().trim();
        value.trim_matches(['"', '\''])
    })
}

fn source(input: Input, problems: &mut Vec<Diagnostic>) -> Option<Source> {
    let bytes = match input.bytes {
        Ok(bytes) => bytes,
        Err(error) => {
            let message = format!("cannot be read: {error}");
            problems.push(Diagnostic::of_file(&input.name, Severity::Error, message));
            return None;
        }
    };
    match String::from_utf8(bytes) {
        Ok(text) => Some(Source::new(input.name, text)),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let bytes = error.into_bytes();
            let before = String::from_utf8_lossy(&bytes[..valid]);
            let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
            let at = At { line: number(line), column: number(column), width: 1 };
            let source = Source::new(input.name, String::from_utf8_lossy(&bytes));
            let remedy = Some("save the file as UTF-8".to_owned());
            problems.push(source.diagnostic(at, Severity::Error, "this is not UTF-8 text", remedy));
            None
        }
    }
}

fn version(inputs: &[Input]) -> String {
    if inputs.is_empty() {
        return String::new();
    }
    let mut hash = Sha256::new();
    for input in inputs {
        for part in [input.name.as_bytes(), input.bytes.as_deref().unwrap_or(b"?")] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hash.finalize().iter().take(8).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Descriptor, Entry, Request};
    use crate::privacy::Settings;

    const A: &str = "domain: a\ndescriptors:\n- key: k\n  rate_limit: {limit: 1, window: 1s}\n";
    const B: &str = "domain: b\ndescriptors:\n- key: k\n  rate_limit: {limit: 1, window: 1s}\n";
    const A_TOO: &str = "domain: a\ndescriptors:\n- key: l\n  rate_limit: {limit: 1, window: 1s}\n";

    /// The sets after each of these loads, one after the other.
    fn loads(steps: &[&[(&str, &str)]]) -> Vec<RuleSet> {
        let (metrics, privacy) = (Metrics::new(), Privacy::new(&Settings::default()));
        let mut sets: Vec<RuleSet> = Vec::new();
        for files in steps {
            let input = |(name, text): &(&str, &str)| Input {
                name: (*name).into(),
                bytes: Ok(text.as_bytes().to_vec()),
            };
            let none = RuleSet::default();
            let previous = sets.last().unwrap_or(&none);
            let set = load(files.iter().map(input).collect(), previous, &metrics, &privacy);
            sets.push(set);
        }
        sets
    }

    fn names(set: &RuleSet) -> Vec<&str> {
        set.domains().into_iter().map(|domain| &*domain.name).collect()
    }

    fn limits(set: &RuleSet, domain: &str) -> Vec<u64> {
        let rules = set.describe().into_iter().filter(|rule| rule.domain == domain);
        rules.filter_map(|rule| rule.limit).collect()
    }

    #[test]
    fn a_broken_domain_keeps_its_rules_and_the_others_reload() {
        let (a, b) = (A.replace("limit: 1", "limit: x"), B.replace("limit: 1", "limit: 2"));
        for broken in
            [&*a, "", "# nothing\n", "domain: [", "descriptors: []\n", "domain: c\nx: 1\n"]
        {
            let sets = loads(&[&[("a", A), ("b", B)], &[("a", broken), ("b", &b)]]);
            assert_eq!(names(&sets[1]), ["a", "b"], "{broken}");
            assert_eq!(limits(&sets[1], "a"), [1], "{broken}");
            assert_eq!(limits(&sets[1], "b"), [2], "{broken}");
            assert_eq!(*sets[1].kept(), [Box::from("a")], "{broken}");
            let told = sets[1].problems().iter().any(|problem| {
                problem.to_string().contains("domain \"a\" keeps the rules it had before")
            });
            assert!(told, "{broken}: {:?}", sets[1].problems());
        }
    }

    #[test]
    fn a_domain_goes_with_its_file_or_when_the_file_is_good_without_it() {
        let sets = loads(&[&[("a", A), ("b", B)], &[("b", B)]]);
        assert_eq!(names(&sets[1]), ["b"]);
        let sets = loads(&[&[("a", A)], &[("a", B)]]);
        assert_eq!(names(&sets[1]), ["b"]);
        assert!(sets[1].problems().is_empty());
    }

    #[test]
    fn documents_of_one_file_are_isolated_too() {
        let good = format!("{A}---\n{B}");
        let b_broken =
            format!("{}---\n{}", A.replace("limit: 1", "limit: 9"), B.replace("key", "kye"));
        let sets = loads(&[&[("f", &good)], &[("f", &b_broken)]]);
        assert_eq!((limits(&sets[1], "a"), limits(&sets[1], "b")), (vec![9], vec![1]));
    }

    #[test]
    fn no_set_ever_has_half_a_domain() {
        let broken = A_TOO.replace("1s", "1x");
        let unguessed = "{ domain: a, descriptors: [{ key: x, kye: y }] }";
        for broken in [&*broken, unguessed, "domain: a # x\n\tdescriptors: [\n"] {
            let sets = loads(&[
                &[("1", A), ("2", broken)],
                &[("1", A), ("2", A_TOO)],
                &[("1", A), ("2", broken)],
            ]);
            assert!(sets[0].is_empty(), "{broken}");
            assert_eq!(limits(&sets[1], "a"), [1, 1]);
            assert_eq!(limits(&sets[2], "a"), [1, 1]);
        }
        // The broken file does not say any more whose rules it had.
        let sets = loads(&[&[("1", A), ("2", A_TOO)], &[("1", A), ("2", "")]]);
        assert_eq!(limits(&sets[1], "a"), [1, 1]);
    }

    #[test]
    fn files_of_a_domain_are_put_together_deeply() {
        let parent = "domain: a\ndescriptors:\n- key: p\n  value: x\n  descriptors:\n";
        let one =
            format!("{parent}  - key: c\n    rate_limit: {{unit: day, requests_per_unit: 1}}\n");
        let two = one.replace("key: c", "key: d");
        let sets = loads(&[&[("1", &one), ("2", &two)], &[("1", &two), ("2", &one)]]);
        for set in sets {
            assert!(set.problems().is_empty(), "{:?}", set.problems());
            assert_eq!(limits(&set, "a"), [1, 1]);
        }
        // The same within one file.
        let both = one.clone() + two.strip_prefix("domain: a\ndescriptors:\n").unwrap();
        assert_eq!(limits(&loads(&[&[("1", &both)]])[0], "a"), [1, 1]);
        let conflict = one.replace("unit: 1", "unit: 2");
        let sets = loads(&[&[("1", &one), ("2", &conflict)]]);
        let problem = sets[0].problems()[0].to_string();
        assert!(
            problem.starts_with("2:6:5: ") && problem.contains("differently at 1:6"),
            "{problem}"
        );
        assert!(sets[0].is_empty());
    }

    #[test]
    fn versions_follow_contents() {
        let sets = loads(&[&[("a", A)], &[("a", B)], &[("a", A)]]);
        assert_eq!(sets[0].version().len(), 16);
        assert_ne!(sets[0].version(), sets[1].version());
        assert_eq!(sets[0].version(), sets[2].version());
    }

    #[test]
    fn text_that_is_not_utf8_says_where() {
        let (metrics, privacy) = (Metrics::new(), Privacy::new(&Settings::default()));
        let bytes = Ok(b"domain: a\nx: caf\xe9\n".to_vec());
        let input = Input { name: "a".into(), bytes };
        let set = load(vec![input], &RuleSet::default(), &metrics, &privacy);
        assert!(set.problems()[0].to_string().starts_with("a:2:7: this is not UTF-8"));
    }

    #[test]
    fn a_set_matches_what_it_loaded() {
        let sets = loads(&[&[("a", A)]]);
        let entries = vec![Entry::new("k", "v")];
        let descriptors = vec![Descriptor { entries, hits: 1, limit_override: None }];
        let request = Request { domain: "a".into(), descriptors };
        let domain = sets[0].domain("a").unwrap();
        assert!(domain.matches(&request, &Privacy::new(&Settings::default()))[0].is_some());
        assert!(sets[0].domain("b").is_none());
    }
}
