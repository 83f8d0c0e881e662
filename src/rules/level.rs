//! One level of a rule tree, and which entry of it a key and value take: the exact one, else the
//! most specific wildcard, else the one for any value. Hash lookups; never a scan over all rules.

use ahash::{AHashMap, RandomState};

use super::glob::{Glob, Rank};

/// Entries beside each other. `N` is what an entry leads to.
pub(super) struct Level<N> {
    keys: AHashMap<Box<[u8]>, Values<N>>,
    /// Entries with a `*` in the key, which are rare.
    wild_keys: Vec<WildKey<N>>,
    /// Where those stand, by the hash of their own text. Envoy Gateway names routes with a `*`
    /// and sends that very text, which comes before any other pattern.
    literal: AHashMap<u64, usize>,
    hasher: RandomState,
}

/// The entries of one key.
struct Values<N> {
    exact: AHashMap<Box<[u8]>, N>,
    wild: Vec<Shape<N>>,
    hasher: RandomState,
    any: Option<N>,
}

/// Wildcards whose literal ends are equally long: one lookup finds those that can match.
struct Shape<N> {
    prefix: usize,
    suffix: usize,
    /// By the hash of both ends.
    buckets: AHashMap<u64, Vec<Wild<N>>>,
}

struct Wild<N> {
    rank: Rank,
    glob: Glob,
    node: N,
}

struct WildKey<N> {
    rank: Rank,
    text: Box<[u8]>,
    key: Glob,
    value: Option<(Box<[u8]>, Glob)>,
    node: N,
}

/// Why an entry is a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Its key and value are these.
    Exact,
    /// Its `*` covers them.
    Wildcard,
    /// It takes any value.
    AnyValue,
}

impl<N> Default for Level<N> {
    fn default() -> Self {
        let (keys, literal, hasher) = (AHashMap::new(), AHashMap::new(), RandomState::new());
        Self { keys, wild_keys: Vec::new(), literal, hasher }
    }
}

impl<N> Default for Values<N> {
    fn default() -> Self {
        let (exact, hasher) = (AHashMap::new(), RandomState::new());
        Self { exact, wild: Vec::new(), hasher, any: None }
    }
}

impl<N> Level<N> {
    /// Adds an entry; `value` of `None` takes any.
    pub(super) fn insert(&mut self, key: &str, value: Option<&str>, node: N) {
        if key.contains('*') {
            let hash = self.hasher.hash_one((key.as_bytes(), value.map(str::as_bytes)));
            self.literal.insert(hash, self.wild_keys.len());
            let (text, rank) = (key.as_bytes().into(), Rank::new(key, value));
            let value = value.map(|value| (value.as_bytes().into(), Glob::new(value)));
            self.wild_keys.push(WildKey { rank, text, key: Glob::new(key), value, node });
            return;
        }
        if !self.keys.contains_key(key.as_bytes()) {
            self.keys.insert(key.as_bytes().into(), Values::default());
        }
        let values = self.keys.get_mut(key.as_bytes()).expect("it was inserted just now");
        match value {
            None => values.any = Some(node),
            Some(value) if value.contains('*') => values.insert_wild(key, value, node),
            Some(value) => {
                values.exact.insert(value.as_bytes().into(), node);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.wild_keys.is_empty()
    }

    /// The entry that this key and value take.
    pub(super) fn find(&self, key: &[u8], value: &[u8]) -> Option<&N> {
        let values = self.keys.get(key);
        if let Some(node) = values.and_then(|values| values.exact.get(value)) {
            return Some(node);
        }
        let wild = values.and_then(|values| values.wild(value).min_by_key(|wild| &wild.rank));
        let wild_key = self.wild_key(key, value);
        match (wild, wild_key) {
            (Some(wild), Some(entry)) if entry.rank < wild.rank => Some(&entry.node),
            (Some(wild), _) => Some(&wild.node),
            (None, Some(entry)) => Some(&entry.node),
            (None, None) => values.and_then(|values| values.any.as_ref()),
        }
    }

    fn wild_key(&self, key: &[u8], value: &[u8]) -> Option<&WildKey<N>> {
        if self.wild_keys.is_empty() {
            return None;
        }
        let literal = self.literal.get(&self.hasher.hash_one((key, Some(value))));
        let literal = literal.and_then(|index| self.wild_keys.get(*index));
        if literal.is_some_and(|entry| entry.is(key, value)) {
            return literal;
        }
        let matching = self.wild_keys.iter().filter(|entry| entry.matches(key, value));
        matching.min_by_key(|entry| &entry.rank)
    }

    /// Every entry that could take this key and value; the first one does.
    pub(super) fn candidates(&self, key: &[u8], value: &[u8]) -> Vec<(Kind, &N)> {
        let values = self.keys.get(key);
        let exact = values.and_then(|values| values.exact.get(value));
        let wild = values.into_iter().flat_map(|values| values.wild(value));
        let wild_keys = self.wild_keys.iter().filter(|entry| entry.matches(key, value));
        let mut ranked: Vec<((bool, &Rank), &N)> = wild
            .map(|wild| ((true, &wild.rank), &wild.node))
            .chain(wild_keys.map(|entry| ((!entry.is(key, value), &entry.rank), &entry.node)))
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let any = values.and_then(|values| values.any.as_ref());
        (exact.map(|node| (Kind::Exact, node)).into_iter())
            .chain(ranked.into_iter().map(|(_, node)| (Kind::Wildcard, node)))
            .chain(any.map(|node| (Kind::AnyValue, node)))
            .collect()
    }

    /// The keys that entries of this level have, for suggestions.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().filter_map(|key| std::str::from_utf8(key).ok())
    }
}

impl<N> Values<N> {
    fn insert_wild(&mut self, key: &str, value: &str, node: N) {
        let glob = Glob::new(value);
        let (prefix, suffix) = glob.ends();
        let ends = (prefix.len(), suffix.len());
        let hash = self.hasher.hash_one((prefix, suffix));
        let index = self.wild.iter().position(|shape| (shape.prefix, shape.suffix) == ends);
        let index = index.unwrap_or_else(|| {
            let (prefix, suffix) = ends;
            self.wild.push(Shape { prefix, suffix, buckets: AHashMap::new() });
            self.wild.len() - 1
        });
        let rank = Rank::new(key, Some(value));
        self.wild[index].buckets.entry(hash).or_default().push(Wild { rank, glob, node });
    }

    /// All wildcards that cover a value, in no order.
    fn wild<'a>(&'a self, value: &[u8]) -> impl Iterator<Item = &'a Wild<N>> {
        let shapes = self.wild.iter();
        let fitting = shapes.filter(|shape| shape.prefix + shape.suffix <= value.len());
        let buckets = fitting.filter_map(|shape| {
            let ends = (&value[..shape.prefix], &value[value.len() - shape.suffix..]);
            shape.buckets.get(&self.hasher.hash_one(ends))
        });
        buckets.flatten().filter(|wild| wild.glob.matches(value))
    }
}

impl<N> WildKey<N> {
    fn matches(&self, key: &[u8], value: &[u8]) -> bool {
        let value_matches = self.value.as_ref().is_none_or(|(_, glob)| glob.matches(value));
        value_matches && self.key.matches(key)
    }

    /// Whether this is its own text.
    fn is(&self, key: &[u8], value: &[u8]) -> bool {
        *self.text == *key && self.value.as_ref().is_some_and(|(text, _)| **text == *value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Entries = Vec<(String, Option<String>)>;

    /// The order of precedence, by asking every entry.
    fn brute_force(entries: &Entries, key: &str, value: &str) -> Option<usize> {
        let takes = |(_, (own_key, own_value)): &(usize, &(String, Option<String>))| {
            let own_value = own_value.as_deref();
            Glob::new(own_key).matches(key.as_bytes())
                && own_value.is_none_or(|own| Glob::new(own).matches(value.as_bytes()))
        };
        let class = |(key, value): &(String, Option<String>)| match value {
            _ if key.contains('*') => 1,
            Some(value) if value.contains('*') => 1,
            Some(_) => 0,
            None => 2,
        };
        let hits = entries.iter().enumerate().filter(takes);
        let is_own = |(own_key, own_value): &(String, Option<String>)| {
            own_key == key && key.contains('*') && own_value.as_deref() == Some(value)
        };
        let first = hits.min_by_key(|(_, entry)| {
            (class(entry), !is_own(entry), Rank::new(&entry.0, entry.1.as_deref()))
        });
        first.map(|(index, _)| index)
    }

    proptest! {
        #[test]
        fn finding_equals_asking_every_entry(
            entries in prop::collection::btree_set(("[ab*]{1,2}", prop::option::of("[ab*]{1,4}")), 0..24),
            key in "[ab*]{1,2}",
            value in "[ab*]{0,5}",
        ) {
            let entries: Entries = entries.into_iter().collect();
            let mut level = Level::default();
            for (index, (key, value)) in entries.iter().enumerate() {
                level.insert(key, value.as_deref(), index);
            }
            let found = level.find(key.as_bytes(), value.as_bytes()).copied();
            prop_assert_eq!(found, brute_force(&entries, &key, &value));
            let candidates = level.candidates(key.as_bytes(), value.as_bytes());
            prop_assert_eq!(candidates.first().map(|(_, index)| **index), found);
        }
    }

    #[test]
    fn a_key_that_is_sent_with_its_star_takes_its_own_entry() {
        let mut level = Level::default();
        for (index, name) in ["route/*_host", "route/a*_host", "route/*"].into_iter().enumerate() {
            level.insert(name, Some(name), index);
        }
        assert_eq!(level.find(b"route/*_host", b"route/*_host"), Some(&0));
        assert_eq!(level.find(b"route/*", b"route/*"), Some(&2));
        assert_eq!(level.find(b"route/ab_host", b"route/ab_host"), Some(&1));
    }

    #[test]
    fn file_order_changes_nothing() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let mut level = Level::default();
            for index in order {
                level.insert("path", [Some("/a*"), Some("/ab*"), None][index], index);
            }
            assert_eq!(level.find(b"path", b"/abc"), Some(&1));
            assert_eq!(level.find(b"path", b"/x"), Some(&2));
            assert_eq!(level.find(b"other", b"/x"), None);
        }
    }
}
