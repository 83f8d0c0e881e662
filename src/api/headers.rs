//! Which headers tell a client about its limit. Pure: a `Decision` in, names and values out.
//! They describe the limit that denied, else the one closest to biting.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limiter::{Decision, Status};
use crate::quota::Limit;

/// Settings of `headers:`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Which headers an answer carries.
    pub style: Style,
}

/// Which headers an answer carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// None.
    Off,
    /// `retry-after` on a refusal (RFC 9110).
    #[default]
    RetryAfter,
    /// And `x-ratelimit-limit`, `-remaining`, `-reset`, as Envoy's DRAFT_VERSION_03 writes them.
    XRatelimit,
    /// And `ratelimit`, `ratelimit-policy` (draft-ietf-httpapi-ratelimit-headers-10).
    Ietf,
}

/// A name in lower case and a value, both fit to be sent.
pub type Header = (&'static str, String);

/// The headers of an answer.
pub fn headers(decision: &Decision, style: Style) -> Vec<Header> {
    let mut headers = Vec::new();
    if style == Style::Off {
        return headers;
    }
    if let Some(wait) = decision.retry_after {
        headers.push(("retry-after", whole_seconds(wait).to_string()));
    }
    if decision.is_fallback() {
        headers.push(("x-chronosdb-source", "fallback".into()));
    }
    let Some(deciding) = decision.deciding() else { return headers };
    match style {
        Style::Off | Style::RetryAfter => {}
        Style::XRatelimit => x_ratelimit(decision, deciding, &mut headers),
        Style::Ietf => ietf(decision, deciding, &mut headers),
    }
    headers
}

/// Rounded up: a client that obeys is never early.
pub fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// When the caller may expect more: on a refusal the wait, else when the oldest hit leaves.
pub fn reset_s(status: &Status) -> u64 {
    if status.verdict.allowed {
        return whole_seconds(status.verdict.reset_after);
    }
    whole_seconds(status.verdict.retry_after.unwrap_or(status.verdict.reset_after)).max(1)
}

/// What is left; a refusal has nothing left for what was asked.
pub fn remaining(status: &Status) -> u64 {
    if status.verdict.allowed { status.verdict.remaining } else { 0 }
}

fn limited(decision: &Decision) -> impl Iterator<Item = (&Status, Limit)> {
    decision.statuses.iter().filter_map(|status| Some((status, status.limit?)))
}

fn x_ratelimit(decision: &Decision, deciding: &Status, headers: &mut Vec<Header>) {
    let Some(limit) = deciding.limit else { return };
    let mut all = limit.max_requests().to_string();
    for (_, limit) in limited(decision) {
        let _ = write!(all, ", {}{}", limit.max_requests(), window_parameter(limit));
    }
    headers.push(("x-ratelimit-limit", all));
    headers.push(("x-ratelimit-remaining", remaining(deciding).to_string()));
    headers.push(("x-ratelimit-reset", reset_s(deciding).to_string()));
}

fn ietf(decision: &Decision, deciding: &Status, headers: &mut Vec<Header>) {
    let mut policies: Vec<String> = Vec::new();
    for (status, limit) in limited(decision) {
        let most = integer(limit.max_requests());
        let policy = format!("{};q={most}{}", policy_name(status), window_parameter(limit));
        // Descriptors that one rule takes have one policy.
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let name = policy_name(deciding);
    let (left, reset_s) = (integer(remaining(deciding)), integer(reset_s(deciding)));
    headers.push(("ratelimit-policy", policies.join(", ")));
    headers.push(("ratelimit", format!("{name};r={left};t={reset_s}")));
}

/// `;w=60`; nothing for a window that is no whole number of seconds, which a header cannot say.
fn window_parameter(limit: Limit) -> String {
    let window = limit.window();
    if window.subsec_nanos() == 0 { format!(";w={}", window.as_secs()) } else { String::new() }
}

/// Integers of structured fields have at most 15 digits (RFC 9651 §3.3.1).
fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

/// The policy that a status is about, as a header can say it.
pub fn policy_name(status: &Status) -> String {
    quoted(policy(status))
}

/// The policy that a status is about: its rule's name, else the path of its keys.
pub fn policy(status: &Status) -> &str {
    let rule = status.rule.as_deref();
    rule.map_or("default", |rule| rule.name.as_deref().unwrap_or(&rule.label))
}

/// A string of structured fields (RFC 9651 §3.3.3): printable ASCII, quotes and backslashes
/// escaped; what does not fit becomes `_`.
fn quoted(name: &str) -> String {
    let mut quoted = String::with_capacity(name.len() + 2);
    quoted.push('"');
    for symbol in name.chars() {
        match symbol {
            '"' | '\\' => quoted.extend(['\\', symbol]),
            ' '..='~' => quoted.push(symbol),
            _ => quoted.push('_'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Source;
    use crate::quota::{Mode, Verdict};

    fn status(limit: u64, window_s: u64, left: Result<u64, Option<u64>>, reset_ms: u64) -> Status {
        let verdict = Verdict {
            allowed: left.is_ok(),
            remaining: left.unwrap_or(2),
            retry_after: left.err().flatten().map(Duration::from_millis),
            reset_after: Duration::from_millis(reset_ms),
        };
        let limit = Limit::new(limit, Duration::from_secs(window_s)).unwrap();
        Status { limit: Some(limit), verdict, mode: Mode::Enforce, ..Status::unlimited(None) }
    }

    fn shown(statuses: Vec<Status>, style: Style) -> String {
        let headers = headers(&Decision::of(statuses), style);
        let lines = headers.into_iter().map(|(name, value)| format!("{name}: {value}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn styles() {
        let passed = || vec![status(10, 1, Ok(8), 100), status(12, 60, Ok(1), 58_000)];
        let refused = || vec![status(10, 1, Ok(1), 100), status(12, 60, Err(Some(57_001)), 200)];
        let never = || vec![status(12, 60, Err(None), 200)];
        assert_eq!(shown(passed(), Style::RetryAfter), "");
        assert_eq!(shown(refused(), Style::Off), "");
        assert_eq!(shown(refused(), Style::RetryAfter), "retry-after: 58");
        assert_eq!(shown(never(), Style::RetryAfter), "");
        let mut by_policy = passed();
        by_policy[1].source = Source::Fallback;
        assert_eq!(shown(by_policy.clone(), Style::RetryAfter), "x-chronosdb-source: fallback");
        assert_eq!(shown(by_policy, Style::Off), "");
        assert_eq!(
            shown(passed(), Style::XRatelimit),
            "x-ratelimit-limit: 12, 10;w=1, 12;w=60\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 58"
        );
        assert_eq!(
            shown(refused(), Style::XRatelimit),
            "retry-after: 58\nx-ratelimit-limit: 12, 10;w=1, 12;w=60\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 58"
        );
        assert_eq!(
            shown(refused(), Style::Ietf),
            "retry-after: 58\nratelimit-policy: \"default\";q=10;w=1, \"default\";q=12;w=60\nratelimit: \"default\";r=0;t=58"
        );
    }

    #[test]
    fn an_ietf_item_says_what_a_structured_field_can() {
        let milliseconds = |max_requests| {
            let limit = Limit::new(max_requests, Duration::from_millis(1500)).unwrap();
            Status { limit: Some(limit), ..status(1, 1, Ok(crate::quota::MAX_HITS), 100) }
        };
        assert_eq!(
            shown(vec![milliseconds(crate::quota::MAX_HITS)], Style::Ietf),
            "ratelimit-policy: \"default\";q=999999999999999\n\
             ratelimit: \"default\";r=999999999999999;t=1"
        );
        assert_eq!(
            shown(vec![milliseconds(7)], Style::XRatelimit).lines().next(),
            Some("x-ratelimit-limit: 7, 7")
        );
        let twice = vec![status(10, 1, Ok(8), 100), status(10, 1, Ok(8), 100)];
        assert_eq!(
            shown(twice, Style::Ietf).lines().next(),
            Some("ratelimit-policy: \"default\";q=10;w=1")
        );
    }

    #[test]
    fn a_policy_name_stays_inside_its_quotes() {
        for (name, expected) in [
            ("vip", r#""vip""#),
            (r#"a";q=9"#, r#""a\";q=9""#),
            (r"a\", r#""a\\""#),
            ("é\r\nx: y", r#""___x: y""#),
        ] {
            assert_eq!(quoted(name), expected);
        }
    }

    #[test]
    fn nothing_limited_says_nothing() {
        assert_eq!(shown(vec![Status::unlimited(None)], Style::Ietf), "");
    }
}
