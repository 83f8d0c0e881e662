//! Whole paths, driven through the real things: a real redis-server, a real Envoy, the binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod accounts;
mod api_keys;
mod bounds;
mod cases;
mod compat;
mod deploy;
mod docs;
mod ext_authz;
mod faults;
mod fleet;
mod give_back;
mod harness;
mod history;
mod laws;
mod load;
mod meshes;
mod operators;
mod pages;
mod principals;
mod redis_docs;
mod redis_facts;
mod rollouts;
mod rules;
mod samples;
mod serving;
mod stores;
mod tidy;
mod tls;
mod topology;
mod traces;
mod twins;
mod valkey;
