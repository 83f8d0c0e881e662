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
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use self::answer::Caller;
use self::attributes::Attributes;
use self::settings::OnError;
pub use self::settings::Settings;
pub use self::words::HeaderName;
use super::call::{Call, undecided};
use super::headers::Style;
use super::keys::{Caller as Client, Gate};
use super::pb::envoy::service::auth::v3::authorization_server::Authorization;
use super::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use crate::limiter::{Decision, Limiter};

/// What a caller hears while `ext_authz.domain` is not set.
const CLOSED: &str = "ext_authz is not set up: set ext_authz.domain and ext_authz.descriptors";

/// What stands at the door: the same for all workers.
pub struct Door {
    /// What of a request counts.
    pub settings: Settings,
    /// Who is let in; `None`: everybody.
    pub gate: Option<Arc<Gate>>,
}

impl Door {
    /// Whether anybody is answered.
    pub fn is_open(&self) -> bool {
        self.settings.domain.is_some() || self.gate.is_some()
    }
}

/// The front.
pub struct ExtAuthz {
    limiter: Arc<Limiter>,
    style: Style,
    door: Arc<Door>,
    latency: Histogram,
}

impl ExtAuthz {
    /// A front over a limiter.
    pub fn new(limiter: Arc<Limiter>, style: Style, door: Arc<Door>) -> Self {
        let latency = limiter.shared().metrics.grpc_latency_ms.with_label_values(&["Check"]);
        Self { limiter, style, door, latency }
    }

    /// Answers a request that has passed the gate.
    async fn decide(
        &self,
        call: &Call<'_>,
        attributes: &Attributes,
        caller: Caller,
        deadline: Option<Instant>,
    ) -> Result<CheckResponse, Status> {
        let settings = &self.door.settings;
        let question = attributes.question(settings);
        let api_key = attributes.key_name.as_deref();
        let decision = match self.limiter.decide_for(api_key, &question, deadline).await {
            Ok(decision) => decision,
            Err(error) => {
                let status = call.failed(undecided(&error, deadline));
                return match settings.on_error {
                    OnError::GrpcStatus => Err(status),
                    OnError::ErrorResponse => Ok(answer::undecided(status.message(), caller)),
                };
            }
        };
        let mut response = if decision.allowed {
            answer::passed(&decision, settings, self.style)
        } else {
            answer::refused(&decision, settings, self.style, caller)
        };
        if settings.dynamic_metadata {
            let privacy = &self.limiter.shared().privacy;
            response.dynamic_metadata =
                Some(super::metadata::metadata(&question, &decision, privacy));
        }
        Ok(response)
    }
}

#[tonic::async_trait]
impl Authorization for ExtAuthz {
    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let call = Call::start(&self.limiter.shared().metrics, "Check", &self.latency);
        let Door { settings, gate } = &*self.door;
        let deadline = call.deadline(request.metadata());
        let context = request.into_inner().attributes.unwrap_or_default();
        let mut attributes = Attributes::new(context, settings.trusted_hops);
        let caller = if attributes.is_grpc() { Caller::Grpc } else { Caller::Http };
        if let Some(gate) = gate {
            let key = attributes.header(gate.header.as_str());
            match gate.caller(key.as_deref()) {
                Client::Known(name) => attributes.key_name = Some(name),
                stranger => {
                    return Ok(Response::new(answer::stranger(&stranger, &gate.header, caller)));
                }
            }
        }
        let response = match (&settings.domain, &attributes.key_name) {
            (Some(_), _) => self.decide(&call, &attributes, caller, deadline).await?,
            // A gate, and no limits.
            (None, Some(name)) => {
                self.limiter.shared().metrics.api_key(name).allowed.inc();
                answer::passed(&Decision::of(Vec::new()), settings, self.style)
            }
            (None, None) => return Err(call.failed(Status::failed_precondition(CLOSED))),
        };
        Ok(Response::new(response))
    }
}
