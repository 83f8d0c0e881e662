//! Whole paths, driven through the real things: a real redis-server, a real Envoy, the binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cases;
mod fleet;
mod harness;
mod laws;
mod load;
mod redis_facts;
mod rules;
mod serving;
mod stores;
mod tidy;
mod twins;
