//! Serves the HTTP pages. A client that is slow to say what it wants is sent away: connections
//! that say nothing would use up the file descriptors that decisions need.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::connection::BREATHER;
use crate::seldom::Seldom;

/// From an opened connection, or an answer on it, to the end of the next request's head.
const HEAD: Duration = Duration::from_secs(30);

/// From there to the answer, the body of `/json` included.
const ANSWER: Duration = Duration::from_secs(30);

/// Then a connection is closed once its answer is read; who does not read it is not waited for.
const AGE: Duration = Duration::from_secs(5 * 60);

/// Serves for as long as the process runs.
pub(super) async fn serve(listener: TcpListener, pages: Router) {
    let service = TowerToHyperService::new(pages.layer(from_fn(in_time)));
    let mut seldom = Seldom::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(unsaid) = seldom.is_due() {
                    tracing::warn!(%error, unsaid, "an HTTP connection could not be accepted");
                }
                sleep(BREATHER).await;
                continue;
            }
        };
        let mut http = http1::Builder::new();
        let http = http.timer(TokioTimer::new()).header_read_timeout(HEAD);
        let connection = http.serve_connection(TokioIo::new(stream), service.clone());
        tokio::spawn(async {
            let mut connection = pin!(connection);
            // How a client's connection ends is its own affair.
            if timeout(AGE, connection.as_mut()).await.is_err() {
                connection.as_mut().graceful_shutdown();
                let _ = timeout(ANSWER, connection).await;
            }
        });
    }
}

async fn in_time(request: Request, page: Next) -> Response {
    let late = (StatusCode::REQUEST_TIMEOUT, "The request took too long to arrive.\n");
    timeout(ANSWER, page.run(request)).await.unwrap_or_else(|_| late.into_response())
}

#[cfg(test)]
mod tests {
    use axum::routing::post;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;

    /// What a client that sends this and then nothing gets, and when the connection is closed.
    async fn answered(sent: &str) -> (String, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Router::new().route("/", post(|_: String| async { "OK" }))));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let (start, mut answer) = (Instant::now(), String::new());
        let _ = stream.read_to_string(&mut answer).await;
        (answer, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_reads_is_sent_away() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (held, mut freed) = tokio::sync::mpsc::channel::<()>(1);
        let page = move || {
            let held = held.clone();
            // More than the sockets' own buffers take, and what tells that it is gone.
            let endless = futures_util::stream::repeat_with(move || {
                let _ = &held;
                Ok::<_, std::convert::Infallible>("x".repeat(1 << 20))
            });
            async { axum::body::Body::from_stream(endless) }
        };
        let pages = Router::new().route("/", axum::routing::get(page));
        let serving = tokio::spawn(serve(listener, pages));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        tokio::time::sleep(AGE + ANSWER + Duration::from_secs(1)).await;
        serving.abort();
        let _ = serving.await;
        let ended = timeout(ANSWER, freed.recv()).await;
        assert_eq!(ended.ok(), Some(None), "the answer is still held");
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_in_the_middle_is_sent_away() {
        for (sent, status) in [
            ("", ""),
            ("POST / HT", ""),
            ("POST / HTTP/1.1\r\nhost: x\r\nslow: ", ""),
            ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf", "HTTP/1.1 408 "),
        ] {
            let (answer, after) = answered(sent).await;
            assert!(answer.starts_with(status), "{sent:?}: {answer}");
            assert!(after <= HEAD + ANSWER + Duration::from_secs(1), "{sent:?}: {after:?}");
        }
    }
}
