//! The connections to one server: few, shared, and taking turns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bb8_redis::bb8::{Pool, QueueStrategy, RunError};
use tokio::time::{Instant, timeout};

use super::DIAL_TIMEOUT;
use super::dial::{Dialer, Link, Target, Trouble};
use super::fault::store_error;
use crate::store::StoreError;

/// How long a connection serves all calls before it is another's turn. Those of one moment travel
/// together, which spares both sides reads and writes; and one that has gone deaf keeps no more
/// than its share of calls waiting.
const TURN: Duration = Duration::from_millis(10);

/// Who waits for a connection asks for a new one after this long, and then after twice as long,
/// since the pool does not repeat a dial that failed.
const FIRST_DIAL_AGAIN: Duration = Duration::from_millis(2);
const LAST_DIAL_AGAIN: Duration = Duration::from_millis(64);

pub(super) struct Links {
    target: Arc<Target>,
    count: u32,
    /// Opened by the first who needs a connection: connections live on the runtime that does.
    pool: OnceLock<Pool<Dialer>>,
    turn: Mutex<Option<Turn>>,
    trouble: Trouble,
    eras: Arc<AtomicU64>,
}

/// Whose turn it is.
struct Turn {
    link: Link,
    until: Instant,
}

impl Links {
    pub(super) fn new(target: Arc<Target>, count: u32) -> Self {
        Self {
            target,
            count: count.max(1),
            pool: OnceLock::new(),
            turn: Mutex::default(),
            trouble: Trouble::default(),
            eras: Arc::default(),
        }
    }

    /// A live connection, shared with others: it pipelines.
    pub(super) async fn link(&self) -> Result<Link, StoreError> {
        let now = Instant::now();
        if let Some(turn) = &*self.turn()
            && now < turn.until
            && turn.link.is_sound()
        {
            return Ok(turn.link.clone());
        }
        let link = self.next(now).await?;
        *self.turn() = Some(Turn { link: link.clone(), until: now + TURN });
        Ok(link)
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, Option<Turn>> {
        self.turn.lock().expect("no code panics holding this")
    }

    /// The connection that has rested longest.
    async fn next(&self, started: Instant) -> Result<Link, StoreError> {
        let pool = self.pool.get_or_init(|| self.open());
        let mut patience = FIRST_DIAL_AGAIN;
        loop {
            match timeout(patience, pool.get()).await {
                // Dropping the guard of a broken one makes the pool dial another.
                Ok(Ok(link)) if link.is_broken() => {}
                Ok(Ok(link)) => return Ok(link.clone()),
                Ok(Err(RunError::User(error))) => return Err(store_error(&error)),
                _ if started.elapsed() >= DIAL_TIMEOUT => return Err(self.trouble()),
                _ => patience = (patience * 2).min(LAST_DIAL_AGAIN),
            }
        }
    }

    /// Why there is no connection.
    pub(super) fn trouble(&self) -> StoreError {
        let trouble = self.trouble.lock().expect("no code panics holding this").clone();
        let slow = || StoreError::Unavailable("no connection could be made in time".into());
        trouble.filter(|trouble| *trouble != StoreError::Timeout).unwrap_or_else(slow)
    }

    /// Gives up every connection there is.
    pub(super) fn hang_up(&self) {
        self.eras.fetch_add(1, Ordering::Relaxed);
    }

    fn open(&self) -> Pool<Dialer> {
        let dialer = Dialer {
            target: Arc::clone(&self.target),
            trouble: Arc::clone(&self.trouble),
            eras: Arc::clone(&self.eras),
        };
        Pool::builder()
            .max_size(self.count)
            .min_idle(self.count)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .connection_timeout(DIAL_TIMEOUT)
            .retry_connection(false)
            .queue_strategy(QueueStrategy::Fifo)
            .build_unchecked(dialer)
    }
}
