//! A collector of OpenTelemetry spans: what arrives over OTLP, kept.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
pub(crate) use opentelemetry_proto::tonic::trace::v1::Span;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::wait_until;

/// Collects until its runtime ends.
pub(crate) struct Collector {
    pub(crate) port: u16,
    kept: Kept,
}

/// Spans, each with the name of the service that sent it.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<(String, Span)>>>);

impl Collector {
    /// Listens, in the current runtime.
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (port, kept) = (listener.local_addr().unwrap().port(), Kept::default());
        let service = TraceServiceServer::new(kept.clone());
        let serving = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serving);
        Self { port, kept }
    }

    /// What a service sent so far.
    pub(crate) fn spans(&self, service: &str) -> Vec<Span> {
        let kept = self.kept.0.lock().unwrap();
        kept.iter().filter(|(name, _)| name == service).map(|(_, span)| span.clone()).collect()
    }

    /// Waits for a span that a service names so.
    pub(crate) fn span(&self, service: &str, name: &str) -> Span {
        let found = || self.spans(service).into_iter().find(|span| span.name == name);
        wait_until(name, || found().is_some());
        found().unwrap()
    }
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for part in request.into_inner().resource_spans {
            let attributes = part.resource.unwrap_or_default().attributes;
            let name = attributes.iter().find(|attribute| attribute.key == "service.name");
            let name = name.map(|name| format!("{:?}", name.value)).unwrap_or_default();
            // Such as `Some(AnyValue { value: Some(StringValue("chronosdb")) })`.
            let name = name.split('"').nth(1).unwrap_or_default();
            let spans = part.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let spans = spans.map(|span| (name.to_owned(), span));
            self.0.lock().unwrap().extend(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
