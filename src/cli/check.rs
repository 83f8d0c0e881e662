//! `check`: asks a running server through either door, and shows the answers as a table.

use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use super::question::{self, Quota};
use super::{Failure, block_on, tls};
use crate::api::client::{Answer, Client, Question};

/// How long each answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
#[group(skip)]
#[command(
    long_about = "\
Ask a running server a few times through either door, and show what it answers as a table.

Without --domain it asks CheckQuota, and brings the limit along; with --domain it asks as Envoy
does, and the server's rules say the limit. It takes hits like any other caller.",
    after_help = "\
Examples:
  chronosdb check                                          CheckQuota for a demo user
  chronosdb check --user bob --api-key free --limit 100 --window 1m
  chronosdb check --domain edge remote_address=10.0.0.1    as Envoy asks: one descriptor
  chronosdb check --domain edge api_key=free,user_id=bob path=/login --times 3
  chronosdb check --target https://chronosdb.example.org:50051 --ca ca.crt --cert me.crt --key me.key

Exit codes: 0 answered, also when refused; 1 no answer, 2 wrong usage."
)]
pub(super) struct Arguments {
    /// The server to ask
    #[arg(
        long,
        default_value = "127.0.0.1:50051",
        value_name = "ADDRESS:PORT, unix:PATH or https://HOST:PORT"
    )]
    target: String,
    #[command(flatten)]
    asked: question::Arguments,
    /// Whose quota
    #[arg(long, default_value = "demo")]
    user: String,
    /// Under which key
    #[arg(long, default_value = "demo")]
    api_key: String,
    /// Hits in each window; 0 together with --window 0s leaves both to the rules
    #[arg(long, default_value_t = 3)]
    limit: i32,
    /// The window, in whole seconds
    #[arg(long, default_value = "10s", value_parser = crate::duration::parse)]
    window: Duration,
    /// How often to ask
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    #[command(flatten)]
    tls: tls::Arguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let question = arguments.question()?;
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["#", "answer", "remaining", "retry after", "limit"]);
    let trust = arguments.tls.trust();
    let asked = block_on(async {
        let mut client =
            Client::connect_trusting(&arguments.target, trust.as_ref(), PATIENCE).await?;
        for turn in 1..=arguments.times {
            let answer = client.ask(&question).await?;
            table.add_row(row(turn, &answer));
        }
        Ok(())
    })?;
    asked.map_err(Failure::Bad)?;
    super::say(&table);
    Ok(())
}

impl Arguments {
    fn question(&self) -> Result<Question, Failure> {
        let Self { user, api_key, limit, window, .. } = self;
        self.asked.question(&Quota { user, api_key, limit: *limit, window: *window })
    }
}

fn row(turn: u32, answer: &Answer) -> [String; 5] {
    let word = if answer.allowed { "allowed" } else { "refused" };
    let wait = match (answer.allowed, answer.retry_after) {
        (true, _) => String::new(),
        (false, Some(wait)) => format!("{:.3} s", wait.as_secs_f64()),
        (false, None) => "never".into(),
    };
    let remaining = answer.remaining.map_or_else(|| "no limit".into(), |left| left.to_string());
    [turn.to_string(), word.into(), remaining, wait, answer.limit.clone()]
}
