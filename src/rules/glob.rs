//! Text with `*` in it: each stands for any number of bytes, none included.

use std::cmp::Reverse;

/// A pattern, split at its stars.
#[derive(Clone, Debug)]
pub(super) struct Glob {
    prefix: Box<[u8]>,
    middles: Box<[Box<[u8]>]>,
    suffix: Box<[u8]>,
    /// Without a star it matches only its own text.
    is_wild: bool,
}

/// Which pattern goes first: more literal characters, then a longer literal start, then the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    literals: Reverse<usize>,
    prefix: Reverse<usize>,
    text: Box<str>,
}

impl Glob {
    pub(super) fn new(pattern: &str) -> Self {
        let mut parts = pattern.split('*').map(|part| -> Box<[u8]> { part.as_bytes().into() });
        let prefix = parts.next().unwrap_or_default();
        let suffix = parts.next_back();
        let is_wild = suffix.is_some();
        let middles = parts.filter(|part| !part.is_empty()).collect();
        Self { prefix, middles, suffix: suffix.unwrap_or_default(), is_wild }
    }

    pub(super) fn matches(&self, text: &[u8]) -> bool {
        if !self.is_wild {
            return *text == *self.prefix;
        }
        let rest =
            text.strip_prefix(&*self.prefix).and_then(|rest| rest.strip_suffix(&*self.suffix));
        let Some(mut rest) = rest else { return false };
        for middle in &self.middles {
            // The first place is as good as any: what follows only gets more room.
            let found = rest.windows(middle.len()).position(|window| *window == **middle);
            let Some(found) = found else { return false };
            rest = &rest[found + middle.len()..];
        }
        true
    }

    /// Bytes it must begin and end with.
    pub(super) fn ends(&self) -> (&[u8], &[u8]) {
        (&self.prefix, &self.suffix)
    }

    fn literals(&self) -> usize {
        let middles: usize = self.middles.iter().map(|middle| middle.len()).sum();
        self.prefix.len() + middles + self.suffix.len()
    }
}

impl Rank {
    /// The rank of an entry among the others of its level; no value counts as any value.
    pub(super) fn new(key: &str, value: Option<&str>) -> Self {
        let (key_glob, value_glob) = (Glob::new(key), value.map(Glob::new));
        let literals = |glob: &Glob| glob.literals();
        let value_literals = value_glob.as_ref().map_or(0, literals);
        let value_prefix = value_glob.as_ref().map_or(0, |glob| glob.prefix.len());
        let prefix = key_glob.prefix.len() + if key_glob.is_wild { 0 } else { value_prefix };
        Self {
            literals: Reverse(literals(&key_glob) + value_literals),
            prefix: Reverse(prefix),
            text: format!("{key}\0{}", value.unwrap_or_default()).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns() {
        for (pattern, hits, misses) in [
            ("foo*", &["foo", "foo1"][..], &["fo", "xfoo"][..]),
            ("*foo", &["foo", "xfoo"], &["foox"]),
            ("bar*b", &["barab", "bar123b", "barb"], &["bara", "xbarb", "bab"]),
            ("foo*bar*baz", &["foo123bar456baz", "foobarbaz"], &["foo123baz", "bar456baz"]),
            ("*", &["", "x"], &[]),
            ("a**b", &["ab", "axb"], &["a"]),
            ("a*b*b*c", &["abbc", "abxbc"], &["abc"]),
            ("aba*aba", &["abaaba"], &["aba", "ababa"]),
            ("plain", &["plain"], &["plain1", ""]),
        ] {
            let glob = Glob::new(pattern);
            assert!(hits.iter().all(|text| glob.matches(text.as_bytes())), "{pattern}");
            assert!(!misses.iter().any(|text| glob.matches(text.as_bytes())), "{pattern}");
        }
    }

    #[test]
    fn the_more_specific_goes_first() {
        let rank = |value| Rank::new("path", Some(value));
        assert!(rank("/api/*/action") < rank("/api/*"));
        assert!(rank("ab*c") < rank("a*bc"));
        assert!(rank("a*") < rank("b*"));
        assert!(rank("*") < Rank::new("pa*", None));
        assert!(Rank::new("ab*", None) < Rank::new("a*b", None));
    }

    /// The definition, without a thought for speed.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
            Some((byte, rest)) => text.first() == Some(byte) && slow(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn equals_its_definition(pattern in "[ab*]{0,6}", text in "[ab]{0,8}") {
            let glob = Glob::new(&pattern);
            prop_assert_eq!(glob.matches(text.as_bytes()), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
