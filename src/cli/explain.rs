//! `explain`: which rule a descriptor matches, level by level.

use std::path::PathBuf;

use super::{Config, Failure};
use crate::metrics::Metrics;
use crate::privacy::Privacy;
use crate::rules::explain::explain;
use crate::rules::watch::Loader;

#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: Config,
    /// Rules file or folder [default: rules.path of the settings]
    #[arg(long, value_name = "PATH")]
    rules: Option<PathBuf>,
    /// The domain that Envoy sends
    domain: String,
    /// The descriptor: entries joined by commas, or one an argument
    #[arg(required = true, value_name = "KEY=VALUE,…")]
    entries: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut settings = arguments.config.load()?;
    if let Some(path) = &arguments.rules {
        settings.rules.path.clone_from(path);
    }
    let privacy = Privacy::new(&settings.privacy);
    let loader = Loader::open(settings.rules, Metrics::new(), privacy.clone());
    let entries = super::entries(&arguments.entries.join(","))?;
    let rules = loader.rules().load_full();
    for problem in rules.problems() {
        eprintln!("{problem}");
    }
    println!("{}", explain(&rules, &arguments.domain, &entries, &privacy));
    Ok(())
}
