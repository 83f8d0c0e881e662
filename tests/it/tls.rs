//! The gRPC port with TLS: who is let in, who is not and how one notices, and certificates that
//! change while it serves.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use chronosdb::api::client::{Client, Question};
use chronosdb::api::trust::{Trust, Trusted};
use tokio::io::AsyncReadExt as _;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{self, ClientConfig, HandshakeKind, RootCertStore};

use crate::harness::certs::{Ca, Pair};
use crate::harness::envoy::{self, Envoy};
use crate::harness::server::{self, Output, Server};
use crate::harness::wait_until;

const RULES: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { limit: 2, window: 1h }
";

/// `tls:` of the section `grpc`, for the harness.
fn tls(pair: &Pair, more: &str) -> String {
    format!(", tls: {{ cert: '{}', key: '{}'{more} }}", pair.cert.display(), pair.key.display())
}

fn start(pair: &Pair, more: &str) -> Server {
    Server::launch_with(RULES, &tls(pair, more), "", "").ready()
}

/// `chronosdb check`, once, as a client that was given these options.
fn check(server: &Server, options: &[&str]) -> Output {
    let target = format!("https://localhost:{}", server.grpc_port);
    let fixed = ["check", "--times", "1", "--hits", "0", "--target", &target];
    server::run(Path::new("."), &[&fixed, options].concat())
}

fn refused(server: &Server, reason: &str) -> u64 {
    server.metric(&format!("chronosdb_tls_refused_total{{reason=\"{reason}\"}}"))
}

#[test]
fn only_whom_the_settings_name_may_call() {
    let folder = tempfile::TempDir::new().unwrap();
    let folder = folder.path();
    let (ca, other) = (Ca::new("ours"), Ca::new("other"));
    let ca_file = ca.write(&folder.join("ca.crt"));
    let ca_file = ca_file.to_str().unwrap();
    let sans = "['spiffe://example.org/ns/edge/*', envoy.example.org]";
    let more = format!(", client_ca: '{ca_file}', client_sans: {sans}");
    let server = start(&ca.issue(folder, "server", &["localhost"]), &more);

    let edge = "spiffe://example.org/ns/edge/sa/envoy";
    let good = [
        ca.issue(folder, "dns", &["x.example.org", "ENVOY.example.org"]),
        ca.issue(folder, "spiffe", &[edge]),
    ];
    for pair in &good {
        let output = check(&server, &options(ca_file, pair));
        assert_eq!(output.code, 0, "{}", output.text);
        assert!(output.text.contains("allowed"), "{}", output.text);
    }
    let bad = [
        ("untrusted", other.issue(folder, "other", &[edge])),
        ("expired", ca.issue_until(folder, "old", &[edge], 2020)),
        ("san", ca.issue(folder, "near", &["spiffe://example.org/ns/edge2/sa/envoy"])),
        ("san", ca.issue(folder, "evil", &["spiffe://example.org.evil/ns/edge/sa/envoy"])),
        ("san", ca.issue(folder, "nameless", &[])),
    ];
    for (reason, pair) in &bad {
        let before = refused(&server, reason);
        let output = check(&server, &options(ca_file, pair));
        assert_eq!(output.code, 1, "{reason}: {}", output.text);
        // A client whose connection broke tries once more.
        assert!(refused(&server, reason) > before, "{reason}: {}", output.text);
    }
    let output = check(&server, &["--ca", ca_file]);
    assert!(output.code == 1 && refused(&server, "no_certificate") > 0, "{}", output.text);
    assert!(output.text.contains("does the server accept this client's"), "{}", output.text);
    let log = server.log();
    for part in [
        "give it one that grpc.tls.client_ca signed",
        "none of its names is in grpc.tls.client_sans: spiffe://example.org/ns/edge2/sa/envoy",
    ] {
        assert!(log.contains(part), "{part}");
    }
    assert!(!log.contains("example.org.evil"), "a line for each refusal would fill the log");
}

fn options<'a>(ca: &'a str, pair: &'a Pair) -> [&'a str; 6] {
    ["--ca", ca, "--cert", pair.cert.to_str().unwrap(), "--key", pair.key.to_str().unwrap()]
}

#[test]
fn a_client_believes_only_its_own_ca_and_the_right_name() {
    let folder = tempfile::TempDir::new().unwrap();
    let (ca, other) = (Ca::new("ours"), Ca::new("other"));
    let [ca_file, other_file] = [("ca.crt", &ca), ("other.crt", &other)]
        .map(|(name, ca)| ca.write(&folder.path().join(name)).display().to_string());
    let server = start(&ca.issue(folder.path(), "server", &["elsewhere"]), "");
    let named = ["--ca", &ca_file, "--server-name", "elsewhere"];
    assert_eq!(check(&server, &named).code, 0, "{}", check(&server, &named).text);
    for options in [&["--ca", &*ca_file][..], &["--ca", &other_file][..], &[][..]] {
        let output = check(&server, options);
        assert_eq!(output.code, 1, "{options:?}: {}", output.text);
        assert!(output.text.contains("certificate"), "{options:?}: {}", output.text);
    }
    wait_until("it is counted", || refused(&server, "alert") == 3);
    assert!(server.log().contains("does it trust the CA of grpc.tls.cert"));
    let target = format!("https://localhost:{}", server.grpc_port);
    let load = ["load", "--target", &target, "--rate", "50", "--duration", "200ms", "--json"];
    let output = server::run(Path::new("."), &[&load, &named[..]].concat());
    assert_eq!(output.code, 0, "{}", output.text);
    assert_eq!(server::run(Path::new("."), &load).code, 1, "it believed somebody else's CA");
}

#[test]
fn a_client_without_tls_is_told_apart() {
    let folder = tempfile::TempDir::new().unwrap();
    let server = start(&Ca::new("ours").issue(folder.path(), "server", &["localhost"]), "");
    let target = format!("localhost:{}", server.grpc_port);
    let output = server::run(folder.path(), &["check", "--target", &target]);
    assert_eq!(output.code, 1, "{}", output.text);
    wait_until("it is counted", || refused(&server, "plaintext") >= 1);
    assert!(server.log().contains("the client does not speak TLS"), "{}", server.log());
}

#[test]
fn handshakes_that_never_end_delay_nobody() {
    let folder = tempfile::TempDir::new().unwrap();
    let ca = Ca::new("ours");
    let ca_file = ca.write(&folder.path().join("ca.crt"));
    let server = start(&ca.issue(folder.path(), "server", &["localhost"]), "");
    let silent: Vec<TcpStream> = (0..100)
        .map(|index| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.grpc_port)).unwrap();
            // Half of them begin a record and stop.
            stream
                .write_all(if index % 2 == 0 { b"" } else { b"\x16\x03\x01\x02\x00\x01" })
                .unwrap();
            stream
        })
        .collect();
    let output = check(&server, &["--ca", ca_file.to_str().unwrap()]);
    assert_eq!(output.code, 0, "{}", output.text);
    assert_eq!(refused(&server, "timeout"), 0, "they were answered first");
    wait_until("they are cut off", || refused(&server, "timeout") == 100);
    drop(silent);
}

/// As Kubernetes mounts a Secret: links to links, and one rename that swaps them all.
fn swap(folder: &Path, version: &str, write: impl FnOnce(&Path)) {
    let data = folder.join(format!("..{version}"));
    std::fs::create_dir(&data).unwrap();
    write(&data);
    symlink(&data, folder.join("..data_tmp")).unwrap();
    std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_change_while_it_serves() {
    let folder = tempfile::TempDir::new().unwrap();
    let folder = folder.path();
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let [old_ca, new_ca] = [("old.crt", &old), ("new.crt", &new)]
        .map(|(name, ca)| ca.write(&folder.join(name)).display().to_string());
    swap(folder, "1", |data| drop(old.issue_until(data, "tls", &["localhost"], 3000)));
    let pair = Pair { cert: folder.join("tls.crt"), key: folder.join("tls.key") };
    symlink("..data/tls.crt", &pair.cert).unwrap();
    symlink("..data/tls.key", &pair.key).unwrap();
    let server = start(&pair, "");
    let expiry = || server.metric("chronosdb_certificate_expiry_seconds{file=\"cert\"}");
    assert_eq!(expiry(), 32_535_129_600, "the last day of the year 3000");

    let target = format!("https://localhost:{}", server.grpc_port);
    let trust = Trust { server: Trusted::SignedBy(old_ca.clone().into()), ..Trust::default() };
    let patience = Duration::from_secs(5);
    let mut open = Client::connect_trusting(&target, Some(&trust), patience).await.unwrap();
    swap(folder, "2", |data| drop(new.issue_until(data, "tls", &["localhost"], 3001)));
    wait_until("the new one is shown", || check(&server, &["--ca", &new_ca]).code == 0);
    assert_eq!(check(&server, &["--ca", &old_ca]).code, 1);
    assert_eq!(expiry(), 32_535_129_600 + 365 * 86_400);
    let question = Question::Quota {
        user_id: "u".into(),
        api_key: "k".into(),
        max_requests: 1,
        window_seconds: 1,
        hits: 0,
    };
    assert!(open.ask(&question).await.unwrap().allowed, "who is connected stays");

    // A key of another certificate.
    swap(folder, "3", |data| {
        new.issue(data, "other", &["localhost"]);
        std::fs::rename(data.join("other.key"), data.join("tls.key")).unwrap();
        std::fs::copy(folder.join("..2/tls.crt"), data.join("tls.crt")).unwrap();
    });
    let reloads = |result: &str| {
        server.metric(&format!("chronosdb_tls_reloads_total{{result=\"{result}\"}}"))
    };
    wait_until("the mistake is counted", || reloads("error") == 1);
    assert!(server.log().contains("is not the key of the first certificate"), "{}", server.log());
    assert_eq!(check(&server, &["--ca", &new_ca]).code, 0, "the good pair stays");
    assert_eq!(reloads("ok"), 1);
}

#[test]
fn a_health_check_needs_no_certificate_of_its_own() {
    let folder = tempfile::TempDir::new().unwrap();
    let ca = Ca::new("ours");
    let ca_file = ca.write(&folder.path().join("ca.crt")).display().to_string();
    let pair = ca.issue(folder.path(), "server", &["chronosdb.example.org"]);
    let healthcheck = |server: &Server, options: &[&str]| {
        let config = server.config().display().to_string();
        let fixed = ["healthcheck", "--config", &config];
        server::run(folder.path(), &[&fixed, options].concat())
    };
    for more in [String::new(), format!(", client_ca: '{ca_file}'")] {
        let server = start(&pair, &more);
        let output = healthcheck(&server, &[]);
        assert_eq!(output.code, 0, "{more}: {}", output.text);
        assert!(output.text.contains("is ready"), "{}", output.text);
    }
    let stranger = ca.issue(folder.path(), "stranger", &["stranger"]);
    let probe = ca.issue(folder.path(), "probe", &["probe"]);
    let server = start(&pair, &format!(", client_ca: '{ca_file}', client_sans: [probe]"));
    assert_eq!(healthcheck(&server, &options(&ca_file, &stranger)).code, 1);
    let named = [&options(&ca_file, &probe)[..], &["--server-name", "chronosdb.example.org"]];
    let output = healthcheck(&server, &named.concat());
    assert_eq!(output.code, 0, "{}", output.text);
    // Beside a unix socket none of it matters.
    let socket = folder.path().join("socket");
    let more = format!(", client_ca: '{ca_file}', client_sans: [probe]");
    let grpc = format!("{}, uds: '{}'", tls(&pair, &more), socket.display());
    let server = Server::launch_with(RULES, &grpc, "", "").ready();
    let output = healthcheck(&server, &[]);
    assert!(output.code == 0 && output.text.contains("unix:"), "{}", output.text);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::TempDir::new().unwrap();
    let ca = Ca::new("ours");
    let one = ca.issue(folder.path(), "one", &["localhost"]);
    let two = ca.issue(folder.path(), "two", &["localhost"]);
    std::fs::write(folder.path().join("empty"), "").unwrap();
    let (one, two) = (
        (one.cert.to_str().unwrap(), one.key.to_str().unwrap()),
        (two.cert.to_str().unwrap(), two.key.to_str().unwrap()),
    );
    let table = [
        (format!("{{ cert: missing, key: {} }}", one.1), "grpc.tls.cert: missing cannot be read"),
        (format!("{{ cert: empty, key: {} }}", one.1), "\"-----BEGIN CERTIFICATE-----\""),
        (format!("{{ cert: {}, key: empty }}", one.0), "grpc.tls.key: empty holds no private key"),
        (format!("{{ cert: {}, key: {} }}", one.0, two.1), "is not the key of the first"),
        (format!("{{ cert: {} }}", one.0), "grpc.tls.key: it must name a PEM file"),
        (
            format!("{{ cert: {}, key: {}, client_ca: empty }}", one.0, one.1),
            "grpc.tls.client_ca: empty is no list of CAs",
        ),
        (
            format!("{{ cert: {}, key: {}, client_sans: [a] }}", one.0, one.1),
            "without grpc.tls.client_ca nobody shows a certificate",
        ),
        ("{ cert: a, key: b, client_sans: ['spiffe://a*'] }".to_owned(), "write spiffe://a/*"),
    ];
    for (tls, expected) in table {
        let config = format!("grpc: {{ listen: '127.0.0.1:0', tls: {tls} }}\n");
        std::fs::write(folder.path().join("c.yaml"), config).unwrap();
        let output = server::run(folder.path(), &["serve", "--config", "c.yaml"]);
        assert!(output.text.contains(expected), "{tls}: {}", output.text);
        assert_eq!(output.code, 2, "{tls}");
    }
}

/// The commands of the sample's own comment that make certificates.
fn run_the_samples_commands(folder: &Path) {
    let text = std::fs::read_to_string(envoy::sample("mtls.yaml")).unwrap();
    let commands = text
        .lines()
        .skip_while(|line| !line.contains("First certificates"))
        .skip(1)
        .take_while(|line| line.starts_with("#   "))
        .map(|line| &line[4..]);
    let script = commands.collect::<Vec<_>>().join("\n");
    assert!(script.starts_with("mkdir -p certs"), "{script}");
    let made = Command::new("sh").args(["-e", "-c", &script]).current_dir(folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn a_real_envoy_is_limited_over_mtls() {
    let folder = tempfile::TempDir::new().unwrap();
    run_the_samples_commands(folder.path());
    assert!(envoy::accepts_in(folder.path(), &envoy::sample("mtls.yaml")));
    let certs = folder.path().join("certs");
    let pair = Pair { cert: certs.join("server.crt"), key: certs.join("server.key") };
    let ca = certs.join("ca.crt").display().to_string();
    let more = format!(", client_ca: '{ca}', client_sans: ['spiffe://example.org/ns/edge/*']");
    let server = start(&pair, &more);
    let patient = |text: String| {
        let certs = format!("filename: {}/", certs.display());
        text.replace("filename: certs/", &certs).replace("timeout: 0.05s", "timeout: 5s")
    };
    let envoy = Envoy::start_sample("mtls.yaml", server.grpc_port, patient);
    wait_until("Envoy finds the service healthy", || {
        envoy.stat("cluster.chronosdb.membership_healthy") == 1
    });
    let statuses = [(); 4].map(|()| envoy.get(b"").status);
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(envoy.get(b"").header("x-ratelimit-limit").map(|text| &text[..1]), Some("2"));
    assert!(envoy.stat("cluster.chronosdb.ssl.versions.TLSv1.3") >= 1);

    let of_other_ca = Ca::new("other").issue(&certs, "other", &["spiffe://example.org/ns/edge/x"]);
    assert!(of_other_ca.cert.ends_with("other.crt"));
    for (reason, name) in [("no_certificate", ""), ("untrusted", "other"), ("san", "server")] {
        let envoy = Envoy::start_sample("mtls.yaml", server.grpc_port, |text| {
            let text = patient(text).replace("/client.", &format!("/{name}."));
            let (before, after) = text.split_once("            tls_certificates:").unwrap();
            let (own, after) = after.split_once("            validation_context:").unwrap();
            match name {
                "" => format!("{before}            validation_context:{after}"),
                _ => format!(
                    "{before}            tls_certificates:{own}            validation_context:{after}"
                ),
            }
        });
        wait_until(reason, || refused(&server, reason) >= 1);
        assert_eq!(envoy.stat("cluster.chronosdb.membership_healthy"), 0, "{reason}");
        assert_eq!(envoy.get(b"").status, 200, "failure_mode_deny: false");
    }
}

#[tokio::test]
async fn no_session_outlives_a_look_at_the_certificate() {
    let folder = tempfile::TempDir::new().unwrap();
    let ca = Ca::new("ours");
    let ca_file = ca.write(&folder.path().join("ca.crt"));
    let server = start(&ca.issue(folder.path(), "server", &["localhost"]), "");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca_file).unwrap()).unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        for _ in 0..2 {
            let stream =
                tokio::net::TcpStream::connect(("127.0.0.1", server.grpc_port)).await.unwrap();
            let name = "localhost".try_into().unwrap();
            let mut stream = connector.connect(name, stream).await.unwrap();
            // Tickets would come before the server's first frame.
            stream.read_exact(&mut [0; 9]).await.unwrap();
            let (_, session) = stream.get_ref();
            assert_eq!(session.handshake_kind(), Some(HandshakeKind::Full));
            assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
        }
    }
}
