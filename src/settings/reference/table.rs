//! Every environment variable of envoyproxy/ratelimit, and what it means here.

/// What one of their variables means here.
pub(super) enum Meaning {
    /// This setting, in the same words.
    Setting(&'static str),
    /// A part of something that is put together from several variables.
    Part,
    /// It is always so here, or it has no effect on any answer.
    Inherent,
    /// Nothing: what to do instead.
    Instead(&'static str),
}

use Meaning::{Inherent, Instead, Part, Setting};

pub(super) const STATSD: &str = "metrics are Prometheus' own, at /metrics of the HTTP port: let a Prometheus or an OpenTelemetry collector scrape them";
pub(super) const XDS: &str = "rules are files: mount them below rules.path";
pub(super) const MEMCACHE: &str = "counters live in Redis or in memory";
const TRACING: &str =
    "tracing has settings of its own: tracing.otlp_endpoint and tracing.sample_ratio";
const PER_SECOND: &str =
    "one Redis counts every window: a decision over several limits is one step";
const NAMES: &str = "header names are fixed: choose a headers.style";
const POOL: &str = "connections are few and pipelined by themselves: see store.redis.pool_size";

/// Every variable of theirs, or the beginning of a family (with a `*`).
const TABLE: &[(&str, Meaning)] = &[
    ("HOST", Part),
    ("PORT", Part),
    ("GRPC_HOST", Part),
    ("GRPC_PORT", Part),
    ("GRPC_UDS", Setting("GRPC__UDS")),
    ("GRPC_MAX_CONNECTION_AGE", Setting("GRPC__MAX_CONNECTION_AGE")),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", Instead("calls under way always finish: see drain.timeout")),
    ("GRPC_SERVER_USE_TLS", Part),
    ("GRPC_SERVER_TLS_CERT", Part),
    ("GRPC_SERVER_TLS_KEY", Part),
    ("GRPC_CLIENT_TLS_CACERT", Part),
    ("GRPC_CLIENT_TLS_SAN", Part),
    ("DEBUG_HOST", Instead("its pages are on the HTTP port: /rules, /explain, /metrics")),
    ("DEBUG_PORT", Instead("its pages are on the HTTP port: /rules, /explain, /metrics")),
    ("LOG_LEVEL", Part),
    ("LOG_FORMAT", Setting("LOG__FORMAT")),
    ("CONFIG_TYPE", Part),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", Setting("RULES__ALLOW_EMPTY")),
    ("MERGE_DOMAIN_CONFIG", Inherent),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Inherent),
    ("RUNTIME_ROOT", Part),
    ("RUNTIME_SUBDIRECTORY", Part),
    ("RUNTIME_APPDIRECTORY", Part),
    ("RUNTIME_IGNOREDOTFILES", Inherent),
    ("RUNTIME_WATCH_ROOT", Inherent),
    ("CONFIG_GRPC_XDS_*", Instead(XDS)),
    ("XDS_CLIENT_*", Instead(XDS)),
    ("USE_PROMETHEUS", Inherent),
    ("PROMETHEUS_ADDR", Instead("/metrics is on the HTTP port")),
    ("PROMETHEUS_PATH", Instead("the path is /metrics, on the HTTP port")),
    ("PROMETHEUS_MAPPER_YAML", Instead("rules and domains are labels already")),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", Inherent),
    ("USE_STATSD", Part),
    ("STATSD_*", Instead(STATSD)),
    ("USE_DOG_STATSD", Part),
    ("USE_DOG_STATSD_MOGRIFIERS", Instead(STATSD)),
    ("DOG_STATSD_MOGRIFIER_*", Instead(STATSD)),
    ("EXTRA_TAGS", Instead("labels for every series are the scraper's: see relabel_configs")),
    ("STATS_FLUSH_INTERVAL", Inherent),
    ("DISABLE_STATS", Inherent),
    ("BACKEND_TYPE", Part),
    ("EXPIRATION_JITTER_MAX_SECONDS", Inherent),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Instead("refusals are remembered up to l1.max_entries")),
    ("NEAR_LIMIT_RATIO", Part),
    ("CACHE_KEY_PREFIX", Part),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Inherent),
    ("SHADOW_MODE", Setting("RULES__SHADOW_MODE")),
    ("QUOTA_MODE", Instead("write quota_mode: true on the rules that are meant")),
    ("RESPONSE_DYNAMIC_METADATA", Setting("RATELIMIT__DYNAMIC_METADATA")),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Part),
    ("LIMIT_LIMIT_HEADER", Instead(NAMES)),
    ("LIMIT_REMAINING_HEADER", Instead(NAMES)),
    ("LIMIT_RESET_HEADER", Instead(NAMES)),
    ("REDIS_SOCKET_TYPE", Part),
    ("REDIS_TYPE", Part),
    ("REDIS_URL", Part),
    ("REDIS_AUTH", Part),
    ("REDIS_TLS", Part),
    ("REDIS_TLS_CLIENT_CERT", Part),
    ("REDIS_TLS_CLIENT_KEY", Part),
    ("REDIS_TLS_CACERT", Part),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Part),
    ("REDIS_POOL_SIZE", Instead(POOL)),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", Instead(POOL)),
    ("REDIS_PIPELINE_WINDOW", Instead(POOL)),
    ("REDIS_PIPELINE_LIMIT", Instead(POOL)),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", Instead(POOL)),
    ("REDIS_SENTINEL_AUTH", Part),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", Inherent),
    ("REDIS_TIMEOUT", Instead("a decision waits for store.redis.timeout, 15ms by default")),
    ("REDIS_STARTUP_*", Instead("it listens at once, and is ready when Redis answers")),
    ("REDIS_PERSECOND*", Instead(PER_SECOND)),
    ("MEMCACHE_*", Instead(MEMCACHE)),
    ("TRACING_*", Instead(TRACING)),
];

/// What a variable of this name means; `None`: it is not theirs.
pub(super) fn meaning(name: &str) -> Option<&'static Meaning> {
    let is = |known: &str| match known.strip_suffix('*') {
        Some(family) => name.starts_with(family),
        None => name == known,
    };
    TABLE.iter().find(|(known, _)| is(known)).map(|(_, meaning)| meaning)
}
