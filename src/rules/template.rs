//! `identity` templates: `"{api_key}"` over the entries that a rule matches. Braces that are
//! meant literally are doubled.

use super::diagnostic::did_you_mean;

/// Whose quota a rule asks for, in the words of `CheckQuota`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub api_key: Template,
    pub user_id: Template,
}

/// Text with places for entry values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    /// The value of the entry at this level, outermost 0.
    Value(usize),
}

impl Template {
    /// `keys`: those of the rule's path, outermost first. A key that stands in it twice means
    /// its innermost entry.
    ///
    /// # Errors
    /// What is wrong, and what to do about it.
    pub(super) fn parse(text: &str, keys: &[&str]) -> Result<Self, (String, String)> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(index) = rest.find(['{', '}']) {
            literal.push_str(&rest[..index]);
            let brace = &rest[index..=index];
            rest = &rest[index + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            let end = rest.find('}').filter(|_| brace == "{");
            let Some(end) = end else {
                let message = format!("\"{text}\" has a \"{brace}\" without its other half");
                return Err((message, format!("a literal brace is doubled: \"{brace}{brace}\"")));
            };
            let name = &rest[..end];
            rest = &rest[end + 1..];
            let Some(level) = keys.iter().rposition(|key| *key == name) else {
                let message = format!("\"{{{name}}}\" names no entry that this rule matches");
                let remedy = match did_you_mean(name, keys.iter().copied()) {
                    Some(meant) => format!("did you mean \"{{{meant}}}\"?"),
                    None => format!("the entries are {}", keys.join(", ")),
                };
                return Err((message, remedy));
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(Part::Value(level));
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self(parts))
    }

    /// The text for these values, outermost first.
    pub(super) fn fill<V: AsRef<[u8]>>(&self, values: &[V]) -> Vec<u8> {
        let mut filled = Vec::with_capacity(32);
        for part in &self.0 {
            match part {
                Part::Literal(text) => filled.extend_from_slice(text.as_bytes()),
                Part::Value(level) => {
                    filled.extend_from_slice(values.get(*level).map_or(&[], AsRef::as_ref));
                }
            }
        }
        filled
    }

    /// The levels whose values it uses.
    pub(super) fn levels(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().filter_map(|part| match part {
            Part::Value(level) => Some(*level),
            Part::Literal(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates() {
        let keys = ["api_key", "user_id", "api_key"];
        let fill = |text: &str| {
            let filled =
                Template::parse(text, &keys).map(|template| template.fill(&["a", "b", "c"]));
            filled.map(|bytes| String::from_utf8(bytes).unwrap()).map_err(|(message, _)| message)
        };
        assert_eq!(fill("{user_id}").as_deref(), Ok("b"));
        assert_eq!(fill("x-{api_key}/{user_id}-y").as_deref(), Ok("x-c/b-y"));
        assert_eq!(fill("{{user_id}}").as_deref(), Ok("{user_id}"));
        assert_eq!(fill("{{{user_id}}}").as_deref(), Ok("{b}"));
        assert_eq!(fill("plain").as_deref(), Ok("plain"));
        assert_eq!(fill("").as_deref(), Ok(""));
        assert!(fill("{user}").unwrap_err().contains("names no entry"));
        for broken in ["{", "}", "{user_id", "a}b", "é{"] {
            assert!(fill(broken).unwrap_err().contains("other half"), "{broken}");
        }
        let (_, remedy) = Template::parse("{userid}", &keys).unwrap_err();
        assert_eq!(remedy, "did you mean \"{user_id}\"?");
    }
}
