//! What docs/redis.md says is tested, and where it says so.

#[test]
fn every_row_of_the_docs_has_its_test() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(root.join("docs/redis.md")).unwrap();
    let mut tests = String::new();
    for entry in std::fs::read_dir(root.join("tests/it")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "rs") {
            tests.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    let is_name = |word: &&str| {
        let symbols = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        word.matches('_').count() > 2 && word.chars().all(symbols) && !word.starts_with("chronosdb")
    };
    let names: Vec<&str> = docs.split('`').filter(is_name).collect();
    assert!(names.len() > 20, "only {} tests are named", names.len());
    for name in names {
        assert!(tests.contains(&format!("fn {name}(")), "docs/redis.md names {name}");
    }
    let table = docs.split("| fault |").nth(1).unwrap().split("\n\n").next().unwrap();
    for row in table.lines().skip(2) {
        let test = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
        assert!(test.starts_with('`') && test.ends_with('`'), "no test: {row}");
    }
}
