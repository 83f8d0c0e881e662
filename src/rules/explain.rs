//! Why a descriptor is held to the rule it is, or to none. For `chronosdb explain` and `/explain`.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::compile::Node;
use super::diagnostic::did_you_mean;
use super::level::{Kind, Level};
use super::{Domain, RuleSet};
use crate::check::{Entry, Mode, readable};
use crate::duration;
use crate::privacy::Privacy;
use crate::quota::Limit;

/// The way from a descriptor to its rule. Displayed for people; serialized for tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub domain: String,
    /// One for each entry that was looked up.
    pub steps: Vec<Step>,
    /// The rule at the end, if there is one.
    pub rule: Option<Chosen>,
    /// Why there is no rule.
    pub reason: Option<String>,
}

/// One entry of the descriptor, and the entries of the rules that could take it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub key: String,
    /// A fingerprint if it is secret.
    pub value: String,
    /// The first one takes it.
    pub candidates: Vec<Candidate>,
}

/// An entry of the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// As `key` or `key=value`.
    pub entry: String,
    /// Why it is one.
    pub kind: Kind,
    pub file: String,
    pub line: u32,
}

/// A rule, and the counter that the descriptor is held to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chosen {
    pub label: String,
    pub name: Option<String>,
    /// `None`: unlimited.
    pub limit: Option<u64>,
    /// As text, such as `1m`.
    pub window: Option<String>,
    /// `enforce`, `shadow` or `quota`.
    pub mode: &'static str,
    /// As in the store, without prefix and window.
    pub quota_key: String,
    pub file: String,
    pub line: u32,
    /// Names of rules that do not count beside this one.
    pub replaces: Vec<String>,
}

/// Walks the rules as a request with this one descriptor would.
pub fn explain(rules: &RuleSet, domain: &str, entries: &[Entry], privacy: &Privacy) -> Explanation {
    let mut explanation =
        Explanation { domain: domain.to_owned(), steps: Vec::new(), rule: None, reason: None };
    let Some(found) = rules.domain(domain) else {
        explanation.reason = Some(unknown_domain(rules, domain));
        return explanation;
    };
    match walk(found, entries, privacy, &mut explanation.steps) {
        Err(reason) => explanation.reason = Some(reason),
        Ok(()) => explanation.rule = chosen(found, entries, privacy),
    }
    explanation
}

/// Why nothing is held to the rules of this domain: nobody declares it.
pub fn unknown_domain(rules: &RuleSet, domain: &str) -> String {
    let domains = rules.domains();
    let names = || domains.iter().map(|domain| &*domain.name);
    let mut reason = format!("no rules file declares the domain {domain:?}");
    if let Some(meant) = did_you_mean(domain, names()) {
        let _ = write!(reason, "; did you mean \"{meant}\"?");
    } else if domains.is_empty() {
        reason.push_str("; no rules are loaded");
    } else {
        let known: Vec<&str> = names().take(10).collect();
        let _ = write!(reason, "; known are {}", known.join(", "));
    }
    reason
}

/// Records each step. The error says where the way ended without a rule.
fn walk(
    domain: &Domain,
    entries: &[Entry],
    privacy: &Privacy,
    steps: &mut Vec<Step>,
) -> Result<(), String> {
    let mut level = &domain.root;
    let mut last: Option<&Node> = None;
    for entry in entries {
        let shown = privacy.shown(&entry.key, &entry.value);
        let name = format!("{}={}", readable(&entry.key), readable(&shown));
        if let Some(parent) = last.filter(|parent| parent.children.is_empty()) {
            return Err(format!(
                "the rules end at \"{}\", and the descriptor goes on with \"{name}\": the number of entries must be equal",
                parent.name
            ));
        }
        let found = level.candidates(&entry.key, &entry.value);
        let candidates = found.iter().map(|(kind, node)| Candidate {
            entry: node.name.to_string(),
            kind: *kind,
            file: node.file.to_string(),
            line: node.line,
        });
        steps.push(Step {
            key: readable(&entry.key),
            value: readable(&shown),
            candidates: candidates.collect(),
        });
        let Some((_, node)) = found.first() else {
            return Err(nothing_takes(level, entry, &name));
        };
        level = &node.children;
        last = Some(node);
    }
    match last {
        None => Err("the descriptor has no entries".to_owned()),
        Some(node) if node.target.is_some() => Ok(()),
        Some(node) if node.children.is_empty() => {
            Err(format!("\"{}\" has no rate_limit: it is exempt", node.name))
        }
        Some(node) => Err(format!(
            "\"{}\" has no rate_limit of its own, only its children have: the number of entries must be equal",
            node.name
        )),
    }
}

fn nothing_takes(level: &Level<Node>, entry: &Entry, name: &str) -> String {
    let key = readable(&entry.key);
    let mut keys: Vec<&str> = level.keys().collect();
    keys.sort_unstable();
    if keys.contains(&&*key) {
        return format!(
            "no entry at this level takes \"{name}\", and none is for any value of \"{key}\""
        );
    }
    let hint = match did_you_mean(&key, keys.iter().copied()) {
        Some(meant) => format!("did you mean \"{meant}\"?"),
        None => format!(
            "keys here are {}",
            keys.iter().take(10).copied().collect::<Vec<_>>().join(", ")
        ),
    };
    format!("no entry at this level has the key \"{key}\"; {hint}")
}

fn chosen(domain: &Domain, entries: &[Entry], privacy: &Privacy) -> Option<Chosen> {
    let target = domain.target(entries)?;
    let matched = domain.matched(target, entries, privacy);
    let limit = matched.ceiling.limit();
    let rule = &matched.rule;
    Some(Chosen {
        label: rule.label.to_string(),
        name: rule.name.as_deref().map(str::to_owned),
        limit: limit.map(Limit::max_requests),
        window: limit.map(|limit| duration::text(limit.window())),
        mode: match rule.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Quota => "quota",
        },
        quota_key: matched.key.to_string(),
        file: rule.file.to_string(),
        line: rule.line,
        replaces: target.replaces.iter().map(ToString::to_string).collect(),
    })
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "domain {}", self.domain)?;
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{}. {}={}", index + 1, step.key, step.value)?;
            for (rank, candidate) in step.candidates.iter().enumerate() {
                let Candidate { entry, kind, file, line } = candidate;
                let kind = match kind {
                    Kind::Exact => "exact",
                    Kind::Wildcard => "wildcard",
                    Kind::AnyValue => "any value",
                };
                let arrow = if rank == 0 { "->" } else { "  " };
                writeln!(f, "   {arrow} {entry} ({kind}) {file}:{line}")?;
            }
        }
        if let Some(reason) = &self.reason {
            return write!(f, "no rule: {reason}");
        }
        let Some(rule) = &self.rule else { return Ok(()) };
        write!(f, "rule {} at {}:{}", rule.label, rule.file, rule.line)?;
        if let Some(name) = &rule.name {
            write!(f, "\nname {name}")?;
        }
        match (rule.limit, &rule.window) {
            (Some(limit), Some(window)) => write!(f, "\nlimit {limit} in any {window}")?,
            _ => write!(f, "\nunlimited")?,
        }
        if rule.mode != "enforce" {
            write!(f, "\nmode {}", rule.mode)?;
        }
        write!(f, "\nkey {}", rule.quota_key)?;
        if !rule.replaces.is_empty() {
            write!(f, "\nreplaces {}", rule.replaces.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::validate;
    use super::*;
    use crate::privacy::Settings;

    #[test]
    fn an_explanation_says_why() {
        let (rules, _) =
            validate::read(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules")]);
        let privacy = Privacy::new(&Settings::default());
        let entries = |path: &[(&str, &str)]| -> Vec<Entry> {
            path.iter().map(|(key, value)| Entry::new(*key, *value)).collect()
        };
        let why = |domain: &str, path: &[(&str, &str)]| {
            explain(&rules, domain, &entries(path), &privacy).to_string()
        };
        let vip = why("edge", &[("api_key", "free"), ("user_id", "vip-1")]);
        for part in [
            "-> user_id=vip-* (wildcard)",
            "user_id (any value)",
            "limit 1000 in any 1m30s",
            "edge.yaml:",
        ] {
            assert!(vip.contains(part), "{vip}");
        }
        let user = why("edge", &[("api_key", "free"), ("user_id", "bob")]);
        assert!(user.contains("key free:bob"), "{user}");
        for (domain, path, reason) in [
            ("egde", &[("remote_address", "1")][..], "did you mean \"edge\"?"),
            ("edge", &[("remote_adress", "1")], "did you mean \"remote_address\"?"),
            ("edge", &[("path", "/x")], "none is for any value of \"path\""),
            ("edge", &[("api_key", "x")], "number of entries must be equal"),
            ("edge", &[("remote_address", "1"), ("x", "y")], "number of entries must be equal"),
            ("edge", &[], "no entries"),
        ] {
            let explanation = why(domain, path);
            assert!(explanation.contains(reason), "{explanation}");
        }
    }
}
