//! What the documents tell to write is what the program takes.

use std::path::Path;

use crate::harness::server;

/// The blocks of a document between ```yaml and ```.
fn yaml_blocks(text: &str) -> Vec<String> {
    let blocks = text.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn settings_in_the_documents_are_settings() {
    let folder = tempfile::TempDir::new().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut configs = vec![std::fs::read_to_string(root.join("config/chronosdb.yaml")).unwrap()];
    for name in ["security.md", "tracing.md"] {
        let text = std::fs::read_to_string(root.join("docs").join(name)).unwrap();
        let blocks = yaml_blocks(&text);
        assert!(!blocks.is_empty(), "{name} shows no settings");
        configs.extend(blocks);
    }
    for config in configs {
        std::fs::write(folder.path().join("c.yaml"), &config).unwrap();
        let arguments = ["serve", "--config", "c.yaml", "--print-config"];
        let output = server::run(folder.path(), &arguments);
        assert_eq!(output.code, 0, "{config}\n{}", output.text);
    }
}

#[test]
fn the_sample_settings_are_the_defaults() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sample = root.join("config/chronosdb.yaml");
    let arguments = ["serve", "--print-config"];
    let defaults = server::run(root, &arguments);
    let arguments = ["serve", "--print-config", "--config", sample.to_str().unwrap()];
    assert_eq!(server::run(root, &arguments).text, defaults.text);
}
