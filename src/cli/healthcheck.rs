//! `healthcheck`: asks gRPC health, as a probe does.

use std::time::Duration;

use super::{Config, Failure, block_on};
use crate::api::client::Client;

#[derive(clap::Args)]
#[group(skip)]
#[command(
    long_about = "\
Ask a running server whether it is ready, by the gRPC health protocol, as probes of containers and
Envoy's health checks do. Ready means: rules are loaded, and the store answers or a policy does.",
    after_help = "\
Examples:
  chronosdb healthcheck                                    where the settings say it listens
  chronosdb healthcheck --target 10.0.0.7:50051 --timeout 500ms
  chronosdb healthcheck --target unix:/run/chronosdb/chronosdb.sock
  chronosdb healthcheck --service chronosdb.v1.RateLimiter

Exit codes: 0 ready, 1 not ready or no answer, 2 wrong usage or settings."
)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: Config,
    /// The server to ask [default: grpc.listen of the settings]
    #[arg(long, value_name = "ADDRESS:PORT or unix:PATH")]
    target: Option<String>,
    /// The service to ask about; empty for the whole server
    #[arg(long, default_value = "", value_name = "SERVICE")]
    service: String,
    /// How long to wait for an answer
    #[arg(long, default_value = "2s", value_parser = crate::duration::parse)]
    timeout: Duration,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let target = match &arguments.target {
        Some(target) => target.clone(),
        None => super::reachable(arguments.config.load()?.grpc.listen).to_string(),
    };
    let serving = block_on(async {
        let mut client = Client::connect(&target, arguments.timeout).await?;
        client.is_serving(&arguments.service).await
    })?;
    match serving {
        Ok(true) => {
            println!("{target} is ready");
            Ok(())
        }
        Ok(false) => Err(Failure::Bad(format!("{target} runs, but is not ready"))),
        Err(error) => Err(Failure::Bad(error)),
    }
}
