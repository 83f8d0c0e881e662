//! The stores of a process: one memory that all workers share, or connections for each worker.

use std::sync::Arc;

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
        let each = Redis::open_for(redis, workers, metrics).map_err(anyhow::Error::msg)?;
        let main = Redis::open(redis, 1, MAIN, Arc::clone(metrics)).map_err(anyhow::Error::msg)?;
        let workers = each.into_iter().map(AnyStore::Redis).collect();
        Ok(Self { main: AnyStore::Redis(main), workers })
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
