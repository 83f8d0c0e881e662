//! The command line: a table of commands. Exit codes: 0 good, 1 what was asked about is bad,
//! 2 wrong usage or settings.

mod check;
mod explain;
mod healthcheck;
mod load;
mod serve;
mod validate;

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::check::Entry;
use crate::settings::Settings;

const ABOUT: &str = "Exact sliding-window rate limits for Envoy fleets and gRPC applications";

const EXAMPLES: &str = "\
Examples:
  chronosdb                                     serve: memory store, rules of config/rules, loopback
  chronosdb serve --config chronosdb.yaml       serve with settings
  chronosdb check                               ask a running server a few times
  chronosdb check --domain edge remote_address=10.0.0.1
  chronosdb validate config/rules               every error of every file, for CI
  chronosdb explain edge api_key=free,user_id=bob
  chronosdb load --rate 5000                    how a running server answers under load

Settings come from the file, then from variables such as CHRONOSDB_STORE__REDIS__URL, then from flags.
`chronosdb serve --print-config` shows them all.
Exit codes: 0 good, 1 what was asked about is bad, 2 wrong usage or settings.";

#[derive(Parser)]
#[command(name = "chronosdb", version, about = ABOUT, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Arguments,
}

#[derive(Subcommand)]
enum Command {
    /// Serve decisions (what happens without a command)
    Serve(serve::Arguments),
    /// Ask a running server, and show what it answers
    Check(check::Arguments),
    /// Check rules files: every error, with its place and a remedy
    Validate(validate::Arguments),
    /// Show which rule a descriptor matches, and why
    Explain(explain::Arguments),
    /// Ask a running server very often, and show how it answers
    Load(load::Arguments),
    /// Ask a running server whether it is ready (for probes)
    Healthcheck(healthcheck::Arguments),
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
        Settings::load(self.config.as_deref(), std::env::vars())
            .map_err(|error| Failure::Usage(error.to_string()))
    }
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

    #[test]
    fn entries_are_keys_and_values() {
        let good = entries("a=b,c=d=e").ok().unwrap();
        assert_eq!(good, [Entry::new("a", "b"), Entry::new("c", "d=e")]);
        assert!(entries("a").is_err() && entries("=b").is_err() && entries("a=b,").is_err());
    }
}
