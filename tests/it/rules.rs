//! Rules files as people write them: the good ones load, and each broken one says what is wrong.

use std::path::PathBuf;

use chronosdb::rules::validate::validate;

fn configs(folder: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs").join(folder)
}

#[test]
fn every_good_file_loads() {
    let report = validate(&[configs("good")]);
    assert!(report.is_good(), "{report}");
    for file in &report.files {
        let alone = validate(&[PathBuf::from(file)]);
        assert!(alone.is_good(), "{alone}");
        assert!(!alone.domains.is_empty(), "{file}");
    }
}

#[test]
fn dump() {
    for file in chronosdb::rules::watch::files(&configs("broken")).unwrap() {
        let r = validate(&[file]);
        println!("{r}\n");
    }
    println!("{}", validate(&[configs("good")]));
}
