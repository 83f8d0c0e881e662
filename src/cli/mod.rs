//! The command line: a table of commands. Exit codes: 0 good, 1 what was asked about is bad,
//! 2 wrong usage or settings.

mod check;
mod completions;
mod explain;
mod healthcheck;
mod key;
mod load;
mod question;
mod serve;
mod tls;
mod validate;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write as _;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::check::Entry;
use crate::settings::Settings;

const ABOUT: &str = "Exact sliding-window rate limits for Envoy fleets and gRPC applications";

const LONG_ABOUT: &str = "\
Exact sliding-window rate limits for Envoy fleets and gRPC applications.

A server (`serve`) decides, for each request of a fleet, whether a quota still has room, and says
when it will have. The other commands ask a server, look at rules files before it reads them, or
serve your shell. `chronosdb COMMAND --help` says more about each.";

const EXAMPLES: &str = "\
Examples:
  chronosdb                                     serve: memory store, rules of config/rules, loopback
  chronosdb serve --config chronosdb.yaml       serve with settings
  chronosdb check                               ask a running server a few times
  chronosdb check --domain edge remote_address=10.0.0.1
  chronosdb validate config/rules               every error of every file, for CI
  chronosdb explain edge api_key=free,user_id=bob
  chronosdb completions bash                    what <TAB> needs to know
  chronosdb key hash --name ann                 an entry for the file of API keys
  chronosdb load --rate 5000                    how a running server answers under load

Settings come from the file, then from variables such as CHRONOSDB_STORE__REDIS__URL, then from
flags. `chronosdb serve --print-config` shows them all.
Exit codes: 0 good, 1 what was asked about is bad, 2 wrong usage or settings.";

#[derive(Parser)]
#[command(name = "chronosdb", version, about = ABOUT, long_about = LONG_ABOUT)]
#[command(after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Arguments,
}

/// A doc comment on a variant would take the place of its long description.
#[derive(Subcommand)]
enum Command {
    #[command(about = "Serve decisions (what happens without a command)")]
    Serve(serve::Arguments),
    #[command(about = "Ask a running server, and show what it answers")]
    Check(check::Arguments),
    #[command(about = "Check rules files: every error, with its place and a remedy")]
    Validate(validate::Arguments),
    #[command(about = "Show which rule a descriptor matches, and why")]
    Explain(explain::Arguments),
    #[command(about = "Ask a running server very often, and show how it answers")]
    Load(load::Arguments),
    #[command(about = "Ask a running server whether it is ready (for probes)")]
    Healthcheck(healthcheck::Arguments),
    #[command(about = "Write what a shell needs to complete commands and flags")]
    Completions(completions::Arguments),
    #[command(about = "Make entries for the file of API keys")]
    Key(key::Arguments),
}

/// How a command ends when it has something bad to say.
enum Failure {
    /// What was asked about is bad: 1.
    Bad(String),
    /// Wrong usage or settings: 2.
    Usage(String),
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command.unwrap_or(Command::Serve(arguments.serve)) {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Validate(arguments) => validate::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Healthcheck(arguments) => healthcheck::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Key(arguments) => key::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Bad(text)) => {
            eprintln!("{text}");
            ExitCode::from(1)
        }
        Err(Failure::Usage(text)) => {
            eprintln!("chronosdb: {text}");
            ExitCode::from(2)
        }
    }
}

/// `--config`, where a command needs settings.
#[derive(clap::Args)]
#[group(skip)]
struct Config {
    /// The settings file (every key has a default)
    #[arg(long, value_name = "FILE", env = "CHRONOSDB_CONFIG")]
    config: Option<PathBuf>,
}

impl Config {
    fn load(&self) -> Result<Settings, Failure> {
        self.load_over(BTreeMap::new())
    }

    /// `defaults` are variables that those of the environment win over.
    fn load_over(&self, mut defaults: BTreeMap<String, String>) -> Result<Settings, Failure> {
        defaults.extend(environment());
        Settings::load(self.config.as_deref(), defaults)
            .map_err(|error| Failure::Usage(error.to_string()))
    }
}

/// The variables that are text; others are none of ours.
fn environment() -> impl Iterator<Item = (String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text)
}

/// Writes to standard output. Who reads it may have seen enough: that is no error, and no panic.
fn say(what: impl Display) {
    let _ = writeln!(std::io::stdout(), "{what}");
}

/// Runs an asynchronous command to its end.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Bad(error.to_string()))?;
    Ok(runtime.block_on(future))
}

/// `key=value,key=value` as entries.
fn entries(text: &str) -> Result<Vec<Entry>, Failure> {
    let entry = |part: &str| match part.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Entry::new(key, value)),
        _ => Err(Failure::Usage(format!("\"{part}\" is not an entry: write key=value"))),
    };
    text.split(',').map(entry).collect()
}

/// Where a server that listens there can be reached from here.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let loopback =
            if address.is_ipv4() { [127, 0, 0, 1].into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    address
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_table_of_commands_is_sound() {
        Arguments::command().debug_assert();
    }

    /// A user's first try is an example copied from the help: each must be understood.
    #[test]
    fn every_example_of_every_help_parses() {
        let mut table = Arguments::command();
        table.build();
        let mut parsed = 0;
        for command in std::iter::once(&table).chain(table.get_subcommands()) {
            let Some(help) = command.get_after_help() else {
                assert_eq!(command.get_name(), "help", "no examples");
                continue;
            };
            let about = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.lines().count() > 1, "{}: {about}", command.get_name());
            // The flags of `serve` stand at the top too; what it says about itself must not.
            let is_serve = about.starts_with("Serve decisions");
            assert_eq!(is_serve, command.get_name() == "serve", "{about}");
            let help = help.to_string();
            for example in help.lines().filter(|line| line.starts_with("  chronosdb")) {
                let words = example.trim().split("  ").next().unwrap_or_default();
                let words = words.split(['>', '|']).next().unwrap_or_default().split_whitespace();
                let error = Arguments::try_parse_from(words).err();
                assert!(error.is_none(), "{example}\n{}", error.unwrap());
                parsed += 1;
            }
        }
        assert!(parsed > 20, "only {parsed} examples");
    }

    #[test]
    fn entries_are_keys_and_values() {
        let good = entries("a=b,c=d=e").ok().unwrap();
        assert_eq!(good, [Entry::new("a", "b"), Entry::new("c", "d=e")]);
        assert!(entries("a").is_err() && entries("=b").is_err() && entries("a=b,").is_err());
    }
}
