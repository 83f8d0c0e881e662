//! The HTTP pages: health, metrics, loaded rules, explanations. They decide nothing.

pub mod guard;
pub mod readiness;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use self::guard::Guard;
use self::readiness::Readiness;
use crate::api::{headers, json};
use crate::check::Entry;
use crate::limiter::Limiter;
use crate::rules::explain::explain;

/// A question in JSON is small.
const MAX_BODY_BYTES: usize = 256 * 1024;

const INDEX: &str = "\
ChronosDB
  /metrics       for Prometheus
  /livez         200 while the process runs
  /readyz        200 when rules are loaded and the store answers, else 503 with the reasons
  /healthcheck   the same
  /rules         what is loaded, and what is wrong with it
  /explain       ?domain=DOMAIN&descriptor=KEY=VALUE,KEY=VALUE: which rule matches, and why
  /json          POST a rate limit request as JSON
The last three need a token where not only this machine can reach them (http.token_file).
";

/// What the pages show.
#[derive(Clone)]
struct Pages {
    limiter: Arc<Limiter>,
    readiness: Readiness,
    style: headers::Style,
}

/// The pages over a limiter.
pub fn router(
    limiter: Arc<Limiter>,
    readiness: Readiness,
    style: headers::Style,
    guard: Guard,
) -> Router {
    // What tells which limits there are, or takes from a quota.
    let guarded = Router::new()
        .route("/rules", get(rules))
        .route("/explain", get(explanation))
        .route("/json", post(decide))
        .route_layer(from_fn_with_state(guard, guard::stand));
    guarded
        .route("/", get(|| async { INDEX }))
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "OK\n" }))
        .route("/readyz", get(ready))
        .route("/healthcheck", get(ready))
        .fallback(|| async { (StatusCode::NOT_FOUND, format!("There is no such page.\n{INDEX}")) })
        .method_not_allowed_fallback(|| async { (StatusCode::METHOD_NOT_ALLOWED, INDEX) })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Pages { limiter, readiness, style })
}

async fn metrics(State(pages): State<Pages>) -> Response {
    let metrics = Arc::clone(&pages.limiter.shared().metrics);
    // Thousands of series take milliseconds to write: not beside other work.
    match tokio::task::spawn_blocking(move || metrics.render()).await {
        Ok(page) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(pages): State<Pages>) -> Response {
    let reasons = pages.readiness.reasons();
    if reasons.is_empty() {
        return "OK\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n").into_response()
}

#[derive(Serialize)]
struct Loaded<R> {
    version: String,
    problems: Vec<String>,
    rules: R,
}

async fn rules(State(pages): State<Pages>) -> Response {
    let rules = pages.limiter.shared().rules.load_full();
    let problems = rules.problems().iter().map(ToString::to_string).collect();
    let version = rules.version().to_owned();
    Json(Loaded { version, problems, rules: rules.describe() }).into_response()
}

#[derive(Deserialize)]
struct Explain {
    domain: String,
    descriptor: String,
}

async fn explanation(
    State(pages): State<Pages>,
    query: Result<Query<Explain>, QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else {
        let text = "write /explain?domain=DOMAIN&descriptor=KEY=VALUE,KEY=VALUE\n";
        return (StatusCode::BAD_REQUEST, text).into_response();
    };
    let mut entries = Vec::new();
    for part in query.descriptor.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            let text =
                format!("\"{part}\" is not an entry: write descriptor=key=value,key=value\n");
            return (StatusCode::BAD_REQUEST, text).into_response();
        };
        entries.push(Entry::new(key, value));
    }
    let shared = pages.limiter.shared();
    let rules = shared.rules.load_full();
    Json(explain(&rules, &query.domain, &entries, &shared.privacy)).into_response()
}

async fn decide(State(pages): State<Pages>, body: axum::body::Bytes) -> Response {
    let request = match json::read(&body) {
        Ok(request) => request,
        Err(error) => {
            let is_empty =
                matches!(&error, json::Unreadable::Invalid(error) if error.is_empty_request());
            pages.limiter.shared().metrics.empty_requests.inc_by(u64::from(is_empty));
            return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
        }
    };
    match pages.limiter.decide(&request, None).await {
        Ok(decision) => {
            let code =
                if decision.allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
            let headers = headers::headers(&decision, pages.style);
            let mut response = (code, Json(json::write(&decision, pages.style))).into_response();
            for (name, value) in headers {
                if let Ok(value) = value.parse() {
                    response.headers_mut().insert(name, value);
                }
            }
            response
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use arc_swap::ArcSwap;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::admin::readiness::Part;
    use crate::check::OnStoreError;
    use crate::l1::{self, L1};
    use crate::limiter::{self, Shared};
    use crate::metrics::Metrics;
    use crate::privacy::{self, Privacy};
    use crate::rules::RuleSet;
    use crate::store::AnyStore;
    use crate::store::memory::{self, Memory};

    const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: { limit: 1, window: 1h }
";

    fn limiter() -> Arc<Limiter> {
        let metrics = Metrics::new();
        let privacy = Privacy::new(&privacy::Settings::default());
        let rules = RuleSet::from_text(RULES, &metrics, &privacy).ok().unwrap();
        let settings = limiter::Settings {
            shadow_mode: false,
            on_error: OnStoreError::Error,
            expected_instances: 1,
            memory: memory::Settings::default(),
        };
        let l1 = L1::new(&l1::Settings::default(), Arc::clone(&metrics));
        let rules = Arc::new(ArcSwap::from_pointee(rules));
        let memory = Memory::new(&memory::Settings::default(), Arc::clone(&metrics));
        let shared = Shared::new(rules, l1, privacy, settings, metrics);
        Arc::new(Limiter::new(Arc::new(shared), AnyStore::Memory(Arc::new(memory))))
    }

    /// The pages on a real socket, and the readiness they show.
    struct Site {
        address: std::net::SocketAddr,
        readiness: Readiness,
        limiter: Arc<Limiter>,
    }

    impl Site {
        async fn open() -> Self {
            let (limiter, readiness) = (limiter(), Readiness::default());
            let style = headers::Style::default();
            let pages = router(Arc::clone(&limiter), readiness.clone(), style, Guard::Open);
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(axum::serve(listener, pages).into_future());
            Self { address, readiness, limiter }
        }

        /// The status and the whole answer.
        async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let length = body.len();
            let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
            let request = format!("{head}content-length: {length}\r\n\r\n{body}");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            (answer[9..12].parse().unwrap(), answer)
        }
    }

    #[tokio::test]
    async fn pages() {
        let site = Site::open().await;
        for (path, status, part) in [
            ("/", 200, "/explain"),
            ("/livez", 200, "OK"),
            ("/readyz", 503, "rules: not looked at yet\nstore: not looked at yet"),
            ("/metrics", 200, "text/plain; version=0.0.4"),
            ("/metrics", 200, "chronosdb_build_info"),
            ("/rules", 200, "\"domain\":\"edge\""),
            ("/explain?domain=edge&descriptor=user=a", 200, "\"quota_key\":\"edge:user:a\""),
            ("/explain?domain=edge&descriptor=user", 400, "descriptor=key=value,key=value"),
            ("/explain?domain=edge", 400, "&descriptor=KEY=VALUE"),
            ("/nothing", 404, "/healthcheck"),
            ("/json", 405, "POST a rate limit request"),
        ] {
            let (code, answer) = site.ask("GET", path, "").await;
            assert_eq!(code, status, "{path}: {answer}");
            assert!(answer.contains(part), "{path}: {answer}");
        }
        site.readiness.set(Part::Rules, None);
        site.readiness.set(Part::Store, None);
        assert_eq!(site.ask("GET", "/healthcheck", "").await.0, 200);
    }

    #[tokio::test]
    async fn questions_in_json() {
        let site = Site::open().await;
        let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
        let (code, answer) = site.ask("POST", "/json", body).await;
        assert_eq!(code, 200);
        assert!(answer.contains(r#""overallCode":"OK""#), "{answer}");
        assert!(answer.contains(r#""limitRemaining":0,"durationUntilReset":"3600s""#), "{answer}");
        assert!(answer.contains(r#"{"requestsPerUnit":1,"unit":"HOUR"}"#), "{answer}");
        let (code, answer) = site.ask("POST", "/json", body).await;
        assert_eq!(code, 429);
        assert!(answer.contains("retry-after: 3600"), "{answer}");
        assert!(answer.contains(r#"[{"key":"retry-after","value":"3600"}]"#), "{answer}");
        let empty = &site.limiter.shared().metrics.empty_requests;
        for (body, part, counted) in [
            ("}", "the body is no rate limit request", 0),
            (r#"{"domain":"edge","descriptors":[{"entries":[]}]}"#, "descriptors[0].entries", 1),
        ] {
            let (code, answer) = site.ask("POST", "/json", body).await;
            assert_eq!((code, empty.get()), (400, counted), "{answer}");
            assert!(answer.contains(part), "{answer}");
        }
        let large = "x".repeat(MAX_BODY_BYTES + 1);
        assert_eq!(site.ask("POST", "/json", &large).await.0, 413);
    }
}
