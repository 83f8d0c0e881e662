//! `deploy/k8s/sidecar` without Kubernetes: its Envoy asks its ChronosDB through a unix socket.

use serde_json::Value;

use super::container::program;
use super::objects::{list, text};
use super::{Running, outcome, read, repository, yaml_file};
use crate::harness::redis::Redis;
use crate::harness::{free_port, http, wait_until};

const FOLDER: &str = "deploy/k8s/sidecar";
const SOCKET: &str = "/run/chronosdb/chronosdb.sock";

#[test]
fn envoy_and_chronosdb_meet_at_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("chronosdb.sock");
    let socket = socket.to_str().unwrap();
    let (redis, web, front, admin) = (Redis::start(), free_port(), free_port(), free_port());
    let settings = yaml_file(&format!("{FOLDER}/chronosdb.yaml"));
    assert_eq!(text(&settings, "grpc.uds"), SOCKET);
    let mut serve = program();
    serve
        .env("CHRONOSDB_CONFIG", repository().join(FOLDER).join("chronosdb.yaml"))
        .env("CHRONOSDB_GRPC__UDS", socket)
        .env("CHRONOSDB_GRPC__LISTEN", format!("127.0.0.1:{}", free_port()))
        .env("CHRONOSDB_HTTP__LISTEN", format!("127.0.0.1:{web}"))
        .env("CHRONOSDB_RULES__PATH", repository().join(FOLDER).join("rules"))
        .env("CHRONOSDB_STORE__REDIS__URL", redis.url())
        .env("CHRONOSDB_LOG__LEVEL", "error");
    let _chronosdb = Running::start(serve.arg("serve"));
    wait_until("the startup probe succeeds", || started(socket));

    let mut bootstrap = read(&format!("{FOLDER}/envoy.yaml"));
    // Its own HTTP port stands for the application.
    let ports = [("8080", front), ("5678", web), ("9901", admin)];
    let changes =
        ports.map(|(port, here)| (format!("port_value: {port}"), format!("port_value: {here}")));
    for (from, to) in changes.into_iter().chain([(SOCKET.to_owned(), socket.to_owned())]) {
        assert!(bootstrap.contains(&from), "there is no {from}");
        bootstrap = bootstrap.replace(&from, &to);
    }
    let file = folder.path().join("envoy.yaml");
    std::fs::write(&file, bootstrap).unwrap();
    let _envoy = Running::envoy(&file);
    wait_until("the application answers through Envoy", || {
        http::get(front, "/").is_ok_and(|page| page.status == 200)
    });
    let statuses: Vec<u16> = (0..60).map(|_| http::get(front, "/").unwrap().status).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
}

/// Whether the startup probe of the manifest succeeds, asking this socket.
fn started(socket: &str) -> bool {
    let objects = super::yaml(&read(&format!("{FOLDER}/app.yaml")));
    let containers =
        objects.iter().flat_map(|object| list(object, "spec.template.spec.initContainers"));
    let mut probes = containers.map(|container| list(container, "startupProbe.exec.command"));
    let probe = probes.find(|probe| !probe.is_empty()).unwrap();
    let words =
        probe[1..].iter().filter_map(Value::as_str).map(|word| word.replace(SOCKET, socket));
    outcome(program().args(words), "").0
}
