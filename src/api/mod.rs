//! The fronts: a wire becomes a `Request`, a `Decision` becomes a wire. They decide nothing.

pub mod call;
pub mod client;
pub mod ext_authz;
pub mod headers;
pub mod json;
pub mod keys;
pub mod metadata;
pub mod native;
pub mod ratelimit;
pub mod traced;
pub mod trust;
pub mod unit;

use std::sync::Arc;

use tonic::service::Routes;

use crate::limiter::Limiter;
use pb::chronosdb::v1::rate_limiter_server::RateLimiterServer;
use pb::envoy::service::auth::v3::authorization_server::AuthorizationServer;
use pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;

/// Messages and services, made from `proto/`.
#[expect(missing_docs, clippy::all, reason = "generated")]
pub mod pb {
    pub mod chronosdb {
        pub mod v1 {
            tonic::include_proto!("chronosdb.v1");
        }
    }
    pub mod envoy {
        pub mod service {
            pub mod auth {
                pub mod v3 {
                    tonic::include_proto!("envoy.service.auth.v3");
                }
            }
            pub mod ratelimit {
                pub mod v3 {
                    tonic::include_proto!("envoy.service.ratelimit.v3");
                }
            }
        }
        pub mod r#type {
            pub mod v3 {
                tonic::include_proto!("envoy.r#type.v3");
            }
        }
        pub mod extensions {
            pub mod common {
                pub mod ratelimit {
                    pub mod v3 {
                        tonic::include_proto!("envoy.extensions.common.ratelimit.v3");
                    }
                }
            }
        }
    }
}

/// What `grpc.reflection` tells.
const REFLECTION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/reflection.bin"));

/// The services that health checks may ask about, and that are ready when the server is.
/// `ratelimit` is envoyproxy/ratelimit's name for itself.
pub const SERVICES: [&str; 3] =
    ["chronosdb.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// The service that is ready when the server is, and the door of ext_authz is open.
pub const AUTHORIZATION: &str = "envoy.service.auth.v3.Authorization";

/// A request may carry headers of 64 KiB; one of more than this is a mistake. So much is set aside
/// as soon as a message begins, whether or not it ever comes.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// Envoy may be told to send bodies along. One beyond this would be an error, which may let its
/// request pass; nobody needs bodies here, so there is much room.
const MAX_CHECK_BYTES: usize = 64 * 1024 * 1024;

/// The gRPC services over one limiter.
pub fn routes(
    limiter: Arc<Limiter>,
    headers: &headers::Settings,
    settings: &ratelimit::Settings,
    door: Arc<ext_authz::Door>,
) -> Routes {
    let max_check_bytes = if door.is_open() { MAX_CHECK_BYTES } else { MAX_MESSAGE_BYTES };
    let native = native::Native::new(Arc::clone(&limiter));
    let ext_authz = ext_authz::ExtAuthz::new(Arc::clone(&limiter), headers.style, door);
    let ratelimit = ratelimit::RateLimit::new(limiter, headers.style, settings);
    let mut routes = Routes::builder();
    routes
        .add_service(
            RateLimitServiceServer::new(ratelimit).max_decoding_message_size(MAX_MESSAGE_BYTES),
        )
        .add_service(AuthorizationServer::new(ext_authz).max_decoding_message_size(max_check_bytes))
        .add_service(RateLimiterServer::new(native).max_decoding_message_size(MAX_MESSAGE_BYTES));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(REFLECTION)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = reflection().build_v1().expect("build.rs wrote a valid descriptor set");
    let v1alpha = reflection().build_v1alpha().expect("build.rs wrote a valid descriptor set");
    routes.add_service(v1).add_service(v1alpha);
    routes.routes()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn every_service_is_reflected() {
        let files = prost_types::FileDescriptorSet::decode(REFLECTION).unwrap().file;
        let services = files.iter().flat_map(|file| {
            let name = |service: &prost_types::ServiceDescriptorProto| {
                format!("{}.{}", file.package(), service.name())
            };
            file.service.iter().map(name)
        });
        let mut services: Vec<String> = services.collect();
        services.sort();
        let mut expected = [&SERVICES[..], &[AUTHORIZATION]].concat();
        // A name without a package is one that only health checks know.
        expected.retain(|name| name.contains('.'));
        expected.sort();
        assert_eq!(services, expected);
    }
}
