//! Clients that Envoy knows by their certificates: ext_authz limits them by whom these name.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::envoy::Envoy;
use crate::harness::server::Server;

const RULES: &str = "\
domain: edge
descriptors:
  - key: principal
    rate_limit: { limit: 2, window: 1h }
";

const SETTINGS: &str = "ext_authz: { domain: edge, descriptors: [{ entries: [{ key: principal, from: principal }] }] }";

/// Runs a tool in a folder; what it printed.
fn run(folder: &Path, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(folder)
        .env("NO_PROXY", "*")
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}: run tests/run", words[0]));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A certificate `name.pem` with its key, signed by `ca.pem`.
fn certificate(folder: &Path, name: &str, subject_alt_name: &str) {
    let key = format!("-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key");
    let signed = if name == "ca" { "" } else { "-CA ca.pem -CAkey ca.key" };
    let names = format!("-subj /CN={name} -addext subjectAltName={subject_alt_name}");
    run(folder, &format!("openssl req -x509 -days 2 {key} {signed} {names} -out {name}.pem"));
}

#[test]
fn a_certificate_has_a_quota() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    certificate(folder, "ca", "DNS:ca");
    certificate(folder, "server", "IP:127.0.0.1");
    certificate(folder, "cart", "DNS:cart.shop,URI:spiffe://mesh/ns/shop/sa/cart");
    certificate(folder, "cart2", "URI:spiffe://mesh/ns/shop/sa/cart");
    certificate(folder, "till", "DNS:till.shop");
    let server = Server::start(RULES, SETTINGS);
    let tls = format!(
        "        - transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              require_client_certificate: true
              common_tls_context:
                tls_certificates:
                  - certificate_chain: {{ filename: {folder}/server.pem }}
                    private_key: {{ filename: {folder}/server.key }}
                validation_context: {{ trusted_ca: {{ filename: {folder}/ca.pem }} }}
          filters:\n",
        folder = folder.display()
    );
    let envoy = Envoy::start_sample("ext_authz.yaml", server.grpc_port, |text| {
        text.replacen("        - filters:\n", &tls, 1).replace("timeout: 0.05s", "timeout: 5s")
    });
    envoy.wait_for_instances(1);
    let status = |name: &str| {
        let who = format!("--cacert ca.pem --cert {name}.pem --key {name}.key");
        let print = "-s -o /dev/null -w %{http_code}";
        run(folder, &format!("curl {print} {who} https://127.0.0.1:{}/", envoy.port))
    };
    // A new certificate of the same workload is the same workload.
    assert_eq!(["cart", "cart2", "cart"].map(status), ["200", "200", "429"]);
    assert_eq!(["till", "till", "till"].map(status), ["200", "200", "429"]);
}
