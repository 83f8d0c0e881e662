//! The bootstraps of `envoy/`, as somebody uses them who reads the comment on top: the commands are
//! run as they stand there, and print what the comment says.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::harness::envoy::{self, Envoy};
use crate::harness::free_port;
use crate::harness::redis::Redis;
use crate::harness::server::{self, Server};

/// Seconds that a wait may be shorter than in the comment: the time that the commands took.
const MOST_ELAPSED_S: i64 = 20;

/// What a comment says.
#[derive(Debug, Default)]
struct Comment {
    /// Commands that start an instance.
    servers: Vec<String>,
    /// Other commands, each with what it prints.
    commands: Vec<(String, Vec<String>)>,
}

impl Comment {
    fn read(text: &str) -> Self {
        let mut comment = Self::default();
        let mut is_output = false;
        for line in text.lines().take_while(|line| line.starts_with('#')) {
            let Some(line) = line.strip_prefix("#   ") else {
                is_output = false;
                continue;
            };
            if let Some(command) = line.strip_prefix("$ ") {
                comment.commands.push((command.to_owned(), Vec::new()));
                is_output = true;
            } else if is_output {
                comment.commands.last_mut().unwrap().1.push(line.to_owned());
            } else if line.contains("chronosdb serve") {
                comment.servers.push(line.to_owned());
            } else {
                assert!(line.starts_with("envoy -c envoy/"), "who runs this? {line}");
            }
        }
        assert!(!comment.servers.is_empty() && !comment.commands.is_empty(), "{comment:?}");
        comment
    }
}

/// Places of this machine in the place of those that the samples name.
struct Places {
    ports: BTreeMap<u16, u16>,
    folder: TempDir,
    redis: Option<Redis>,
}

impl Places {
    fn of(text: &str) -> Self {
        let ports = [10000, 10001, 9901, 50051, 50052, 8000, 8001];
        let ports = ports.map(|port| (port, free_port())).into();
        let redis = text.contains("redis://").then(Redis::start);
        Self { ports, folder: TempDir::new().unwrap(), redis }
    }

    fn fill(&self, text: &str) -> String {
        let mut text = text.replace("/tmp/", &format!("{}/", self.folder.path().display()));
        if let Some(redis) = &self.redis {
            text = text.replace("redis://127.0.0.1:6379", &redis.url());
        }
        for (from, to) in &self.ports {
            text = text.replace(&format!("port_value: {from} "), &format!("port_value: {to} "));
            text = text.replace(&format!("127.0.0.1:{from}"), &format!("127.0.0.1:{to}"));
        }
        let check = format!("chronosdb check --target 127.0.0.1:{} ", self.ports[&50051]);
        // A pause of this machine is no error of the sample.
        text.replace("chronosdb check ", &check).replace("timeout: 0.05s", "timeout: 5s")
    }

    /// What a command prints, run in a shell that knows the program by its name.
    fn run(&self, command: &str) -> String {
        let program = self.folder.path().join("chronosdb");
        if !program.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_chronosdb"), &program).unwrap();
        }
        let path = std::env::var("PATH").unwrap();
        let output = Command::new("bash")
            .args(["-c", command])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("PATH", format!("{}:{path}", self.folder.path().display()))
            .env("NO_PROXY", "*")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Does what the comment on top of a bootstrap says.
fn follow(path: &Path) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let comment = Comment::read(&text);
    let places = Places::of(&text);
    let start = |(index, line): (u16, &String)| {
        let port = |base: u16| places.ports[&(base + index)];
        Server::follow(&places.fill(line), port(50051), port(8000))
    };
    let servers: Vec<Server> = (0..).zip(&comment.servers).map(start).collect();
    let envoy = Envoy::run(&places.fill(&text), places.ports[&10000], places.ports[&9901]);
    envoy.wait_for_instances(servers.len().try_into().unwrap());
    for (command, expected) in &comment.commands {
        let printed = places.run(&places.fill(command));
        let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
        let same = printed.len() == expected.len()
            && printed.iter().zip(expected).all(|(printed, expected)| says(expected, printed));
        assert!(same, "{name}: {command}\nprints   {printed:#?}\nand not {expected:#?}");
    }
}

/// Whether a line says what is expected; a wait may be shorter by the time that has passed.
fn says(expected: &str, printed: &str) -> bool {
    let is_wait = expected.starts_with("retry-after: ") || expected.contains("retry after");
    let same = |(expected, printed): (&str, &str)| {
        let (wanted, found) = (expected.parse::<i64>(), printed.parse::<i64>());
        expected == printed
            || matches!((wanted, found), (Ok(wanted), Ok(found))
                if is_wait && (wanted - MOST_ELAPSED_S..=wanted).contains(&found))
    };
    let (expected, printed): (Vec<&str>, Vec<&str>) =
        (expected.split(' ').collect(), printed.split(' ').collect());
    expected.len() == printed.len() && expected.into_iter().zip(printed).all(same)
}

/// Each bootstrap has a test of its own, and each test a bootstrap.
macro_rules! samples {
    ($($test:ident: $name:literal,)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(#[test]
        fn $test() {
            follow(&envoy::sample($name));
        })*
    };
}

samples! {
    both_filters: "both.yaml",
    ext_authz: "ext_authz.yaml",
    a_pair_of_instances: "pair.yaml",
    ratelimit: "ratelimit.yaml",
    costs: "ratelimit_cost.yaml",
    a_sidecar: "sidecar.yaml",
}

/// `tls.rs` makes them, follows this one's comment, and drives it.
const NEEDS_CERTIFICATES: &str = "mtls.yaml";

#[test]
fn a_real_envoy_accepts_every_bootstrap() {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(envoy::sample("")).unwrap() {
        let path = entry.unwrap().path();
        let is_bootstrap = path.is_file()
            && path.file_name().unwrap() != NEEDS_CERTIFICATES
            && std::fs::read_to_string(&path).unwrap().contains("\nstatic_resources:");
        if is_bootstrap {
            assert!(envoy::accepts(&path), "{}", path.display());
            found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    found.sort();
    assert_eq!(found, TESTED, "each bootstrap is tried, and each one that is tried is there");
}

/// The settings that `docs/envoy.md` shows are settings, and the files that it names are there.
#[test]
fn the_page_about_envoy_says_what_is() {
    let folder = TempDir::new().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/envoy.md")).unwrap();
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let settings = blocks.inspect(|block| {
        std::fs::write(folder.path().join("shown.yaml"), block).unwrap();
        let arguments = ["serve", "--print-config", "--config", "shown.yaml"];
        let output = server::run(folder.path(), &arguments);
        assert_eq!(output.code, 0, "{block}\n{}", output.text);
    });
    assert_eq!(settings.count(), 2);
    let links = page.split("](../").skip(1).map(|rest| rest.split(')').next().unwrap());
    let missing: Vec<&str> = links.filter(|link| !root.join(link).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_comment_that_says_something_else_is_found() {
    assert!(says("200 429", "200 429") && !says("200 429", "200 200") && !says("200", "200 429"));
    assert!(
        says("retry-after: 60", "retry-after: 58") && !says("retry-after: 60", "retry-after: 61")
    );
    assert!(!says("60", "58") && !says("retry-after: 60", "retry-after: 39"));
    let comment =
        Comment::read("# A.\n#   chronosdb serve\n#   $ a\n#   b\n#   c\n# D.\n\n#   $ e\n");
    assert_eq!(comment.commands, [("a".to_owned(), vec!["b".to_owned(), "c".to_owned()])]);
}
