//! Connections: accepted once, dealt to the workers in turn, so that each has its part.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tonic::transport::server::{Connected, TcpConnectInfo, UdsConnectInfo};

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
    Uds(UnixStream),
}

impl Connection {
    /// Takes a connection into the current runtime.
    pub(super) fn adopt(accepted: Accepted) -> io::Result<Self> {
        Ok(match accepted {
            Accepted::Tcp(stream) => Self::Tcp(TcpStream::from_std(stream)?),
            Accepted::Uds(stream) => Self::Uds(UnixStream::from_std(stream)?),
        })
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
            Self::Uds(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Uds(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Uds(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Uds(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
