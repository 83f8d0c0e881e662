//! What a YAML error probably means to the person who wrote the file.

use granit_parser::ScanError;

use super::diagnostic::{At, Source};
use super::yaml::Fault;

/// The parser's error, in the writer's terms where they can be guessed.
pub(super) fn explain(error: &ScanError, source: &Source) -> Fault {
    let number = error.marker().line();
    let near = number.saturating_sub(1).max(1)..=number;
    for line in near.clone() {
        if let Some(fault) = tab(source, line) {
            return fault;
        }
    }
    for line in near.clone() {
        if let Some(fault) = template(source, line) {
            return fault;
        }
    }
    for line in near {
        if let Some(fault) = uneven(source, line) {
            return fault;
        }
    }
    let column = u32::try_from(error.marker().col()).unwrap_or(u32::MAX).saturating_add(1);
    let at = At { line: u32::try_from(number).unwrap_or(u32::MAX), column, width: 1 };
    let mut message = error.info();
    if message.is_empty() {
        "this is not YAML".clone_into(&mut message);
    }
    Fault::new(at, message)
}

fn tab(source: &Source, line: usize) -> Option<Fault> {
    let text = source.line(line);
    let indent = &text[..text.len() - text.trim_start().len()];
    let column = indent.find('\t')?;
    let at =
        At { line: u32::try_from(line).ok()?, column: u32::try_from(column).ok()? + 1, width: 1 };
    let remedy = Some("replace the tab by spaces".to_owned());
    let message = "a tab is used for indentation; YAML allows only spaces here".to_owned();
    Some(Fault { at, message, remedy })
}

fn template(source: &Source, line: usize) -> Option<Fault> {
    let text = source.line(line);
    let start = text.find("{{").or_else(|| text.find("{%"))?;
    let column = u32::try_from(text[..start].chars().count()).ok()? + 1;
    let at = At { line: u32::try_from(line).ok()?, column, width: 2 };
    let remedy = Some("render the template (the chart) before loading it".to_owned());
    let message = "found template text \"{{ ... }}\" that was not rendered".to_owned();
    Some(Fault { at, message, remedy })
}

/// A key that stands deeper than the key above it, which has a value of its own already.
fn uneven(source: &Source, line: usize) -> Option<Fault> {
    let (indent, key, _) = key_of(source.line(line))?;
    let above = (1..line).rev().find(|&line| {
        let text = source.line(line).trim_start();
        !text.is_empty() && !text.starts_with('#')
    })?;
    let (above_indent, above_key, above_value) = key_of(source.line(above))?;
    if above_value.is_empty() || indent == above_indent {
        return None;
    }
    let (width, column) =
        (u32::try_from(key.chars().count()).ok()?, u32::try_from(indent).ok()? + 1);
    let at = At { line: u32::try_from(line).ok()?, column, width };
    let deeper = if indent > above_indent { "deeper" } else { "less" };
    let message =
        format!("\"{key}\" is indented {deeper} than its sibling \"{above_key}\" (line {above})");
    Some(Fault { at, message, remedy: Some(format!("align it under \"{above_key}\"")) })
}

/// The column, key and value of a line such as `  - key: value`.
fn key_of(line: &str) -> Option<(usize, &str, &str)> {
    let mut rest = line.trim_start();
    while let Some(item) = rest.strip_prefix("- ") {
        rest = item.trim_start();
    }
    let (key, value) = rest.split_once(':')?;
    let is_word = |symbol: char| symbol.is_ascii_alphanumeric() || symbol == '_' || symbol == '-';
    if key.is_empty() || !key.chars().all(is_word) {
        return None;
    }
    Some((line.len() - rest.len(), key, value.trim()))
}
