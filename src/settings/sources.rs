//! Where settings come from: the file, and `CHRONOSDB_SECTION__KEY` variables on top of it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Settings;

/// A variable that starts so, and has a `__` after it, is a setting.
const PREFIX: &str = "CHRONOSDB_";

/// What is wrong with the settings, and where.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("the settings file {} cannot be read: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file does not say what it should.
    #[error("{}:{line}:{column}: {what}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// Which column, from 1.
        column: u64,
        /// What is wrong there.
        what: String,
    },
    /// An environment variable does not say what it should.
    #[error("environment variable {name}: {what}")]
    Variable {
        /// Which variable.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A value is out of range.
    #[error("{key}: {why}")]
    Value {
        /// Which setting.
        key: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Reads the file (if there is one) and the variables.
pub(super) fn read(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Settings, SettingsError> {
    let mut tree = Value::Object(Map::new());
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::File { path: path.to_owned(), source })?;
        let wrong = |error| syntax(path, &error);
        // Read as settings, not as any YAML: there `off` would be a boolean, not a style.
        if !is_blank(&text) {
            let settings: Settings = serde_yaml::from_str(&text).map_err(wrong)?;
            tree = serde_json::to_value(settings).expect("settings are plain values");
        }
    }
    let (mut variables, others): (Vec<_>, Vec<_>) = environment
        .into_iter()
        .filter(|(name, _)| name.starts_with(PREFIX))
        .partition(|(name, _)| name[PREFIX.len()..].contains("__"));
    let defaults = serde_json::to_value(Settings::default()).expect("settings are plain values");
    for (name, _) in others {
        if let Some(meant) = meant(&defaults, PREFIX, &name) {
            let what = format!("sections are joined by two underscores: write {meant}");
            return Err(SettingsError::Variable { name, what });
        }
    }
    variables.sort();
    for (name, text) in variables {
        let value = serde_yaml::from_str(&text).unwrap_or_else(|_| Value::String(text.clone()));
        let keys: Vec<String> =
            name[PREFIX.len()..].split("__").map(str::to_ascii_lowercase).collect();
        let before = tree.clone();
        let wrong = |what: String| SettingsError::Variable { name: name.clone(), what };
        set(&mut tree, &keys, value).map_err(wrong)?;
        // What looks like a number or a boolean may be meant as text: a password, a style.
        if let Err(error) = serde_json::from_value::<Settings>(tree.clone()) {
            tree = before;
            set(&mut tree, &keys, Value::String(text)).map_err(wrong)?;
            let retried = serde_json::from_value::<Settings>(tree.clone());
            retried.map_err(|as_text| {
                let is_text = error.to_string().starts_with("invalid type");
                wrong(clear(&(if is_text { as_text } else { error }).to_string()))
            })?;
        }
    }
    serde_json::from_value(tree)
        .map_err(|error| SettingsError::Variable { name: PREFIX.into(), what: error.to_string() })
}

/// The variable that was meant by `CHRONOSDB_STORE_REDIS_URL`. Kubernetes sets variables of that
/// prefix too, such as `CHRONOSDB_SERVICE_HOST`: they mean nothing here.
fn meant(defaults: &Value, start: &str, name: &str) -> Option<String> {
    defaults.as_object()?.iter().find_map(|(key, below)| {
        let path = format!("{start}{}", key.to_uppercase());
        if !below.is_object() && path.replace("__", "_") == name {
            return Some(path);
        }
        meant(below, &format!("{path}__"), name)
    })
}

fn is_blank(text: &str) -> bool {
    text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
}

fn set(tree: &mut Value, keys: &[String], value: Value) -> Result<(), String> {
    let Some((key, rest)) = keys.split_first() else {
        *tree = value;
        return Ok(());
    };
    if tree.is_null() {
        *tree = Value::Object(Map::new());
    }
    let Some(section) = tree.as_object_mut() else {
        return Err(format!("`{key}` stands below a setting that has no parts"));
    };
    set(section.entry(key.as_str()).or_insert(Value::Null), rest, value)
}

fn syntax(path: &Path, error: &serde_yaml::Error) -> SettingsError {
    let (line, column) = error.location().map_or((1, 1), |place| (place.line(), place.column()));
    let text = error.to_string();
    // The parser shows the place and the line below its message; the place stands in front here.
    let first = text.lines().next().unwrap_or(&text);
    let what = first.strip_prefix("error: ").unwrap_or(first);
    let what = what.find(" at line ").map_or(what, |end| &what[..end]);
    let what = what.strip_prefix(&format!("line {line} column {column}: ")).unwrap_or(what);
    SettingsError::Syntax { path: path.to_owned(), line, column, what: clear(what) }
}

fn clear(what: &str) -> String {
    in_plain_words(what).map_or_else(|| with_near_miss(what), str::to_owned)
}

/// The parser speaks to programmers; whoever edits the file wants to know what to write.
fn in_plain_words(what: &str) -> Option<&'static str> {
    const WORDS: [(&str, &str); 11] = [
        (
            "expected mapping start",
            "a section stands here: write its keys below it, or leave it out",
        ),
        ("expected sequence start", "a list stands here, such as [a, b]"),
        ("expected string scalar", "one value stands here, no list and no section"),
        ("externally tagged enum", "one word stands here, no list and no section"),
        ("cannot deserialize null", "a value is missing: write one, or leave the key out"),
        ("invalid boolean", "write true or false"),
        ("invalid u", "write a whole number that is not negative, and not too large"),
        ("invalid floating point", "write a number"),
        (
            "invalid socket address",
            "write an IP address (no name) and a port, such as 127.0.0.1:50051 or [::]:50051",
        ),
        ("multiple YAML documents", "a second document begins here: settings are one"),
        ("tabs disallowed", "YAML is indented by spaces, not by tabs"),
    ];
    WORDS.iter().find(|(start, _)| what.starts_with(start)).map(|(_, words)| *words)
}

/// Adds "did you mean" to "unknown field `x`, expected one of `y`, `z`", in the words of either
/// parser.
fn with_near_miss(what: &str) -> String {
    let what = what.split(", set DuplicateKeyPolicy").next().unwrap_or(what);
    let what = what.replace("unknown variant", "unknown value");
    let is_unknown = what.contains("unknown field") || what.contains("unknown key");
    let Some(wrong) = what.split('`').nth(1).filter(|_| is_unknown) else {
        return what;
    };
    let known = what.split_once("expected ").map_or("", |(_, known)| known);
    let known = known.trim_start_matches("one of ").split([',', ' ']);
    let near = known
        .map(|known| known.trim_matches('`'))
        .filter(|known| !known.is_empty())
        .map(|known| (strsim::damerau_levenshtein(wrong, known), known))
        .filter(|(distance, _)| *distance <= 3 && distance * 2 <= wrong.len())
        .min();
    match near {
        Some((_, known)) => format!("unknown key `{wrong}`: did you mean `{known}`?"),
        None => what.replace("unknown field", "unknown key"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn load(text: &str, environment: &[(&str, &str)]) -> Result<Settings, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let environment =
            environment.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let name = file.path().display().to_string();
        Settings::load(Some(file.path()), environment)
            .map_err(|error| error.to_string().replace(&name, "c.yaml"))
    }

    #[test]
    fn file_then_environment() {
        let settings = load(
            "store: { kind: redis, redis: { timeout: 20ms } }\n",
            &[
                ("CHRONOSDB_STORE__REDIS__URL", "redis://other:1"),
                ("CHRONOSDB_STORE__EXPECTED_INSTANCES", "3"),
                ("CHRONOSDB_PRIVACY__KEY", "12345"),
                ("CHRONOSDB_PRIVACY__FINGERPRINT", "[api_key, cookie]"),
                ("CHRONOSDB_SERVICE_HOST", "ignored"),
            ],
        )
        .unwrap();
        assert_eq!(settings.store.redis.url, "redis://other:1");
        assert_eq!(settings.store.redis.timeout.as_millis(), 20);
        assert_eq!(settings.store.expected_instances, 3);
        assert_eq!(settings.privacy.key.as_deref(), Some("12345"));
        assert_eq!(settings.privacy.fingerprint, ["api_key", "cookie"]);
        assert_eq!(load("", &[]).unwrap(), Settings::default());
        assert_eq!(load("# nothing\n", &[]).unwrap(), Settings::default());
    }

    #[test]
    fn off_is_a_style_and_yes_is_a_boolean() {
        let text = "headers: { style: off }\nrules: { allow_empty: yes }\n";
        let settings = load(text, &[]).unwrap();
        assert_eq!(settings.headers.style, crate::api::headers::Style::Off);
        assert!(settings.rules.allow_empty);
        let variables = [("CHRONOSDB_HEADERS__STYLE", "off"), ("CHRONOSDB_LOG__LEVEL", "0x10")];
        let settings = load("", &variables).unwrap();
        assert_eq!(settings.headers.style, crate::api::headers::Style::Off);
        assert_eq!(settings.log.level, "0x10");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let table = [
            ("stroe: {}\n", "c.yaml:1:1: unknown key `stroe`: did you mean `store`?"),
            (
                "store:\n  redis:\n    pol_size: 3\n",
                "c.yaml:3:5: unknown key `pol_size`: did you mean `pool_size`?",
            ),
            ("store:\n  redis:\n    timeout: 15\n", "c.yaml:3:14: "),
            (
                "store: { expected_instances: 0 }\n",
                "store.expected_instances: it must be at least 1",
            ),
            ("store: { redis: { key_prefix: \"{a}\" } }\n", "store.redis.key_prefix: braces"),
            ("store: { redis: { nodes: [\"a:1\"] } }\n", "store.redis.nodes: a standalone Redis"),
            ("store: { redis: { topology: sentinel } }\n", "store.redis.nodes: name the sentinels"),
            (
                "store: { redis: { topology: sentinel, nodes: [\"a:1\"] } }\n",
                "store.redis.master_name: say by which name",
            ),
            (
                "store: { redis: { topology: cluster, master_name: m } }\n",
                "store.redis.master_name: a cluster has none",
            ),
            ("store: { redis: { tls: { cert: c.pem } } }\n", "store.redis.tls: cert and key"),
            ("a: 1\n", "c.yaml:1:1: unknown key `a`, expected one of grpc,"),
            ("grpc:\n# listen: 127.0.0.1:1\n", "c.yaml:1:5: a section stands here"),
            ("- grpc\n", "c.yaml:1:1: a section stands here"),
            ("grpc: { listen: [1] }\n", "c.yaml:1:17: one value stands here"),
            ("grpc: { listen: localhost:1 }\n", "c.yaml:1:17: write an IP address (no name)"),
            ("grpc: { workers: -1 }\n", "c.yaml:1:18: write a whole number"),
            ("rules: { path: null }\n", "c.yaml:1:16: a value is missing"),
            ("rules: { allow_empty: 1 }\n", "c.yaml:1:23: write true or false"),
            ("privacy: { fingerprint: a }\n", "c.yaml:1:25: a list stands here"),
            ("log: { format: [a] }\n", "c.yaml:1:16: one word stands here"),
            ("log: { format: xml }\n", "c.yaml:1:16: unknown value `xml`, expected one of auto,"),
            ("tracing: { sample_ratio: x }\n", "c.yaml:1:26: write a number"),
            ("log: {}\nlog: {}\n", "c.yaml:2:1: duplicate mapping key: log"),
            ("---\nlog: {}\n---\nlog: {}\n", "c.yaml:4:1: a second document"),
            ("log:\n\tlevel: info\n", "c.yaml:2:2: YAML is indented by spaces"),
            ("grpc: { workers: 1025 }\n", "grpc.workers: more than 1024"),
            ("grpc: { max_connection_age: 0s }\n", "grpc.max_connection_age: it must be"),
            ("grpc: { uds: \"\" }\n", "grpc.uds: it is empty"),
            ("privacy: { key: \"\" }\n", "privacy.key: it is empty"),
            ("drain: { delay: 3651d }\n", "c.yaml:1:17: \"3651d\" is more than 3650 days"),
        ];
        for (text, expected) in table {
            let error = load(text, &[]).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        let error = load("", &[("CHRONOSDB_RULES__POLL", "5")]).unwrap_err();
        assert!(error.contains("POLL: \"5\" is not a duration"), "{error}");
        for (name, what) in [
            ("STORE__KINDD", "unknown key `kindd`: did you mean `kind`?"),
            (
                "STORE_REDIS_URL",
                "sections are joined by two underscores: write CHRONOSDB_STORE__REDIS__URL",
            ),
            ("HTTP__LISTEN", "write an IP address (no name) and a port"),
        ] {
            let name = format!("CHRONOSDB_{name}");
            let error = load("", &[(&name, "redis")]).unwrap_err();
            assert!(error.starts_with(&format!("environment variable {name}: {what}")), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = "store: { redis: { topology: cluster, url: \"redis://u:hunter2@h:1\", nodes: [\":hunter4@n:2\"] } }\nprivacy: { key: hunter3 }\nhttp: { token: hunter5 }\n";
        let shown = load(text, &[]).unwrap().shown();
        assert!(
            shown.contains("redis://***@h:1")
                && shown.contains("***@n:2")
                && !shown.contains("hunter"),
            "{shown}"
        );
        assert!(serde_yaml::from_str::<Settings>(&shown).is_ok(), "{shown}");
    }
}
