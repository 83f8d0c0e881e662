//! YAML text as a tree that remembers where everything stands, with all its errors at once.
//! Scalars stay the text that was written: `NO`, `1.10` and `0123` mean what they look like.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use ahash::AHashMap;
use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle};

use super::diagnostic::{At, Source};
use super::syntax;

/// Nodes that aliases may add to a file: more is a bomb, not a shorthand.
const MAX_ALIASED_NODES: usize = 1_000_000;

/// Levels of blocks within blocks, aliases included. A descriptor takes two of them.
const MAX_DEPTH: usize = 128;

/// One value, and where it starts.
pub(super) struct Node {
    pub at: At,
    pub value: Value,
    /// Nodes in it, itself included, with every alias written out.
    size: usize,
    /// Levels in it, itself included.
    depth: usize,
}

/// What a node holds.
pub(super) enum Value {
    Text {
        text: Box<str>,
        how: How,
    },
    List(Vec<Arc<Node>>),
    /// In order; keys are text, and each is there once.
    Map(Vec<(Arc<Node>, Arc<Node>)>),
    /// It was reported already.
    Bad,
}

/// How a scalar was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Plain,
    Quoted,
    /// Nothing was written: `value:`.
    Omitted,
}

/// Something that is not YAML, or not the YAML that rules are written in.
pub(super) struct Fault {
    pub at: At,
    pub message: String,
    pub remedy: Option<String>,
}

impl Fault {
    pub(super) fn new(at: At, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), remedy: None }
    }
}

impl Node {
    /// The text as it was written; `None` for anything but a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Whether it stands for no value: omitted, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Text { how: How::Omitted, .. } => true,
            Value::Text { text, how: How::Plain } => {
                matches!(&**text, "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }
}

/// The documents of a file, and everything that is wrong with its YAML. A document with a fault
/// is missing, or has a `Bad` node in it.
pub(super) fn parse(source: &Source) -> (Vec<Arc<Node>>, Vec<Fault>) {
    let options = granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut parser = Parser::new_from_str_with_options(source.text(), options);
    let mut tree = Tree::new(source);
    loop {
        match parser.next_event() {
            None => break,
            Some(Ok((event, span))) => tree.take(event, &span),
            Some(Err(error)) => {
                tree.faults.push(syntax::explain(&error, source));
                tree.open.clear();
                if !matches!(parser.proceed_next_document(), Ok(true)) {
                    break;
                }
            }
        }
    }
    (tree.documents, tree.faults)
}

/// A block whose end was not reached yet.
struct Open {
    at: At,
    anchor: usize,
    is_map: bool,
    /// Text of a template that nobody rendered.
    is_template: bool,
    /// The items of a list; keys and values of a map, in turn.
    items: Vec<Arc<Node>>,
}

struct Tree<'a> {
    source: &'a Source,
    open: Vec<Open>,
    anchors: AHashMap<usize, Arc<Node>>,
    aliased: usize,
    documents: Vec<Arc<Node>>,
    faults: Vec<Fault>,
}

impl<'a> Tree<'a> {
    fn new(source: &'a Source) -> Self {
        Self {
            source,
            open: Vec::new(),
            anchors: AHashMap::new(),
            aliased: 0,
            documents: Vec::new(),
            faults: Vec::new(),
        }
    }

    fn take(&mut self, event: Event<'_>, span: &Span) {
        let at = place(span);
        match event {
            Event::DocumentStart(..) => {
                self.open.clear();
                self.anchors.clear();
            }
            Event::Scalar(text, style, anchor, tag) => {
                let omitted = span.is_empty() && tag.is_none() && style == ScalarStyle::Plain;
                let how = match style {
                    _ if omitted => How::Omitted,
                    ScalarStyle::Plain => How::Plain,
                    _ => How::Quoted,
                };
                let text = if omitted { "".into() } else { text.into() };
                self.add(leaf(at, Value::Text { text, how }), anchor);
            }
            Event::SequenceStart(_, anchor, _) => {
                let (is_map, is_template, items) = (false, false, Vec::new());
                self.open.push(Open { at, anchor, is_map, is_template, items });
            }
            Event::MappingStart(style, anchor, _) => {
                let start = span.start.byte_offset().unwrap_or_default();
                let is_template = style == StructureStyle::Flow
                    && self.source.text().get(start..).is_some_and(|rest| rest.starts_with("{{"));
                self.open.push(Open { at, anchor, is_map: true, is_template, items: Vec::new() });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    let anchor = open.anchor;
                    let node = self.close(open);
                    self.add(node, anchor);
                }
            }
            Event::Alias(anchor) => {
                let node = self.alias(anchor, at);
                self.add(node, 0);
            }
            Event::UnresolvedAlias(name) => {
                let message = format!("alias \"*{name}\" has no anchor \"&{name}\" before it");
                self.faults.push(Fault::new(at, message));
                self.add(leaf(at, Value::Bad), 0);
            }
            _ => {}
        }
    }

    fn alias(&mut self, anchor: usize, at: At) -> Arc<Node> {
        let Some(node) = self.anchors.get(&anchor) else {
            self.faults.push(Fault::new(at, "an alias stands within what it repeats"));
            return leaf(at, Value::Bad);
        };
        self.aliased = self.aliased.saturating_add(node.size);
        if self.aliased <= MAX_ALIASED_NODES {
            return Arc::clone(node);
        }
        if self.aliased - node.size <= MAX_ALIASED_NODES {
            let message =
                format!("aliases would repeat more than {MAX_ALIASED_NODES} values in this file");
            self.faults.push(Fault::new(at, message));
        }
        // It stays above the bound, so the bomb is reported once.
        self.aliased = self.aliased.max(MAX_ALIASED_NODES * 2);
        leaf(at, Value::Bad)
    }

    /// A node whose text is complete goes where it belongs.
    fn add(&mut self, node: Arc<Node>, anchor: usize) {
        let depth = self.open.len() + node.depth;
        let node = if depth > MAX_DEPTH && node.depth > 1 {
            let message = format!("blocks are nested more than {MAX_DEPTH} levels deep");
            self.faults.push(Fault::new(node.at, message));
            leaf(node.at, Value::Bad)
        } else {
            node
        };
        if anchor > 0 {
            self.anchors.insert(anchor, Arc::clone(&node));
        }
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.documents.push(node),
        }
    }

    fn close(&mut self, open: Open) -> Arc<Node> {
        let Open { at, is_map, is_template, items, .. } = open;
        if is_template {
            let remedy = Some("render the template (the chart) before loading it".to_owned());
            let message = "found template text \"{{ ... }}\" that was not rendered".to_owned();
            self.faults.push(Fault { at, message, remedy });
            return leaf(at, Value::Bad);
        }
        let size = items.iter().fold(1, |sum: usize, item| sum.saturating_add(item.size));
        let depth = 1 + items.iter().map(|item| item.depth).max().unwrap_or_default();
        let value = if is_map { self.map(items) } else { Value::List(items) };
        Arc::new(Node { at, value, size, depth })
    }

    /// Pairs keys with values, refuses what stands twice, and applies merge keys (`<<`).
    fn map(&mut self, items: Vec<Arc<Node>>) -> Value {
        let mut pairs: Vec<(Arc<Node>, Arc<Node>)> = Vec::with_capacity(items.len() / 2);
        let mut merged = Vec::new();
        let mut seen: AHashMap<Box<str>, u32> = AHashMap::with_capacity(items.len() / 2);
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            let (text, plain) = match &key.value {
                Value::Text { text, how } => (text.clone(), *how == How::Plain),
                Value::Bad => continue,
                _ => {
                    self.faults.push(Fault::new(key.at, "a key must be a word, not a block"));
                    continue;
                }
            };
            if plain && &*text == "<<" {
                merged.push(value);
                continue;
            }
            match seen.entry(text) {
                Entry::Occupied(first) => {
                    let message = format!(
                        "key \"{}\" appears twice in this block (first at line {})",
                        first.key(),
                        first.get()
                    );
                    let remedy = "one block holds each key once; keep one of them".to_owned();
                    self.faults.push(Fault { at: key.at, message, remedy: Some(remedy) });
                }
                Entry::Vacant(first) => {
                    first.insert(key.at.line);
                    pairs.push((key, value));
                }
            }
        }
        for value in merged {
            self.merge(&value, &mut seen, &mut pairs);
        }
        Value::Map(pairs)
    }

    /// Keys of the map itself win over merged ones, earlier merged ones over later ones.
    fn merge(
        &mut self,
        value: &Node,
        seen: &mut AHashMap<Box<str>, u32>,
        pairs: &mut Vec<(Arc<Node>, Arc<Node>)>,
    ) {
        match &value.value {
            Value::Map(more) => {
                for (key, value) in more {
                    let text = key.text().unwrap_or_default();
                    if !seen.contains_key(text) {
                        seen.insert(text.into(), key.at.line);
                        pairs.push((Arc::clone(key), Arc::clone(value)));
                    }
                }
            }
            Value::List(values) => {
                for value in values.iter().filter(|value| !matches!(value.value, Value::List(_))) {
                    self.merge(value, seen, pairs);
                }
            }
            Value::Bad => {}
            Value::Text { .. } => {
                self.faults.push(Fault::new(value.at, "\"<<\" needs a block, or a list of blocks"));
            }
        }
    }
}

fn leaf(at: At, value: Value) -> Arc<Node> {
    Arc::new(Node { at, value, size: 1, depth: 1 })
}

fn place(span: &Span) -> At {
    let same_line = span.start.line() == span.end.line();
    let width = if same_line { span.end.col().saturating_sub(span.start.col()).max(1) } else { 1 };
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    At {
        line: number(span.start.line()),
        column: number(span.start.col().saturating_add(1)),
        width: number(width),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn bombs_are_refused() {
        let mut bomb = "domain: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let previous = format!("*a{}, ", level - 1).repeat(9);
            let _ = writeln!(bomb, "b{level}: &a{level} [{previous}]");
        }
        let deep = format!("domain: {}", "[".repeat(100_000));
        let deep_aliases: String = (0..500).fold("a0: &a0 [x]\n".to_owned(), |mut text, level| {
            let _ = writeln!(text, "a{}: &a{} [*a{level}]", level + 1, level + 1);
            text
        });
        for (text, expected) in [
            (&*bomb, "aliases would repeat more than"),
            (&deep, ""),
            (&deep_aliases, "nested more than"),
            ("a: &a [*a]", "within what it repeats"),
        ] {
            let problems = parse(&Source::new("test", text)).1;
            let found = problems.iter().any(|problem| problem.message.contains(expected));
            assert!(found, "{expected}: {:?}", problems.first().map(|problem| &problem.message));
        }
    }

    #[test]
    fn merge_keys_give_what_the_block_itself_does_not() {
        let text = "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\nuse: {<<: [*base, *other], a: 5}\n";
        let (documents, faults) = parse(&Source::new("test", text));
        assert!(faults.is_empty());
        let value = super::super::metadata::value(&documents[0]);
        assert_eq!(value["use"].to_string(), r#"{"a":5,"b":2,"c":4}"#);
    }

    #[test]
    fn documents_after_a_broken_one_are_read() {
        let (documents, faults) = parse(&Source::new("test", "a: 1\n---\n[\n---\nb: 2\n"));
        assert_eq!((documents.len(), faults.len()), (2, 1));
    }
}
