//! From a domain's tree to what a request is matched against, with everything worked out that
//! does not depend on the request.

use std::sync::Arc;

use super::combine::Tree;
use super::draft::{EntryDraft, LimitDraft};
use super::level::Level;
use super::template::Identity;
use super::{Ceiling, Domain, Rule};
use crate::check::readable;
use crate::metrics::Metrics;
use crate::privacy::Privacy;

/// The longest value that a label shows whole.
const MAX_LABEL_VALUE_CHARS: usize = 64;

/// An entry of a level.
pub(super) struct Node {
    /// As a person reads it: `path=/api/*`.
    pub name: Box<str>,
    pub file: Arc<str>,
    pub line: u32,
    /// What a descriptor that ends here is held to; `None`: nothing.
    pub target: Option<Target>,
    pub children: Level<Self>,
}

/// A rule, and how a request finds its counter.
pub(super) struct Target {
    pub rule: Arc<Rule>,
    /// What stands in place of an entry in the counter's key, by level. Empty where nothing is
    /// shared.
    pub shared: Box<[Option<Shared>]>,
    /// `None`: the label is the rule's own, whatever the request.
    pub live_label: Option<Box<[LabelPart]>>,
    pub identity: Option<Identity>,
    /// Names of rules that do not count in a request that this rule matches.
    pub replaces: Box<[Arc<str>]>,
}

/// One counter for everything that a pattern covers: the pattern's text instead of the entry's.
pub(super) struct Shared {
    pub key: Option<Box<[u8]>>,
    pub value: Box<[u8]>,
}

/// A level's part of a label.
pub(super) enum LabelPart {
    Fixed(Box<str>),
    /// The entry of the request.
    Live,
}

/// Builds a domain. Its tree has no errors.
pub(super) fn compile(name: &str, tree: Tree, metrics: &Arc<Metrics>, privacy: &Privacy) -> Domain {
    let mut compiler = Compiler { domain: name, metrics, privacy, rules: Vec::new() };
    let root = compiler.level(&tree.entries, &mut Vec::new());
    let rules = compiler.rules;
    Domain {
        name: name.into(),
        charge: tree.charge.map(|(charge, _)| charge).unwrap_or_default(),
        root,
        rules,
        files: tree.files.into_iter().collect(),
        metrics: Arc::clone(metrics),
        api_key: metrics.api_key(name),
    }
}

struct Compiler<'a> {
    domain: &'a str,
    metrics: &'a Arc<Metrics>,
    privacy: &'a Privacy,
    rules: Vec<Arc<Rule>>,
}

impl Compiler<'_> {
    fn level<'e>(
        &mut self,
        entries: &'e [EntryDraft],
        path: &mut Vec<&'e EntryDraft>,
    ) -> Level<Node> {
        let mut level = Level::default();
        for entry in entries {
            path.push(entry);
            let target = entry.own.limit.as_ref().map(|limit| self.target(entry, limit, path));
            let children = self.level(&entry.children, path);
            path.pop();
            let node = Node {
                name: self.part(entry).into(),
                file: Arc::clone(entry.place.source.name()),
                line: entry.place.at.line,
                target,
                children,
            };
            level.insert(&entry.key, entry.value.as_deref(), node);
        }
        level
    }

    fn target(&mut self, entry: &EntryDraft, limit: &LimitDraft, path: &[&EntryDraft]) -> Target {
        let own = &entry.own;
        let fixed: Vec<String> = path.iter().map(|entry| self.part(entry)).collect();
        let label: Arc<str> = fixed.join(",").into();
        let is_live = |level: &EntryDraft| {
            (own.detailed_metric || level.own.value_to_metric) && !level.own.share_threshold
        };
        let live_label = path.iter().any(|level| is_live(level)).then(|| {
            let parts = path.iter().zip(fixed).map(|(level, fixed)| {
                if is_live(level) { LabelPart::Live } else { LabelPart::Fixed(fixed.into()) }
            });
            parts.collect()
        });
        let any_shared = path.iter().any(|level| level.own.share_threshold);
        let shared = if any_shared {
            path.iter().map(|level| shared(level)).collect()
        } else {
            Box::default()
        };
        let rule = Arc::new(Rule {
            name: limit.name.clone(),
            stats: self.metrics.rule(self.domain, &label),
            label,
            ceiling: limit.limit.map_or(Ceiling::Unlimited, Ceiling::Limit),
            mode: own.mode,
            count_denied: own.count_denied,
            on_store_error: own.on_store_error,
            metadata: own.metadata.clone(),
            file: Arc::clone(entry.place.source.name()),
            line: entry.place.at.line,
        });
        self.rules.push(Arc::clone(&rule));
        let replaces = limit.replaces.clone().into();
        Target { rule, shared, live_label, identity: own.identity.clone(), replaces }
    }

    /// `key`, or `key=value` with a secret value replaced.
    fn part(&self, entry: &EntryDraft) -> String {
        match &entry.value {
            None => label_part(entry.key.as_bytes(), b""),
            // A pattern is no secret, and its fingerprint would fit no value.
            Some(value) if value.contains('*') => {
                label_part(entry.key.as_bytes(), value.as_bytes())
            }
            Some(value) => {
                let shown = self.privacy.shown(entry.key.as_bytes(), value.as_bytes());
                label_part(entry.key.as_bytes(), &shown)
            }
        }
    }
}

/// `key`, or `key=value`, cut where it is long.
pub(super) fn label_part(key: &[u8], value: &[u8]) -> String {
    let cut = |bytes: &[u8]| {
        let text = readable(bytes);
        match text.char_indices().nth(MAX_LABEL_VALUE_CHARS) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    };
    if value.is_empty() { cut(key) } else { format!("{}={}", cut(key), cut(value)) }
}

fn shared(entry: &EntryDraft) -> Option<Shared> {
    if !entry.own.share_threshold {
        return None;
    }
    let key = entry.key.contains('*').then(|| entry.key.as_bytes().into());
    let value = entry.value.as_deref().unwrap_or("*").as_bytes().into();
    Some(Shared { key, value })
}
