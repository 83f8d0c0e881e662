//! `deploy/docker/compose.yaml` without Docker: what it says is there is there, and its fleet runs,
//! with loopback ports where the file has names of containers.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::container::program;
use super::objects::{at, list, text};
use super::{Running, outcome, read, repository, yaml_file};
use crate::harness::certs::Ca;
use crate::harness::redis::Redis;
use crate::harness::server::Server;
use crate::harness::{free_port, http, signal, tool, wait_until};

/// Rules that refuse nobody.
pub(super) const PLENTY: &str =
    "domain: edge\ndescriptors:\n- { key: any, rate_limit: { limit: 1000000, window: 1s } }\n";

const FOLDER: &str = "deploy/docker";

/// Who listens where in the file, on which port of this machine.
struct Ports(Vec<(&'static str, u16, u16)>);

impl Ports {
    fn of(&self, service: &str, port: u16) -> u16 {
        let mut known = self.0.iter().filter(|known| (known.0, known.1) == (service, port));
        known.next().unwrap_or_else(|| panic!("nobody is {service}:{port}")).2
    }

    /// The text with loopback ports instead of `name:port`, and of Envoy's way to write that.
    fn at_home(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (service, port, here) in &self.0 {
            text = text.replace(&format!("{service}:{port}"), &format!("127.0.0.1:{here}"));
            let envoys = |host: &str, port| format!("address: {host}, port_value: {port}");
            text = text.replace(&envoys(service, *port), &envoys("127.0.0.1", *here));
            if *service == "envoy" {
                text = text.replace(&envoys("0.0.0.0", *port), &envoys("127.0.0.1", *here));
            }
        }
        text
    }
}

/// The fleet, until dropped.
pub(super) struct Fleet {
    pub(super) redis: Redis,
    /// One more instance, which the file has not: certificates are only where TLS is. Prometheus
    /// reads it like the others.
    _secured: Server,
    ports: Ports,
    /// The two instances, Envoy, Prometheus.
    running: Vec<Running>,
    _folder: TempDir,
}

impl Fleet {
    /// Starts what the file starts, except Grafana and the clients.
    pub(super) fn start() -> Self {
        let compose = yaml_file(&format!("{FOLDER}/compose.yaml"));
        let folder = tempfile::tempdir().unwrap();
        let redis = Redis::start_with(&arguments(&compose, "redis")[1..]);
        let redis_port = redis.url().rsplit(':').next().unwrap().parse().unwrap();
        let mut ports = vec![("redis", 6379, redis_port)];
        for (service, port) in [
            ("chronosdb-1", 50051),
            ("chronosdb-1", 8000),
            ("chronosdb-2", 50051),
            ("chronosdb-2", 8000),
            ("envoy", 10000),
            ("envoy", 9901),
            ("prometheus", 9090),
        ] {
            ports.push((service, port, free_port()));
        }
        let ports = Ports(ports);
        let secured = secured(folder.path());
        let mut running = vec![
            instance(&compose, "chronosdb-1", &ports),
            instance(&compose, "chronosdb-2", &ports),
            envoy(&compose, &ports, folder.path()),
        ];
        wait_until("Prometheus reads its targets", || {
            if running.len() == 3 {
                running.push(prometheus(&compose, &ports, secured.http_port, folder.path()));
            }
            http::get(ports.of("prometheus", 9090), "/-/ready").is_ok_and(|page| page.status == 200)
        });
        let fleet = Self { redis, _secured: secured, ports, running, _folder: folder };
        for service in ["chronosdb-1", "chronosdb-2"] {
            wait_until("an instance is ready", || {
                http::get(fleet.port(service, 8000), "/readyz").is_ok_and(|page| page.status == 200)
            });
        }
        wait_until("Envoy finds both instances", || {
            let page = "/stats?filter=cluster.chronosdb.membership_healthy";
            http::get(fleet.port("envoy", 9901), page).is_ok_and(|page| page.body.contains(": 2"))
        });
        fleet
    }

    /// The port of this machine where a port of a service is.
    pub(super) fn port(&self, service: &str, port: u16) -> u16 {
        self.ports.of(service, port)
    }

    /// Neither instance answers, until [`Fleet::thaw`].
    pub(super) fn freeze(&self) {
        self.running[..2].iter().for_each(|instance| signal(&instance.0, "STOP"));
    }

    /// Ends a freeze.
    pub(super) fn thaw(&self) {
        self.running[..2].iter().for_each(|instance| signal(&instance.0, "CONT"));
    }

    /// Whether Envoy has a counter whose name ends so.
    pub(super) fn envoy_counted(&self, name: &str) -> bool {
        let page = format!("/stats?usedonly&filter={name}");
        !http::get(self.port("envoy", 9901), &page).unwrap().body.trim().is_empty()
    }

    /// `GET /` through Envoy, as the clients of the file do.
    pub(super) fn knock(&self) -> u16 {
        let compose = yaml_file(&format!("{FOLDER}/compose.yaml"));
        let script = arguments(&compose, "clients").concat();
        let mut headers = String::new();
        for header in script.split("-H '").skip(1).filter_map(|rest| rest.split('\'').next()) {
            headers.push_str(&format!("{header}\r\n"));
        }
        assert!(
            script.contains("http://envoy:10000/") && headers.contains("x-user-id"),
            "{script}"
        );
        http::request(self.port("envoy", 10000), "GET", "/", headers.as_bytes(), "").unwrap().status
    }
}

/// An instance, with the image's settings and the file's environment on top.
fn instance(compose: &Value, service: &str, ports: &Ports) -> Running {
    let mut program = program();
    for (name, value) in
        at(compose, &format!("services.{service}.environment")).as_object().unwrap()
    {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        program.env(name, ports.at_home(&value));
    }
    let rules = mounted(compose, service, "/etc/chronosdb/rules");
    program
        .env("CHRONOSDB_CONFIG", repository().join(FOLDER).join("chronosdb.yaml"))
        .env("CHRONOSDB_RULES__PATH", rules)
        .env("CHRONOSDB_GRPC__LISTEN", format!("127.0.0.1:{}", ports.of(service, 50051)))
        .env("CHRONOSDB_HTTP__LISTEN", format!("127.0.0.1:{}", ports.of(service, 8000)))
        .env("CHRONOSDB_LOG__LEVEL", "error");
    Running::start(program.arg("serve"))
}

fn envoy(compose: &Value, ports: &Ports, folder: &Path) -> Running {
    let config =
        std::fs::read_to_string(mounted(compose, "envoy", "/etc/envoy/envoy.yaml")).unwrap();
    let upstream = free_port().to_string();
    let file = folder.join("envoy.yaml");
    std::fs::write(&file, ports.at_home(&config).replace("10001", &upstream)).unwrap();
    Running::envoy(&file)
}

fn secured(folder: &Path) -> Server {
    let pair = Ca::new("fleet").issue(folder, "secured", &["chronosdb"]);
    let (cert, key) = (pair.cert.display(), pair.key.display());
    let tls = format!(", tls: {{ cert: '{cert}', key: '{key}' }}");
    Server::launch_with(PLENTY, &tls, "", "").ready()
}

fn prometheus(compose: &Value, ports: &Ports, secured: u16, folder: &Path) -> Running {
    let config = mounted(compose, "prometheus", "/etc/prometheus/prometheus.yml");
    let alerts = mounted(compose, "prometheus", "/etc/prometheus/alerts.yaml");
    let text = std::fs::read_to_string(config).unwrap();
    assert!(text.contains("/etc/prometheus/alerts.yaml"), "the alerts are not read");
    let text = text.replace("/etc/prometheus/alerts.yaml", alerts.to_str().unwrap());
    let last = "\"chronosdb-2:8000\"";
    assert!(text.contains(last), "there is no {last}");
    let text = text.replace(last, &format!("{last}, \"127.0.0.1:{secured}\""));
    let file = folder.join("prometheus.yaml");
    std::fs::write(&file, ports.at_home(&text)).unwrap();
    let mut command = Command::new(tool("CHRONOSDB_TEST_PROMETHEUS", "prometheus"));
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("tsdb").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{}", ports.of("prometheus", 9090)));
    Running::start(command.arg("--log.level=error"))
}

/// The words of a service's `command`.
fn arguments<'a>(compose: &'a Value, service: &str) -> Vec<&'a str> {
    let words = list(compose, &format!("services.{service}.command")).iter();
    words.filter_map(Value::as_str).collect()
}

/// The file or folder of this machine that a service sees at `target`.
fn mounted(compose: &Value, service: &str, target: &str) -> PathBuf {
    let volumes = list(compose, &format!("services.{service}.volumes")).iter();
    let found = volumes.filter_map(Value::as_str).find_map(|volume| {
        let (source, rest) = volume.split_once(':')?;
        (rest.strip_suffix(":ro")? == target).then(|| repository().join(FOLDER).join(source))
    });
    let path = found.unwrap_or_else(|| panic!("{service}: nothing is mounted at {target}"));
    assert!(path.exists(), "{service}: there is no {}", path.display());
    path
}

/// The parser that `docker compose` itself uses.
#[test]
fn docker_compose_reads_it() {
    let file = format!("{FOLDER}/compose.yaml");
    let read_by_docker = |path: &Path| outcome(super::tool("compose-spec").arg(path), "");
    let (good, text) = read_by_docker(&repository().join(&file));
    assert!(good, "{text}");
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("compose.yaml");
    for (from, to) in
        [("read_only:", "readonly:"), ("condition: service_healthy", "condition: healthy")]
    {
        let text = read(&file);
        assert!(text.contains(from), "there is no {from}");
        std::fs::write(&broken, text.replacen(from, to, 1)).unwrap();
        assert!(!read_by_docker(&broken).0, "{to} passed");
    }
}

#[test]
fn compose_names_what_is_there() {
    let compose = yaml_file(&format!("{FOLDER}/compose.yaml"));
    let services = compose["services"].as_object().unwrap();
    for (name, service) in services {
        for volume in list(service, "volumes").iter().filter_map(Value::as_str) {
            mounted(&compose, name, volume.split(':').nth(1).unwrap());
        }
        let needed = match &service["depends_on"] {
            Value::Object(needed) => needed.keys().map(String::as_str).collect(),
            needed => needed.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
        };
        let needed: Vec<&str> = needed;
        assert!(needed.iter().all(|other| services.contains_key(*other)), "{name}: {needed:?}");
        for port in list(service, "ports").iter().filter_map(Value::as_str) {
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port} is open to the world");
        }
        assert!(!text(service, "image").ends_with(":latest"), "{name}");
    }
    for name in ["chronosdb-1", "chronosdb-2"] {
        let service = &services[name];
        let build = repository().join(FOLDER).join(text(service, "build.context"));
        assert!(build.join(text(service, "build.dockerfile")).is_file(), "{name}");
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(text(service, "stop_grace_period"), "30s", "drain.delay and drain.timeout");
    }
}

#[test]
fn grafana_finds_the_dashboard_and_prometheus() {
    let compose = yaml_file(&format!("{FOLDER}/compose.yaml"));
    let provisioning = mounted(&compose, "grafana", "/etc/grafana/provisioning");
    let of = |path: &str| {
        super::yaml(&std::fs::read_to_string(provisioning.join(path)).unwrap()).remove(0)
    };
    let dashboards = of("dashboards/chronosdb.yaml");
    let folder = text(&list(&dashboards, "providers")[0], "options.path").to_owned();
    let home =
        at(&compose, "services.grafana.environment.GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH");
    let home = home.as_str().unwrap().strip_prefix(&format!("{folder}/")).unwrap();
    assert!(mounted(&compose, "grafana", &folder).join(home).is_file());
    let sources = of("datasources/prometheus.yaml");
    assert_eq!(text(&list(&sources, "datasources")[0], "url"), "http://prometheus:9090");
    let rules = read("deploy/docker/prometheus.yaml");
    assert!(rules.contains("chronosdb-1:8000") && rules.contains("chronosdb-2:8000"));
}
