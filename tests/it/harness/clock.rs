//! The wall clock of one Redis, through the shim in `clock_shim.c`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A clock that stands at a fixed time, or runs at an offset to the real one.
pub(crate) struct Clock {
    file: File,
    path: PathBuf,
}

impl Clock {
    /// The real time, until told otherwise.
    pub(crate) fn new(path: &Path) -> Self {
        std::fs::write(path, [0; 16]).unwrap();
        Self { file: File::options().write(true).open(path).unwrap(), path: path.into() }
    }

    /// The time stands still at `at_us` after 1970.
    pub(crate) fn stop_at(&self, at_us: u64) {
        assert_ne!(at_us, 0, "0 means that the clock runs");
        self.file.write_all_at(&at_us.to_ne_bytes(), 0).unwrap();
    }

    /// The time runs, `offset_us` away from the real one.
    pub(crate) fn run_at_offset(&self, offset_us: i64) {
        self.file.write_all_at(&offset_us.to_ne_bytes(), 8).unwrap();
        self.file.write_all_at(&[0; 8], 0).unwrap();
    }

    /// Makes a process that is about to start live by this clock.
    pub(crate) fn rule_over(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// The environment of a process that lives by this clock.
    pub(crate) fn variables(&self) -> [(&'static str, String); 2] {
        let paths = [("LD_PRELOAD", shim()), ("CHRONOSDB_TEST_CLOCK", &self.path)];
        paths.map(|(name, path)| (name, path.to_str().unwrap().to_owned()))
    }
}

/// The compiled shim: what `tests/run` made, or made here once.
fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        if let Ok(path) = std::env::var("CHRONOSDB_TEST_CLOCK_SHIM") {
            return path.into();
        }
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/clock_shim.c");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let made = folder.join(format!("clock_shim-{}.so", std::process::id()));
        let status = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .args([&made, Path::new(source)])
            .status();
        assert!(status.is_ok_and(|status| status.success()), "no C compiler: run tests/run");
        made
    })
}
