//! Which rule a descriptor is held to, and in which counter. Depth must be equal, and a level is
//! decided once: an exact entry without the needed child does not give way to a wildcard.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::compile::{LabelPart, Node, Target, label_part};
use super::template::Template;
use super::{Ceiling, Domain, Match, Rule};
use crate::check::{Descriptor, Entry, Mode, QuotaKey, Request, readable};
use crate::metrics::ApiKeyStats;
use crate::privacy::Privacy;
use crate::quota::Limit;

impl Domain {
    /// The rule of each descriptor, in order, after `replaces`.
    pub fn matches(&self, request: &Request, privacy: &Privacy) -> Vec<Option<Match>> {
        let descriptors = request.descriptors.iter();
        let mut found: SmallVec<[Option<&Target>; 8]> = descriptors
            .map(|descriptor| match descriptor.limit_override {
                Some(_) => None,
                None => self.target(&descriptor.entries),
            })
            .collect();
        replace(&mut found);
        let pairs = found.into_iter().zip(&request.descriptors);
        pairs
            .map(|(target, descriptor)| match (target, descriptor.limit_override) {
                (_, Some(limit)) => Some(self.overridden(descriptor, limit, privacy)),
                (Some(target), None) => Some(self.matched(target, &descriptor.entries, privacy)),
                (None, None) => None,
            })
            .collect()
    }

    /// The rule that a path of entries ends at.
    pub(super) fn target(&self, entries: &[Entry]) -> Option<&Target> {
        let (last, parents) = entries.split_last()?;
        let mut level = &self.root;
        for entry in parents {
            level = &level.find(&entry.key, &entry.value)?.children;
        }
        let node: &Node = level.find(&last.key, &last.value)?;
        node.target.as_ref()
    }

    pub(super) fn matched(&self, target: &Target, entries: &[Entry], privacy: &Privacy) -> Match {
        let values = counted_values(target, entries, privacy);
        let (key, api_key) = match &target.identity {
            None => (self.path_key(target, entries, &values), Arc::clone(&self.api_key)),
            Some(identity) => {
                let fill = |template: &Template, name: &[u8]| {
                    filled(template, name, entries, &values, privacy)
                };
                let api_key = fill(&identity.api_key, b"api_key");
                let user_id = fill(&identity.user_id, b"user_id");
                let stats = self.api_key_stats(&api_key);
                (QuotaKey::of_identity(&api_key, &user_id), stats)
            }
        };
        let stats = match &target.live_label {
            None => Arc::clone(&target.rule.stats),
            Some(parts) => self.metrics.rule(&self.name, &live_label(parts, entries, privacy)),
        };
        let rule = Arc::clone(&target.rule);
        Match { ceiling: rule.ceiling, rule, key, stats, api_key }
    }

    fn path_key(&self, target: &Target, entries: &[Entry], values: &[Cow<'_, [u8]>]) -> QuotaKey {
        let path = entries.iter().zip(values).enumerate().map(|(level, (entry, value))| {
            let shared = target.shared.get(level).and_then(Option::as_ref);
            let key = shared.and_then(|shared| shared.key.as_deref()).unwrap_or(&entry.key);
            (key, &**value)
        });
        QuotaKey::of_path(&self.name, path)
    }

    fn api_key_stats(&self, api_key: &[u8]) -> Arc<ApiKeyStats> {
        self.metrics.api_key(&readable(api_key))
    }

    /// The limit came with the request: the same counter, and no rule's modes.
    fn overridden(&self, descriptor: &Descriptor, limit: Limit, privacy: &Privacy) -> Match {
        let entries = &descriptor.entries;
        let values: Vec<_> =
            entries.iter().map(|entry| privacy.shown(&entry.key, &entry.value)).collect();
        let path = entries.iter().zip(&values).map(|(entry, value)| (&*entry.key, &**value));
        let parts: Vec<String> = entries.iter().map(|entry| label_part(&entry.key, b"")).collect();
        let label: Arc<str> = parts.join(",").into();
        let stats = self.metrics.rule(&self.name, &label);
        let ceiling = Ceiling::Limit(limit);
        let rule = Rule {
            name: None,
            label,
            ceiling,
            mode: Mode::Enforce,
            count_denied: false,
            on_store_error: None,
            stats: Arc::clone(&stats),
            metadata: None,
            file: "".into(),
            line: 0,
        };
        let key = QuotaKey::of_path(&self.name, path);
        Match { rule: Arc::new(rule), ceiling, key, stats, api_key: Arc::clone(&self.api_key) }
    }
}

/// Drops every rule whose name another rule of the same request replaces.
fn replace(found: &mut [Option<&Target>]) {
    let targets = found.iter().flatten();
    let replaced: Vec<&Arc<str>> = targets.flat_map(|target| &target.replaces).collect();
    if replaced.is_empty() {
        return;
    }
    for slot in found {
        let name = slot.and_then(|target| target.rule.name.as_ref());
        if name.is_some_and(|name| replaced.contains(&name)) {
            *slot = None;
        }
    }
}

/// A part of an identity as `CheckQuota` shows it under this name. A fingerprint is not taken twice.
fn filled(
    template: &Template,
    name: &[u8],
    entries: &[Entry],
    values: &[Cow<'_, [u8]>],
    privacy: &Privacy,
) -> Vec<u8> {
    let filled = template.fill(values);
    let mut sources = template.levels().filter_map(|level| entries.get(level));
    if sources.any(|entry| privacy.is_secret(&entry.key)) {
        return filled;
    }
    match privacy.shown(name, &filled) {
        Cow::Borrowed(_) => filled,
        Cow::Owned(shown) => shown,
    }
}

/// The entries' values as a counter knows them: secrets replaced, and patterns where one counter
/// serves all that they cover.
fn counted_values<'v>(
    target: &'v Target,
    entries: &'v [Entry],
    privacy: &Privacy,
) -> SmallVec<[Cow<'v, [u8]>; 6]> {
    let value = |(level, entry): (usize, &'v Entry)| match target.shared.get(level) {
        Some(Some(shared)) => Cow::Borrowed(&*shared.value),
        _ => privacy.shown(&entry.key, &entry.value),
    };
    entries.iter().enumerate().map(value).collect()
}

fn live_label(parts: &[LabelPart], entries: &[Entry], privacy: &Privacy) -> String {
    let text = |(part, entry): (&LabelPart, &Entry)| match part {
        LabelPart::Fixed(text) => text.to_string(),
        LabelPart::Live => label_part(&entry.key, &privacy.shown(&entry.key, &entry.value)),
    };
    parts.iter().zip(entries).map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::Metrics;
    use crate::privacy::Settings;
    use crate::rules::RuleSet;

    /// Asked by paths such as `key=value > key`.
    struct Case {
        rules: RuleSet,
        metrics: Arc<Metrics>,
        privacy: Privacy,
    }

    impl Case {
        fn new(descriptors: &str) -> Self {
            let text = format!("domain: d\ndescriptors:\n{descriptors}");
            let settings = Settings { key: Some("k".into()), ..Settings::default() };
            let (metrics, privacy) = (Metrics::new(), Privacy::new(&settings));
            let rules = RuleSet::from_text(&text, &metrics, &privacy);
            let rules = rules.unwrap_or_else(|problems| panic!("{}", problems[0]));
            Self { rules, metrics, privacy }
        }

        fn matches(&self, descriptors: Vec<Descriptor>) -> Vec<Option<Match>> {
            let request = Request { domain: "d".into(), descriptors };
            self.rules.domain("d").unwrap().matches(&request, &self.privacy)
        }

        fn one(&self, path: &str) -> Option<Match> {
            self.matches(vec![descriptor(path)]).pop().unwrap()
        }

        /// The limit that a path is held to.
        fn limit(&self, path: &str) -> Option<u64> {
            self.one(path).map(|found| found.ceiling.limit().map_or(u64::MAX, Limit::max_requests))
        }

        /// The label that a path is counted under.
        fn label(&self, path: &str) -> String {
            let found = self.one(path).unwrap();
            found.stats.allowed.inc_by(777);
            let page = String::from_utf8(self.metrics.render()).unwrap();
            let line = page.lines().find(|line| line.ends_with(" 777")).unwrap();
            found.stats.allowed.reset();
            line.split("rule=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
        }

        fn key(&self, path: &str) -> String {
            self.one(path).unwrap().key.to_string()
        }
    }

    fn descriptor(path: &str) -> Descriptor {
        let entry = |entry: &str| {
            let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
            Entry::new(key, value)
        };
        let entries = path.split(" > ").filter(|entry| !entry.is_empty()).map(entry).collect();
        Descriptor { entries, hits: 1, limit_override: None }
    }

    fn rule(path: &str, limit: u64, flags: &str) -> String {
        let (key, value) = path.split_once('=').unwrap_or((path, ""));
        format!(
            "- {{key: \"{key}\", value: \"{value}\", rate_limit: {{unit: minute, requests_per_unit: {limit}}}, {flags}}}\n"
        )
    }

    fn parent(path: &str, flags: &str, children: &[String]) -> String {
        let (key, value) = path.split_once('=').unwrap_or((path, ""));
        let children: String = children.iter().map(|child| format!("  {child}")).collect();
        format!("- key: \"{key}\"\n  value: \"{value}\"\n{flags}  descriptors:\n{children}")
    }

    #[test]
    fn exact_then_wildcard_then_any_value() {
        let case = Case::new(
            &[
                rule("k", 1, ""),
                rule("k=a*", 2, ""),
                rule("k=abc*", 3, ""),
                rule("k=abcd", 4, ""),
                "- {key: k, value: free}\n".to_owned(),
                "- {key: u, rate_limit: {unlimited: true}}\n".to_owned(),
                rule("pre*", 5, ""),
                rule("prefix", 6, ""),
            ]
            .concat(),
        );
        for (path, limit) in [
            ("k=x", Some(1)),
            ("k=", Some(1)),
            ("k=a", Some(2)),
            ("k=abc", Some(3)),
            ("k=abcd", Some(4)),
            ("k=free", None),
            ("u=1", Some(u64::MAX)),
            ("prefix=1", Some(5)),
            ("K=x", None),
            ("k_a=x", None),
            ("", None),
            ("k=x > k=x", None),
        ] {
            assert_eq!(case.limit(path), limit, "{path}");
        }
    }

    #[test]
    fn depth_must_be_equal_and_nothing_is_tried_twice() {
        let case = Case::new(
            &[parent("a=x", "", &[rule("b=1", 1, "")]), parent("a", "", &[rule("b=2", 2, "")])]
                .concat(),
        );
        assert_eq!(case.limit("a=x > b=1"), Some(1));
        assert_eq!(case.limit("a=y > b=2"), Some(2));
        assert_eq!(case.limit("a=x > b=2"), None);
        assert_eq!(case.limit("a=x"), None);
        assert_eq!(case.limit("a=x > b=1 > c=1"), None);
    }

    #[test]
    fn every_value_has_its_own_counter_unless_shared() {
        let case = Case::new(
            &[
                rule("any", 1, ""),
                rule("own=o*", 1, ""),
                rule("one=o*", 1, "share_threshold: true"),
                parent("up=u*", "  share_threshold: true\n", &[rule("leaf=l*", 1, "")]),
                rule("wild*", 1, "share_threshold: true"),
            ]
            .concat(),
        );
        assert_eq!(case.key("any=1"), "d:any:1");
        assert_eq!(case.key("own=o1"), "d:own:o1");
        assert_eq!(case.key("one=o1"), "d:one:o*");
        assert_eq!(case.key("one=o*"), "d:one:o*");
        assert_eq!(case.key("up=u1 > leaf=l1"), "d:up:u*:leaf:l1");
        assert_eq!(case.key("wild1=x"), case.key("wild2=y"));
    }

    #[test]
    fn labels_show_values_only_where_asked() {
        let case = Case::new(
            &[
                rule("plain", 1, ""),
                rule("detailed", 1, "detailed_metric: true"),
                rule("shared=s*", 1, "detailed_metric: true, share_threshold: true"),
                parent("route", "  value_to_metric: true\n", &[rule("user", 1, "")]),
                parent("action=r*", "  value_to_metric: true\n", &[rule("user", 1, "")]),
                parent("up", "", &[rule("leaf", 1, "detailed_metric: true")]),
                rule("authorization", 1, "detailed_metric: true"),
                rule("cookie=secret", 1, ""),
            ]
            .concat(),
        );
        for (path, label) in [
            ("plain=1", "plain"),
            ("detailed=1", "detailed=1"),
            ("detailed=", "detailed"),
            ("shared=s1", "shared=s*"),
            ("route=x > user=u", "route=x,user"),
            ("route= > user=u", "route,user"),
            ("action=run > user=u", "action=run,user"),
            ("up=1 > leaf=2", "up=1,leaf=2"),
        ] {
            assert_eq!(case.label(path), label, "{path}");
        }
        for path in ["authorization=secret", "cookie=secret"] {
            assert!(case.label(path).contains("=fp-"), "{path}");
            assert!(!case.key(path).contains("secret"), "{path}");
        }
    }

    #[test]
    fn a_replaced_rule_does_not_count() {
        let case = Case::new(
            "- {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: n}}\n\
             - {key: b, rate_limit: {unlimited: true, replaces: [{name: n}, {name: nobody}]}}\n",
        );
        let found = case.matches(["a=1", "b=1", "a=2"].map(descriptor).into());
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
        // With a limit of its own it is not that rule's descriptor.
        let limit_override = Limit::new(1, Duration::from_secs(1)).ok();
        let other = Descriptor { limit_override, ..descriptor("b=1") };
        assert!(case.matches(vec![descriptor("a=1"), other])[0].is_some());
    }

    #[test]
    fn an_identity_shares_the_quota_of_check_quota() {
        let identity = "identity: {api_key: \"{api_key}\", user_id: \"u-{user}\"}";
        let case = Case::new(&parent("api_key", "", &[rule("user", 1, identity)]));
        let found = case.one("api_key=free > user=bob").unwrap();
        assert_eq!(found.key, QuotaKey::of_identity(b"free", b"u-bob"));
        found.api_key.denied.inc_by(3);
        let page = String::from_utf8(case.metrics.render()).unwrap();
        assert!(page.contains("requests_denied_total{api_key=\"free\"} 3"), "{page}");
    }

    #[test]
    fn an_identity_is_as_private_as_check_quota() {
        let fingerprint = vec!["api_key".to_owned()];
        let privacy = Privacy::new(&Settings { fingerprint, key: None });
        let metrics = Metrics::new();
        let secret = privacy.shown(b"api_key", b"free");
        for key in ["api_key", "x-api-key"] {
            let identity = format!("identity: {{api_key: \"{{{key}}}\", user_id: all}}");
            let text = format!("domain: d\ndescriptors:\n{}", rule(key, 1, &identity));
            let rules = RuleSet::from_text(&text, &metrics, &privacy).unwrap();
            let descriptors = vec![descriptor(&format!("{key}=free"))];
            let request = Request { domain: "d".into(), descriptors };
            let found = rules.domain("d").unwrap().matches(&request, &privacy).pop().flatten();
            assert_eq!(found.unwrap().key, QuotaKey::of_identity(&secret, b"all"), "{key}");
        }
    }

    #[test]
    fn a_limit_in_the_request_replaces_the_rule_and_keeps_the_counter() {
        let case = Case::new(&rule("k", 1, "shadow_mode: true"));
        let mut asked = descriptor("k=v");
        asked.limit_override = Some(Limit::new(9, Duration::from_secs(5)).unwrap());
        let mut secret = descriptor("cookie=secret");
        secret.limit_override = asked.limit_override;
        let found = case.matches(vec![asked.clone(), secret]);
        let [Some(found), Some(secret)] = &found[..] else { panic!("each has its own limit") };
        assert_eq!(found.ceiling, Ceiling::Limit(asked.limit_override.unwrap()));
        assert_eq!((found.rule.mode, &*found.rule.label), (Mode::Enforce, "k"));
        assert_eq!(found.key.to_string(), case.key("k=v"));
        assert!(!secret.key.to_string().contains("secret"));
        assert_eq!(case.one("k=v").unwrap().rule.mode, Mode::Shadow);
    }
}
