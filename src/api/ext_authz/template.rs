//! Templates of paths, such as `/users/{id}/orders/**`: a path becomes the template that it
//! matches, or one part of it, so that the counters do not grow with the paths. Pure.

use serde::{Deserialize, Serialize};

/// Templates, the first that matches counts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct AnyTemplate {
    templates: Vec<Template>,
    /// The part to take; `None`: the text of the template.
    capture: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    any_of: Vec<String>,
    #[serde(default)]
    capture: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Template {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// This text.
    Literal(Vec<u8>),
    /// Any one segment.
    Any,
    /// Any one segment, under a name.
    Named(String),
    /// Whatever follows, also nothing.
    Rest,
}

impl AnyTemplate {
    /// The value of a path, given as its segments.
    pub(super) fn value<'a>(&'a self, path: &[&'a [u8]]) -> Option<&'a [u8]> {
        let template = self.templates.iter().find(|template| template.matches(path))?;
        let Some(name) = &self.capture else { return Some(template.text.as_bytes()) };
        path.get(template.position(name)?).copied()
    }

    /// Whether a template has capital letters, which no path in lower case has.
    pub(super) fn has_capitals(&self) -> bool {
        let is_capital = |segment: &Segment| match segment {
            Segment::Literal(text) => text.iter().any(u8::is_ascii_uppercase),
            Segment::Any | Segment::Named(_) | Segment::Rest => false,
        };
        self.templates.iter().flat_map(|template| &template.segments).any(is_capital)
    }
}

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("path_template: \"{text}\": {why}"));
        let Some(rest) = text.strip_prefix('/') else {
            return wrong("a template starts with /, such as /users/{id}");
        };
        let mut segments = Vec::new();
        for part in rest.split('/').filter(|part| !part.is_empty()) {
            let inner = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            let segment = match (part, inner) {
                ("*", _) => Segment::Any,
                ("**", _) => Segment::Rest,
                (_, Some(name)) if is_name(name) => Segment::Named(name.to_owned()),
                _ if part.contains(['{', '}', '*', '?', '#']) => {
                    return wrong(
                        "a segment is a text, {name}, * (any one) or ** (the rest); it is wholly one of them",
                    );
                }
                _ => Segment::Literal(part.as_bytes().to_vec()),
            };
            if segments.last() == Some(&Segment::Rest) {
                return wrong("** can only be the last segment");
            }
            segments.push(segment);
        }
        Ok(Self { text: text.to_owned(), segments })
    }

    fn matches(&self, path: &[&[u8]]) -> bool {
        let has_rest = self.segments.last() == Some(&Segment::Rest);
        let fixed = self.segments.len() - usize::from(has_rest);
        let fits = if has_rest { path.len() >= fixed } else { path.len() == fixed };
        let same = |(segment, part): (&Segment, &&[u8])| match segment {
            Segment::Literal(text) => text == part,
            Segment::Any | Segment::Named(_) | Segment::Rest => true,
        };
        fits && self.segments.iter().zip(path).all(same)
    }

    fn position(&self, wanted: &str) -> Option<usize> {
        let is_wanted =
            |segment: &Segment| matches!(segment, Segment::Named(name) if name == wanted);
        self.segments.iter().position(is_wanted)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl TryFrom<Raw> for AnyTemplate {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let templates = raw.any_of.iter().map(|text| Template::parse(text));
        let templates = templates.collect::<Result<Vec<_>, _>>()?;
        if templates.is_empty() {
            return Err("path_template: any_of: write at least one, such as /users/{id}".into());
        }
        if let Some(name) = &raw.capture
            && let Some(without) =
                templates.iter().find(|template| template.position(name).is_none())
        {
            let text = &without.text;
            return Err(format!("path_template: capture: \"{text}\" has no {{{name}}}"));
        }
        Ok(Self { templates, capture: raw.capture })
    }
}

impl From<AnyTemplate> for Raw {
    fn from(templates: AnyTemplate) -> Self {
        let any_of = templates.templates.into_iter().map(|template| template.text).collect();
        Self { any_of, capture: templates.capture }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any_of(texts: &[&str], capture: Option<&str>) -> Result<AnyTemplate, String> {
        let any_of = texts.iter().map(|&text| text.to_owned()).collect();
        Raw { any_of, capture: capture.map(str::to_owned) }.try_into()
    }

    #[test]
    fn the_first_that_matches() {
        let texts = ["/", "/users/{id}", "/users/{id}/orders/*", "/static/**"];
        let templates = any_of(&texts, None).unwrap();
        let table: [(&[&[u8]], Option<&str>); 9] = [
            (&[], Some("/")),
            (&[b"users"], None),
            (&[b"users", b"7"], Some("/users/{id}")),
            (&[b"users", b"\xff"], Some("/users/{id}")),
            (&[b"Users", b"7"], None),
            (&[b"users", b"7", b"orders"], None),
            (&[b"users", b"7", b"orders", b"8"], Some("/users/{id}/orders/*")),
            (&[b"static"], Some("/static/**")),
            (&[b"static", b"a", b"b"], Some("/static/**")),
        ];
        for (path, expected) in table {
            assert_eq!(templates.value(path), expected.map(str::as_bytes), "{path:?}");
        }
    }

    #[test]
    fn a_part_is_captured() {
        let templates = any_of(&["/users/{id}", "/v2/users/{id}/**"], Some("id")).unwrap();
        assert_eq!(templates.value(&[b"users", b"7"]), Some(b"7".as_slice()));
        assert_eq!(templates.value(&[b"v2", b"users", b"8", b"x"]), Some(b"8".as_slice()));
        assert_eq!(templates.value(&[b"v3"]), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let table: [(&[&str], Option<&str>, &str); 6] = [
            (&[], None, "at least one"),
            (&["users"], None, "starts with /"),
            (&["/a{id}"], None, "wholly one of them"),
            (&["/{}"], None, "wholly one of them"),
            (&["/**/a"], None, "only be the last"),
            (&["/{id}", "/a/{name}"], Some("id"), "\"/a/{name}\" has no {id}"),
        ];
        for (texts, capture, expected) in table {
            let error = any_of(texts, capture).unwrap_err();
            assert!(error.starts_with("path_template: ") && error.contains(expected), "{error}");
        }
    }
}
