//! `key`: entries for the file of API keys.

use std::io::{IsTerminal as _, Read as _};

use super::Failure;
use crate::api::keys::Entry;

#[derive(clap::Args)]
#[group(skip)]
#[command(
    long_about = "\
Make entries for the file of API keys that the ext_authz door lets in (api_keys.path).

The file has a name and a hash for each key; the key itself is not stored anywhere.",
    after_help = "\
Examples:
  chronosdb key hash --name ann                 type or pipe the key in, and get its entry"
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Read a key from standard input, and print its entry for the file of `api_keys.path`
    #[command(after_help = HASH_EXAMPLES)]
    Hash {
        /// Who has the key: what metrics and quotas know it by
        #[arg(long, value_name = "NAME")]
        name: String,
    },
}

const HASH_EXAMPLES: &str = "\
Examples:
  head -c 32 /dev/urandom | base64 | tee /dev/stderr | chronosdb key hash --name ann >> keys.yaml
The key itself is not stored anywhere. An entry takes effect within api_keys.poll.";

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Command::Hash { name } = &arguments.command;
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        eprintln!("Type the key, then Enter and Ctrl-D:");
    }
    let mut key = Vec::new();
    stdin.read_to_end(&mut key).map_err(|error| Failure::Usage(error.to_string()))?;
    let Entry { name, sha256 } = Entry::of(name, key.trim_ascii()).map_err(Failure::Bad)?;
    // A name is text of a person, and may hold what YAML would read as something else.
    let name = serde_json::Value::from(name);
    super::say(format_args!("- {{ name: {name}, sha256: \"{sha256}\" }}"));
    Ok(())
}
