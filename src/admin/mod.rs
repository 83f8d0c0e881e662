//! The HTTP pages: health, metrics, loaded rules, explanations. They decide nothing.

pub mod readiness;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

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
";

/// What the pages show.
#[derive(Clone)]
struct Pages {
    limiter: Arc<Limiter>,
    readiness: Readiness,
    style: headers::Style,
}

/// The pages over a limiter.
pub fn router(limiter: Arc<Limiter>, readiness: Readiness, style: headers::Style) -> Router {
    Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "OK\n" }))
        .route("/readyz", get(ready))
        .route("/healthcheck", get(ready))
        .route("/rules", get(rules))
        .route("/explain", get(explanation))
        .route("/json", post(decide))
        .fallback(|| async { (StatusCode::NOT_FOUND, format!("There is no such page.\n{INDEX}")) })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Pages { limiter, readiness, style })
}

/// Serves the pages for as long as the process runs.
pub async fn serve(listener: TcpListener, pages: Router) {
    if let Err(error) = axum::serve(listener, pages).await {
        tracing::error!(%error, "the HTTP pages are not served any more");
    }
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

async fn explanation(State(pages): State<Pages>, Query(query): Query<Explain>) -> Response {
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
