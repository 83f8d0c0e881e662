//! `serve`: settings, then the server.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Config, Failure};
use crate::server;
use crate::settings::{Settings, StoreKind};

#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: Config,
    /// Show the settings in force, secrets masked, and end
    #[arg(long)]
    print_config: bool,
    /// Where to serve gRPC (grpc.listen)
    #[arg(long, value_name = "ADDRESS:PORT")]
    grpc_listen: Option<SocketAddr>,
    /// Where to serve HTTP (http.listen)
    #[arg(long, value_name = "ADDRESS:PORT")]
    http_listen: Option<SocketAddr>,
    /// Rules file or folder (rules.path)
    #[arg(long, value_name = "PATH")]
    rules: Option<PathBuf>,
    /// Count in this Redis (store.kind: redis, store.redis.url)
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// How much to log: error, warn, info, debug, trace (log.level)
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut settings = arguments.config.load()?;
    arguments.apply(&mut settings);
    if arguments.print_config {
        print!("{}", settings.shown());
        return Ok(());
    }
    server::run(&settings).map_err(|error| Failure::Usage(format!("{error:#}")))
}

impl Arguments {
    fn apply(&self, settings: &mut Settings) {
        if let Some(address) = self.grpc_listen {
            settings.grpc.listen = address;
        }
        if let Some(address) = self.http_listen {
            settings.http.listen = address;
        }
        if let Some(path) = &self.rules {
            settings.rules.path.clone_from(path);
        }
        if let Some(url) = &self.redis {
            settings.store.kind = StoreKind::Redis;
            settings.store.redis.url.clone_from(url);
        }
        if let Some(level) = &self.log_level {
            settings.log.level.clone_from(level);
        }
    }
}
