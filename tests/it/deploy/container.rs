//! The program as a container starts it: its arguments, environment and mounted files, unfolded
//! into a folder, and what `serve --print-config` makes of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::objects::{Container, at, containers, list, of_kind, text};
use super::{outcome, yaml};
use crate::harness::server::Server;

/// What the program says against the containers that run it, one sentence each.
pub(super) fn faults_of_programs(objects: &[Value]) -> Vec<String> {
    let pages = Server::start(super::compose::PLENTY, "");
    let mut faults = Vec::new();
    for container in containers(objects).iter().filter(|container| container.is_chronosdb()) {
        let root = unfolded(container, objects);
        match settings(container, root.path()) {
            Err(fault) => faults.push(format!("{}: {fault}", container.place)),
            Ok(settings) => {
                faults.extend(against(container, &settings, objects));
                faults.extend(rules(container, &settings, root.path()));
            }
        }
        faults.extend(probes(container, &pages));
    }
    faults
}

/// The files that `ConfigMap`s bring into the container.
fn unfolded(container: &Container<'_>, objects: &[Value]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (volume, folder) in container.mounts() {
        let Some(map) = container.config_map(volume) else { continue };
        let folder = below(root.path(), folder);
        std::fs::create_dir_all(&folder).unwrap();
        let namespace = at(container.owner, "metadata.namespace");
        let mut maps = of_kind(objects, "ConfigMap").filter(|found| {
            text(found, "metadata.name") == map && at(found, "metadata.namespace") == namespace
        });
        let files = maps.next().and_then(|map| map["data"].as_object());
        for (name, content) in files.into_iter().flatten() {
            std::fs::write(folder.join(name), content.as_str().unwrap_or_default()).unwrap();
        }
    }
    root
}

/// The settings in force, or why it would not start.
fn settings(container: &Container<'_>, root: &Path) -> Result<Value, String> {
    let mut program = program();
    program.args(list(container.spec, "args").iter().filter_map(Value::as_str));
    for variable in list(container.spec, "env") {
        let (name, value) = (text(variable, "name"), text(variable, "value"));
        match name {
            "CHRONOSDB_CONFIG" => program.env(name, below(root, value)),
            _ if name.starts_with("CHRONOSDB_") && !name.contains("__") => {
                return Err(format!("{name} is no setting: sections are joined by __"));
            }
            // Out of a Secret, which is not here.
            _ if value.is_empty() => program.env(name, "redis://from-a-secret:6379"),
            _ => program.env(name, value),
        };
    }
    let (good, text) = outcome(program.arg("--print-config"), "");
    if good { Ok(yaml(&text).remove(0)) } else { Err(text) }
}

/// Settings against ports, mounts, grace period, replicas and Services.
fn against(container: &Container<'_>, settings: &Value, objects: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |what: String| faults.push(format!("{}: {what}", container.place));
    for (setting, port) in [("grpc.listen", "grpc-ratelimit"), ("http.listen", "http-metrics")] {
        let listen = text(settings, setting);
        match container.port(port) {
            Some(number) if listen != format!("0.0.0.0:{number}") => {
                fault(format!("{setting} is {listen}, and {port} is {number}"));
            }
            None if !listen.starts_with("127.0.0.1:") => {
                fault(format!("{setting}: no port {port}"))
            }
            _ => {}
        }
    }
    let mounted: Vec<&str> = container.mounts().map(|(_, path)| path).collect();
    let socket = at(settings, "grpc.uds").as_str().map(|path| Path::new(path).parent().unwrap());
    let needed = [Some(Path::new(text(settings, "rules.path"))), socket];
    for path in needed.into_iter().flatten() {
        if !mounted.iter().any(|mounted| Path::new(mounted) == path) {
            fault(format!("nothing is mounted at {}", path.display()));
        }
    }
    let drain = duration(settings, "drain.delay") + duration(settings, "drain.timeout");
    let grace = at(container.pod, "terminationGracePeriodSeconds").as_u64().unwrap_or(30);
    if drain >= Duration::from_secs(grace) {
        fault(format!("killed after {grace} s, while a drain may take {drain:?}"));
    }
    let instances = at(settings, "store.expected_instances");
    let replicas = at(container.owner, "spec.replicas");
    if !replicas.is_null() && replicas != instances {
        fault(format!("store.expected_instances is {instances}, replicas {replicas}"));
    }
    let url = text(settings, "store.redis.url");
    let is_ours = text(settings, "store.kind") == "redis" && !url.contains("from-a-secret");
    if is_ours && !is_offered(url, container, objects) {
        fault(format!("no Service is {url}"));
    }
    faults
}

/// Whether a Service of that name, namespace and port is among the objects.
fn is_offered(url: &str, container: &Container<'_>, objects: &[Value]) -> bool {
    let address = url.trim_start_matches("redis://");
    let (host, port) = address.split_once(':').unwrap_or((address, "6379"));
    let port = port.parse().ok();
    let mut names = host.split('.');
    let (name, namespace) = (names.next(), names.next());
    let own = at(container.owner, "metadata.namespace").as_str();
    of_kind(objects, "Service").any(|service| {
        at(service, "metadata.name").as_str() == name
            && at(service, "metadata.namespace").as_str() == namespace.or(own)
            && list(service, "spec.ports").iter().any(|known| known["port"].as_u64() == port)
    })
}

fn duration(settings: &Value, path: &str) -> Duration {
    humantime::parse_duration(text(settings, path)).unwrap()
}

/// Rules files with errors, or none at all.
fn rules(container: &Container<'_>, settings: &Value, root: &Path) -> Option<String> {
    let mut validate = program();
    validate.arg("validate").arg(below(root, text(settings, "rules.path")));
    let (good, text) = outcome(&mut validate, "");
    (!good).then(|| format!("{}: {text}", container.place))
}

/// Probes that ask for a page which is not there, or run a command that does not exist.
fn probes(container: &Container<'_>, pages: &Server) -> Vec<String> {
    let mut faults = Vec::new();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let probe = &container.spec[probe];
        let page = text(probe, "httpGet.path");
        if !page.is_empty() && pages.page(page).unwrap().status != 200 {
            faults.push(format!("{}: a probe asks for {page}", container.place));
        }
        let command: Vec<&str> =
            list(probe, "exec.command").iter().filter_map(Value::as_str).collect();
        if let Some((path, arguments)) = command.split_first() {
            // Nobody listens there now, so it fails; but it must have understood the question.
            let status = program().args(arguments).output().unwrap().status;
            if *path != "/usr/local/bin/chronosdb" || status.code() != Some(1) {
                faults.push(format!("{}: a probe runs {command:?}", container.place));
            }
        }
    }
    faults
}

/// The program, with an empty environment.
pub(super) fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_chronosdb"));
    program.env_clear();
    program
}

/// An absolute path of the container, below the folder that stands for its root.
pub(super) fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

#[test]
fn each_fault_is_found() {
    let rendered = super::manifests::kustomize("deploy/k8s");
    let planted = [
        ("on_error: local", "on_eror: local", "did you mean `on_error`"),
        ("listen: 0.0.0.0:50051", "listen: 0.0.0.0:50052", "grpc-ratelimit is 50051"),
        ("path: /etc/chronosdb/rules\n", "path: /rules\n", "nothing is mounted at /rules"),
        ("delay: 5s", "delay: 15s", "while a drain may take 35s"),
        ("expected_instances: 3", "expected_instances: 2", "replicas 3"),
        ("redis://redis:6379", "redis://reddis:6379", "no Service is redis://reddis:6379"),
        ("value: /etc/chronosdb/settings/", "value: /etc/chronosdb/", "No such file"),
        ("- name: CHRONOSDB_CONFIG", "- name: CHRONOSDB_CONFIGS", "is no setting"),
        ("path: /livez", "path: /alive", "a probe asks for /alive"),
        ("- serve", "- server", "unrecognized subcommand"),
        ("unit: minute", "unit: minutes", "unit"),
    ];
    for (from, to, expected) in planted {
        assert!(rendered.contains(from), "there is no {from}");
        let found = faults_of_programs(&yaml(&rendered.replace(from, to))).join("\n");
        assert!(found.contains(expected), "{to}: expected \"{expected}\", found \"{found}\"");
    }
}
