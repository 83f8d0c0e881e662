//! Reading a `rate_limit` block: the reference's unit and number, or our limit and window.

use std::sync::Arc;
use std::time::Duration;

use super::diagnostic::{At, did_you_mean};
use super::draft::LimitDraft;
use super::fields::{Fields, RATE_LIMIT, REPLACES, Reader, shape};
use super::yaml::Value;
use crate::duration;
use crate::quota::{Limit, MAX_HITS};

const DAY_S: u64 = 86_400;

/// The units, and their seconds; months and years as the reference counts them.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3600),
    ("day", DAY_S),
    ("week", 7 * DAY_S),
    ("month", 30 * DAY_S),
    ("year", 365 * DAY_S),
];

impl Reader {
    /// The block's limit. `None`: there is none, or it was reported.
    pub(super) fn rate_limit(&mut self, fields: Fields<'_>) -> Option<LimitDraft> {
        let (at, node) = fields.field("rate_limit")?;
        let errors = self.errors();
        let Some(fields) = self.fields(node, &RATE_LIMIT) else {
            let remedy = match &node.value {
                Value::Bad => return None,
                Value::List(_) => "put the second limit on a descriptor of its own",
                _ => "write unit: minute and requests_per_unit: 100 below it",
            };
            let message = format!(
                "rate_limit must be one block (unit + requests_per_unit), got {}",
                shape(node)
            );
            self.error(at, message, Some(remedy.to_owned()));
            return None;
        };
        let name = self.text(fields, "name").map(|(_, name)| name).filter(|name| !name.is_empty());
        let replaces = self.replaces(fields, name);
        let is_bare = RATE_LIMIT.keys.iter().all(|key| fields.field(key).is_none());
        if is_bare && self.errors() > errors {
            // A misspelt key was reported; that others are missing follows from it.
            return None;
        }
        let limit = self.ceiling(at, fields)?;
        Some(LimitDraft { name: name.map(Arc::from), limit, replaces })
    }

    /// The outer `None` was reported, the inner one is no limit at all.
    fn ceiling(&mut self, at: At, fields: Fields<'_>) -> Option<Option<Limit>> {
        let unlimited = self.flag(fields, "unlimited");
        let is_ours = fields.field("limit").is_some() || fields.field("window").is_some();
        if let Some(at) = unlimited {
            return self.unlimited(at, fields, is_ours).then_some(None);
        }
        let of_reference = ["unit", "requests_per_unit", "unit_multiplier"]
            .into_iter()
            .find_map(|name| Some((name, fields.field(name)?.0)));
        if let (true, Some((name, _))) = (is_ours, of_reference) {
            let ours = if fields.field("window").is_some() { "window" } else { "limit" };
            let (at, _) = fields.field(ours).unwrap_or((at, fields.field(name)?.1));
            let message = format!("rate_limit has both \"{name}\" and \"{ours}\"");
            let remedy = "keep unit and requests_per_unit, or limit and window".to_owned();
            self.error(at, message, Some(remedy));
            return None;
        }
        let limit =
            if is_ours { self.limit_and_window(at, fields) } else { self.per_unit(at, fields) };
        let (at, max_requests, window) = limit?;
        match Limit::new(max_requests, window) {
            Ok(limit) => Some(Some(limit)),
            Err(message) => {
                self.error(at, message, None);
                None
            }
        }
    }

    fn unlimited(&mut self, at: At, fields: Fields<'_>, is_ours: bool) -> bool {
        let unit = self.text(fields, "unit").map(|(_, unit)| unit);
        // Generated files say `unit: UNKNOWN` beside `unlimited: true`.
        if is_ours || unit.is_some_and(|unit| seconds(unit).is_some()) {
            let other = if is_ours { "limit/window" } else { "unit/requests_per_unit" };
            let message = format!("rate_limit has both unlimited: true and {other}");
            self.error(at, message, Some("keep one of them".to_owned()));
            return false;
        }
        if self.number(fields, "requests_per_unit", u64::from(u32::MAX)).is_some_and(|(_, n)| n > 0)
        {
            self.warn(at, "requests_per_unit has no effect beside unlimited: true", None);
        }
        true
    }

    fn limit_and_window(&mut self, at: At, fields: Fields<'_>) -> Option<(At, u64, Duration)> {
        let limit = self.number(fields, "limit", MAX_HITS);
        let window = self.text(fields, "window");
        for (name, example) in [("limit", "limit: 100"), ("window", "window: 90s")] {
            if fields.field(name).is_none() {
                let remedy = Some(format!("add {example}"));
                self.error(at, format!("rate_limit has no {name}"), remedy);
            }
        }
        let (at, text) = window?;
        match duration::parse(text) {
            Ok(window) => Some((at, limit?.1, window)),
            Err(message) => {
                self.error(at, format!("window {message}"), None);
                None
            }
        }
    }

    fn per_unit(&mut self, at: At, fields: Fields<'_>) -> Option<(At, u64, Duration)> {
        let unit = self.text(fields, "unit");
        let number = self.number(fields, "requests_per_unit", u64::from(u32::MAX));
        let multiplier = self.number(fields, "unit_multiplier", u64::from(u32::MAX));
        let names = UNITS.map(|(name, _)| name).join(", ");
        let Some((unit_at, unit)) = unit.filter(|(_, unit)| !unit.is_empty()) else {
            if fields.field("unit").is_none_or(|(_, node)| node.text().is_some()) {
                let remedy = Some(format!("add one of {names}"));
                self.error(at, "rate_limit has no unit", remedy);
            }
            return None;
        };
        let Some(seconds) = seconds(unit) else {
            let meant = did_you_mean(unit, UNITS.map(|(name, _)| name));
            let remedy = match meant {
                Some(meant) => format!("did you mean \"{meant}\"? (allowed: {names})"),
                None => {
                    format!("allowed are {names}; or write limit and window, such as window: 90s")
                }
            };
            self.error(unit_at, format!("rate_limit.unit \"{unit}\" is not a unit"), Some(remedy));
            return None;
        };
        let times = match multiplier {
            Some((at, 0)) => {
                self.error(at, "unit_multiplier must be at least 1, got 0", None);
                return None;
            }
            Some((_, times)) => times,
            None if fields.field("unit_multiplier").is_some() => return None,
            None => 1,
        };
        let number = match (number, fields.field("requests_per_unit")) {
            (Some((_, number)), _) => number,
            (None, Some(_)) => return None,
            (None, None) => {
                let remedy = Some("add requests_per_unit, or unlimited: true".to_owned());
                self.warn(at, "requests_per_unit is missing, so everything is refused", remedy);
                0
            }
        };
        Some((unit_at, number, Duration::from_secs(seconds.saturating_mul(times))))
    }

    fn replaces(&mut self, fields: Fields<'_>, own_name: Option<&str>) -> Vec<Arc<str>> {
        let Some((at, node)) = fields.field("replaces") else { return Vec::new() };
        let Value::List(items) = &node.value else {
            if !matches!(node.value, Value::Bad) {
                let message = format!("replaces must be a list of names, got {}", shape(node));
                self.error(at, message, Some("write \"- name: other_rule\" below it".to_owned()));
            }
            return Vec::new();
        };
        let mut names = Vec::new();
        for item in items {
            let Some(fields) = self.fields(item, &REPLACES) else {
                if !matches!(item.value, Value::Bad) {
                    let message =
                        format!("an entry of replaces must be \"name: …\", got {}", shape(item));
                    self.error(item.at, message, None);
                }
                continue;
            };
            match self.text(fields, "name").map(|(_, name)| name).filter(|name| !name.is_empty()) {
                None => self.error(item.at, "replaces entry has no name", None),
                Some(name) if Some(name) == own_name => {
                    let message = format!("replaces entry \"{name}\" is this rule's own name");
                    self.error(item.at, message, None);
                }
                Some(name) => names.push(Arc::from(name)),
            }
        }
        names
    }
}

fn seconds(unit: &str) -> Option<u64> {
    let (_, seconds) = UNITS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    Some(seconds)
}
