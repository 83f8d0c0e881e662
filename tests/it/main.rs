//! Whole paths, driven through the real things: a real redis-server, a real Envoy, the binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cases;
mod faults;
mod fleet;
mod give_back;
mod harness;
mod history;
mod laws;
mod redis_docs;
mod redis_facts;
mod rules;
mod serving;
mod stores;
mod tidy;
mod topology;
mod twins;
mod valkey;
