//! The HTTP port: pages that tell what is limited, or take from a quota, are not for everybody.

use crate::harness::http::{self, Response};
use crate::harness::server::{self, Server};

const RULES: &str = "\
domain: edge
descriptors:
  - key: user
    rate_limit: { limit: 2, window: 1h }
";

const TOKEN: &str = "0123456789abcdef";

const GUARDED: [(&str, &str, &str); 3] = [
    ("GET", "/rules", ""),
    ("GET", "/explain?domain=edge&descriptor=user=a", ""),
    (
        "POST",
        "/json",
        r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#,
    ),
];

const OPEN: [&str; 5] = ["/", "/metrics", "/livez", "/readyz", "/healthcheck"];

fn ask(server: &Server, page: (&str, &str, &str), authorization: &str) -> Response {
    let (method, path, body) = page;
    let header = match authorization {
        "" => String::new(),
        value => format!("authorization: {value}\r\n"),
    };
    http::request(server.http_port, method, path, header.as_bytes(), body).unwrap()
}

fn opened(server: &Server, authorization: &str) -> [u16; 3] {
    GUARDED.map(|page| ask(server, page, authorization).status)
}

#[test]
fn without_a_token_they_are_closed_to_other_machines() {
    let server = Server::launch_everywhere(RULES, &[]).ready();
    for page in GUARDED {
        let response = ask(&server, page, &format!("Bearer {TOKEN}"));
        assert_eq!(response.status, 403, "{page:?}");
        assert!(response.body.contains("set http.token_file"), "{}", response.body);
    }
    for path in OPEN {
        assert_eq!(server.page(path).unwrap().status, 200, "{path}");
    }
    let server = Server::start(RULES, "");
    assert_eq!(opened(&server, ""), [200; 3], "on loopback");
}

#[test]
fn with_a_token_whoever_has_it_may_look() {
    let server = Server::launch_with(RULES, "", &format!(", token: '{TOKEN}'"), "").ready();
    assert_eq!(opened(&server, &format!("Bearer {TOKEN}")), [200; 3]);
    assert_eq!(opened(&server, &format!("bearer {TOKEN}")), [200; 3]);
    for wrong in ["", "Bearer", "Bearer ", "Basic 0123456789abcdef", "Bearer 0123456789abcdeX"] {
        assert_eq!(opened(&server, wrong), [401; 3], "{wrong}");
    }
    for wrong in [&TOKEN[1..], &format!("{TOKEN}0"), ""] {
        assert_eq!(opened(&server, &format!("Bearer {wrong}")), [401; 3], "{wrong}");
    }
    let response = ask(&server, GUARDED[0], "");
    assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    for path in OPEN {
        assert_eq!(server.page(path).unwrap().status, 200, "{path}");
    }
}

#[test]
fn a_token_file_may_change() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let file = [("CHRONOSDB_HTTP__TOKEN_FILE", path.to_str().unwrap())];
    let server = Server::launch_everywhere(RULES, &file).ready();
    assert_eq!(opened(&server, &format!("Bearer {TOKEN}")), [200; 3]);
    std::fs::write(&path, "another-token-0123").unwrap();
    assert_eq!(opened(&server, &format!("Bearer {TOKEN}")), [401; 3]);
    assert_eq!(opened(&server, "Bearer another-token-0123")[..2], [200; 2]);
    std::fs::write(&path, "").unwrap();
    assert_eq!(opened(&server, "Bearer "), [403; 3], "an empty file is no token");
}

#[test]
fn a_token_that_is_none_is_said_at_start_and_none_is_shown() {
    let folder = tempfile::TempDir::new().unwrap();
    for (http, expected) in [
        ("token: short", "http.token has fewer than 16 characters"),
        ("token_file: missing", "http.token_file: missing cannot be read"),
        ("token: 0123456789abcdef, token_file: x", "leave one of them out"),
    ] {
        let config = format!("http: {{ listen: '127.0.0.1:0', {http} }}\n");
        std::fs::write(folder.path().join("c.yaml"), config).unwrap();
        let output = server::run(folder.path(), &["serve", "--config", "c.yaml"]);
        assert!(output.code == 2 && output.text.contains(expected), "{http}: {}", output.text);
    }
    let config = format!("http: {{ token: {TOKEN}xyz }}\n");
    std::fs::write(folder.path().join("c.yaml"), config).unwrap();
    let output = server::run(folder.path(), &["serve", "--config", "c.yaml", "--print-config"]);
    assert!(output.text.contains("***") && !output.text.contains(TOKEN), "{}", output.text);
}
