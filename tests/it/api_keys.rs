//! The gate of API keys, through a real Envoy: who is let in, under which name, and how the file
//! changes under it.

use std::path::Path;

use crate::harness::envoy::Envoy;
use crate::harness::server::{self, Server};
use crate::harness::wait_until;

/// Whatever quota it is, metrics know it by the name of the key.
const RULES: &str = "\
domain: edge
descriptors:
  - key: api_key
    rate_limit: { limit: 2, window: 1h }
    identity: { api_key: plan, user_id: '{api_key}' }
";

/// `chronosdb key hash`, as somebody uses it who has a key in a file.
fn hashed(folder: &Path, name: &str, key: &str) -> String {
    let entry = server::pipe(folder, &["key", "hash", "--name", name], key);
    assert_eq!(entry.code, 0, "{}", entry.text);
    assert!(!entry.text.contains(key), "{}", entry.text);
    entry.text
}

const ANN: &str = "x-api-key: ann's key of some length\r\n";
const BOB: &str = "x-api-key: bob's key of some length\r\n";

struct Door {
    envoy: Envoy,
    server: Server,
    folder: tempfile::TempDir,
}

impl Door {
    /// With a key of ann's; `more`: settings.
    fn open(more: &str) -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("keys.yaml");
        std::fs::write(&path, hashed(folder.path(), "ann", "ann's key of some length\n")).unwrap();
        let settings = format!("api_keys: {{ path: '{}', poll: 20ms }}\n{more}", path.display());
        let server = Server::start(RULES, &settings);
        let patient = |text: String| text.replace("timeout: 0.05s", "timeout: 5s");
        let envoy = Envoy::start_sample("ext_authz.yaml", server.grpc_port, patient);
        envoy.wait_for_instances(1);
        Self { envoy, server, folder }
    }

    fn change_keys(&self, text: &str) {
        let next = self.folder.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.folder.path().join("keys.yaml")).unwrap();
    }

    fn status(&self, headers: &str) -> u16 {
        self.envoy.get(headers.as_bytes()).status
    }

    fn counted(&self, line: &str) -> bool {
        self.server.page("/metrics").unwrap().body.lines().any(|known| known == line)
    }
}

const BY_NAME: &str = "ext_authz: { domain: edge, descriptors: [{ entries: [{ key: api_key, from: api_key_name }] }] }";

#[test]
fn a_known_key_is_its_name() {
    let door = Door::open(BY_NAME);
    let missing = door.envoy.get(b"");
    assert_eq!((missing.status, missing.header("www-authenticate")), (401, Some("ApiKey")));
    assert!(missing.body.contains("an API key is needed, in the header x-api-key"));
    let unknown = door.envoy.get(BOB.as_bytes());
    assert_eq!(unknown.status, 403);
    assert_eq!(unknown.header("content-type"), Some("application/problem+json"));
    assert_eq!([door.status(ANN), door.status(ANN), door.status(ANN)], [200, 200, 429]);
    assert!(door.counted("requests_allowed_total{api_key=\"ann\"} 2"));
    assert!(door.counted("requests_denied_total{api_key=\"ann\"} 1"));
    for (result, times) in [("missing", 1), ("unknown", 1), ("known", 3)] {
        assert!(door.counted(&format!("chronosdb_api_keys_total{{result=\"{result}\"}} {times}")));
    }
}

#[test]
fn the_file_changes_under_it() {
    let door = Door::open("");
    assert_eq!([door.status(ANN), door.status(BOB)], [200, 403], "the gate alone limits nothing");
    let folder = door.folder.path();
    let ann = hashed(folder, "ann", "ann's key of some length");
    let bob = hashed(folder, "bob: or \"so\"", "bob's key of some length");
    door.change_keys(&(ann + &bob));
    wait_until("bob is let in", || door.status(BOB) == 200);
    assert!(door.counted("requests_allowed_total{api_key=\"bob: or \\\"so\\\"\"} 1"));
    for bad in ["", "- { name: ann }\n", "- { name: ann, sha256: 12 }\n"] {
        let before = errors(&door);
        door.change_keys(bad);
        wait_until("the bad file is seen", || errors(&door) > before);
        assert_eq!([door.status(ANN), door.status(BOB)], [200, 200], "{bad:?}");
    }
    door.change_keys(&bob);
    wait_until("ann is let in no more", || door.status(ANN) == 403);
    assert_eq!(door.status(BOB), 200);
    door.change_keys("[]\n");
    wait_until("nobody is let in", || door.status(BOB) == 403);
}

fn errors(door: &Door) -> u64 {
    let page = door.server.page("/metrics").unwrap().body;
    let name = "chronosdb_api_key_reloads_total{result=\"error\"} ";
    page.lines().find_map(|line| line.strip_prefix(name)).map_or(0, |count| count.parse().unwrap())
}

#[test]
fn what_is_wrong_is_said_at_the_start() {
    let folder = tempfile::TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("missing.yaml", "api_keys: { path: no.yaml }");
    write("keys.yaml", "- { name: ann, sha256: 12 }");
    write("bad.yaml", "api_keys: { path: keys.yaml }");
    write("nobody.yaml", BY_NAME);
    write("nothing.yaml", "ext_authz: { domain: edge }");
    write("hop.yaml", "ext_authz:\n  trusted_hop: 1\n");
    let header = "{ key: k, from: { header: 'x y' } }";
    let header = format!("ext_authz:\n  domain: edge\n  descriptors:\n    - entries: [{header}]\n");
    write("header.yaml", &header);
    for (settings, expected) in [
        ("missing.yaml", "api_keys.path: no.yaml: No such file"),
        ("bad.yaml", "sha256 of \"ann\" is not 64 hex digits: `chronosdb key hash` makes an entry"),
        (
            "nothing.yaml",
            "ext_authz.descriptors: without one nothing is limited: write at least one",
        ),
        ("hop.yaml", "hop.yaml:2:3: unknown key `trusted_hop`: did you mean `trusted_hops`?"),
        ("header.yaml", "header.yaml:4:"),
        ("header.yaml", "\"x y\" is not the name of a header: write one such as x-api-key"),
        ("nobody.yaml", "api_keys.path: `from: api_key_name` needs a file of API keys"),
    ] {
        let arguments = ["serve", "--config", settings, "--grpc-listen", "127.0.0.1:0"];
        let output = server::run(
            folder.path(),
            &[&arguments[..], &["--http-listen", "127.0.0.1:0"]].concat(),
        );
        assert!(output.text.contains(expected), "{settings}: {}", output.text);
        assert_eq!(output.code, 2, "{}", output.text);
    }
    let short = server::pipe(folder.path(), &["key", "hash", "--name", "ann"], "short");
    assert_eq!(short.code, 1);
    assert!(short.text.contains("5 bytes") && short.text.contains("guessed"), "{}", short.text);
}
