//! `healthcheck`: asks gRPC health, as a probe does. Beside a server with
//! TLS it takes the server's own files, so that a probe needs no certificate of its own.

use std::time::Duration;

use super::{Config, Failure, block_on, tls};
use crate::api::client::Client;
use crate::api::trust::{Trust, Trusted};
use crate::settings::Grpc;

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
    #[arg(long, value_name = "ADDRESS:PORT, unix:PATH or https://HOST:PORT")]
    target: Option<String>,
    /// The service to ask about; empty for the whole server
    #[arg(long, default_value = "", value_name = "SERVICE")]
    service: String,
    /// How long to wait for an answer
    #[arg(long, default_value = "2s", value_parser = crate::duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    tls: tls::Arguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (target, trust) = match &arguments.target {
        Some(target) => (target.clone(), arguments.tls.trust()),
        None => beside(&arguments.config.load()?.grpc, arguments.tls.trust()),
    };
    let serving = block_on(async {
        let mut client =
            Client::connect_trusting(&target, trust.as_ref(), arguments.timeout).await?;
        client.is_serving(&arguments.service).await
    })?;
    match serving {
        Ok(true) => {
            super::say(format_args!("{target} is ready"));
            Ok(())
        }
        Ok(false) => Err(Failure::Bad(format!("{target} runs, but is not ready"))),
        Err(error) => Err(Failure::Bad(error)),
    }
}

/// How to reach the server whose settings these are, from beside it.
fn beside(grpc: &Grpc, given: Option<Trust>) -> (String, Option<Trust>) {
    let address = super::reachable(grpc.listen).to_string();
    match (&grpc.tls, &grpc.uds) {
        (None, _) => (address, given),
        // No name and no certificate to get right.
        (Some(_), Some(path)) if given.is_none() => (format!("unix:{}", path.display()), None),
        (Some(tls), _) => {
            let own = Trust {
                server: Trusted::Exactly(tls.cert.clone()),
                identity: tls.client_ca.as_ref().map(|_| (tls.cert.clone(), tls.key.clone())),
                server_name: None,
            };
            let mut trust = given.unwrap_or_default();
            if trust.server == Trusted::System {
                trust.server = own.server;
            }
            trust.identity = trust.identity.or(own.identity);
            (format!("https://{address}"), Some(trust))
        }
    }
}
