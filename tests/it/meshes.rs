//! The resources of `envoy/istio/` and `envoy/gateway/`. There is no Kubernetes here, so each is
//! held against the schema of its kind, and what Envoy gets of it is driven live: a filter that
//! stands in a patch as it is, one that a control plane makes as that makes it.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::envoy::{self, Envoy, PORTS};
use crate::harness::free_port;
use crate::harness::server::Server;

const FRONT: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
const ROUTES: &str = "/route_config/virtual_hosts/0";
const SERVICE: &str = "outbound|50051||chronosdb.limits.svc.cluster.local";

/// A file below `envoy/`.
fn resource(name: &str) -> Value {
    let text = std::fs::read_to_string(envoy::sample(name)).unwrap();
    assert!(text.starts_with("# "), "{name} does not say what it is for");
    assert!(text.contains("\n# Try it"), "{name} does not say how to try it");
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A part of a tree that must be there.
#[track_caller]
fn at<'a>(tree: &'a mut Value, pointer: &str) -> &'a mut Value {
    tree.pointer_mut(pointer).unwrap_or_else(|| panic!("nothing at {pointer}"))
}

/// A bootstrap of `envoy/` as a tree, whose first filter is to be another one.
struct Bootstrap {
    tree: Value,
    ports: [u16; 3],
}

impl Bootstrap {
    /// The service listens on `grpc_port`, and is known as `cluster`.
    fn of(sample: &str, grpc_port: u16, cluster: &str) -> Self {
        let text = std::fs::read_to_string(envoy::sample(sample)).unwrap();
        let ports = PORTS.map(|_| free_port());
        let moves = PORTS.into_iter().zip(ports).chain([(50051, grpc_port)]);
        let text = moves.fold(text, |text, (from, to)| envoy::with_port(&text, from, to));
        let mut tree: Value = serde_yaml::from_str(&text).unwrap();
        let service = at(&mut tree, "/static_resources/clusters/1");
        service["name"] = json!(cluster);
        service["alt_stat_name"] = json!("chronosdb");
        Self { tree, ports }
    }

    /// `timeout`: where it stands in the filter.
    fn with_filter(mut self, mut filter: Value, timeout: &str) -> Self {
        // A pause of this machine is no error of the sample.
        *at(&mut filter, timeout) = json!("5s");
        *at(&mut self.tree, &format!("{FRONT}/http_filters/0")) = filter;
        self
    }

    fn run(&self) -> Envoy {
        let envoy = Envoy::run(&self.tree.to_string(), self.ports[0], self.ports[2]);
        envoy.wait_for_instances(1);
        envoy
    }
}

/// An instance as the comments say.
fn instance() -> Server {
    Server::follow("chronosdb serve --config envoy/chronosdb.yaml", free_port(), free_port())
}

fn statuses(envoy: &Envoy, headers: &str, times: usize) -> Vec<u16> {
    (0..times).map(|_| envoy.get(headers.as_bytes()).status).collect()
}

const BOB: &str = "x-api-key: free\r\nx-user-id: bob\r\n";

/// The Envoy that an EnvoyFilter makes of the bootstrap `ratelimit.yaml`.
fn patched(name: &str, server: &Server) -> Envoy {
    let mut bootstrap = Bootstrap::of("ratelimit.yaml", server.grpc_port, SERVICE);
    let mut filter = resource(name);
    let patches = at(&mut filter, "/spec/configPatches").as_array().unwrap();
    assert_eq!(patches.len(), 2, "{name}");
    for patch in patches {
        let value = patch.pointer("/patch/value").unwrap().clone();
        match patch["applyTo"].as_str().unwrap() {
            "HTTP_FILTER" => bootstrap = bootstrap.with_filter(value, "/typed_config/timeout"),
            "VIRTUAL_HOST" => {
                let host = at(&mut bootstrap.tree, &format!("{FRONT}{ROUTES}"));
                // A route's own would count in the place of those of its host.
                let route = at(host, "/routes/0/route").as_object_mut().unwrap();
                assert!(route.remove("rate_limits").is_some());
                host.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            }
            other => panic!("{name}: this test knows no {other}"),
        }
    }
    bootstrap.run()
}

#[test]
fn the_filter_of_an_istio_gateway() {
    let server = instance();
    let envoy = patched("istio/gateway.yaml", &server);
    assert_eq!(statuses(&envoy, BOB, 4), [200, 200, 200, 429]);
    let burst = statuses(&envoy, "", 9);
    assert_eq!(burst, [200, 200, 200, 200, 200, 200, 200, 429, 429]);
    let refused = envoy.get(b"");
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"), "{refused:?}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
}

#[test]
fn the_filter_of_an_istio_sidecar() {
    let server = instance();
    let envoy = patched("istio/sidecar.yaml", &server);
    assert_eq!(statuses(&envoy, BOB, 4), [200, 200, 200, 429]);
    assert_eq!(statuses(&envoy, "", 12), [200; 12], "only users are limited here");
}

/// The ext_authz filter that a control plane makes: `service` is its gRPC service.
fn authorized(server: &Server, cluster: &str, filter: Value) -> Envoy {
    let typed = "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz";
    let mut filter = json!({ "name": "envoy.filters.http.ext_authz", "typed_config": filter });
    filter["typed_config"]["@type"] = json!(typed);
    filter["typed_config"]["transport_api_version"] = json!("V3");
    let bootstrap = Bootstrap::of("ext_authz.yaml", server.grpc_port, cluster);
    bootstrap.with_filter(filter, "/typed_config/grpc_service/timeout").run()
}

/// Both the headers of an answer and the numbers of a burst, at an ext_authz filter.
fn expect_limits(envoy: &Envoy) {
    assert_eq!(statuses(envoy, BOB, 4), [200, 200, 200, 429]);
    assert_eq!(statuses(envoy, "", 8), [200, 200, 200, 200, 200, 200, 200, 429]);
    let refused = envoy.get(b"");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
}

/// `istio/pilot/pkg/security/authz/builder/extauthz.go` makes this of a provider.
#[test]
fn the_providers_of_an_istio_mesh() {
    let mut mesh = resource("istio/mesh-config.yaml");
    let policy = resource("istio/authorization-policy.yaml");
    let entry = resource("istio/service-entry.yaml");
    let providers = at(&mut mesh, "/meshConfig/extensionProviders").as_array().unwrap();
    let names: Vec<&Value> = providers.iter().map(|provider| &provider["name"]).collect();
    assert_eq!(names, ["chronosdb", "chronosdb-local"]);
    assert_eq!(policy.pointer("/spec/provider/name").unwrap(), names[0]);
    let local = providers[1].pointer("/envoyExtAuthzGrpc/service").unwrap();
    assert_eq!(entry.pointer("/spec/hosts/0").unwrap(), local);
    for provider in providers {
        let server = instance();
        let grpc = &provider["envoyExtAuthzGrpc"];
        let (service, port) = (grpc["service"].as_str().unwrap(), &grpc["port"]);
        let cluster = format!("outbound|{port}||{service}");
        let status: u16 = grpc["statusOnError"].as_str().unwrap().parse().unwrap();
        let filter = json!({
            "failure_mode_allow": grpc["failOpen"],
            "status_on_error": { "code": status },
            "grpc_service": {
                "timeout": grpc["timeout"],
                "envoy_grpc": {
                    "cluster_name": cluster,
                    "authority": format!("outbound_.{port}_._.{service}"),
                },
            },
        });
        expect_limits(&authorized(&server, &cluster, filter));
    }
}

/// `internal/xds/translator/extauth.go` of Envoy Gateway makes this of a SecurityPolicy.
#[test]
fn the_policy_of_envoy_gateway() {
    let policy = resource("gateway/security-policy.yaml");
    let asked = &policy["spec"]["extAuth"];
    let backend = asked.pointer("/grpc/backendRefs/0").unwrap();
    let name = policy["metadata"]["name"].as_str().unwrap();
    let cluster = format!("securitypolicy/default/{name}/extauth/0");
    let (service, port) = (backend["name"].as_str().unwrap(), &backend["port"]);
    let filter = json!({
        "failure_mode_allow": asked["failOpen"],
        "grpc_service": {
            "timeout": asked["timeout"],
            "envoy_grpc": {
                "cluster_name": cluster,
                "authority": format!("{service}.default:{port}"),
            },
        },
    });
    let server = instance();
    expect_limits(&authorized(&server, &cluster, filter));
}

/// What is wrong with a value by the structural schema of a CustomResourceDefinition: the part of
/// OpenAPI that Kubernetes allows there, so this is all there is to look at.
fn faults(value: &Value, schema: &Value, place: &str, found: &mut Vec<String>) {
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        _ => true,
    };
    if !fits {
        found.push(format!("{place}: {value} is no {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|known| !known.contains(value)) {
        found.push(format!("{place}: {value} is none of {}", schema["enum"]));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        faults(item, &schema["items"], &format!("{place}[{index}]"), found);
    }
    let Some(fields) = value.as_object() else { return };
    for required in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(required.as_str().unwrap()) {
            found.push(format!("{place}: {required} is missing"));
        }
    }
    for (name, value) in fields {
        let place = format!("{place}.{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Null) => {
                if schema["x-kubernetes-preserve-unknown-fields"] != true {
                    found.push(format!("{place}: there is no such field"));
                }
            }
            (Value::Null, any) => faults(value, any, &place, found),
            (known, _) => faults(value, known, &place, found),
        }
    }
}

/// The schemas are those of istio.io/api 1.32.0 and Envoy Gateway 1.6.0, without their prose.
fn faults_by_kind(resource: &Value) -> Vec<String> {
    let kind = resource["kind"].as_str().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schemas");
    let text = std::fs::read_to_string(folder.join(format!("{kind}.json"))).unwrap();
    let definition: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(resource["apiVersion"], definition["apiVersion"], "{kind}");
    let mut found = Vec::new();
    faults(&resource["spec"], &definition["schema"]["properties"]["spec"], "spec", &mut found);
    found
}

#[test]
fn every_resource_is_what_its_kind_says() {
    let mut kinds = Vec::new();
    for folder in ["istio", "gateway"] {
        for file in std::fs::read_dir(envoy::sample(folder)).unwrap() {
            let name = format!("{folder}/{}", file.unwrap().file_name().to_str().unwrap());
            let resource = resource(&name);
            // Values of a chart are no resource.
            if let Some(kind) = resource["kind"].as_str() {
                assert_eq!(faults_by_kind(&resource), [""; 0], "{name}");
                kinds.push(kind.to_owned());
            }
        }
    }
    kinds.sort();
    kinds.dedup();
    let expected = [
        "AuthorizationPolicy",
        "BackendTrafficPolicy",
        "EnvoyFilter",
        "SecurityPolicy",
        "ServiceEntry",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn each_fault_of_a_resource_is_found() {
    let mut entry = resource("istio/service-entry.yaml");
    entry["spec"]["resolution"] = json!("SOMEHOW");
    entry["spec"]["ports"] = json!([{ "name": "grpc", "number": "50051", "protcol": "GRPC" }]);
    entry["spec"].as_object_mut().unwrap().remove("hosts");
    let found = faults_by_kind(&entry).join("\n");
    for expected in [
        "spec: \"hosts\" is missing",
        "spec.resolution: \"SOMEHOW\" is none of",
        "spec.ports[0].number: \"50051\" is no \"integer\"",
        "spec.ports[0].protcol: there is no such field",
    ] {
        assert!(found.contains(expected), "{expected}\n{found}");
    }
}
