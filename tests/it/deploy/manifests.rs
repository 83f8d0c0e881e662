//! `deploy/k8s`: rendered by kustomize, held against the schemas of Kubernetes and the program.

use serde_json::Value;

use super::container::faults_of_programs;
use super::objects::{at, of_kind};
use super::references::faults;
use super::{outcome, printed, read, repository, tool, tools, yaml};

/// The oldest version that knows native sidecars, and the newest one that has schemas here.
const KUBERNETES: [&str; 2] = ["1.29", "1.37"];

/// What is wrong with rendered objects, in the eyes of Kubernetes and the Prometheus operator.
pub(super) fn faults_of_schemas(rendered: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rendered.yaml");
    std::fs::write(&file, rendered).unwrap();
    let mut faults = Vec::new();
    for version in KUBERNETES {
        let mut validate = tool("kubernetes-validate");
        validate.args(["--strict", "-k", version]).arg(&file);
        let (good, text) = outcome(&mut validate, "");
        let is_known = |line: &&str| {
            line.starts_with("INFO")
                || line.contains("Couldn't find schema for kind ServiceMonitor")
                || line.contains("Couldn't find schema for kind PrometheusRule")
        };
        faults.extend(text.lines().filter(|line| !is_known(line)).map(str::to_owned));
        assert!(good || !faults.is_empty(), "{text}");
    }
    if rendered.contains("apiVersion: monitoring.coreos.com/") {
        let mut validate = tool("python");
        validate.arg("tests/tools/validate_crds.py").arg(tools().join("crds"));
        let (good, text) = outcome(&mut validate, rendered);
        faults.extend((!good).then_some(text));
    }
    faults
}

pub(super) fn kustomize(folder: &str) -> String {
    printed(tool("kustomize").args(["build", folder]), "")
}

#[track_caller]
fn assert_sound(rendered: &str) -> Vec<Value> {
    let objects = yaml(rendered);
    let mut all = faults_of_schemas(rendered);
    all.extend(faults(&objects));
    all.extend(faults_of_programs(&objects));
    assert!(all.is_empty(), "\n{}", all.join("\n"));
    objects
}

#[test]
fn the_manifests_are_sound() {
    let objects = yaml(&kustomize("deploy/k8s"));
    let kinds: Vec<&str> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
    for kind in [
        "Deployment",
        "StatefulSet",
        "Service",
        "ConfigMap",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
    ] {
        assert!(kinds.contains(&kind), "there is no {kind}");
    }
    // What monitors and what is monitored belong together.
    let together =
        format!("{}\n---\n{}", kustomize("deploy/k8s"), kustomize("deploy/k8s/monitoring"));
    assert_sound(&together);
}

#[test]
fn the_sidecar_is_sound() {
    // It counts in the Redis of the others.
    let together = format!("{}\n---\n{}", kustomize("deploy/k8s/sidecar"), kustomize("deploy/k8s"));
    assert_sound(&together);
}

/// The overlay that docs/operations.md shows.
#[test]
fn the_documented_overlay_is_rendered() {
    let operations = read("docs/operations.md");
    let mut blocks = operations.split("```yaml\n").filter_map(|rest| rest.split("```").next());
    let overlay = blocks.find(|block| block.contains("../deploy/k8s")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let up = "../".repeat(folder.path().canonicalize().unwrap().components().count() - 1);
    let base = format!("{up}{}/deploy/k8s", repository().display().to_string().trim_matches('/'));
    let file = folder.path().join("kustomization.yaml");
    std::fs::write(file, overlay.replace("../deploy/k8s", &base)).unwrap();
    let rendered = kustomize(folder.path().to_str().unwrap());
    let objects = yaml(&rendered);
    let deployment = of_kind(&objects, "Deployment").next().unwrap();
    assert!(at(deployment, "spec.replicas").is_null(), "{deployment}");
    let version = env!("CARGO_PKG_VERSION");
    assert!(rendered.contains(&format!("image: registry.example.com/chronosdb:{version}\n")));
    let base = kustomize("deploy/k8s");
    assert!(base.contains(&format!("image: chronosdb:{version}\n")), "newTag in deploy/k8s");
}

#[test]
fn the_rules_are_the_samples() {
    for file in ["edge.yaml", "native.yaml"] {
        let (sample, mounted) =
            (format!("config/rules/{file}"), format!("deploy/k8s/rules/{file}"));
        assert_eq!(read(&sample), read(&mounted), "{mounted} is a copy of {sample}");
    }
}

#[test]
fn rules_reload_and_settings_restart() {
    let objects = yaml(&kustomize("deploy/k8s"));
    let names: Vec<&str> =
        objects.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    assert!(names.contains(&"chronosdb-rules"), "a hash in its name would restart every pod");
    assert!(names.iter().any(|name| name.starts_with("chronosdb-settings-")), "{names:?}");
}

#[test]
fn schemas_find_faults() {
    let rendered = kustomize("deploy/k8s");
    for (from, to) in [
        ("containerPort: 50051", "containerPort: many"),
        ("readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"),
    ] {
        assert!(rendered.contains(from));
        assert!(!faults_of_schemas(&rendered.replace(from, to)).is_empty(), "{to} passed");
    }
    let monitor = kustomize("deploy/k8s/monitoring");
    let typo = monitor.replace("interval:", "intervall:");
    assert!(faults_of_schemas(&typo).concat().contains("intervall"), "a typo passed");
}
