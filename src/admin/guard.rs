//! Who may see the pages that tell what is limited, or take from a quota.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use subtle::ConstantTimeEq as _;

use crate::seldom::Seldom;

const CLOSED: &str = "\
This page needs a token: set http.token_file (or http.token), and send \"authorization: Bearer TOKEN\".
Without one it is open only where http.listen is a loopback address, such as 127.0.0.1:8000.
";

const WRONG: &str = "Send the token of http.token: \"authorization: Bearer TOKEN\".\n";

/// A shorter token can be guessed.
pub const MIN_TOKEN_BYTES: usize = 16;

/// What stands before those pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing: only this machine can reach them.
    Open,
    /// Nobody may pass: others can reach them, and there is no token.
    Closed,
    /// Whoever has this token.
    Token(String),
    /// Whoever has the token in this file, as it is at that moment.
    TokenFile(PathBuf),
}

impl Guard {
    /// A token is asked for wherever there is one; without one the pages are open on loopback.
    pub fn new(listen: SocketAddr, token: Option<&str>, token_file: Option<&Path>) -> Self {
        match (token, token_file) {
            (Some(token), _) => Self::Token(token.to_owned()),
            (None, Some(path)) => Self::TokenFile(path.to_owned()),
            (None, None) if listen.ip().to_canonical().is_loopback() => Self::Open,
            (None, None) => Self::Closed,
        }
    }

    /// Whether there is a token where one is needed.
    ///
    /// # Errors
    /// The file cannot be read, or the token is too short.
    pub async fn check(&self) -> Result<(), String> {
        self.token().await.map(|_| ())
    }

    async fn token(&self) -> Result<Option<String>, String> {
        let (token, from) = match self {
            Self::Open | Self::Closed => return Ok(None),
            Self::Token(token) => (token.clone(), "http.token".to_owned()),
            Self::TokenFile(path) => {
                let from = format!("http.token_file: {}", path.display());
                let text = tokio::fs::read_to_string(path).await;
                let text = text.map_err(|error| format!("{from} cannot be read: {error}"))?;
                (text.trim_end().to_owned(), from)
            }
        };
        if token.len() < MIN_TOKEN_BYTES {
            return Err(format!(
                "{from} has fewer than {MIN_TOKEN_BYTES} characters: make one by `openssl rand -hex 32`"
            ));
        }
        Ok(Some(token))
    }

    async fn refusal(&self, headers: &HeaderMap) -> Option<Response> {
        let token = match self.token().await {
            Ok(Some(token)) => token,
            Ok(None) if *self == Self::Open => return None,
            Ok(None) => return Some((StatusCode::FORBIDDEN, CLOSED).into_response()),
            Err(error) => {
                static SAID: Mutex<Seldom> = Mutex::new(Seldom::new());
                let unsaid = SAID.lock().expect("no code panics holding this").is_due();
                if let Some(unsaid) = unsaid {
                    tracing::warn!(%error, unsaid, "a page stays closed");
                }
                return Some((StatusCode::FORBIDDEN, CLOSED).into_response());
            }
        };
        let shown = headers.get(header::AUTHORIZATION).map_or(&[][..], |v| v.as_bytes());
        let (scheme, shown) = shown.split_at_checked("Bearer ".len()).unwrap_or_default();
        // How long it takes says nothing about how much of it was right.
        if scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(shown.ct_eq(token.as_bytes())) {
            return None;
        }
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        Some((StatusCode::UNAUTHORIZED, challenge, WRONG).into_response())
    }
}

/// Lets a request pass to its page, or answers it.
pub(super) async fn stand(State(guard): State<Guard>, request: Request, page: Next) -> Response {
    match guard.refusal(request.headers()).await {
        Some(refusal) => refusal,
        None => page.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_open_without_a_token() {
        for (listen, expected) in [
            ("127.0.0.1:1", Guard::Open),
            ("127.8.0.1:1", Guard::Open),
            ("[::1]:1", Guard::Open),
            ("[::ffff:127.0.0.1]:1", Guard::Open),
            ("0.0.0.0:1", Guard::Closed),
            ("[::]:1", Guard::Closed),
            ("10.0.0.1:1", Guard::Closed),
        ] {
            assert_eq!(Guard::new(listen.parse().unwrap(), None, None), expected, "{listen}");
        }
        let loopback = "127.0.0.1:1".parse().unwrap();
        assert_eq!(Guard::new(loopback, Some("t"), None), Guard::Token("t".into()));
    }
}
