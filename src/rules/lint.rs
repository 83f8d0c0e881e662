//! Rules that are right, and probably not meant: warnings, never errors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;

use super::combine::Tree;
use super::diagnostic::Diagnostic;
use super::draft::{EntryDraft, Place};
use crate::duration;

/// Up to this limit the sliding log holds every hit on its own.
const EXACT_HITS: u64 = 1024;

/// Looks at every domain that is whole.
pub(super) fn check(trees: &BTreeMap<Box<str>, Tree>, problems: &mut Vec<Diagnostic>) {
    let mut lint = Lint { names: AHashMap::new(), coarse_files: BTreeSet::new(), problems };
    for tree in trees.values().filter(|tree| !tree.is_broken) {
        lint.names.clear();
        lint.level(&tree.entries);
    }
}

struct Lint<'a> {
    /// Where each name of a domain was used first.
    names: AHashMap<Arc<str>, Place>,
    /// Files that were told about their large limits.
    coarse_files: BTreeSet<Arc<str>>,
    problems: &'a mut Vec<Diagnostic>,
}

impl Lint<'_> {
    fn level(&mut self, entries: &[EntryDraft]) {
        let mut catch_all: AHashMap<&str, &EntryDraft> = AHashMap::new();
        let mut patterns: AHashMap<(&str, String), &EntryDraft> = AHashMap::new();
        for entry in entries {
            let Some(value) = entry.value.as_deref() else { continue };
            if value.bytes().all(|byte| byte == b'*') && !entry.key.contains('*') {
                catch_all.insert(&entry.key, entry);
            }
            if !value.contains('*') {
                continue;
            }
            let plain = collapsed(value);
            if let Some(first) = patterns.get(&(&*entry.key, plain.clone())) {
                let message = format!(
                    "{} covers the same as {} at line {}: one of them is never reached",
                    entry.name(),
                    first.name(),
                    first.place.at.line
                );
                self.problems.push(entry.place.warning(message, None));
            } else {
                patterns.insert((&*entry.key, plain), entry);
            }
        }
        for entry in entries {
            if entry.value.is_none()
                && let Some(first) = catch_all.get(&*entry.key)
            {
                let message = format!(
                    "{} is never reached: {} at line {} takes every value",
                    entry.name(),
                    first.name(),
                    first.place.at.line
                );
                self.problems.push(entry.place.warning(message, None));
            }
            self.entry(entry);
            self.level(&entry.children);
        }
    }

    fn entry(&mut self, entry: &EntryDraft) {
        let Some(limit) = &entry.own.limit else { return };
        if let Some(name) = &limit.name {
            if let Some(first) = self.names.get(name) {
                let message = format!("two rules are named \"{name}\" (first at {})", first.line());
                let remedy = "\"replaces\" of that name drops both".to_owned();
                self.problems.push(entry.place.warning(message, Some(remedy)));
            } else {
                self.names.insert(Arc::clone(name), entry.place.clone());
            }
        }
        let Some(limit) = limit.limit else { return };
        let is_path = ["path", ":path"].iter().any(|path| entry.key.eq_ignore_ascii_case(path));
        if is_path && entry.value.is_none() {
            let message =
                format!("{} has a counter for every path that a client can think of", entry.name());
            let remedy =
                "write value: \"*\" and share_threshold: true for one counter over all of them";
            self.problems.push(entry.place.warning(message, Some(remedy.to_owned())));
        }
        if limit.max_requests() > EXACT_HITS {
            let file = entry.place.source.name();
            if self.coarse_files.insert(Arc::clone(file)) {
                let late =
                    duration::text(Duration::from_millis(limit.window_ms().div_ceil(EXACT_HITS)));
                let message = format!(
                    "a limit above {EXACT_HITS} is exact in its number, but hits may be freed up to window/1024 late ({late} here)"
                );
                let remedy = "said once for each file; nothing needs to be done".to_owned();
                self.problems.push(entry.place.warning(message, Some(remedy)));
            }
        }
    }
}

/// The pattern without stars beside each other.
fn collapsed(pattern: &str) -> String {
    let mut plain = String::with_capacity(pattern.len());
    for symbol in pattern.chars() {
        if symbol != '*' || !plain.ends_with('*') {
            plain.push(symbol);
        }
    }
    plain
}
