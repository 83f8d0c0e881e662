//! `serve`: settings, then the server.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Config, Failure};
use crate::server;
use crate::settings::{Settings, StoreKind};

#[derive(clap::Args)]
#[group(skip)]
#[command(
    long_about = "\
Serve decisions over gRPC (Envoy's rate limit service and CheckQuota) and pages over HTTP
(/metrics /livez /readyz /rules /explain /json), until a signal ends it.

Every setting has a default; without any it counts in memory, reads the rules of config/rules and
listens on loopback. A settings file comes next, then variables such as
CHRONOSDB_STORE__REDIS__URL (sections joined by two underscores), then the flags below.

SIGTERM and SIGINT: not ready at once, still serving for drain.delay, then calls under way may
take drain.timeout. A second signal ends at once. Rules reload by themselves when files change.",
    after_help = "\
Examples:
  chronosdb serve                                          memory, loopback, config/rules
  chronosdb serve --redis redis://127.0.0.1:6379           count in Redis
  chronosdb serve --config chronosdb.yaml --print-config   what would be in force
  chronosdb serve --grpc-listen 0.0.0.0:50051 --http-listen 0.0.0.0:8000

Exit codes: 0 ended by a signal, 2 wrong usage or settings, or something could not be opened."
)]
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
