//! Rules files: read at start, and again whenever they change. The only file of this room that
//! does I/O. What runs is never disturbed by a file that cannot be read, is empty or is broken.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use super::{Input, RuleSet, gauges, load};
use crate::metrics::Metrics;
use crate::privacy::Privacy;

/// Editors and `kubectl` change several files, or one file in several steps: they count as one
/// change when they are this close.
pub(super) const SETTLE: Duration = Duration::from_millis(100);

/// Settings of `rules:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A file, or a folder of `*.yaml` and `*.yml` files.
    pub path: PathBuf,
    /// How often to look for changes that were not announced, as on network file systems.
    #[serde(with = "crate::duration")]
    pub poll: Duration,
    /// Whether the service is ready without any rules.
    pub allow_empty: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let (path, poll) = (PathBuf::from("config/rules"), Duration::from_secs(5));
        Self { path, poll, allow_empty: false }
    }
}

/// Keeps a `RuleSet` as its files are.
#[derive(Clone)]
pub struct Loader {
    pub(super) settings: Settings,
    metrics: Arc<Metrics>,
    privacy: Privacy,
    rules: Arc<ArcSwap<RuleSet>>,
    /// What was read last, so that only changes count.
    seen: Option<Snapshot>,
    /// Why the path could not be read, said once.
    complaint: Option<String>,
}

/// Names and contents of all files.
type Snapshot = BTreeMap<Arc<str>, Result<Vec<u8>, String>>;

impl Loader {
    /// Reads the files once. Whatever is wrong with them is in [`RuleSet::problems`] and the log.
    pub fn open(settings: Settings, metrics: Arc<Metrics>, privacy: Privacy) -> Self {
        let rules = Arc::new(ArcSwap::from_pointee(RuleSet::default()));
        let mut loader = Self { settings, metrics, privacy, rules, seen: None, complaint: None };
        loader.load();
        loader
    }

    /// The rules in use; swapped whole by each reload.
    pub fn rules(&self) -> Arc<ArcSwap<RuleSet>> {
        Arc::clone(&self.rules)
    }

    /// Reads the files, and swaps the rules if anything in them changed. Whether it did.
    pub fn load(&mut self) -> bool {
        let snapshot = match self.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.complain(&error);
                return false;
            }
        };
        self.complaint = None;
        if self.seen.as_ref() == Some(&snapshot) {
            return false;
        }
        let input = |(name, bytes): (&Arc<str>, &Result<Vec<u8>, String>)| Input {
            name: Arc::clone(name),
            bytes: bytes.clone(),
        };
        let previous = self.rules.load_full();
        let inputs = snapshot.iter().map(input).collect();
        let next = load(inputs, &previous, &self.metrics, &self.privacy);
        self.seen = Some(snapshot);
        gauges::publish(&previous, &next, &self.metrics);
        self.announce(&next);
        self.rules.store(Arc::new(next));
        true
    }

    /// What the files hold. One that is gone is looked for again: some editors delete a file
    /// before they write it.
    fn snapshot(&self) -> io::Result<Snapshot> {
        let snapshot = snapshot(&self.settings.path)?;
        let seen = self.seen.iter().flatten();
        if seen.map(|(name, _)| name).all(|name| snapshot.contains_key(name)) {
            return Ok(snapshot);
        }
        std::thread::sleep(SETTLE);
        self::snapshot(&self.settings.path)
    }

    /// The folder or file is not there, or not ours to read: said once, and nothing changes.
    fn complain(&mut self, error: &io::Error) {
        let complaint = error.to_string();
        if self.complaint.as_ref() != Some(&complaint) {
            self.metrics.reloads.with_label_values(&["error"]).inc();
            let path = self.settings.path.display();
            tracing::warn!(%path, %error, "the rules cannot be read; the rules in use stay");
            self.complaint = Some(complaint);
        }
    }

    fn announce(&self, rules: &RuleSet) {
        let errors = rules.problems().iter().filter(|problem| problem.is_error()).count();
        let result = if errors == 0 { "ok" } else { "error" };
        self.metrics.reloads.with_label_values(&[result]).inc();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.metrics.rules_loaded_at_s.set(now.as_secs_f64());
        let (version, domains) = (rules.version(), rules.domains.len());
        let warnings = rules.problems().len() - errors;
        match rules.problems().iter().find(|problem| problem.is_error()) {
            Some(first) => tracing::error!(
                version,
                domains,
                errors,
                warnings,
                kept = ?rules.kept(),
                first = %first,
                "rules loaded, but not all of them: run `chronosdb validate` to see every error"
            ),
            None => tracing::info!(version, domains, warnings, "rules loaded"),
        }
    }
}

/// The files at a path, by name. A file that vanishes while it is read counts as gone.
fn snapshot(path: &Path) -> io::Result<Snapshot> {
    let mut snapshot = Snapshot::new();
    for file in files(path)? {
        let bytes = match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            bytes => bytes.map_err(|error| error.to_string()),
        };
        snapshot.insert(file.display().to_string().into(), bytes);
    }
    Ok(snapshot)
}

/// The path itself if it is a file, else the `*.yaml` and `*.yml` files in it, sorted. Names that
/// begin with a dot are skipped: `ConfigMap` internals and editors' swap files.
///
/// # Errors
/// The path is not there, or cannot be listed.
pub fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_hidden =
            file.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let extension = file.extension().and_then(|extension| extension.to_str());
        let is_yaml = matches!(extension, Some("yaml" | "yml"));
        // Follows links: a mounted `ConfigMap` is nothing but links.
        if !is_hidden && is_yaml && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}
