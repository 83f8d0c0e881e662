//! `explain`: which rule a descriptor matches, level by level.

use std::path::PathBuf;

use super::{Config, Failure};
use crate::metrics::Metrics;
use crate::privacy::Privacy;
use crate::rules::explain::explain;
use crate::rules::watch::Loader;

#[derive(clap::Args)]
#[group(skip)]
#[command(
    long_about = "\
Show which rule a descriptor matches, level by level, why the others do not, and which counter it
takes from. It reads the rules files itself; a running server explains its own at /explain.",
    after_help = "\
Examples:
  chronosdb explain edge remote_address=10.0.0.1
  chronosdb explain edge api_key=free,user_id=bob
  chronosdb explain edge api_key=free user_id=vip-ann --rules config/rules

Exit codes: 0 explained, 2 wrong usage or settings."
)]
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
    super::say(explain(&rules, &arguments.domain, &entries, &privacy));
    Ok(())
}
