//! Connections: accepted once, dealt to the workers in turn, so that each has its part.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo, UdsConnectInfo};

use super::tls::Tls;

/// After an accept that failed, such as for want of file descriptors.
const BREATHER: Duration = Duration::from_millis(50);

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
        for inbox in inboxes.iter().cycle() {
            let accepted = loop {
                match self.accept().await {
                    Ok(accepted) => break accepted,
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(BREATHER).await;
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
                Ok(Accepted::Tcp(stream.into_std()?))
            }
            accepted = uds => Ok(Accepted::Uds(accepted?.0.into_std()?)),
        }
    }
}

/// A connection of this worker's runtime.
pub(super) enum Connection {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Uds(UnixStream),
}

impl Connection {
    /// Takes a connection into the current runtime, and shakes hands where TLS is spoken. `None`:
    /// nothing came of it.
    async fn adopt(accepted: Accepted, tls: Option<&Tls>) -> Option<Self> {
        let adopted = match accepted {
            Accepted::Tcp(stream) => TcpStream::from_std(stream).map(Self::Tcp),
            Accepted::Uds(stream) => UnixStream::from_std(stream).map(Self::Uds),
        };
        match (adopted, tls) {
            (Ok(Self::Tcp(stream)), Some(tls)) => {
                tls.accept(stream).await.map(|stream| Self::Tls(Box::new(stream)))
            }
            (Ok(connection), _) => Some(connection),
            (Err(error), _) => {
                tracing::warn!(%error, "a connection could not be adopted");
                None
            }
        }
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
        match self {
            Self::Tcp(stream) => Peer::Tcp(stream.connect_info()),
            Self::Tls(stream) => Peer::Tcp(stream.get_ref().0.connect_info()),
            Self::Uds(stream) => Peer::Uds(stream.connect_info()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Uds(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Uds(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Uds(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Uds(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            Self::Uds(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Uds(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
