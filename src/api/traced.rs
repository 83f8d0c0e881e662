//! The span of a gRPC call, continued from the caller's `traceparent`. Not there at all where
//! tracing is off.
//! <https://opentelemetry.io/docs/specs/semconv/rpc/grpc/>

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use opentelemetry::propagation::Extractor;
use opentelemetry_sdk::trace::SdkTracer;
use tonic::Status;
use tonic::service::Routes;

use crate::trace::Call;

/// The same services, each call with its span if it is sampled.
pub fn traced(routes: Routes, tracer: Option<SdkTracer>) -> Routes {
    match tracer {
        None => routes,
        Some(tracer) => {
            let layer = from_fn_with_state(tracer, call);
            routes.into_axum_router().layer(layer).into()
        }
    }
}

async fn call(State(tracer): State<SdkTracer>, request: Request, next: Next) -> Response {
    let name = request.uri().path().trim_start_matches('/').to_owned();
    let Some(call) = Call::start(&tracer, name, &Headers(request.headers())) else {
        return next.run(request).await;
    };
    call.note("rpc.system", "grpc");
    if let Some((service, method)) = request.uri().path().trim_start_matches('/').split_once('/') {
        call.note("rpc.service", service.to_owned());
        call.note("rpc.method", method.to_owned());
    }
    let response = call.run(next.run(request)).await;
    // An error has its status in the headers; anything else that gets so far is good.
    let status = Status::from_header_map(response.headers());
    call.note("rpc.grpc.status_code", status.as_ref().map_or(0, |status| status.code() as i64));
    if let Some(status) = status.filter(|status| status.code() != tonic::Code::Ok) {
        call.fail(status.code().description());
    }
    response
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}
