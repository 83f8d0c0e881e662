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
    /// Whether everything passes that they refuse: a trial run. Decided and counted as usual.
    pub shadow_mode: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let (path, poll) = (PathBuf::from("config/rules"), Duration::from_secs(5));
        Self { path, poll, allow_empty: false, shadow_mode: false }
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
        let changed = self.read();
        let rules = self.rules.load();
        let count = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let errors = rules.problems().iter().filter(|problem| problem.is_error()).count();
        let unread = self.complaint.is_some();
        let outdated = if unread { rules.domains.len() } else { rules.kept().len() };
        self.metrics.rules_errors.set(count(errors + usize::from(unread)));
        self.metrics.rules_outdated.set(count(outdated));
        changed
    }

    fn read(&mut self) -> bool {
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
        let next = Arc::new(load(inputs, &previous, &self.metrics, &self.privacy));
        self.seen = Some(snapshot);
        // What is told of them is true from the first moment.
        self.rules.store(Arc::clone(&next));
        gauges::publish(&previous, &next, &self.metrics);
        self.announce(&next);
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
                first = %format_args!("{}: {}", first.place(), first.message),
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::privacy;

    /// A folder with rules, and a loader that runs over it.
    struct Watched {
        folder: tempfile::TempDir,
        rules: Arc<ArcSwap<RuleSet>>,
        metrics: Arc<Metrics>,
        _running: tokio::task::JoinHandle<()>,
    }

    fn text(domain: &str, limit: u64) -> String {
        format!(
            "domain: {domain}\ndescriptors:\n- {{key: k, rate_limit: {{limit: {limit}, window: 1s}}}}\n"
        )
    }

    impl Watched {
        /// `poll` is long where the system's events alone must do.
        fn new(poll: Duration, prepare: impl FnOnce(&Path)) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rules");
            prepare(&path);
            let metrics = Metrics::new();
            let privacy = Privacy::new(&privacy::Settings::default());
            let settings = Settings { path, poll, ..Settings::default() };
            let loader = Loader::open(settings, Arc::clone(&metrics), privacy);
            let rules = loader.rules();
            Self { folder, rules, metrics, _running: tokio::spawn(loader.run()) }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join("rules").join(name)
        }

        /// Domains and their limits.
        fn now(&self) -> String {
            let rules = self.rules.load().describe();
            let limit = |rule: &super::super::Description| {
                format!("{}:{}", rule.domain, rule.limit.unwrap_or_default())
            };
            rules.iter().map(limit).collect::<Vec<_>>().join(" ")
        }

        async fn becomes(&self, expected: &str) {
            self.reaches(|| self.now() == expected).await;
        }

        #[track_caller]
        fn reaches(&self, holds: impl Fn() -> bool) -> impl Future<Output = ()> {
            let caller = std::panic::Location::caller();
            async move {
                let held = async {
                    while !holds() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                let waited = tokio::time::timeout(Duration::from_secs(2), held).await;
                assert!(waited.is_ok(), "{caller}: not within 2s; rules are {}", self.now());
            }
        }

        /// Waits until another reload with errors was counted.
        async fn fails(&self, write: impl FnOnce()) {
            let errors = || self.metrics.reloads.with_label_values(&["error"]).get();
            let before = errors();
            write();
            self.reaches(|| errors() != before).await;
        }
    }

    const NEVER: Duration = Duration::from_secs(3600);

    fn folder_with_a(path: &Path) {
        fs::create_dir(path).unwrap();
        fs::write(path.join("a.yaml"), text("a", 1)).unwrap();
    }

    #[tokio::test]
    async fn a_change_is_live_within_two_seconds() {
        let watched = Watched::new(NEVER, folder_with_a);
        assert_eq!(watched.now(), "a:1");
        fs::write(watched.path("a.yaml"), text("a", 2)).unwrap();
        watched.becomes("a:2").await;
        for limit in 3..6 {
            // As most editors save: a new file takes the name of the old one.
            fs::write(watched.path(".a.yaml.swp"), text("a", limit)).unwrap();
            fs::rename(watched.path(".a.yaml.swp"), watched.path("a.yaml")).unwrap();
            watched.becomes(&format!("a:{limit}")).await;
        }
        fs::write(watched.path("b.yml"), text("b", 1)).unwrap();
        fs::write(watched.path("c.txt"), text("c", 1)).unwrap();
        fs::write(watched.path(".d.yaml"), text("d", 1)).unwrap();
        watched.becomes("a:5 b:1").await;
        fs::remove_file(watched.path("a.yaml")).unwrap();
        watched.becomes("b:1").await;
        let page = String::from_utf8(watched.metrics.render()).unwrap();
        assert!(page.contains("chronosdb_rules{domain=\"b\"} 1"), "{page}");
        assert!(!page.contains("chronosdb_rules{domain=\"a\"}"), "{page}");
        let limits = page.lines().filter(|line| line.starts_with("chronosdb_limit_hits{"));
        assert_eq!(
            limits.collect::<Vec<_>>(),
            ["chronosdb_limit_hits{domain=\"b\",rule=\"k\",window=\"1s\"} 1"]
        );
    }

    #[tokio::test]
    async fn every_swap_of_a_config_map_is_seen() {
        let swap = |path: &Path, version: u64| {
            let folder = format!("..{version}");
            fs::create_dir(path.join(&folder)).unwrap();
            fs::write(path.join(&folder).join("a.yaml"), text("a", version)).unwrap();
            symlink(&folder, path.join("..data_tmp")).unwrap();
            fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
        };
        let watched = Watched::new(NEVER, |path| {
            fs::create_dir(path).unwrap();
            swap(path, 1);
            symlink("..data/a.yaml", path.join("a.yaml")).unwrap();
        });
        assert_eq!(watched.now(), "a:1");
        for version in 2..5 {
            swap(&watched.path(""), version);
            fs::remove_dir_all(watched.path(&format!("..{}", version - 1))).unwrap();
            watched.becomes(&format!("a:{version}")).await;
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_disturbs_nothing() {
        let watched = Watched::new(Duration::from_millis(100), folder_with_a);
        let metrics = Arc::clone(&watched.metrics);
        let gauges = || (metrics.rules_errors.get(), metrics.rules_outdated.get());
        assert_eq!(gauges(), (0, 0));
        watched.fails(|| fs::write(watched.path("a.yaml"), "").unwrap()).await;
        assert_eq!(watched.now(), "a:1");
        watched.fails(|| fs::write(watched.path("a.yaml"), "domain: a\ndescr").unwrap()).await;
        assert_eq!(watched.now(), "a:1");
        assert!(!watched.rules.load().problems().is_empty());
        watched.reaches(|| gauges() == (1, 1)).await;
        watched.fails(|| fs::remove_dir_all(watched.path("")).unwrap()).await;
        assert_eq!(watched.now(), "a:1");
        watched.reaches(|| gauges() == (2, 1)).await;
        folder_with_a(&watched.path(""));
        fs::write(watched.path("a.yaml"), text("a", 7)).unwrap();
        watched.becomes("a:7").await;
        watched.reaches(|| gauges() == (0, 0)).await;
    }

    #[tokio::test]
    async fn a_folder_that_comes_later_is_found() {
        let watched = Watched::new(NEVER, |_| {});
        assert_eq!(watched.now(), "");
        folder_with_a(&watched.path(""));
        watched.becomes("a:1").await;
        fs::write(watched.path("a.yaml"), text("a", 2)).unwrap();
        watched.becomes("a:2").await;
    }

    #[tokio::test]
    async fn reading_is_no_change() {
        let watched = Watched::new(Duration::from_millis(100), folder_with_a);
        fs::write(watched.path("a.yaml"), text("a", 2)).unwrap();
        watched.becomes("a:2").await;
        let before = watched.rules.load_full();
        fs::write(watched.path("a.yaml"), text("a", 2)).unwrap();
        for _ in 0..30 {
            fs::read(watched.path("a.yaml")).unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(Arc::ptr_eq(&before, &watched.rules.load_full()));
        assert_eq!(watched.metrics.reloads.with_label_values(&["ok"]).get(), 2);
    }
}
