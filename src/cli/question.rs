//! What a command asks a server: a quota that it brings along, or descriptors, as Envoy asks.

use std::time::Duration;

use super::Failure;
use crate::api::client::Question;

#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Arguments {
    /// Ask Envoy's rate limit service about this domain, by its rules
    #[arg(long, value_name = "DOMAIN", requires = "descriptors",
          conflicts_with_all = ["user", "api_key", "limit", "window"])]
    domain: Option<String>,
    /// Descriptors for --domain: entries joined by commas
    #[arg(value_name = "KEY=VALUE,…", requires = "domain")]
    descriptors: Vec<String>,
    /// Hits that each question takes; 0 only looks
    #[arg(long, default_value_t = 1)]
    hits: u32,
}

/// The quota to ask for without `--domain`.
pub(super) struct Quota<'a> {
    pub(super) user: &'a str,
    pub(super) api_key: &'a str,
    pub(super) limit: i32,
    pub(super) window: Duration,
}

impl Arguments {
    pub(super) fn question(&self, quota: &Quota<'_>) -> Result<Question, Failure> {
        let Some(domain) = &self.domain else {
            let window_seconds = i32::try_from(quota.window.as_secs()).ok();
            let window_seconds = window_seconds.filter(|_| quota.window.subsec_nanos() == 0);
            return Ok(Question::Quota {
                user_id: quota.user.to_owned(),
                api_key: quota.api_key.to_owned(),
                max_requests: quota.limit,
                window_seconds: window_seconds.ok_or_else(|| {
                    Failure::Usage("--window: CheckQuota takes whole seconds, such as 10s".into())
                })?,
                hits: self.hits,
            });
        };
        let descriptors = self.descriptors.iter().map(|text| super::entries(text));
        let descriptors = descriptors.collect::<Result<_, _>>()?;
        Ok(Question::Descriptors { domain: domain.clone(), descriptors, hits: self.hits })
    }
}
