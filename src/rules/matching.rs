//! Which rule a descriptor is held to, and in which counter. Depth must be equal, and a level is
//! decided once: an exact entry without the needed child does not give way to a wildcard.

use std::borrow::Cow;
use std::sync::Arc;

use super::compile::{LabelPart, Node, Target, label_part};
use super::{Ceiling, Domain, Match, Rule};
use crate::check::{Descriptor, Entry, Mode, QuotaKey, Request, readable};
use crate::metrics::ApiKeyStats;
use crate::privacy::Privacy;
use crate::quota::Limit;

impl Domain {
    /// The rule of each descriptor, in order, after `replaces`.
    pub fn matches(&self, request: &Request, privacy: &Privacy) -> Vec<Option<Match>> {
        let descriptors = request.descriptors.iter();
        let mut found: Vec<Option<&Target>> = descriptors
            .map(|descriptor| match descriptor.limit_override {
                Some(_) => None,
                None => self.target(&descriptor.entries),
            })
            .collect();
        self.replace(&mut found);
        let pairs = found.into_iter().zip(&request.descriptors);
        pairs
            .map(|(target, descriptor)| match (target, descriptor.limit_override) {
                (_, Some(limit)) => Some(self.overridden(descriptor, limit, privacy)),
                (Some(target), None) => Some(self.matched(target, &descriptor.entries, privacy)),
                (None, None) => None,
            })
            .collect()
    }

    /// The rule that a path of entries ends at.
    pub(super) fn target(&self, entries: &[Entry]) -> Option<&Target> {
        let (last, parents) = entries.split_last()?;
        let mut level = &self.root;
        for entry in parents {
            level = &level.find(&entry.key, &entry.value)?.children;
        }
        let node: &Node = level.find(&last.key, &last.value)?;
        node.target.as_ref()
    }

    /// Drops every rule whose name another rule of the same request replaces.
    fn replace(&self, found: &mut [Option<&Target>]) {
        let targets = found.iter().flatten();
        let replaced: Vec<&Arc<str>> = targets.flat_map(|target| &target.replaces).collect();
        if replaced.is_empty() {
            return;
        }
        for slot in found {
            let name = slot.and_then(|target| target.rule.name.as_ref());
            if name.is_some_and(|name| replaced.contains(&name)) {
                *slot = None;
            }
        }
    }

    pub(super) fn matched(&self, target: &Target, entries: &[Entry], privacy: &Privacy) -> Match {
        let values = counted_values(target, entries, privacy);
        let (key, api_key) = match &target.identity {
            None => (self.path_key(target, entries, &values), self.api_key.clone()),
            Some(identity) => {
                let secret = |mut levels: Box<dyn Iterator<Item = usize> + '_>| {
                    levels.any(|level| {
                        entries.get(level).is_some_and(|entry| privacy.is_secret(&entry.key))
                    })
                };
                let mut api_key = identity.api_key.fill(&values);
                let mut user_id = identity.user_id.fill(&values);
                // `CheckQuota` shows them under these names; a fingerprint is not taken twice.
                if !secret(Box::new(identity.api_key.levels())) {
                    api_key = privacy.shown(b"api_key", &api_key).into_owned();
                }
                if !secret(Box::new(identity.user_id.levels())) {
                    user_id = privacy.shown(b"user_id", &user_id).into_owned();
                }
                let stats = self.api_key_stats(&api_key);
                (QuotaKey::of_identity(&api_key, &user_id), stats)
            }
        };
        let stats = match &target.live_label {
            None => target.rule.stats.clone(),
            Some(parts) => self.metrics.rule(&self.name, &live_label(parts, entries, privacy)),
        };
        let rule = Arc::clone(&target.rule);
        Match { ceiling: rule.ceiling, rule, key, stats, api_key }
    }

    fn path_key(&self, target: &Target, entries: &[Entry], values: &[Cow<'_, [u8]>]) -> QuotaKey {
        let path = entries.iter().zip(values).enumerate().map(|(level, (entry, value))| {
            let shared = target.shared.get(level).and_then(Option::as_ref);
            let key = shared.and_then(|shared| shared.key.as_deref()).unwrap_or(&entry.key);
            (key, &**value)
        });
        QuotaKey::of_path(&self.name, path)
    }

    fn api_key_stats(&self, api_key: &[u8]) -> ApiKeyStats {
        self.metrics.api_key(&readable(api_key))
    }

    /// The limit came with the request: the same counter, and no rule's modes.
    fn overridden(&self, descriptor: &Descriptor, limit: Limit, privacy: &Privacy) -> Match {
        let entries = &descriptor.entries;
        let values: Vec<_> =
            entries.iter().map(|entry| privacy.shown(&entry.key, &entry.value)).collect();
        let path = entries.iter().zip(&values).map(|(entry, value)| (&*entry.key, &**value));
        let parts: Vec<String> = entries.iter().map(|entry| label_part(&entry.key, b"")).collect();
        let label: Arc<str> = parts.join(",").into();
        let stats = self.metrics.rule(&self.name, &label);
        let ceiling = Ceiling::Limit(limit);
        let rule = Rule {
            name: None,
            label,
            ceiling,
            mode: Mode::Enforce,
            count_denied: false,
            on_store_error: None,
            stats: stats.clone(),
            metadata: None,
            file: "".into(),
            line: 0,
        };
        let key = QuotaKey::of_path(&self.name, path);
        Match { rule: Arc::new(rule), ceiling, key, stats, api_key: self.api_key.clone() }
    }
}

/// The entries' values as a counter knows them: secrets replaced, and patterns where one counter
/// serves all that they cover.
fn counted_values<'v>(
    target: &'v Target,
    entries: &'v [Entry],
    privacy: &Privacy,
) -> Vec<Cow<'v, [u8]>> {
    let value = |(level, entry): (usize, &'v Entry)| match target.shared.get(level) {
        Some(Some(shared)) => Cow::Borrowed(&*shared.value),
        _ => privacy.shown(&entry.key, &entry.value),
    };
    entries.iter().enumerate().map(value).collect()
}

fn live_label(parts: &[LabelPart], entries: &[Entry], privacy: &Privacy) -> String {
    let text = |(part, entry): (&LabelPart, &Entry)| match part {
        LabelPart::Fixed(text) => text.to_string(),
        LabelPart::Live => label_part(&entry.key, &privacy.shown(&entry.key, &entry.value)),
    };
    parts.iter().zip(entries).map(text).collect::<Vec<_>>().join(",")
}
