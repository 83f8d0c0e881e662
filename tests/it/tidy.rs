//! The house rules that a compiler does not know: which way imports go, who does I/O, how long a
//! file may be. A new arrow between rooms is a change of this file, and of its reasons.

use std::path::Path;

/// The rooms, from the bottom up. A room uses only rooms of a lower rank.
const RANKS: &[(&str, u32)] = &[
    ("duration", 0),
    ("quota", 0),
    // How often a line of the log is said.
    ("seldom", 0),
    ("check", 1),
    ("metrics", 2),
    ("privacy", 2),
    ("trace", 2),
    ("rules", 3),
    ("l1", 3),
    ("store", 3),
    ("limiter", 4),
    ("api", 5),
    // The HTTP pages show `/json`, which is a wire: the one arrow between the fronts.
    ("admin", 6),
    // Every room's own settings, put together.
    ("settings", 6),
    ("server", 7),
    ("cli", 8),
    ("main", 9),
];

/// Who may touch files and sockets.
const DOES_IO: &[&str] = &[
    "api/",
    "admin/",
    "rules/watch.rs",
    "rules/validate.rs",
    "store/redis",
    "server/",
    "cli/",
    "settings/",
];

/// Who may see protobuf.
const SEES_PROTOBUF: &[&str] = &["api/"];

const MOST_FILE_LINES: usize = 400;
const MOST_FUNCTION_LINES: usize = 70;

/// What is wrong with a file of `src/`, one sentence for each thing.
fn faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |line: usize, what: String| faults.push(format!("src/{path}:{line}: {what}"));
    if !text.starts_with(if path.ends_with(".lua") { "--" } else { "//!" }) {
        fault(1, "does not say what the file is for".into());
    }
    let lines = text.lines().count();
    if lines > MOST_FILE_LINES {
        fault(lines, format!("longer than {MOST_FILE_LINES} lines"));
    }
    let room = room_of(path);
    let may = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        for used in rooms_named_in(line) {
            if rank(used) >= rank(room) && used != room && rank(used) > 0 {
                fault(number, format!("{room} may not use {used}"));
            }
            if used == "settings" && !["cli", "server", "settings"].contains(&room) {
                fault(number, format!("{room} may not see all settings, only its own"));
            }
            if used == "metrics" && ["quota", "check", "duration"].contains(&room) {
                fault(number, format!("{room} counts nothing"));
            }
        }
        let code = line.split("//").next().unwrap_or_default();
        let io =
            ["std::fs", "std::net::Tcp", "std::net::Udp", "tokio::net", "tokio::fs", "UnixStream"];
        if io.iter().any(|name| code.contains(name)) && !may(DOES_IO) {
            fault(number, format!("{room} does no I/O"));
        }
        let protobuf = ["envoy_types", "prost::", "api::pb"];
        if protobuf.iter().any(|name| code.contains(name)) && !may(SEES_PROTOBUF) {
            fault(number, "only api/ sees protobuf".into());
        }
        for word in ["TODO", "FIXME", "XXX", "dbg!", "todo!", "unimplemented!"] {
            if line.contains(word) {
                fault(number, format!("{word} is not left in the code"));
            }
        }
    }
    for (number, name, lines) in long_functions(text) {
        fault(number, format!("fn {name} has {lines} lines: at most {MOST_FUNCTION_LINES}"));
    }
    faults
}

fn rank(room: &str) -> u32 {
    let found = RANKS.iter().find(|(name, _)| *name == room);
    found.unwrap_or_else(|| panic!("tidy.rs does not know the room {room}: give it a rank")).1
}

fn room_of(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap_or(path)
}

/// Every `crate::room` of a line of code, in groups such as `use crate::{check, quota}` too.
fn rooms_named_in(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or_default();
    let mut rooms = Vec::new();
    for part in code.split("crate::").skip(1) {
        let names = part.strip_prefix('{').map_or(part, |group| group);
        let is_name =
            |symbol: char| symbol.is_ascii_lowercase() || symbol == '_' || symbol.is_ascii_digit();
        let end = if part.starts_with('{') { names.len() } else { 0 };
        let whole = if end > 0 { names } else { part.split(|c| !is_name(c)).next().unwrap_or("") };
        let words =
            whole.split(',').map(|word| word.trim().split(|c| !is_name(c)).next().unwrap_or(""));
        rooms.extend(words.filter(|word| !word.is_empty()));
    }
    rooms
}

/// Functions over the limit: where, name, lines. rustfmt puts a function's closing brace under
/// the start of its first line, so indentation tells where it ends.
fn long_functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines = text.lines().collect::<Vec<_>>();
    let mut long = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let words = ["pub ", "pub(crate) ", "pub(super) ", "async ", "const "];
        let plain = words.iter().fold(code, |code, word| code.strip_prefix(word).unwrap_or(code));
        let Some(rest) = plain.strip_prefix("fn ") else { continue };
        let excused =
            lines[..index].iter().rev().take(3).any(|line| line.contains("clippy::too_many_lines"));
        let end = format!("{indent}}}");
        let length = lines[index..].iter().position(|line| *line == end).map_or(1, |last| last + 1);
        if length > MOST_FUNCTION_LINES && !excused {
            let name = rest.split(['(', '<']).next().unwrap_or(rest);
            long.push((index + 1, name.to_owned(), length));
        }
    }
    long
}

fn files_below(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "lua") {
            found.push(path);
        }
    }
}

#[test]
fn the_house_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    files_below(&root, &mut files);
    assert!(files.len() > 20, "only {} files below {}", files.len(), root.display());
    files.sort();
    let faults = files.iter().flat_map(|file| {
        let path = file.strip_prefix(&root).unwrap().to_str().unwrap();
        faults(path, &std::fs::read_to_string(file).unwrap())
    });
    let faults = faults.collect::<Vec<_>>();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn each_fault_is_found() {
    let long_file = format!("//! Long.\n{}", "// line\n".repeat(400));
    let long_function = format!("//! Long.\nfn long() {{\n{}}}\n", "    step();\n".repeat(70));
    let planted = [
        ("quota/mod.rs", "//! Q.\nuse crate::check::Check;", "quota may not use check"),
        ("quota/mod.rs", "//! Q.\nuse crate::metrics::Metrics;", "quota may not use metrics"),
        ("store/mod.rs", "//! S.\nuse crate::{check, rules::Rule};", "store may not use rules"),
        ("l1.rs", "//! L.\nlet x = crate::store::memory::new();", "l1 may not use store"),
        ("limiter/mod.rs", "//! L.\nuse crate::api::Front;", "limiter may not use api"),
        ("api/mod.rs", "//! A.\nuse crate::settings::Settings;", "api may not use settings"),
        ("admin/mod.rs", "//! A.\nuse crate::settings::Settings;", "may not see all settings"),
        ("rules/parse.rs", "//! R.\nlet text = std::fs::read(path);", "rules does no I/O"),
        ("limiter/mod.rs", "//! L.\nuse tokio::net::TcpStream;", "limiter does no I/O"),
        ("limiter/mod.rs", "//! L.\nuse envoy_types::pb;", "only api/ sees protobuf"),
        ("l1.rs", "//! L.\n// TODO: later", "TODO is not left"),
        ("l1.rs", "use crate::check::Check;", "does not say what the file is for"),
        ("l1.rs", &long_file, "longer than 400 lines"),
        ("l1.rs", &long_function, "fn long has 72 lines"),
    ];
    for (path, text, expected) in planted {
        let found = faults(path, text).join("\n");
        assert!(found.contains(expected), "{path}: expected \"{expected}\", found \"{found}\"");
    }
    let good = "//! S.\nuse crate::check::Check; // unlike crate::rules\nuse crate::quota::Limit;";
    assert_eq!(faults("store/memory.rs", good), [""; 0]);
}
