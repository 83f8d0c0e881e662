//! The stores of a process: one memory that all workers share, or connections for each worker.

use std::sync::Arc;

use anyhow::anyhow;

use crate::metrics::Metrics;
use crate::settings::{Settings, StoreKind};
use crate::store::AnyStore;
use crate::store::memory::Memory;
use crate::store::redis::{MAIN, Redis};

/// One for the main runtime, one for each worker.
#[derive(Clone)]
pub(super) struct Stores {
    pub(super) main: AnyStore,
    pub(super) workers: Vec<AnyStore>,
}

impl Stores {
    pub(super) fn open(
        settings: &Settings,
        workers: usize,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        if settings.store.kind == StoreKind::Memory {
            let memory = Memory::new(&settings.store.memory, Arc::clone(metrics));
            let memory = AnyStore::Memory(Arc::new(memory));
            return Ok(Self { main: memory.clone(), workers: vec![memory; workers] });
        }
        let redis = &settings.store.redis;
        let each = redis.pool_size.div_ceil(u32::try_from(workers).unwrap_or(u32::MAX).max(1));
        let open = |connections: u32, name: &str| {
            Redis::open(redis, connections, name, Arc::clone(metrics))
                .map(AnyStore::Redis)
                .map_err(|error| anyhow!(error))
        };
        let workers = (0..workers).map(|index| open(each, &index.to_string()));
        Ok(Self { workers: workers.collect::<anyhow::Result<_>>()?, main: open(1, MAIN)? })
    }

    /// Why the store does not answer, to any of the workers.
    pub(super) fn trouble(&self) -> Option<String> {
        self.all().find_map(|store| match store {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(redis) => redis.trouble(),
        })
    }

    /// Frees what expired, where that is this process's business.
    pub(super) fn reclaim(&self) {
        if let AnyStore::Memory(memory) = &self.main {
            memory.reclaim();
        }
    }

    fn all(&self) -> impl Iterator<Item = &AnyStore> {
        std::iter::once(&self.main).chain(&self.workers)
    }
}
