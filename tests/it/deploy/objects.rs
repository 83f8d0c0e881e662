//! Kubernetes objects as tests ask them: by path, by kind, by what runs in their pods.

use serde_json::Value;

/// A container of a pod template, and what is around it.
pub(super) struct Container<'a> {
    /// `Deployment/chronosdb: chronosdb`, for messages.
    pub(super) place: String,
    /// The object that makes the pods.
    pub(super) owner: &'a Value,
    /// The `spec` of the pods.
    pub(super) pod: &'a Value,
    pub(super) spec: &'a Value,
}

/// `at(value, "spec.template.metadata")`; null where there is nothing.
pub(super) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, key| &value[key])
}

/// The text there; empty where there is none.
pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// The items of the list there; none where there is no list.
pub(super) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

pub(super) fn name(object: &Value) -> String {
    format!("{}/{}", text(object, "kind"), text(object, "metadata.name"))
}

/// What makes pods.
pub(super) fn workloads(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects.iter().filter(|object| !at(object, "spec.template.spec").is_null())
}

/// Every container of every pod template, sidecars included.
pub(super) fn containers(objects: &[Value]) -> Vec<Container<'_>> {
    let of = |owner| {
        let pod = at(owner, "spec.template.spec");
        let all = list(pod, "initContainers").iter().chain(list(pod, "containers"));
        all.map(move |spec| {
            let place = format!("{}: {}", name(owner), text(spec, "name"));
            Container { place, owner, pod, spec }
        })
    };
    workloads(objects).flat_map(of).collect()
}

impl Container<'_> {
    /// Whether it is the program, and not something beside it.
    pub(super) fn is_chronosdb(&self) -> bool {
        text(self.spec, "image").split([':', '@']).next() == Some("chronosdb")
    }

    /// The number of a port by its name.
    pub(super) fn port(&self, name: &str) -> Option<u64> {
        let ports = list(self.spec, "ports").iter();
        ports.filter(|port| port["name"] == name).find_map(|port| port["containerPort"].as_u64())
    }

    /// Where a volume is mounted, by the volume's name.
    pub(super) fn mounts(&self) -> impl Iterator<Item = (&str, &str)> {
        let mounts = list(self.spec, "volumeMounts").iter();
        mounts.map(|mount| (text(mount, "name"), text(mount, "mountPath")))
    }

    /// The `ConfigMap` behind a volume.
    pub(super) fn config_map(&self, volume: &str) -> Option<&str> {
        let mut volumes = list(self.pod, "volumes").iter();
        let volume = volumes.find(|found| found["name"] == volume)?;
        at(volume, "configMap.name").as_str()
    }
}
