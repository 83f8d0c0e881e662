//! What an answer tells Envoy's access log: what was asked, and who refused it. Pure.
//! Secret values stand there as fingerprints, like everywhere.

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use serde_json::{Map, Value as Json, json};

use crate::check::{Descriptor, Request, readable};
use crate::limiter::{Decision, Source, Status};
use crate::privacy::Privacy;

/// `domain` and `descriptors` as asked; `metadata` of the rules that let it pass; `source`; on a
/// refusal `deniedBy`; `shadowDeniedBy` for rules that were over and refused nothing. The first
/// three are named as envoyproxy/ratelimit names them.
pub fn metadata(request: &Request, decision: &Decision, privacy: &Privacy) -> Struct {
    let asked = request.descriptors.iter().map(|asked| descriptor(asked, privacy));
    let mut fields = Map::new();
    fields.insert("domain".into(), json!(request.domain));
    fields.insert("descriptors".into(), asked.collect());
    let mut of_rules = Map::new();
    for status in decision.statuses.iter().filter(|status| status.verdict.allowed) {
        if let Some(own) = status.rule.as_ref().and_then(|rule| rule.metadata.as_deref()) {
            merge(&mut of_rules, own);
        }
    }
    if !of_rules.is_empty() {
        fields.insert("metadata".into(), Json::Object(of_rules));
    }
    if let Some(deciding) = decision.deciding() {
        fields.insert("source".into(), json!(source(deciding.source)));
        if deciding.refuses && !decision.allowed {
            fields.insert("deniedBy".into(), json!(name(deciding)));
        }
    }
    let over = |status: &&Status| !status.verdict.allowed;
    let in_shadow = |status: &&Status| decision.allowed || !status.refuses;
    let shadow: Vec<_> =
        decision.statuses.iter().filter(over).filter(in_shadow).map(name).collect();
    if !shadow.is_empty() {
        fields.insert("shadowDeniedBy".into(), json!(shadow));
    }
    to_struct(fields)
}

/// The name of a status' rule, else its path.
fn name(status: &Status) -> Option<&str> {
    let rule = status.rule.as_ref()?;
    Some(rule.name.as_ref().unwrap_or(&rule.label))
}

fn descriptor(asked: &Descriptor, privacy: &Privacy) -> Json {
    let entries = asked.entries.iter().map(|entry| {
        let value = privacy.shown(&entry.key, &entry.value);
        format!("{}={}", readable(&entry.key), readable(&value))
    });
    let mut fields = Map::new();
    fields.insert("entries".into(), entries.collect());
    fields.insert("hitsAddend".into(), json!(asked.hits));
    if let Some(limit) = asked.limit_override {
        let text = format!("{} per {}ms", limit.max_requests(), limit.window_ms());
        fields.insert("limit".into(), json!(text));
    }
    Json::Object(fields)
}

/// Maps are merged; of anything else the first stays.
fn merge(into: &mut Map<String, Json>, from: &Map<String, Json>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, _) => {
                into.insert(name.clone(), value.clone());
            }
            (Some(Json::Object(known)), Json::Object(more)) => merge(known, more),
            (Some(_), _) => {}
        }
    }
}

/// Who answered, in a word.
pub fn source(source: Source) -> &'static str {
    match source {
        Source::Rules => "rules",
        Source::L1 => "l1",
        Source::Store => "store",
        Source::Fallback => "fallback",
    }
}

fn to_struct(fields: Map<String, Json>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name, to_value(value))).collect() }
}

fn to_value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::MAX)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => {
            Kind::ListValue(ListValue { values: items.into_iter().map(to_value).collect() })
        }
        Json::Object(fields) => Kind::StructValue(to_struct(fields)),
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::check::Entry;
    use crate::metrics::Metrics;
    use crate::privacy;
    use crate::quota::{Limit, Verdict};
    use crate::rules::RuleSet;

    const RULES: &str = "
domain: edge
descriptors:
  - key: plan
    rate_limit: { limit: 5, window: 1s }
    metadata: { tier: gold, owner: { team: a } }
  - key: authorization
    rate_limit: { limit: 5, window: 1s, name: login }
    metadata: { tier: iron, owner: { team: b, page: c } }
";

    fn shown(allowed: [bool; 2]) -> Json {
        let privacy = Privacy::new(&privacy::Settings::default());
        let rules = RuleSet::from_text(RULES, &Metrics::new(), &privacy).ok().unwrap();
        let asked = |key: &str, value: &[u8]| Descriptor {
            entries: vec![Entry::new(key, value)],
            hits: 2,
            limit_override: None,
        };
        let descriptors = vec![asked("plan", b"a\xff"), asked("authorization", b"Bearer x")];
        let request = Request { domain: "edge".into(), descriptors };
        let matches = rules.domain("edge").unwrap().matches(&request, &privacy);
        let wait = Duration::from_secs(1);
        let status = |(matched, allowed): (_, bool)| {
            let matched: Option<crate::rules::Match> = matched;
            let remaining = u64::from(allowed);
            let retry_after = (!allowed).then_some(wait);
            let verdict = Verdict { allowed, remaining, retry_after, reset_after: wait };
            let limit = Some(Limit::new(5, wait).unwrap());
            let unlimited = Status::unlimited(matched.map(|matched| Arc::clone(&matched.rule)));
            Status { verdict, limit, source: Source::Store, ..unlimited }
        };
        let decision = Decision::of(matches.into_iter().zip(allowed).map(status).collect());
        from_struct(metadata(&request, &decision, &privacy))
    }

    fn from_struct(from: Struct) -> Json {
        let field = |(name, value): (String, Value)| (name, from_value(value));
        Json::Object(from.fields.into_iter().map(field).collect())
    }

    fn from_value(value: Value) -> Json {
        match value.kind.unwrap() {
            Kind::NullValue(_) => Json::Null,
            Kind::BoolValue(flag) => json!(flag),
            Kind::NumberValue(number) => json!(number),
            Kind::StringValue(text) => json!(text),
            Kind::ListValue(list) => list.values.into_iter().map(from_value).collect(),
            Kind::StructValue(fields) => from_struct(fields),
        }
    }

    #[test]
    fn it_says_what_was_asked_and_what_the_rules_add() {
        let passed = shown([true, true]);
        assert_eq!(passed["domain"], "edge");
        assert_eq!(
            passed["descriptors"][0],
            json!({"entries": ["plan=a\\xff"], "hitsAddend": 2.0})
        );
        let secret = passed["descriptors"][1]["entries"][0].as_str().unwrap();
        assert!(secret.starts_with("authorization=fp-") && !secret.contains("Bearer"), "{secret}");
        let merged = json!({"tier": "gold", "owner": {"team": "a", "page": "c"}});
        assert_eq!(passed["metadata"], merged);
        assert_eq!((&passed["source"], passed.get("deniedBy")), (&json!("store"), None));
    }

    #[test]
    fn a_refusal_names_its_rule_and_adds_only_what_passed() {
        let refused = shown([false, true]);
        assert_eq!(refused["deniedBy"], "plan");
        assert_eq!(
            refused["metadata"],
            json!({"tier": "iron", "owner": {"team": "b", "page": "c"}})
        );
        assert_eq!(shown([true, false])["deniedBy"], "login");
        assert_eq!(shown([false, false]).get("metadata"), None);
    }
}
