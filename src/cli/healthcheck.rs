//! `healthcheck`: asks gRPC health, as a probe does.

use std::time::Duration;

use super::{Config, Failure, block_on};
use crate::api::client::Client;

#[derive(clap::Args)]
#[group(skip)]
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
