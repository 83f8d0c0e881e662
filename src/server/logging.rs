//! The log: text on a terminal, JSON elsewhere; one line for each event, on standard error.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use super::authority::Watch;
use crate::settings::{Log, LogFormat};

/// Starts it, for the whole process.
///
/// # Errors
/// `log.level` is not a level and not a filter.
pub(super) fn start(settings: &Log, authority: &Watch) -> anyhow::Result<()> {
    let filter = filter(&settings.level)?;
    let on_terminal = std::io::stderr().is_terminal();
    let as_json = match settings.format {
        LogFormat::Auto => !on_terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = if as_json {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.with_ansi(on_terminal).compact().boxed()
    };
    let registry = tracing_subscriber::registry().with(lines.with_filter(filter));
    registry.with(authority.layer()).try_init().context("the log was started twice")
}

/// A word that is no level would be taken for the name of a module: silence for all others.
fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let wrong = || {
        format!(
            "log.level: \"{level}\" is not one of error, warn, info, debug, trace, off, and no filter such as info,chronosdb::rules=debug"
        )
    };
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    let is_filter = |part: &str| part.contains(['=', '[']) || is_level(part);
    anyhow::ensure!(level.split(',').all(is_filter), wrong());
    EnvFilter::try_new(level).with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for good in ["info", "WARN", "off", "info,chronosdb::rules=debug"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["", "warning", "verbose", "info,chronosdb", "info,", "info,=x"] {
            let error = filter(bad).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with("log.level: "), "{bad}: {error}");
        }
    }
}
