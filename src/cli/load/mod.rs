//! `load`: asks a server very often and shows how it answers. Questions come at a fixed rate,
//! whether the answers do or not, so that a slow server cannot hide its slowness by slowing us.

mod drive;
mod pace;
mod report;

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use self::drive::{Pace, Plan, Progress};
use self::report::Report;
use crate::api::client::Question;
use crate::cli::question::{self, Quota};
use crate::cli::{Failure, tls};

/// What the number of a key stands for in questions.
const PLACE: &str = "{key}";

/// Between looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
#[group(skip)]
#[command(
    long_about = "\
Ask a running server very often, through either door, and show how many answers came and when.

It asks at a fixed rate, whatever the server does (an open loop), so that slow answers are not
hidden; any server of Envoy's rate limit service or of CheckQuota will do. It takes hits like any
other caller.",
    after_help = "\
Examples:
  chronosdb load                                           CheckQuota, 1,000 a second for 10 s
  chronosdb load --rate 5000 --duration 1m --keys 100000
  chronosdb load --keys 1 --limit 100 --window 1s          one hot key, mostly refused
  chronosdb load --in-flight 256                           as fast as it answers (closed loop)
  chronosdb load --domain edge remote_address={key}        Envoy's rate limit service, any server of it
  chronosdb load --domain edge 'api_key=free,user_id=u{key}' path=/login --json

A latency counts from when its question was due, not from when it could be sent. `late` shows how
long questions waited in this program: where it is not small, this machine is the limit.
Exit code 1 when a question got no answer."
)]
pub(super) struct Arguments {
    /// The server to ask
    #[arg(
        long,
        default_value = "127.0.0.1:50051",
        value_name = "ADDRESS:PORT, unix:PATH or https://HOST:PORT"
    )]
    target: String,
    /// Questions in each second
    #[arg(long, default_value_t = 1000, conflicts_with = "in_flight",
          value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Instead of a rate: always as many questions under way, the next as soon as one is answered
    #[arg(long, value_name = "QUESTIONS", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: Option<u32>,
    /// How long to ask
    #[arg(long, default_value = "10s", value_parser = crate::duration::parse)]
    duration: Duration,
    /// Connections, used in turn
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Threads that ask [default: half of the cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Different keys, chosen at random: {key} stands for the number
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    #[command(flatten)]
    asked: question::Arguments,
    /// Whose quota
    #[arg(long, default_value = "load-{key}")]
    user: String,
    /// Under which key
    #[arg(long, default_value = "load")]
    api_key: String,
    /// Hits in each window; 0 together with --window 0s leaves both to the rules
    #[arg(long, default_value_t = 1_000_000)]
    limit: i32,
    /// The window, in whole seconds
    #[arg(long, default_value = "1m", value_parser = crate::duration::parse)]
    window: Duration,
    /// How long to wait for an answer
    #[arg(long, default_value = "1s", value_parser = crate::duration::parse)]
    timeout: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tls: tls::Arguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let question = arguments.question()?;
    let plans = arguments.plans(&question);
    let progress = Progress::default();
    let parts = thread::scope(|scope| {
        let drivers = plans.iter().enumerate();
        let drivers = drivers.map(|(index, plan)| {
            let progress = &progress;
            scope.spawn(move || drive::run(plan, index as u64, progress))
        });
        let drivers: Vec<_> = drivers.collect();
        show(&progress, arguments.duration, || drivers.iter().all(|driver| driver.is_finished()));
        let joined = drivers.into_iter().map(|driver| driver.join().expect("a driver panicked"));
        joined.collect::<Result<Vec<_>, String>>()
    });
    let report = Report::of(parts.map_err(Failure::Bad)?, arguments.duration);
    if arguments.json {
        let json = serde_json::to_string_pretty(&report);
        crate::cli::say(json.map_err(|error| Failure::Bad(error.to_string()))?);
    } else {
        crate::cli::say(report.table());
    }
    match report.unanswered() {
        0 => Ok(()),
        unanswered => Err(Failure::Bad(format!("{unanswered} questions got no answer"))),
    }
}

/// A bar on a terminal, nothing elsewhere, until it is over.
fn show(progress: &Progress, duration: Duration, mut is_over: impl FnMut() -> bool) {
    let total_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let bar = ProgressBar::new(total_ms);
    let style = ProgressStyle::with_template("{wide_bar} {percent} %  {msg}");
    bar.set_style(style.expect("the template is sound"));
    while !is_over() {
        thread::sleep(LOOK_EVERY);
        if let Some(began) = progress.began.get() {
            let answered = progress.answered.load(Ordering::Relaxed);
            let elapsed = began.elapsed();
            let per_second = answered as f64 / elapsed.as_secs_f64();
            bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
            bar.set_message(format!("{answered} answers, {per_second:.0}/s"));
        }
    }
    bar.finish_and_clear();
}

impl Arguments {
    fn question(&self) -> Result<Question, Failure> {
        let Self { user, api_key, limit, window, .. } = self;
        self.asked.question(&Quota { user, api_key, limit: *limit, window: *window })
    }

    /// What each thread does: together, all of it.
    fn plans(&self, question: &Question) -> Vec<Plan> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let cores = u32::try_from(cores).unwrap_or(u32::MAX);
        let wanted = self.threads.unwrap_or((cores / 2).max(1));
        let threads = wanted.min(self.connections).min(self.in_flight.unwrap_or(u32::MAX));
        let part = |whole: u32, index| whole / threads + u32::from(index < whole % threads);
        let plan = |index| Plan {
            target: self.target.clone(),
            trust: self.tls.trust(),
            question: question.clone(),
            keys: self.keys,
            connections: part(self.connections, index),
            pace: match self.in_flight {
                Some(in_flight) => Pace::InFlight(part(in_flight, index)),
                None => Pace::PerSecond(f64::from(self.rate) / f64::from(threads)),
            },
            duration: self.duration,
            timeout: self.timeout,
        };
        (0..threads).map(plan).collect()
    }
}
