//! ChronosDB: exact sliding-window rate limits, decided once for a whole fleet.
//!
//! `ARCHITECTURE.md` shows the path of a request through these rooms.

pub mod admin;
pub mod api;
pub mod check;
pub mod cli;
pub mod duration;
pub mod l1;
pub mod limiter;
pub mod metrics;
pub mod privacy;
pub mod quota;
pub mod rules;
pub mod seldom;
pub mod server;
pub mod settings;
pub mod store;
pub mod trace;
