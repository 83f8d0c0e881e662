//! The log: text on a terminal, JSON elsewhere; one line for each event, on standard error.

use std::io::IsTerminal as _;

use anyhow::Context as _;
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
    let filter = EnvFilter::try_new(&settings.level).with_context(|| {
        format!("log.level: \"{}\" is not one of error, warn, info, debug, trace", settings.level)
    })?;
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
