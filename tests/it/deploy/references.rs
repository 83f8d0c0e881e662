//! Names in Kubernetes objects that point at other objects: ports, selectors, volumes. And what a
//! restricted namespace asks of every container.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::objects::{at, containers, list, name, of_kind, text, workloads};

/// What points nowhere, one sentence each.
pub(super) fn faults(objects: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    faults.extend(selectors(objects));
    faults.extend(service_ports(objects));
    faults.extend(volumes(objects));
    faults.extend(probe_ports(objects));
    faults.extend(restricted(objects));
    faults.extend(scale_targets(objects));
    faults
}

/// Each selector, and the objects whose labels it must find.
fn selectors(objects: &[Value]) -> Vec<String> {
    let pods: Vec<&Value> =
        workloads(objects).map(|owner| at(owner, "spec.template.metadata.labels")).collect();
    let services: Vec<&Value> =
        of_kind(objects, "Service").map(|service| at(service, "metadata.labels")).collect();
    let table = [
        ("Service", "spec.selector", &pods),
        ("PodDisruptionBudget", "spec.selector.matchLabels", &pods),
        ("NetworkPolicy", "spec.podSelector.matchLabels", &pods),
        ("Deployment", "spec.selector.matchLabels", &pods),
        ("StatefulSet", "spec.selector.matchLabels", &pods),
        ("ServiceMonitor", "spec.selector.matchLabels", &services),
    ];
    let mut faults = Vec::new();
    for (kind, path, candidates) in table {
        for object in of_kind(objects, kind) {
            let selector = at(object, path);
            if !candidates.iter().any(|labels| selects(selector, labels)) {
                faults.push(format!("{}: {path} selects nothing: {selector}", name(object)));
            }
        }
    }
    for policy in of_kind(objects, "NetworkPolicy") {
        for peer in list(policy, "spec.ingress").iter().flat_map(|rule| list(rule, "from")) {
            let selector = at(peer, "podSelector.matchLabels");
            if !selector.is_null() && !pods.iter().any(|labels| selects(selector, labels)) {
                faults.push(format!("{}: lets nobody in by {selector}", name(policy)));
            }
        }
    }
    faults
}

fn selects(selector: &Value, labels: &Value) -> bool {
    let Some(wanted) = selector.as_object() else { return false };
    !wanted.is_empty() && wanted.iter().all(|(label, value)| &labels[label] == value)
}

/// Names of the ports of the pods that a selector finds.
fn ports<'a>(objects: &'a [Value], selector: &Value) -> BTreeSet<&'a str> {
    let mut ports = BTreeSet::new();
    for container in containers(objects) {
        if !selects(selector, at(container.owner, "spec.template.metadata.labels")) {
            continue;
        }
        ports.extend(list(container.spec, "ports").iter().map(|port| text(port, "name")));
    }
    ports
}

/// Named ports of Services, policies and monitors.
fn service_ports(objects: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut offered = Vec::new();
    for service in of_kind(objects, "Service") {
        let pods = ports(objects, at(service, "spec.selector"));
        for port in list(service, "spec.ports") {
            offered.push(text(port, "name"));
            let target = text(port, "targetPort");
            if !pods.contains(target) {
                faults.push(format!("{}: no pod has a port {target}", name(service)));
            }
        }
    }
    for policy in of_kind(objects, "NetworkPolicy") {
        let pods = ports(objects, at(policy, "spec.podSelector.matchLabels"));
        let rules = list(policy, "spec.ingress").iter().flat_map(|rule| list(rule, "ports"));
        for port in rules.filter_map(|port| port["port"].as_str()) {
            if !pods.contains(port) {
                faults.push(format!("{}: no pod has a port {port}", name(policy)));
            }
        }
    }
    for monitor in of_kind(objects, "ServiceMonitor") {
        for port in list(monitor, "spec.endpoints").iter().map(|endpoint| text(endpoint, "port")) {
            if !offered.contains(&port) {
                faults.push(format!("{}: no Service has a port {port}", name(monitor)));
            }
        }
    }
    faults
}

/// Volumes that are mounted and not there, there and not mounted, or whose `ConfigMap` is missing.
fn volumes(objects: &[Value]) -> Vec<String> {
    let maps: Vec<&str> =
        of_kind(objects, "ConfigMap").map(|map| text(map, "metadata.name")).collect();
    let mut faults = Vec::new();
    for container in containers(objects) {
        for mount in list(container.spec, "volumeMounts") {
            let volume = text(mount, "name");
            let mut volumes = list(container.pod, "volumes").iter();
            if !volumes.any(|known| known["name"] == volume) {
                faults.push(format!("{}: there is no volume {volume}", container.place));
            }
            if !mount["subPath"].is_null() {
                faults.push(format!("{}: a subPath is never updated", container.place));
            }
            match container.config_map(volume) {
                Some(map) if !maps.contains(&map) => {
                    faults.push(format!("{}: there is no ConfigMap {map}", container.place));
                }
                _ => {}
            }
        }
    }
    faults
}

/// Probes that ask a port which the container has not.
fn probe_ports(objects: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    for container in containers(objects) {
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let probe = &container.spec[probe];
            let asked =
                [&probe["httpGet"]["port"], &probe["tcpSocket"]["port"], &probe["grpc"]["port"]];
            for port in asked.into_iter().filter(|port| !port.is_null()) {
                let known = match port.as_str() {
                    Some(name) => container.port(name).is_some(),
                    None => list(container.spec, "ports")
                        .iter()
                        .any(|own| &own["containerPort"] == port),
                };
                if !known {
                    faults.push(format!("{}: a probe asks port {port}", container.place));
                }
            }
        }
    }
    faults
}

/// What the pod security standard "restricted" asks for, a read-only root, and bounded memory.
fn restricted(objects: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    for container in containers(objects) {
        let table = [
            (container.pod, "securityContext.runAsNonRoot", json!(true)),
            (container.pod, "securityContext.seccompProfile.type", json!("RuntimeDefault")),
            (container.pod, "automountServiceAccountToken", json!(false)),
            (container.spec, "securityContext.allowPrivilegeEscalation", json!(false)),
            (container.spec, "securityContext.readOnlyRootFilesystem", json!(true)),
            (container.spec, "securityContext.capabilities.drop", json!(["ALL"])),
        ];
        for (value, path, expected) in table {
            if *at(value, path) != expected {
                faults.push(format!("{}: {path} is not {expected}", container.place));
            }
        }
        for path in ["resources.limits.memory", "resources.requests.cpu"] {
            if at(container.spec, path).is_null() {
                faults.push(format!("{}: no {path}", container.place));
            }
        }
    }
    faults
}

fn scale_targets(objects: &[Value]) -> Vec<String> {
    let known: Vec<String> = workloads(objects).map(name).collect();
    let targets = of_kind(objects, "HorizontalPodAutoscaler").filter_map(|scaler| {
        let target = at(scaler, "spec.scaleTargetRef");
        let target = format!("{}/{}", text(target, "kind"), text(target, "name"));
        (!known.contains(&target)).then(|| format!("{}: there is no {target}", name(scaler)))
    });
    targets.collect()
}

#[test]
fn each_fault_is_found() {
    let rendered = super::manifests::kustomize("deploy/k8s");
    assert_eq!(faults(&super::yaml(&rendered)), [""; 0]);
    let planted = [
        ("targetPort: grpc-ratelimit", "targetPort: grpc", "no pod has a port grpc"),
        ("port: http-metrics\n", "port: http\n", "a probe asks port"),
        ("name: chronosdb-rules\n", "name: rules\n", "there is no ConfigMap chronosdb-rules"),
        ("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "is not true"),
        (
            "kind: Deployment\n    name: chronosdb",
            "kind: Deployment\n    name: c",
            "no Deployment/c",
        ),
        ("redis-client: \"true\"\n    spec", "redis-c: \"true\"\n    spec", "lets nobody in by"),
        ("mountPath: /etc/chronosdb/rules", "subPath: x", "a subPath is never updated"),
    ];
    for (from, to, expected) in planted {
        assert!(rendered.contains(from), "there is no {from}");
        let broken =
            rendered.replacen(from, to, if expected.contains("ConfigMap") { 1 } else { 9 });
        let found = faults(&super::yaml(&broken)).join("\n");
        assert!(found.contains(expected), "{to}: expected \"{expected}\", found \"{found}\"");
    }
}
