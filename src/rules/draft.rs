//! Rules as one file states them: checked, but not yet put together with those of other files.

use std::sync::Arc;

use super::Charge;
use super::diagnostic::{At, Diagnostic, Severity, Source};
use super::template::Identity;
use crate::check::OnStoreError;
use crate::quota::{Limit, Mode};

/// Where something was written.
#[derive(Clone)]
pub(super) struct Place {
    pub source: Arc<Source>,
    pub at: At,
}

/// One document: rules for one domain.
pub(super) struct Draft {
    pub domain: Box<str>,
    pub place: Place,
    pub charge: Option<(Charge, Place)>,
    pub entries: Vec<EntryDraft>,
    /// Something in it is an error: none of it may be used.
    pub is_broken: bool,
}

/// One descriptor of a rules file.
pub(super) struct EntryDraft {
    pub key: Box<str>,
    /// `None`: any value.
    pub value: Option<Box<str>>,
    pub place: Place,
    pub own: Own,
    pub children: Vec<Self>,
}

/// What a descriptor says about itself, other than its key, value and children.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Own {
    pub limit: Option<LimitDraft>,
    pub mode: Mode,
    pub detailed_metric: bool,
    pub value_to_metric: bool,
    pub share_threshold: bool,
    pub count_denied: bool,
    pub on_store_error: Option<OnStoreError>,
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    pub identity: Option<Identity>,
}

/// A `rate_limit` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitDraft {
    pub name: Option<Arc<str>>,
    /// `None`: unlimited.
    pub limit: Option<Limit>,
    pub replaces: Vec<Arc<str>>,
}

impl Place {
    pub(super) fn error(&self, message: impl Into<String>, remedy: Option<String>) -> Diagnostic {
        self.source.diagnostic(self.at, Severity::Error, message, remedy)
    }

    pub(super) fn warning(&self, message: impl Into<String>, remedy: Option<String>) -> Diagnostic {
        self.source.diagnostic(self.at, Severity::Warning, message, remedy)
    }

    /// `file:line`.
    pub(super) fn line(&self) -> String {
        format!("{}:{}", self.source.name(), self.at.line)
    }
}

impl EntryDraft {
    /// As a message names it: `"path=/a"` or `"path" (any value)`.
    pub(super) fn name(&self) -> String {
        match &self.value {
            Some(value) => format!("\"{}={value}\"", self.key),
            None => format!("\"{}\" (any value)", self.key),
        }
    }
}
