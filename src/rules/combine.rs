//! Puts the drafts of all files together: one tree for each domain, whatever the order of files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;

use super::Charge;
use super::diagnostic::Diagnostic;
use super::draft::{Draft, EntryDraft, Own, Place};

/// Everything that the files state about one domain.
pub(super) struct Tree {
    pub charge: Option<(Charge, Place)>,
    pub entries: Vec<EntryDraft>,
    /// The files it comes from.
    pub files: BTreeSet<Arc<str>>,
    /// Something in it is an error: none of it may be used.
    pub is_broken: bool,
}

/// One tree for each domain; conflicts are reported and make their domain broken.
pub(super) fn combine(
    drafts: Vec<Draft>,
    problems: &mut Vec<Diagnostic>,
) -> BTreeMap<Box<str>, Tree> {
    let mut trees: BTreeMap<Box<str>, Tree> = BTreeMap::new();
    for mut draft in drafts {
        let before = problems.len();
        draft.entries = folded(draft.entries, &draft.domain, problems);
        let is_broken = draft.is_broken || problems.len() > before;
        let file = Arc::clone(draft.place.source.name());
        let Some(tree) = trees.get_mut(&draft.domain) else {
            let (charge, entries) = (draft.charge, draft.entries);
            let files = BTreeSet::from([file]);
            trees.insert(draft.domain, Tree { charge, entries, files, is_broken });
            continue;
        };
        tree.files.insert(file);
        tree.is_broken |= is_broken;
        let before = problems.len();
        match (&tree.charge, draft.charge) {
            (Some((first, place)), Some((second, again))) if *first != second => {
                let message = format!(
                    "domain \"{}\" says another \"charge\" at {}",
                    draft.domain,
                    place.line()
                );
                problems.push(again.error(message, Some("say it once".to_owned())));
            }
            (None, Some(charge)) => tree.charge = Some(charge),
            _ => {}
        }
        merge(&mut tree.entries, draft.entries, problems);
        tree.is_broken |= problems.len() > before;
    }
    trees
}

/// Siblings of one document that are the same become one: each may bring children, one of them the
/// limit. Two limits are reported.
fn folded(
    entries: Vec<EntryDraft>,
    domain: &str,
    problems: &mut Vec<Diagnostic>,
) -> Vec<EntryDraft> {
    let mut index: AHashMap<(Box<str>, Option<Box<str>>), usize> = AHashMap::new();
    let mut folded: Vec<EntryDraft> = Vec::with_capacity(entries.len());
    for entry in entries {
        let name = (entry.key.clone(), entry.value.clone());
        let Some(&at) = index.get(&name) else {
            index.insert(name, folded.len());
            folded.push(entry);
            continue;
        };
        let first = &mut folded[at];
        if first.own == Own::default() {
            first.own = entry.own;
            first.place = entry.place;
        } else if entry.own != Own::default() {
            let message = format!(
                "descriptor {} is defined twice under domain \"{domain}\" (first at line {})",
                entry.name(),
                first.place.at.line
            );
            let remedy = "one descriptor path holds one limit; keep one of them".to_owned();
            problems.push(entry.place.error(message, Some(remedy)));
        }
        first.children.extend(entry.children);
    }
    for entry in &mut folded {
        entry.children = self::folded(std::mem::take(&mut entry.children), domain, problems);
    }
    folded
}

/// Adds entries of another document. Each may add children to an entry that is there, or a limit
/// to one that has none.
fn merge(into: &mut Vec<EntryDraft>, from: Vec<EntryDraft>, problems: &mut Vec<Diagnostic>) {
    let mut index: AHashMap<(Box<str>, Option<Box<str>>), usize> = into
        .iter()
        .enumerate()
        .map(|(index, entry)| ((entry.key.clone(), entry.value.clone()), index))
        .collect();
    for entry in from {
        let name = (entry.key.clone(), entry.value.clone());
        let Some(&at) = index.get(&name) else {
            index.insert(name, into.len());
            into.push(entry);
            continue;
        };
        let existing = &mut into[at];
        if existing.own == Own::default() && entry.own != Own::default() {
            existing.own = entry.own;
            existing.place = entry.place;
        } else if entry.own != Own::default() && entry.own != existing.own {
            let message = format!(
                "descriptor {} is defined differently at {}",
                entry.name(),
                existing.place.line()
            );
            let remedy = "files of one domain are put together; keep one of them".to_owned();
            problems.push(entry.place.error(message, Some(remedy)));
        }
        merge(&mut existing.children, entry.children, problems);
    }
}
