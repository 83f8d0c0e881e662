//! From a YAML tree to drafts: every key checked, every value read, everything wrong reported.
//! The format is a superset of envoyproxy/ratelimit's.

use std::sync::Arc;

use super::Charge;
use super::diagnostic::{At, Diagnostic, Severity, Source, did_you_mean};
use super::draft::{Draft, EntryDraft, Own, Place};
use super::fields::{DESCRIPTOR, Fields, IDENTITY, ROOT, Reader, shape};
use super::template::{Identity, Template};
use super::yaml::{self, Node, Value};
use crate::check::OnStoreError;
use crate::quota::Mode;

/// Everything a file states, and everything wrong with it.
pub(super) fn read(source: &Arc<Source>) -> (Vec<Draft>, Vec<Diagnostic>) {
    let mut reader = Reader::new(Arc::clone(source));
    let (documents, faults) = yaml::parse(source);
    let broken_lines: Vec<u32> = faults.iter().map(|fault| fault.at.line).collect();
    for fault in faults {
        reader.error(fault.at, fault.message, fault.remedy);
    }
    let mut drafts = Vec::new();
    let starts: Vec<u32> = documents.iter().map(|document| document.at.line).collect();
    for (index, document) in documents.iter().enumerate() {
        if document.is_null() {
            continue;
        }
        let ends = starts.get(index + 1).copied().unwrap_or(u32::MAX);
        let from = if index == 0 { 0 } else { document.at.line };
        let errors = reader.errors();
        if let Some(mut draft) = reader.document(document) {
            draft.is_broken = reader.errors() > errors
                || broken_lines.iter().any(|line| (from..ends).contains(line));
            drafts.push(draft);
        }
    }
    if drafts.is_empty() && reader.errors() == 0 {
        let message = "there are no rules in this file: it has no \"domain\"";
        let mut problem = Diagnostic::of_file(source.name(), Severity::Error, message);
        problem.remedy = Some("name the domain the proxy sends, such as domain: edge".to_owned());
        reader.problems.push(problem);
    }
    (drafts, reader.problems)
}

impl Reader {
    fn place(&self, at: At) -> Place {
        Place { source: Arc::clone(&self.source), at }
    }

    fn document(&mut self, node: &Node) -> Option<Draft> {
        if self.is_manifest(node) {
            return None;
        }
        let Some(fields) = self.fields(node, &ROOT) else {
            if !matches!(node.value, Value::Bad) {
                let message =
                    format!("a rules file must be a block with \"domain\", got {}", shape(node));
                self.error(node.at, message, None);
            }
            return None;
        };
        let charge = self.charge(fields);
        let entries = self.descriptors(fields, &mut Vec::new());
        let named = self.text(fields, "domain");
        let Some((at, domain)) = named.filter(|(_, domain)| !domain.is_empty()) else {
            if !matches!(fields.written("domain"), Some((_, Node { value: Value::Bad, .. }))) {
                let remedy = "name the domain the proxy sends, such as domain: edge".to_owned();
                self.error(node.at, "missing top-level \"domain\"", Some(remedy));
            }
            return None;
        };
        self.warn_template(at, domain);
        let (domain, place) = (domain.into(), self.place(at));
        Some(Draft { domain, place, charge, entries, is_broken: false })
    }

    /// A Kubernetes object in place of the text inside it.
    fn is_manifest(&mut self, node: &Node) -> bool {
        let Value::Map(pairs) = &node.value else { return false };
        let value =
            |name| pairs.iter().find(|(key, _)| key.text() == Some(name)).map(|(_, value)| value);
        let (Some(_), Some(kind)) = (value("apiVersion"), value("kind")) else { return false };
        let kind = kind.text().unwrap_or("object");
        let message = format!("this looks like a Kubernetes {kind}, not a rules file");
        let texts = value("data").and_then(|data| match &data.value {
            Value::Map(texts) => texts.first(),
            _ => None,
        });
        let remedy = texts.and_then(|(name, text)| {
            let (name, start) = (name.text()?, text.text()?.lines().next().unwrap_or_default());
            Some(format!(
                "use the text under data.\"{name}\" (starting with \"{start}\") as the file"
            ))
        });
        self.error(node.at, message, remedy);
        true
    }

    fn charge(&mut self, fields: Fields<'_>) -> Option<(Charge, Place)> {
        let (at, word) = self.text(fields, "charge")?;
        let charge = match word {
            "together" => Charge::Together,
            "independent" => Charge::Independent,
            _ => {
                self.unknown_word(at, "charge", word, &["together", "independent"]);
                return None;
            }
        };
        Some((charge, self.place(at)))
    }

    fn descriptors<'n>(&mut self, fields: Fields<'n>, path: &mut Vec<&'n str>) -> Vec<EntryDraft> {
        let Some((_, node)) = fields.field("descriptors") else { return Vec::new() };
        let items = match &node.value {
            Value::List(items) => items,
            Value::Bad => return Vec::new(),
            _ => {
                let message = format!("descriptors must be a list, got {}", shape(node));
                let remedy = "start each descriptor with \"- key:\"".to_owned();
                self.error(node.at, message, Some(remedy));
                return Vec::new();
            }
        };
        items.iter().filter_map(|item| self.entry(item, path)).collect()
    }

    fn entry<'n>(&mut self, node: &'n Node, path: &mut Vec<&'n str>) -> Option<EntryDraft> {
        let Some(fields) = self.fields(node, &DESCRIPTOR) else {
            if !matches!(node.value, Value::Bad) {
                let message = format!(
                    "descriptors must be a list of blocks with \"key\", got {}",
                    shape(node)
                );
                self.error(node.at, message, None);
            }
            return None;
        };
        let value = self.text(fields, "value").filter(|(_, value)| !value.is_empty());
        let key = self.text(fields, "key").filter(|(_, key)| !key.is_empty());
        if key.is_none() {
            let message = match value {
                Some(_) => "descriptor has a value but no \"key\"",
                None => "descriptor has no \"key\"",
            };
            self.error(node.at, message, None);
        }
        for (at, text) in key.iter().chain(&value) {
            self.warn_template(*at, text);
        }
        path.push(key.map_or("", |(_, key)| key));
        let own = self.own(fields, path, value.map(|(_, value)| value));
        let children = self.descriptors(fields, path);
        path.pop();
        self.check_own(fields, key.map_or("", |(_, key)| key), &own, &children);
        let place = self.place(node.at);
        let value = value.map(|(_, value)| value.into());
        Some(EntryDraft { key: key?.1.into(), value, place, own, children })
    }

    fn own(&mut self, fields: Fields<'_>, path: &[&str], value: Option<&str>) -> Own {
        let limit = self.rate_limit(fields);
        let shadow = self.flag(fields, "shadow_mode").is_some();
        let quota = self.flag(fields, "quota_mode").is_some();
        let share = self.flag(fields, "share_threshold");
        let is_wild = path.last().into_iter().chain(&value).any(|text| text.contains('*'));
        if let (Some(_), false, Some((at, _))) = (share, is_wild, fields.field("share_threshold")) {
            let (got, remedy) = match value {
                None => ("none".to_owned(), "write value: \"*\" for one counter over all values"),
                Some(value) => (format!("\"{value}\""), "a plain value has one counter already"),
            };
            let message = format!("share_threshold needs a value with \"*\", got {got}");
            self.error(at, message, Some(remedy.to_owned()));
        }
        let mode = match (shadow, quota) {
            (true, _) => Mode::Shadow,
            (_, true) => Mode::Quota,
            _ => Mode::Enforce,
        };
        Own {
            limit,
            mode,
            detailed_metric: self.flag(fields, "detailed_metric").is_some(),
            value_to_metric: self.flag(fields, "value_to_metric").is_some(),
            share_threshold: share.is_some(),
            count_denied: self.flag(fields, "count_denied").is_some(),
            on_store_error: self.on_store_error(fields),
            metadata: self.metadata(fields),
            identity: self.identity(fields, path),
        }
    }

    /// What the parts of a descriptor say together.
    fn check_own(&mut self, fields: Fields<'_>, key: &str, own: &Own, children: &[EntryDraft]) {
        if own.limit.is_some() {
            return;
        }
        let children_written = match fields.written("descriptors") {
            Some((_, Node { value: Value::List(items), .. })) => !items.is_empty(),
            written => written.is_some() && !children.is_empty(),
        };
        if let Some((at, node)) = fields.written("rate_limit") {
            let omitted = matches!(node.value, Value::Text { how: yaml::How::Omitted, .. });
            if omitted && !children_written {
                let message = format!(
                    "descriptor \"{key}\" has an empty rate_limit and no children, so it would limit nothing"
                );
                let remedy = "was the file cut short? Leave rate_limit out to exempt this value";
                self.error(at, message, Some(remedy.to_owned()));
            }
            if !node.is_null() {
                // It was reported already.
                return;
            }
        }
        for name in ["shadow_mode", "quota_mode", "detailed_metric", "count_denied"] {
            if let Some(at) = fields.yes(name) {
                self.warn(at, format!("{name} has no effect without rate_limit"), None);
            }
        }
        for name in ["identity", "on_store_error"] {
            if let Some((at, _)) = fields.field(name) {
                self.warn(at, format!("{name} has no effect without rate_limit"), None);
            }
        }
    }

    fn on_store_error(&mut self, fields: Fields<'_>) -> Option<OnStoreError> {
        let (at, word) = self.text(fields, "on_store_error")?;
        match word {
            "error" => Some(OnStoreError::Error),
            "allow" => Some(OnStoreError::Allow),
            "deny" => Some(OnStoreError::Deny),
            "local" => Some(OnStoreError::Local),
            _ => {
                self.unknown_word(at, "on_store_error", word, &["error", "allow", "deny", "local"]);
                None
            }
        }
    }

    pub(super) fn unknown_word(&mut self, at: At, field: &str, word: &str, known: &[&str]) {
        let allowed = known.join(", ");
        let remedy = match did_you_mean(word, known.iter().copied()) {
            Some(meant) => format!("did you mean \"{meant}\"? (allowed: {allowed})"),
            None => format!("allowed are {allowed}"),
        };
        self.error(at, format!("{field} \"{word}\" is not known"), Some(remedy));
    }

    fn metadata(
        &mut self,
        fields: Fields<'_>,
    ) -> Option<Arc<serde_json::Map<String, serde_json::Value>>> {
        let (_, node) = fields.field("metadata")?;
        match super::metadata::value(node) {
            serde_json::Value::Object(map) => Some(Arc::new(map)),
            _ => {
                self.error(node.at, format!("metadata must be a block, got {}", shape(node)), None);
                None
            }
        }
    }

    fn identity(&mut self, fields: Fields<'_>, path: &[&str]) -> Option<Identity> {
        let (at, node) = fields.field("identity")?;
        let Some(fields) = self.fields(node, &IDENTITY) else {
            let message =
                format!("identity must be a block with api_key and user_id, got {}", shape(node));
            self.error(at, message, None);
            return None;
        };
        let [api_key, user_id] = ["api_key", "user_id"].map(|name| {
            let Some((at, text)) = self.text(fields, name) else {
                let remedy =
                    format!("write a template over the entries, such as {name}: \"{{{name}}}\"");
                self.error(at, format!("identity has no {name}"), Some(remedy));
                return None;
            };
            match Template::parse(text, path) {
                Ok(template) => Some(template),
                Err((message, remedy)) => {
                    self.error(at, message, Some(remedy));
                    None
                }
            }
        });
        Some(Identity { api_key: api_key?, user_id: user_id? })
    }

    fn warn_template(&mut self, at: At, text: &str) {
        if text.contains("{{") || text.contains("{%") {
            let remedy = Some("render the template (the chart) before loading it".to_owned());
            self.warn(
                at,
                format!("\"{text}\" looks like a template that was not rendered"),
                remedy,
            );
        }
    }
}
