//! Where hits are counted: one contract, two stores. A store has never heard of a rule or a wire.

use std::future::Future;
use std::time::Instant;

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
        deadline: Instant,
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
