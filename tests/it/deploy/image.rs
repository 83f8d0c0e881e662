//! The image without Docker: its Dockerfile is linted and read, what it copies is put into an empty
//! folder, and the program runs in there as the image says, as nobody, with nothing to write to.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::container::{below, program};
use super::objects::text;
use super::{Running, outcome, printed, read, repository, tool, yaml};
use crate::harness::{free_port, http, wait_until};

const DOCKERFILE: &str = "deploy/docker/Dockerfile";

/// What gcr.io/distroless/cc-debian12 has of what a program may be linked with.
const DISTROLESS_CC: [&str; 5] =
    ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

/// Enters the folder `$1` as an empty root that cannot be written to, as the user 65532 without any
/// capability, and runs the rest. It needs to be root, or user namespaces.
const ENTER: &str = r#"
if [ "$(id -u)" = 0 ]; then outer= inner="--setgid=65532 --setuid=65532"
else outer="--user --map-root-user" inner="--user --map-user=65532 --map-group=65532"; fi
exec unshare --mount $outer sh -euc '
  root=$1 inner=$2; shift 2
  mount --bind "$root" "$root"
  mount -o remount,bind,ro "$root"
  exec unshare $inner --root="$root" --wd=/ "$@"' sh "$1" "$inner" "${@:2}"
"#;

/// The instructions of a stage: the word, and what follows it.
fn instructions(stage: &str) -> Vec<(String, String)> {
    let text = read(DOCKERFILE).replace("\\\n", " ");
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap();
        let rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
        all.push((word.to_owned(), rest));
    }
    let starts = |(word, rest): &(String, String)| word == "FROM" && rest.contains(stage);
    let start = all.iter().position(starts).unwrap_or_else(|| panic!("there is no {stage}"));
    let rest = all.split_off(start + 1);
    rest.into_iter().take_while(|(word, _)| word != "FROM").collect()
}

/// What follows a word that stands in the last stage once.
fn value(word: &str) -> String {
    let mut found = instructions("distroless").into_iter().filter(|(known, _)| known == word);
    found.next().unwrap_or_else(|| panic!("there is no {word}")).1
}

/// The words of `CMD ["…"]` and the like.
fn words(word: &str) -> Vec<String> {
    let value = value(word);
    let list = value[value.find('[').unwrap()..].to_owned();
    serde_json::from_str(&list).unwrap()
}

/// Whether `.dockerignore`, which names what stays, lets a path into the build.
fn is_in_context(path: &str) -> bool {
    let ignore = read(".dockerignore");
    assert!(ignore.lines().any(|line| line == "*"), "everything else is ignored");
    let mut kept = ignore.lines().filter_map(|line| line.strip_prefix('!'));
    kept.any(|kept| path == kept || path.starts_with(&format!("{kept}/")))
}

/// The libraries that the program is linked with, as `ldd` finds them.
fn libraries() -> Vec<String> {
    let listed = printed(Command::new("ldd").arg(env!("CARGO_BIN_EXE_chronosdb")), "");
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    listed.lines().filter_map(path).collect()
}

/// What the last stage copies, and the C library of its base.
fn filled(root: &Path) {
    for (_, rest) in instructions("distroless").iter().filter(|(word, _)| word == "COPY") {
        let (source, target) = rest.trim_start_matches("--from=build ").split_once(' ').unwrap();
        let source = match source.strip_prefix("/src/target/release/") {
            Some(name) => {
                assert_eq!(name, "chronosdb");
                env!("CARGO_BIN_EXE_chronosdb").into()
            }
            None => {
                assert!(is_in_context(source), ".dockerignore leaves out {source}");
                repository().join(source)
            }
        };
        copy(&source, &below(root, target));
    }
    for library in libraries() {
        copy(Path::new(&library), &below(root, &library));
    }
}

/// A file or a folder, whoever owns it readable by everybody.
fn copy(source: &Path, target: &Path) {
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    printed(Command::new("cp").args(["-rL"]).args([source, target]), "");
    printed(Command::new("chmod").args(["-R", "a+rX"]).arg(target.parent().unwrap()), "");
}

/// A program of the image in the root, with the image's environment and these variables.
fn inside(root: &Path, words: &[String], variables: &[(&str, String)]) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", ENTER, "bash"]).arg(root).args(words).env_clear();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let (name, value) =
        value("ENV").split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    command.env(name, value).envs(variables.iter().cloned());
    command
}

#[test]
fn hadolint_likes_it() {
    printed(tool("hadolint").arg(DOCKERFILE), "");
    let (good, text) = outcome(tool("hadolint").arg("-"), "FROM debian:latest\nRUN cd /tmp\n");
    assert!(!good && text.contains("DL3007"), "{text}");
}

#[test]
fn it_needs_no_more_than_its_base_has() {
    let libraries = libraries();
    assert!(libraries.len() > 2, "{libraries:?}");
    for library in libraries {
        let name = library.rsplit('/').next().unwrap();
        assert!(DISTROLESS_CC.contains(&name), "distroless/cc has no {name}");
    }
}

#[test]
fn it_runs_in_an_empty_root_as_nobody() {
    let root = tempfile::tempdir().unwrap();
    filled(root.path());
    printed(Command::new("chmod").arg("a+rx").arg(root.path()), "");
    let (grpc, web) = (free_port(), free_port());
    let variables = [
        ("CHRONOSDB_GRPC__LISTEN", format!("127.0.0.1:{grpc}")),
        ("CHRONOSDB_HTTP__LISTEN", format!("127.0.0.1:{web}")),
        ("CHRONOSDB_DRAIN__DELAY", "0s".to_owned()),
    ];
    let serve = [words("ENTRYPOINT"), words("CMD")].concat();
    let mut running = Running::start(&mut inside(root.path(), &serve, &variables));
    wait_until("it is ready", || {
        assert!(running.0.try_wait().unwrap().is_none(), "it ended at once");
        http::get(web, "/readyz").is_ok_and(|page| page.status == 200)
    });
    assert!(http::get(web, "/rules").unwrap().body.contains("\"edge\""), "no rules");
    assert_eq!(value("USER"), "65532:65532");
    no_rights(&running.0);
    let healthy = outcome(&mut inside(root.path(), &words("HEALTHCHECK"), &variables), "");
    assert!(healthy.0, "{}", healthy.1);
    crate::harness::signal(&running.0, "TERM");
    assert!(running.0.wait().unwrap().success());
    let unhealthy = outcome(&mut inside(root.path(), &words("HEALTHCHECK"), &variables), "");
    assert!(!unhealthy.0, "{}", unhealthy.1);
    // The proof that the root is read-only: what wants to write there cannot start.
    let socket =
        [&variables[..], &[("CHRONOSDB_GRPC__UDS", "/chronosdb.sock".to_owned())]].concat();
    let (good, text) = outcome(inside(root.path(), &serve, &socket).stderr(Stdio::piped()), "");
    assert!(!good && text.contains("Read-only file system"), "{text}");
}

/// Not root, and no capability left.
fn no_rights(child: &Child) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert_eq!(line("CapEff:"), "0000000000000000");
    let is_root = printed(Command::new("id").arg("-u"), "").trim() == "0";
    // In a user namespace of its own it looks from here like the user who runs the test.
    assert!(!is_root || line("Uid:").starts_with("65532"), "{status}");
}

#[test]
fn it_listens_where_it_says() {
    let mut show = program();
    show.env("CHRONOSDB_CONFIG", repository().join("deploy/docker/chronosdb.yaml"));
    let settings: Value = yaml(&printed(show.args(["serve", "--print-config"]), "")).remove(0);
    let port = |path| text(&settings, path).strip_prefix("0.0.0.0:").unwrap().to_owned();
    let exposed = value("EXPOSE");
    assert_eq!(exposed, format!("{} {}", port("grpc.listen"), port("http.listen")));
    let copies = |target: &str| {
        let mut all = instructions("distroless").into_iter();
        all.any(|(word, rest)| word == "COPY" && rest.ends_with(&format!(" {target}")))
    };
    assert!(copies(text(&settings, "rules.path")), "the rules are not in the image");
    assert!(copies(value("ENV").strip_prefix("CHRONOSDB_CONFIG=").unwrap()));
}

/// The layer of dependencies is built from manifests and emptied code: Cargo must accept that.
#[test]
fn the_skeleton_is_a_package() {
    let context = tempfile::tempdir().unwrap();
    for line in read(".dockerignore").lines().filter_map(|line| line.strip_prefix('!')) {
        // Benchmarks are allowed to be missing.
        if repository().join(line).exists() {
            copy(&repository().join(line), &context.path().join(line));
        }
    }
    let run = instructions("AS skeleton").into_iter().find(|(word, _)| word == "RUN").unwrap().1;
    printed(Command::new("sh").args(["-euc", &run]).current_dir(context.path()), "");
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(context.path())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let code = std::fs::read_to_string(context.path().join("src/main.rs")).unwrap();
    assert_eq!(code.trim(), "fn main() {}");
    assert!(
        !context.path().join("src/server").exists() && context.path().join("build.rs").exists()
    );
}
