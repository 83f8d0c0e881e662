//! Where hits are counted: one contract, two stores. A store has never heard of a rule or a wire.

pub mod memory;
pub mod redis;

use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;

use crate::check::Check;
use crate::quota::Verdict;

/// Counts hits. Checks that come together are decided together.
pub trait Store {
    /// Answers each check, in order, in one atomic step, before `deadline`.
    ///
    /// # Errors
    /// No answer is known: the caller's policy must give one. A call that timed out may have
    /// been counted, and is never repeated.
    fn acquire(
        &self,
        checks: &[Check],
        deadline: Option<Instant>,
    ) -> impl Future<Output = Result<Vec<Verdict>, StoreError>> + Send;
}

/// Why a store gave no answer, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing came back in time; the hits may have been counted.
    #[error("the store did not answer in time")]
    Timeout,
    /// There is no connection, or it broke.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// Connected to a replica, or the primary was demoted.
    #[error("the store is read-only: {0}")]
    ReadOnly(String),
    /// The store is loading its data, or a script blocks it.
    #[error("the store is busy: {0}")]
    Busy(String),
    /// The store has no room for another key.
    #[error("the store is full: {0}")]
    OutOfMemory(String),
    /// The store refuses what we send until somebody changes a setting.
    #[error("the store is misconfigured: {0}")]
    Misconfigured(String),
}

impl StoreError {
    /// The `reason` label of `chronosdb_store_errors_total`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unavailable(_) => "unavailable",
            Self::ReadOnly(_) => "read_only",
            Self::Busy(_) => "busy",
            Self::OutOfMemory(_) => "oom",
            Self::Misconfigured(_) => "misconfigured",
        }
    }
}

/// The store that the settings chose.
#[derive(Clone)]
pub enum AnyStore {
    /// In this process.
    Memory(Arc<memory::Memory>),
    /// In Redis.
    Redis(redis::Redis),
}

impl Store for AnyStore {
    async fn acquire(
        &self,
        checks: &[Check],
        deadline: Option<Instant>,
    ) -> Result<Vec<Verdict>, StoreError> {
        match self {
            Self::Memory(store) => store.acquire(checks, deadline).await,
            Self::Redis(store) => store.acquire(checks, deadline).await,
        }
    }
}
