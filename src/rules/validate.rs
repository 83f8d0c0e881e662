//! Every error and warning of rules files, without putting them to use. For `chronosdb validate`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::{Diagnostic, Input, RuleSet, load, watch};
use crate::metrics::Metrics;
use crate::privacy::{Privacy, Settings};

/// What was found. Displayed for people; serialized for tools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What keeps rules from being loaded.
    pub errors: Vec<Diagnostic>,
    /// What is loaded, but probably not meant.
    pub warnings: Vec<Diagnostic>,
    /// The files that were read.
    pub files: Vec<String>,
    /// Domains that would be loaded.
    pub domains: Vec<String>,
    /// How many rules those have.
    pub rules: usize,
}

/// Reads files, and the rules files of folders, as one set of rules.
pub fn validate(paths: &[PathBuf]) -> Report {
    let (rules, files) = read(paths);
    let (errors, warnings) = rules.problems().iter().cloned().partition(Diagnostic::is_error);
    let domains = rules.domains();
    Report {
        errors,
        warnings,
        files,
        rules: domains.iter().map(|domain| domain.rules().len()).sum(),
        domains: domains.iter().map(|domain| domain.name.to_string()).collect(),
    }
}

/// The rules at these paths, whatever is wrong with them, and the files that were read.
pub fn read(paths: &[PathBuf]) -> (RuleSet, Vec<String>) {
    let inputs: Vec<Input> = paths.iter().flat_map(|path| inputs(path)).collect();
    let files = inputs.iter().map(|input| input.name.to_string()).collect();
    // Nobody will look at these metrics.
    let (metrics, privacy) = (Metrics::new(), Privacy::new(&Settings::default()));
    (load(inputs, &RuleSet::default(), &metrics, &privacy), files)
}

fn inputs(path: &Path) -> Vec<Input> {
    let name = |path: &Path| -> Arc<str> { path.display().to_string().into() };
    match watch::files(path) {
        Err(error) => vec![Input { name: name(path), bytes: Err(error.to_string()) }],
        Ok(files) => files
            .iter()
            .map(|file| Input {
                name: name(file),
                bytes: std::fs::read(file).map_err(|error| error.to_string()),
            })
            .collect(),
    }
}

impl Report {
    /// Whether all of it would be loaded.
    pub fn is_good(&self) -> bool {
        self.errors.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.errors.iter().chain(&self.warnings) {
            writeln!(f, "{problem}\n")?;
        }
        let count = |number: usize, what: &str| {
            if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
        };
        write!(
            f,
            "{} in {} ({}): {}, {}",
            count(self.rules, "rule"),
            count(self.files.len(), "file"),
            count(self.domains.len(), "domain"),
            count(self.errors.len(), "error"),
            count(self.warnings.len(), "warning"),
        )
    }
}
