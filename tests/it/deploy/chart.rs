//! `deploy/helm/chronosdb`: linted and rendered by Helm, with the defaults and with everything on.

use serde_json::Value;

use super::container::faults_of_programs;
use super::manifests::faults_of_schemas;
use super::objects::{at, list, of_kind, text};
use super::references::faults;
use super::{outcome, printed, read, tool, yaml, yaml_file};

const CHART: &str = "deploy/helm/chronosdb";

/// Everything that can be switched on or named.
const EVERYTHING: &str = r#"
image: { repository: chronosdb, tag: "1.2.3", pullPolicy: Always }
imagePullSecrets: [{ name: registry }]
redis: { existingSecret: redis-url }
service: { annotations: { a: b } }
autoscaling: { enabled: true }
networkPolicy: { enabled: true }
serviceMonitor: { enabled: true, labels: { release: prometheus } }
prometheusRule: { enabled: true, labels: { release: prometheus } }
dashboard: { enabled: true }
env: [{ name: CHRONOSDB_PRIVACY__KEY, valueFrom: { secretKeyRef: { name: privacy, key: key } } }]
podAnnotations: { a: b }
podLabels: { redis-client: "true" }
nodeSelector: { kubernetes.io/os: linux }
tolerations: [{ key: dedicated, operator: Exists }]
affinity: { nodeAffinity: {} }
priorityClassName: system-cluster-critical
"#;

/// What Helm makes of these values, or what it says against them.
fn rendered(values: &str) -> Result<String, String> {
    let mut helm = tool("helm");
    helm.args(["template", "edge", CHART, "--kube-version", "1.33.0", "--values", "-"]);
    let (good, text) = outcome(&mut helm, values);
    if good { Ok(text) } else { Err(text) }
}

#[track_caller]
fn sound(values: &str) -> Vec<Value> {
    let rendered = rendered(values).unwrap();
    let objects = yaml(&rendered);
    let mut all = faults_of_schemas(&rendered);
    all.extend(faults(&objects));
    all.extend(faults_of_programs(&objects));
    assert!(all.is_empty(), "\n{}", all.join("\n"));
    objects
}

#[test]
fn helm_lints_it() {
    printed(tool("helm").args(["lint", "--strict", "--kube-version", "1.33.0", CHART]), "");
}

#[test]
fn the_defaults_are_sound() {
    let objects = sound("");
    assert!(of_kind(&objects, "StatefulSet").next().is_some(), "no Redis comes with it");
}

#[test]
fn everything_switched_on_is_sound() {
    let objects = sound(EVERYTHING);
    let alerts = of_kind(&objects, "PrometheusRule").next().unwrap();
    assert_eq!(*at(alerts, "spec"), yaml_file("deploy/prometheus/alerts.yaml"));
    let dashboard = of_kind(&objects, "ConfigMap")
        .find_map(|map| map["data"].get("chronosdb.json")?.as_str())
        .unwrap();
    assert_eq!(dashboard.trim(), read("deploy/grafana/chronosdb.json").trim());
    assert!(of_kind(&objects, "StatefulSet").next().is_none(), "a Redis comes with a Secret's");
}

/// The values that docs/operations.md shows.
#[test]
fn the_documented_values_are_sound() {
    let operations = read("docs/operations.md");
    let mut blocks = operations.split("```yaml\n").filter_map(|rest| rest.split("```").next());
    sound(blocks.find(|block| block.contains("prometheusRule:")).unwrap());
}

#[test]
fn a_redis_of_your_own_and_no_redis() {
    let settings = |values: &str| {
        let objects = yaml(&rendered(values).unwrap());
        assert!(of_kind(&objects, "StatefulSet").next().is_none(), "{values}");
        let text = of_kind(&objects, "ConfigMap")
            .find_map(|map| map["data"].get("chronosdb.yaml")?.as_str().map(str::to_owned));
        text.unwrap()
    };
    assert!(settings("redis: { url: 'redis://mine:1' }").contains("url: redis://mine:1"));
    let memory = settings("settings: { store: { kind: memory } }");
    assert!(memory.contains("kind: memory") && !memory.contains("url:"), "{memory}");
    let nowhere = rendered("redis: { bundled: false }").unwrap_err();
    assert!(nowhere.contains("no Redis is named: set redis.url"), "{nowhere}");
}

#[test]
fn a_value_that_does_not_exist_is_refused() {
    for (values, expected) in [
        ("replica: 2", "'replica' not allowed"),
        ("image: { pullPolicy: Sometimes }", "/image/pullPolicy"),
        ("rules: { edge.yaml: { domain: edge } }", "/rules/edge.yaml"),
        ("rules: { edge.txt: '' }", "edge.txt"),
        ("redis: { url: 'http://mine' }", "/redis/url"),
    ] {
        let error = rendered(values).unwrap_err();
        assert!(error.contains(expected), "{values}: {error}");
    }
    // Keys of the settings file are the program's to refuse.
    let objects = yaml(&rendered("settings: { stroe: {} }").unwrap());
    let found = faults_of_programs(&objects).concat();
    assert!(found.contains("unknown key `stroe`: did you mean `store`?"), "{found}");
}

#[test]
fn every_value_is_described() {
    let schema: Value =
        serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    let values = yaml_file(&format!("{CHART}/values.yaml"));
    described(&schema, &values, "");
    let container = of_kind(&yaml(&rendered("").unwrap()), "Deployment")
        .map(|deployment| {
            text(&list(deployment, "spec.template.spec.containers")[0], "image").to_owned()
        })
        .next();
    let version = format!("chronosdb:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(container.as_deref(), Some(&*version), "Chart.yaml: appVersion");
}

/// Each value of the schema has a default and a description, and each default is in the schema.
fn described(schema: &Value, values: &Value, place: &str) {
    let Some(properties) = schema["properties"].as_object() else { return };
    for (key, property) in properties.iter().filter(|(key, _)| *key != "global") {
        assert!(property["description"].is_string(), "{place}{key} is not described");
        assert!(!values[key].is_null(), "values.yaml has no {place}{key}");
        described(property, &values[key], &format!("{place}{key}."));
    }
}
