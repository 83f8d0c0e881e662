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

/// Why a store gave no answer, by what the reader can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing came back in time; the hits may have been counted.
    #[error("the store did not answer in time")]
    Timeout,
    /// There is no connection, or it broke.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// Too many calls wait for the store already; this one was not sent.
    #[error("too many calls wait for the store: {0}")]
    Overloaded(String),
    /// Connected to a replica, or the primary was demoted.
    #[error("the store is read-only: {0}: point store.redis at the primary")]
    ReadOnly(String),
    /// The store reads its data after a start.
    #[error("the store is loading its data: {0}")]
    Loading(String),
    /// Somebody's script blocks the store.
    #[error("the store is blocked by a script: {0}: end it with SCRIPT KILL")]
    Busy(String),
    /// The cluster has nobody who serves this key now.
    #[error("the cluster does not serve this key: {0}")]
    ClusterDown(String),
    /// The store has no room for another key.
    #[error("the store is full: {0}: give it more memory, or fewer keys")]
    OutOfMemory(String),
    /// The store takes no writes because it could not save its data.
    #[error("the store could not save and takes no writes: {0}: see its log and its disk")]
    NotSaving(String),
    /// The store takes no writes because too few replicas follow it.
    #[error("the store has too few replicas and takes no writes: {0}: see min-replicas-to-write")]
    NoReplicas(String),
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
            Self::Overloaded(_) => "overloaded",
            Self::ReadOnly(_) => "read_only",
            Self::Loading(_) => "loading",
            Self::Busy(_) => "busy",
            Self::ClusterDown(_) => "cluster_down",
            Self::OutOfMemory(_) => "oom",
            Self::NotSaving(_) => "misconf",
            Self::NoReplicas(_) => "noreplicas",
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
