//! Whole paths, driven through the real things: a real redis-server, a real Envoy, the binary.

mod harness;
mod twins;
