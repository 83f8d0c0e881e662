//! Connections: accepted once, dealt to the workers in turn, so that each has its part. One that
//! never begins to speak is closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo, UdsConnectInfo};

use super::tls::Tls;
use crate::seldom::Seldom;

/// After an accept that failed, such as for want of file descriptors.
pub(super) const BREATHER: Duration = Duration::from_millis(50);

/// Where connections come from.
pub(super) struct Incoming {
    pub(super) tcp: TcpListener,
    pub(super) uds: Option<UnixListener>,
}

/// A connection that belongs to no runtime yet.
pub(super) enum Accepted {
    Tcp(std::net::TcpStream),
    Uds(std::os::unix::net::UnixStream),
}

impl Incoming {
    /// Accepts until it is dropped, and deals to the inboxes in turn.
    pub(super) async fn deal(self, inboxes: Vec<mpsc::UnboundedSender<Accepted>>) {
        let mut seldom = Seldom::new();
        for inbox in inboxes.iter().cycle() {
            let accepted = loop {
                match self.accept().await {
                    Ok(accepted) => break accepted,
                    Err(error) => {
                        if let Some(unsaid) = seldom.is_due() {
                            tracing::warn!(%error, unsaid, "a connection could not be accepted");
                        }
                        sleep(BREATHER).await;
                    }
                }
            };
            // Without its worker the connection is closed, and the caller tries another one.
            let _ = inbox.send(accepted);
        }
    }

    async fn accept(&self) -> io::Result<Accepted> {
        let uds = async {
            match &self.uds {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = self.tcp.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                notice_its_end(&stream)?;
                Ok(Accepted::Tcp(stream.into_std()?))
            }
            accepted = uds => Ok(Accepted::Uds(accepted?.0.into_std()?)),
        }
    }
}

/// After this long without a word the kernel asks a peer whether it is there; one that has not taken
/// what was sent for as long is gone.
const SILENCE: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_secs(5);
const MOST_ASKED: u32 = 4;

/// Dead peers, and those that never read, lose their connection. The kernel notices: HTTP/2's own
/// pings make hyper read the clock and take a lock for each frame, some per cent of a decision.
fn notice_its_end(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(SILENCE);
    let keepalive = keepalive.with_interval(ASK_EVERY).with_retries(MOST_ASKED);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE))?;
    Ok(())
}

/// How long a client may take for HTTP/2's preface, its first bytes.
const PREFACE: Duration = Duration::from_secs(20);
const PREFACE_BYTES: usize = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// A connection of this worker's runtime.
pub(super) struct Connection {
    stream: Stream,
    /// Until the preface is read: when it must be, and how many bytes have come.
    preface: Option<(Pin<Box<Sleep>>, usize)>,
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Uds(UnixStream),
}

impl Connection {
    /// Takes a connection into the current runtime, and shakes hands where TLS is spoken. `None`:
    /// nothing came of it.
    async fn adopt(accepted: Accepted, tls: Option<&Tls>) -> Option<Self> {
        let adopted = match accepted {
            Accepted::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Accepted::Uds(stream) => UnixStream::from_std(stream).map(Stream::Uds),
        };
        let stream = match (adopted, tls) {
            (Ok(Stream::Tcp(stream)), Some(tls)) => {
                tls.accept(stream).await.map(|stream| Stream::Tls(Box::new(stream)))
            }
            (Ok(stream), _) => Some(stream),
            (Err(error), _) => {
                tracing::warn!(%error, "a connection could not be adopted");
                None
            }
        };
        stream.map(Self::new)
    }

    fn new(stream: Stream) -> Self {
        Self { stream, preface: Some((Box::pin(sleep(PREFACE)), 0)) }
    }

    /// What was read, or that the preface is overdue.
    fn in_time(
        &mut self,
        polled: Poll<io::Result<()>>,
        read_bytes: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Some((deadline, come_bytes)) = &mut self.preface else { return polled };
        *come_bytes += read_bytes;
        if *come_bytes >= PREFACE_BYTES {
            self.preface = None;
        } else if polled.is_pending() && deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

/// Adopts what comes, each in a task of its own: a slow handshake keeps nobody waiting.
pub(super) async fn adopt_all(
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
    tls: Option<Arc<Tls>>,
    adopted: mpsc::UnboundedSender<Connection>,
) {
    while let Some(accepted) = accepted.recv().await {
        let (tls, adopted) = (tls.clone(), adopted.clone());
        tokio::spawn(async move {
            if let Some(connection) = Connection::adopt(accepted, tls.as_deref()).await {
                // Nobody takes it any more when the worker stops.
                let _ = adopted.send(connection);
            }
        });
    }
}

/// Who is at the other end.
#[derive(Clone)]
pub(super) enum Peer {
    #[expect(dead_code, reason = "for services that ask tonic who calls")]
    Tcp(TcpConnectInfo),
    #[expect(dead_code, reason = "for services that ask tonic who calls")]
    Uds(UdsConnectInfo),
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        match &self.stream {
            Stream::Tcp(stream) => Peer::Tcp(stream.connect_info()),
            Stream::Tls(stream) => Peer::Tcp(stream.get_ref().0.connect_info()),
            Stream::Uds(stream) => Peer::Uds(stream.connect_info()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (this, before_bytes) = (self.get_mut(), buffer.filled().len());
        let polled = match &mut this.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Uds(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        this.in_time(polled, buffer.filled().len() - before_bytes, context)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Uds(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Uds(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
            Stream::Uds(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
            Stream::Uds(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Uds(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_notices_a_peer_that_is_gone() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(tcp.local_addr().unwrap()).await.unwrap();
        let accepted = Incoming { tcp, uds: None }.accept().await.unwrap();
        let Accepted::Tcp(stream) = accepted else { unreachable!("it came by TCP") };
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        let (after, again) = (socket.tcp_keepalive_time(), socket.tcp_keepalive_interval());
        assert_eq!((after.unwrap(), again.unwrap()), (SILENCE, ASK_EVERY));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), MOST_ASKED);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(SILENCE));
        drop(peer);
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_begins_to_speak_is_sent_away() {
        for sent in ["", "PRI * HTTP/2.0"] {
            let (mut client, server) = UnixStream::pair().unwrap();
            client.write_all(sent.as_bytes()).await.unwrap();
            let (mut connection, start) = (Connection::new(Stream::Uds(server)), Instant::now());
            let ended = connection.read_to_end(&mut Vec::new()).await.unwrap_err();
            assert_eq!((ended.kind(), start.elapsed()), (io::ErrorKind::TimedOut, PREFACE));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_begun_may_be_silent() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut connection = Connection::new(Stream::Uds(server));
        let read = tokio::spawn(async move { connection.read_to_end(&mut Vec::new()).await });
        tokio::time::advance(PREFACE * 3).await;
        assert!(!read.is_finished());
        drop(client);
        assert_eq!(read.await.unwrap().unwrap(), PREFACE_BYTES);
    }
}
