//! Envoy's authorization service, version 3: limits for meshes that have an ext_authz hook and no
//! rate limit filter. Settings say what of a request becomes a descriptor.
//! <https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/auth/v3/external_auth.proto>

mod address;
mod answer;
mod attributes;
mod metadata;
mod path;
mod settings;
mod template;
mod words;

use std::sync::Arc;

use prometheus::Histogram;
use tonic::{Request, Response, Status};

use self::answer::Caller;
use self::attributes::Attributes;
use self::settings::OnError;
pub use self::settings::Settings;
use super::call::{Call, undecided};
use super::headers::Style;
use super::pb::envoy::service::auth::v3::authorization_server::Authorization;
use super::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use crate::limiter::Limiter;

/// What a caller hears while `ext_authz.domain` is not set.
const CLOSED: &str = "ext_authz is not set up: set ext_authz.domain and ext_authz.descriptors";

/// The front.
pub struct ExtAuthz {
    limiter: Arc<Limiter>,
    style: Style,
    settings: Arc<Settings>,
    latency: Histogram,
}

impl ExtAuthz {
    /// A front over a limiter.
    pub fn new(limiter: Arc<Limiter>, style: Style, settings: &Settings) -> Self {
        let latency = limiter.shared().metrics.grpc_latency_ms.with_label_values(&["Check"]);
        Self { limiter, style, settings: Arc::new(settings.clone()), latency }
    }
}

#[tonic::async_trait]
impl Authorization for ExtAuthz {
    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let shared = self.limiter.shared();
        let call = Call::start(&shared.metrics, "Check", &self.latency);
        let settings = &*self.settings;
        if !settings.is_open() {
            return Err(call.failed(Status::failed_precondition(CLOSED)));
        }
        let deadline = call.deadline(request.metadata());
        let context = request.into_inner().attributes.unwrap_or_default();
        let attributes = Attributes::new(context, settings.trusted_hops);
        let caller = if attributes.is_grpc() { Caller::Grpc } else { Caller::Http };
        let question = attributes.question(settings);
        let decision = match self.limiter.decide(&question, deadline).await {
            Ok(decision) => decision,
            Err(error) => {
                let status = call.failed(undecided(&error, deadline));
                return match settings.on_error {
                    OnError::GrpcStatus => Err(status),
                    OnError::ErrorResponse => {
                        Ok(Response::new(answer::undecided(status.message(), caller)))
                    }
                };
            }
        };
        let mut response = if decision.allowed {
            answer::passed(&decision, settings, self.style)
        } else {
            answer::refused(&decision, settings, self.style, caller)
        };
        if settings.dynamic_metadata {
            let metadata = super::metadata::metadata(&question, &decision, &shared.privacy);
            response.dynamic_metadata = Some(metadata);
        }
        Ok(Response::new(response))
    }
}
