//! `completions`: what a shell needs to complete commands and flags.

use std::io::Write as _;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Failure;

#[derive(clap::Args)]
#[group(skip)]
#[command(
    long_about = "\
Write what a shell needs to complete commands and flags to standard output.

Put it where your shell looks for such files, and start a new shell.",
    after_help = "\
Examples:
  chronosdb completions bash > ~/.local/share/bash-completion/completions/chronosdb
  chronosdb completions zsh > \"${fpath[1]}/_chronosdb\"
  chronosdb completions fish > ~/.config/fish/completions/chronosdb.fish"
)]
pub(super) struct Arguments {
    /// Which shell
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut table = super::Arguments::command();
    clap_complete::generate(arguments.shell, &mut table, "chronosdb", &mut script);
    // A reader that has seen enough, such as `head`, is no fault.
    let _ = std::io::stdout().write_all(&script);
    Ok(())
}
