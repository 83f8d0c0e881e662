//! Reading single fields of a rules file: which keys a block may have, and scalars of each kind.
//! It reports and goes on, so that one run finds everything.

use std::sync::Arc;

use super::diagnostic::{At, Diagnostic, Severity, Source, did_you_mean};
use super::yaml::{How, Node, Value};

/// A kind of block, and the keys it may have.
pub(super) struct Block {
    /// As it is called in messages: `a descriptor`.
    pub name: &'static str,
    pub keys: &'static [&'static str],
    /// What an unknown key costs.
    pub warning: &'static str,
}

pub(super) const ROOT: Block = Block {
    name: "the top level",
    keys: &["domain", "descriptors", "charge", "name"],
    warning: "",
};

pub(super) const DESCRIPTOR: Block = Block {
    name: "a descriptor",
    keys: &[
        "key",
        "value",
        "rate_limit",
        "descriptors",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
        "identity",
        "on_store_error",
        "count_denied",
    ],
    warning: "; without it this descriptor would limit nothing",
};

pub(super) const RATE_LIMIT: Block = Block {
    name: "rate_limit",
    keys: &[
        "unit",
        "requests_per_unit",
        "unit_multiplier",
        "unlimited",
        "name",
        "replaces",
        "limit",
        "window",
    ],
    warning: "",
};

pub(super) const REPLACES: Block =
    Block { name: "an entry of replaces", keys: &["name"], warning: "" };

pub(super) const IDENTITY: Block =
    Block { name: "identity", keys: &["api_key", "user_id"], warning: "" };

/// Keys that envoyproxy/ratelimit accepts at any level and ignores at the wrong one.
const ACCEPTED_ANYWHERE: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// Reads one file and collects what is wrong with it.
pub(super) struct Reader {
    pub source: Arc<Source>,
    pub problems: Vec<Diagnostic>,
    /// How many of those are errors.
    errors: usize,
}

/// The fields of a block; those without a value count as absent.
#[derive(Clone, Copy)]
pub(super) struct Fields<'n>(&'n [(Arc<Node>, Arc<Node>)]);

impl<'n> Fields<'n> {
    /// Where a field's key stands, and its value; also when that is null.
    pub(super) fn written(self, name: &str) -> Option<(At, &'n Node)> {
        let (key, value) = self.0.iter().find(|(key, _)| key.text() == Some(name))?;
        Some((key.at, value))
    }

    /// Where a field's key stands, and its value.
    pub(super) fn field(self, name: &str) -> Option<(At, &'n Node)> {
        self.written(name).filter(|(_, value)| !value.is_null())
    }

    /// Where a field's key stands, if it says yes; reports nothing.
    pub(super) fn yes(self, name: &str) -> Option<At> {
        let (at, node) = self.field(name)?;
        let is_plain = matches!(node.value, Value::Text { how: How::Plain, .. });
        (is_plain && node.text().and_then(boolean) == Some(true)).then_some(at)
    }
}

impl Reader {
    pub(super) fn new(source: Arc<Source>) -> Self {
        Self { source, problems: Vec::new(), errors: 0 }
    }

    pub(super) fn error(&mut self, at: At, message: impl Into<String>, remedy: Option<String>) {
        self.errors += 1;
        self.problems.push(self.source.diagnostic(at, Severity::Error, message, remedy));
    }

    pub(super) fn warn(&mut self, at: At, message: impl Into<String>, remedy: Option<String>) {
        self.problems.push(self.source.diagnostic(at, Severity::Warning, message, remedy));
    }

    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// The fields of a block whose keys were checked; `None` when it is no block, which the
    /// caller reports.
    pub(super) fn fields<'n>(&mut self, node: &'n Node, block: &Block) -> Option<Fields<'n>> {
        let Value::Map(pairs) = &node.value else { return None };
        for (key, _) in pairs {
            let name = key.text().unwrap_or_default();
            if !block.keys.contains(&name) {
                self.unknown_key(name, key.at, block);
            }
        }
        Some(Fields(pairs))
    }

    fn unknown_key(&mut self, name: &str, at: At, block: &Block) {
        let home = [&ROOT, &DESCRIPTOR, &RATE_LIMIT, &IDENTITY]
            .into_iter()
            .find(|other| other.keys.contains(&name));
        if let Some(home) = home {
            let message = format!("\"{name}\" has no effect in {}", block.name);
            let remedy = Some(format!("it belongs to {}", home.name));
            if ACCEPTED_ANYWHERE.contains(&name) {
                return self.warn(at, message, remedy);
            }
            return self.error(at, message, remedy);
        }
        let mut message = format!("unknown key \"{name}\" in {}", block.name);
        let meant = did_you_mean(name, block.keys.iter().copied());
        if meant.is_some_and(|meant| meant.eq_ignore_ascii_case(name)) {
            message.push_str(": keys are lower-case");
        }
        let remedy = match meant {
            Some(meant) if meant == "rate_limit" => {
                Some(format!("did you mean \"{meant}\"?{}", block.warning.replacen("; w", " W", 1)))
            }
            Some(meant) => Some(format!("did you mean \"{meant}\"?")),
            None => Some(format!("known keys are {}", block.keys.join(", "))),
        };
        self.error(at, message, remedy);
    }

    /// A text as it was written, whatever YAML would make of it. `None`: absent, or reported.
    pub(super) fn text<'n>(&mut self, fields: Fields<'n>, name: &str) -> Option<(At, &'n str)> {
        let (_, node) = fields.field(name)?;
        match &node.value {
            Value::Text { text, .. } => Some((node.at, text)),
            Value::Bad => None,
            _ => {
                self.error(node.at, format!("{name} must be a text, got {}", shape(node)), None);
                None
            }
        }
    }

    /// Yes or no, in any of the words of YAML 1.1; absent is no.
    pub(super) fn flag(&mut self, fields: Fields<'_>, name: &str) -> Option<At> {
        let (at, node) = fields.field(name)?;
        if let Value::Text { text, how: How::Plain } = &node.value {
            match boolean(text) {
                Some(true) => return Some(at),
                Some(false) => return None,
                None => {}
            }
        }
        if !matches!(node.value, Value::Bad) {
            let message = format!("{name} must be true or false, got {}", shape(node));
            self.error(node.at, message, quotes(node));
        }
        None
    }

    /// A whole number from 0 to `most`. `None`: absent, or reported.
    pub(super) fn number(
        &mut self,
        fields: Fields<'_>,
        name: &str,
        most: u64,
    ) -> Option<(At, u64)> {
        let (_, node) = fields.field(name)?;
        let (message, remedy) = match &node.value {
            Value::Bad => return None,
            Value::Text { text, how: How::Plain } => match whole_number(text) {
                Ok(number) if number <= u128::from(most) => {
                    self.warn_octal(node.at, text, number);
                    return Some((node.at, u64::try_from(number).unwrap_or(most)));
                }
                Ok(_) => (
                    format!("{name} {text} is above the maximum {most}"),
                    Some("use unlimited: true for no limit".to_owned()),
                ),
                Err(Odd::Negative) => (
                    format!("{name} {text} is negative"),
                    Some("use 0 to block everything, unlimited: true for no limit".to_owned()),
                ),
                Err(Odd::Fraction) => (
                    format!("{name} {text} is not a whole number"),
                    Some("use a longer unit, such as 30 per minute".to_owned()),
                ),
                Err(Odd::Word) => (
                    format!("{name} must be a whole number from 0 to {most}, got {}", shape(node)),
                    None,
                ),
            },
            _ => (
                format!("{name} must be a whole number from 0 to {most}, got {}", shape(node)),
                quotes(node),
            ),
        };
        self.error(node.at, message, remedy);
        None
    }

    fn warn_octal(&mut self, at: At, text: &str, number: u128) {
        let digits = text.trim_start_matches('+');
        if digits.len() > 1 && digits.starts_with('0') {
            let remedy = Some(format!("write {number} if that is meant"));
            self.warn(at, format!("{text} is read as {number}"), remedy);
        }
    }
}

/// What a node is, as a message names it.
pub(super) fn shape(node: &Node) -> String {
    match &node.value {
        Value::Text { how: How::Omitted, .. } => "nothing".to_owned(),
        Value::Text { text, how: How::Plain } => format!("the text \"{text}\""),
        Value::Text { text, .. } => format!("the string \"{text}\""),
        Value::List(items) => format!("a list of {}", items.len()),
        Value::Map(_) => "a block".to_owned(),
        Value::Bad => "something broken".to_owned(),
    }
}

/// True and false in the words of YAML 1.1, as the Go parser reads them.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Some(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Some(false)
        }
        _ => None,
    }
}

fn quotes(node: &Node) -> Option<String> {
    let quoted = matches!(node.value, Value::Text { how: How::Quoted, .. });
    quoted.then(|| "remove the quotes".to_owned())
}

/// Why a text is not a whole number.
enum Odd {
    Negative,
    Fraction,
    Word,
}

/// Decimal, `0x`, `0o`, `0b` and octal `0…` numbers, with `_` between digits, as YAML 1.1 has them.
fn whole_number(text: &str) -> Result<u128, Odd> {
    let digits = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    let radix = [("0x", 16), ("0o", 8), ("0b", 2)];
    let (digits, radix) = radix
        .into_iter()
        .find_map(|(prefix, radix)| Some((digits.strip_prefix(prefix)?, radix)))
        .or_else(|| Some((digits.strip_prefix('0').filter(|rest| !rest.is_empty())?, 8)))
        .unwrap_or((&digits, 10));
    if digits.starts_with(|symbol: char| symbol.is_ascii_alphanumeric())
        && let Ok(number) = u128::from_str_radix(digits, radix)
    {
        return Ok(number);
    }
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    if !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        // Too long for any type counts as above the maximum.
        return if unsigned.len() < text.len() { Err(Odd::Negative) } else { Ok(u128::MAX) };
    }
    if text.starts_with(|symbol: char| symbol.is_ascii_digit() || "+-.".contains(symbol))
        && text.parse::<f64>().is_ok()
    {
        return Err(Odd::Fraction);
    }
    Err(Odd::Word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_yaml_1_1_writes_them() {
        for (text, number) in [
            ("0", 0),
            ("5", 5),
            ("1_000", 1000),
            ("0x10", 16),
            ("010", 8),
            ("0o17", 15),
            ("0b101", 5),
            ("+7", 7),
            ("4294967295", 4_294_967_295),
        ] {
            assert_eq!(whole_number(text).ok(), Some(number), "{text}");
        }
        for text in ["", "-", "1k", "0x", "1e3", "1.5", "-5", "1000/min", "0b", "++1", "0.5", "nan"]
        {
            assert!(whole_number(text).is_err(), "{text}");
        }
        assert_eq!(whole_number(&"9".repeat(99)).ok(), Some(u128::MAX));
    }
}
