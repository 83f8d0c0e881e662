//! The `chronosdb` program: a table of commands, and the exit code of the one that ran.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    chronosdb::cli::run()
}
