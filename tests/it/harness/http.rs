//! HTTP/1.1 by hand: a test may send header bytes that no proper client would.

use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// What came back.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case, in the order they came.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    /// The first header of that (lower-case) name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// `GET path`.
pub(crate) fn get(port: u16, path: &str) -> Result<Response> {
    request(port, "GET", path, b"", "")
}

/// `POST path` with a JSON body.
pub(crate) fn post(port: u16, path: &str, body: &str) -> Result<Response> {
    request(port, "POST", path, b"content-type: application/json\r\n", body)
}

/// One request on a connection of its own. `headers`: whole lines, raw.
pub(crate) fn request(
    port: u16,
    method: &str,
    path: &str,
    headers: &[u8],
    body: &str,
) -> Result<Response> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let length = body.len();
    let mut message = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n").into_bytes();
    message.extend_from_slice(headers);
    let rest = format!("connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    message.extend_from_slice(rest.as_bytes());
    stream.write_all(&message)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    parse(&answer)
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("not HTTP: {answer:?}")))
}

fn parse(answer: &str) -> Option<Response> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers = lines.map(header).collect::<Option<Vec<_>>>()?;
    let chunked =
        headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { dechunk(body)? } else { body.to_owned() };
    Some(Response { status, headers, body })
}

fn dechunk(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.push_str(after.get(..size)?);
        rest = after.get(size + 2..)?;
    }
}

/// A connection after a request to upgrade it.
pub(crate) struct Socket {
    /// 101 when it was.
    pub(crate) status: u16,
    stream: TcpStream,
}

impl Socket {
    /// Sends bytes, and reads as many back.
    pub(crate) fn echo(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.stream.write_all(bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        self.stream.read_exact(&mut back).unwrap();
        back
    }
}

/// `GET /` with these lines, which ask for an upgrade.
pub(crate) fn upgrade(port: u16, headers: &[u8]) -> Result<Socket> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let request = [b"GET / HTTP/1.1\r\nhost: test\r\n", headers, b"\r\n"].concat();
    stream.write_all(&request)?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&head);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| Error::new(ErrorKind::InvalidData, text.into_owned()))?;
    Ok(Socket { status, stream })
}
