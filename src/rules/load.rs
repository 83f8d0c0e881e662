//! Several files become one `RuleSet`. A broken domain keeps the rules it had; the others load.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

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
    for input in inputs {
        let Some(source) = source(input, &mut problems) else { continue };
        let (more, found) = schema::read(&Arc::new(source));
        drafts.extend(more);
        problems.extend(found);
    }
    let trees = combine(drafts, &mut problems);
    lint::check(&trees, &mut problems);
    let errors = problems.iter().filter(|problem| problem.is_error());
    let broken_files: BTreeSet<Arc<str>> =
        errors.map(|problem| Arc::clone(&problem.file)).collect();

    let mut domains: HashMap<Box<str>, Arc<Domain>> = HashMap::new();
    let mut kept: BTreeSet<Box<str>> = BTreeSet::new();
    for (name, tree) in trees {
        let vanished = |file: &Arc<str>| !tree.files.contains(file) && broken_files.contains(file);
        let existing = previous.domains.get(&name);
        // Part of the domain may stand in a file that nobody can read now.
        let is_partial = existing.is_some_and(|domain| domain.files.iter().any(vanished));
        if tree.is_broken || is_partial {
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

/// Says in the diagnostics what is in use instead.
fn report_kept(kept: &BTreeSet<Box<str>>, previous: &RuleSet, problems: &mut Vec<Diagnostic>) {
    for name in kept {
        let message = match previous.domains.get(name) {
            Some(_) => format!("domain \"{name}\" keeps the rules it had before"),
            None => format!("domain \"{name}\" has no rules until this is mended"),
        };
        let files = previous.domains.get(name).map(|domain| domain.files.clone());
        let is_concerned = |problem: &&mut Diagnostic| {
            problem.is_error()
                && problem.remedy.as_ref().is_none_or(|remedy| !remedy.contains("; domain "))
                && files.as_ref().is_none_or(|files| files.contains(&problem.file))
        };
        // Once for each domain, at its first error.
        if let Some(problem) = problems.iter_mut().find(is_concerned) {
            problem.remedy = Some(match problem.remedy.take() {
                Some(remedy) => format!("{remedy}; {message}"),
                None => message,
            });
        }
    }
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
