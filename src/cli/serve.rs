//! `serve`: settings, then the server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Config, Failure};
use crate::server;
use crate::settings::{Settings, StoreKind, reference};

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
take drain.timeout. A second signal ends at once. Rules reload by themselves when files change;
SIGHUP does nothing.",
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
    /// Also read envoyproxy/ratelimit's own variables (REDIS_URL, RUNTIME_ROOT, GRPC_PORT, …)
    ///
    /// Its ports and addresses become the defaults: 0.0.0.0, HTTP 8080, gRPC 8081. A variable that
    /// has no effect is named on standard error, with what to do instead. `CHRONOSDB_…` variables
    /// and flags win.
    #[arg(long)]
    compat_env: bool,
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
    let mut settings = arguments.config.load_over(arguments.translated()?)?;
    arguments.apply(&mut settings);
    if arguments.print_config {
        super::say(settings.shown().trim_end());
        return Ok(());
    }
    server::run(&settings).map_err(|error| Failure::Usage(format!("{error:#}")))
}

impl Arguments {
    /// Our settings in the variables of envoyproxy/ratelimit, where they are asked for.
    fn translated(&self) -> Result<BTreeMap<String, String>, Failure> {
        if !self.compat_env {
            return Ok(BTreeMap::new());
        }
        let translated = reference::translate(super::environment())
            .map_err(|error| Failure::Usage(format!("--compat-env: {error}")))?;
        for note in &translated.notes {
            eprintln!("chronosdb: --compat-env: {note}");
        }
        Ok(translated.settings)
    }

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
