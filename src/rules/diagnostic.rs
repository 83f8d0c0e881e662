//! What is wrong with a rules file, where, and what to do about it.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// The text of one rules file, and where its lines start.
pub struct Source {
    name: Arc<str>,
    text: String,
    line_starts: Vec<usize>,
}

/// Whether something keeps rules from being loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The domain is not loaded.
    Error,
    /// The domain is loaded, but probably not meant like this.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// As the file was named.
    #[serde(serialize_with = "as_text")]
    pub file: Arc<str>,
    /// Counted from 1; 0 when it is about the file as a whole.
    pub line: usize,
    /// In characters, counted from 1; 0 when it is about the file as a whole.
    pub column: usize,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// The line it is about.
    pub snippet: String,
    /// How many characters of that line it is about.
    pub width: usize,
    /// What to do about it.
    pub remedy: Option<String>,
    /// What it led to: which rules are in use instead.
    pub consequence: Option<String>,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Counted from 1.
    pub line: u32,
    /// In characters, counted from 1.
    pub column: u32,
    /// In characters, at least 1.
    pub width: u32,
}

/// The longest line that is shown whole.
const MAX_SNIPPET_CHARS: usize = 160;

impl Source {
    /// A file's text under its name. A byte-order mark is dropped.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_starts = std::iter::once(0).chain(ends.map(|(index, _)| index + 1)).collect();
        Self { name: name.into(), text, line_starts }
    }

    /// How the file was named.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Everything in it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A line without its end, counted from 1; empty where there is none.
    pub fn line(&self, line: usize) -> &str {
        let start = line.checked_sub(1).and_then(|index| self.line_starts.get(index));
        let rest = start.and_then(|start| self.text.get(*start..)).unwrap_or_default();
        rest.split('\n').next().unwrap_or_default().trim_end_matches('\r')
    }

    /// Something wrong at a place of this file.
    pub fn diagnostic(
        &self,
        at: At,
        severity: Severity,
        message: impl Into<String>,
        remedy: Option<String>,
    ) -> Diagnostic {
        let line = at.line as usize;
        let snippet = self.line(line).chars().take(MAX_SNIPPET_CHARS).collect();
        Diagnostic {
            file: Arc::clone(&self.name),
            line,
            column: at.column as usize,
            severity,
            message: message.into(),
            snippet,
            width: (at.width as usize).max(1),
            remedy,
            consequence: None,
        }
    }
}

impl Diagnostic {
    /// Something wrong with a file as a whole.
    pub fn of_file(file: &str, severity: Severity, message: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line: 0,
            column: 0,
            severity,
            message: message.into(),
            snippet: String::new(),
            width: 1,
            remedy: None,
            consequence: None,
        }
    }

    /// Whether it keeps rules from being loaded.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// `file:line:column`, as far as known.
    pub fn place(&self) -> String {
        let Self { file, line, column, .. } = self;
        if *line == 0 { file.to_string() } else { format!("{file}:{line}:{column}") }
    }
}

/// `file:line:column: message`, then the line with a caret below, then the remedy.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let warning = if self.is_error() { "" } else { "warning: " };
        write!(f, "{}: {warning}{}", self.place(), self.message)?;
        if self.line > 0 && self.column > 0 {
            let number = self.line.to_string();
            let margin = " ".repeat(number.len());
            // A tab stays a tab, or the caret would stand elsewhere.
            let blank = |symbol: char| if symbol == '\t' { '\t' } else { ' ' };
            let lead: String = self.snippet.chars().take(self.column - 1).map(blank).collect();
            let shown = self.snippet.chars().count();
            if lead.chars().count() == self.column - 1 {
                let room = shown.saturating_sub(self.column - 1).max(1);
                let carets = "^".repeat(self.width.min(room));
                write!(f, "\n {number} | {}\n {margin} | {lead}{carets}", self.snippet)?;
            } else {
                write!(f, "\n {number} | {}...", self.snippet)?;
            }
        }
        for note in self.remedy.iter().chain(&self.consequence) {
            write!(f, "\n   = {note}")?;
        }
        Ok(())
    }
}

/// The known word that was probably meant.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long words cost the square of their length, and are never a slip of the finger.
    if word.len() > 64 {
        return None;
    }
    let plain = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    let wanted = plain(word);
    let slips = |candidate: &&str| strsim::osa_distance(&wanted, &plain(candidate));
    let allowed = if wanted.chars().count() < 4 { 1 } else { 2 };
    let near = known.into_iter().filter(|candidate| candidate.len() <= 64);
    let (slips, best) = near.map(|known| (slips(&known), known)).min_by_key(|(slips, _)| *slips)?;
    (slips <= allowed && slips < wanted.chars().count()).then_some(best)
}

fn as_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_shows_the_line_and_a_caret() {
        let source = Source::new("edge.yaml", "\u{feff}domain: a\r\n\tunit: minutes\r\n");
        let at = At { line: 2, column: 8, width: 7 };
        let remedy = Some("did you mean \"minute\"?".to_owned());
        let shown = source.diagnostic(at, Severity::Error, "bad unit", remedy).to_string();
        assert_eq!(
            shown,
            "edge.yaml:2:8: bad unit\n 2 | \tunit: minutes\n   | \t      ^^^^^^^\n   = did you mean \"minute\"?"
        );
        let far = At { line: 900, column: 4, width: 1 };
        let shown = source.diagnostic(far, Severity::Warning, "odd", None).to_string();
        assert!(shown.starts_with("edge.yaml:900:4: warning: odd"), "{shown}");
    }

    #[test]
    fn slips_of_the_finger_are_recognized() {
        let known = ["rate_limit", "requests_per_unit", "unit", "value", "key"];
        for (word, meant) in [
            ("ratelimit", Some("rate_limit")),
            ("rateLimit", Some("rate_limit")),
            ("Value", Some("value")),
            ("requestsPerUnit", Some("requests_per_unit")),
            ("units", Some("unit")),
            ("always_apply", None),
            ("weight", None),
            ("", None),
        ] {
            assert_eq!(did_you_mean(word, known), meant, "{word}");
        }
    }
}
