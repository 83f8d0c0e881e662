//! What the benchmark programs share: a Redis of their own, the CPU time of a process, medians.

pub(crate) mod redis;

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

/// A loopback port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    listener.local_addr().expect("it is bound").port()
}

/// Asks until the answer is yes.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// CPU time that a process has used, in µs: of all its threads, in the kernel too.
pub(crate) fn cpu_us(process_id: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{process_id}/task")).expect("it runs");
    let cpu_ns = threads.filter_map(|thread| {
        // Exact, where /proc/<id>/stat counts ticks of 10 ms.
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    cpu_ns.sum::<f64>() / 1000.0
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Arguments of a benchmark, without what cargo adds.
pub(crate) fn arguments() -> impl Iterator<Item = String> {
    std::env::args().skip(1).filter(|argument| argument != "--bench")
}
