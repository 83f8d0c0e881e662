//! A redis-server of the benchmark's own, and a bare connection that pipelines.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{cpu_us, free_port, wait_until};

/// What people write first: a member for each hit, counted by the set's size.
pub(crate) const NAIVE: &str = "\
local time = redis.call('TIME')
local now, window = time[1] * 1000000 + time[2], tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local used = redis.call('ZCARD', KEYS[1])
if used >= tonumber(ARGV[1]) then return { 0, 0 } end
redis.call('ZADD', KEYS[1], now, string.format('%.0f', now) .. ':' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000))
return { 1, tonumber(ARGV[1]) - used - 1 }";

/// Runs until dropped.
pub(crate) struct Redis {
    pub(crate) port: u16,
    process: Child,
    _folder: TempDir,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let (port, folder) = (free_port(), TempDir::new().expect("there is room for a folder"));
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is missing: run tests/run, which installs it");
        wait_until("redis-server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { port, process, _folder: folder }
    }

    /// CPU time used so far, in µs.
    pub(crate) fn cpu_us(&self) -> f64 {
        cpu_us(self.process.id())
    }

    pub(crate) fn connect(&self) -> Wire {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("redis-server listens");
        stream.set_nodelay(true).expect("a TCP socket has this option");
        Wire { stream: BufReader::new(stream) }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection that says what it is told.
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    /// One command, and the text or the first integer of its reply.
    pub(crate) fn call(&mut self, arguments: &[&[u8]]) -> String {
        let mut bytes = Vec::new();
        command(&mut bytes, arguments);
        let reply = self.pipeline(&bytes, 1).pop().unwrap_or_default();
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Many commands at once, and for each the text or the first integer of its reply.
    pub(crate) fn pipeline(&mut self, commands: &[u8], replies: usize) -> Vec<Vec<u8>> {
        self.stream.get_mut().write_all(commands).expect("redis-server reads");
        (0..replies).map(|_| self.reply()).collect()
    }

    fn reply(&mut self) -> Vec<u8> {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        let count = || rest.parse::<usize>().unwrap_or(0);
        match kind {
            "$" => {
                let mut bytes = vec![0; count() + 2];
                self.stream.read_exact(&mut bytes).expect("redis-server answers");
                bytes.truncate(count());
                bytes
            }
            "*" => (0..count()).map(|_| self.reply()).collect::<Vec<_>>().swap_remove(0),
            "-" => panic!("redis-server says {rest}"),
            _ => rest.into(),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("redis-server answers");
        line.trim_end().to_owned()
    }
}

/// Appends a command as Redis reads it.
pub(crate) fn command(bytes: &mut Vec<u8>, arguments: &[&[u8]]) {
    bytes.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
}
