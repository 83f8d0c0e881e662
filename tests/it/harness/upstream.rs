//! A service behind Envoy that opens WebSockets, and says back whatever comes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Serves until the test ends.
pub(crate) struct Upstream {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || echo(&stream, &counted));
            }
        });
        Self { port, requests }
    }

    /// How many requests got here.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// A bootstrap whose cluster `upstream` is this service.
    pub(crate) fn stand_behind(&self, text: &str) -> String {
        Self::behind(text, self.port, "http_protocol_options: {}")
    }

    /// A bootstrap whose cluster `upstream` is at this port, with this protocol.
    pub(crate) fn behind(text: &str, port: u16, protocol: &str) -> String {
        let (listeners, clusters) = text.split_once("\n  clusters:\n").unwrap();
        let (before, after) = clusters.split_once("port_value: ").unwrap();
        let (_, after) = after.split_once(' ').unwrap();
        let options = format!(
            "    - name: upstream
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ {protocol} }}\n"
        );
        let before = before.replacen("    - name: upstream\n", &options, 1);
        format!("{listeners}\n  clusters:\n{before}port_value: {port} {after}")
    }
}

fn echo(stream: &TcpStream, requests: &AtomicUsize) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
        line.clear();
    }
    requests.fetch_add(1, Ordering::SeqCst);
    let mut stream = stream;
    let head =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let _ = stream.write_all(head.as_bytes());
    let mut bytes = [0; 64];
    while let Ok(length @ 1..) = reader.read(&mut bytes) {
        let _ = stream.write_all(&bytes[..length]);
    }
}
