//! `validate`: every error of every file, for people and for CI.

use std::path::PathBuf;

use super::Failure;
use crate::rules::validate::validate;

#[derive(clap::Args)]
#[group(skip)]
#[command(
    long_about = "\
Check rules files as the server reads them: every error of every file in one run, each with
file:line:column, the line itself and a remedy. Warnings are shown, and are no errors.",
    after_help = "\
Examples:
  chronosdb validate config/rules
  chronosdb validate edge.yaml native.yaml
  chronosdb validate --format json config/rules            for annotations in CI

Exit codes: 0 no errors, 1 errors, or no rules file at all; 2 wrong usage."
)]
pub(super) struct Arguments {
    /// Rules files, or folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How to report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// With the line and a caret below it
    Text,
    /// One object, for annotations in CI
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let report = validate(&arguments.paths);
    match arguments.format {
        Format::Text => super::say(&report),
        Format::Json => {
            let json = serde_json::to_string_pretty(&report);
            super::say(json.map_err(|error| Failure::Bad(error.to_string()))?);
        }
    }
    if !report.errors.is_empty() {
        return Err(Failure::Bad("the rules have errors".into()));
    }
    // A wrong path must not look like good rules to CI.
    if report.files.is_empty() {
        return Err(Failure::Bad("there is no *.yaml or *.yml file".into()));
    }
    Ok(())
}
