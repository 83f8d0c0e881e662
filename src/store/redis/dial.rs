//! Opens connections to Redis, and knows when one is dead.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bb8_redis::bb8::ManageConnection;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, RedisResult};

use super::DIAL_TIMEOUT;
use super::address::Access;
use super::fault::store_error;
use super::sentinel::Sentinels;
use crate::store::StoreError;

/// Calls in a row without an answer after which a connection is dead, though others may live.
const MAX_UNANSWERED: u32 = 3;

/// A connection that many callers share.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
    /// Calls in a row that got no answer in time.
    unanswered: Arc<AtomicU32>,
    /// The server was the right one when this was the latest of the [`Dialer::eras`].
    era: u64,
    eras: Arc<AtomicU64>,
}

impl Link {
    /// Whether the connection must not be used any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed) || self.era != self.eras.load(Ordering::Relaxed)
    }

    /// Whether nothing speaks against it.
    pub(super) fn is_sound(&self) -> bool {
        !self.is_broken() && self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// Learns from a call how the connection is.
    pub(super) fn learn(&self, error: Option<&StoreError>) {
        match error {
            // Where that repeats itself, the peer may be a black hole.
            Some(StoreError::Timeout) => {
                if self.unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_UNANSWERED {
                    self.give_up();
                }
                return;
            }
            // Without RESP3 nothing else tells that it has ended.
            Some(StoreError::Unavailable(_)) => self.give_up(),
            // A demoted primary never says anything else on these connections, and behind one
            // address there may be another server by now.
            Some(StoreError::ReadOnly(_) | StoreError::Loading(_)) => self.leave_server(),
            _ => {}
        }
        if self.unanswered.load(Ordering::Relaxed) != 0 {
            self.unanswered.store(0, Ordering::Relaxed);
        }
    }

    /// The pool will replace it.
    fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// The server is the wrong one: all connections that were made when this one was are replaced,
    /// and none that was made since.
    fn leave_server(&self) {
        let next = self.era + 1;
        let _ = self.eras.compare_exchange(self.era, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Which server to dial.
pub(super) enum Target {
    Fixed(Box<Access>),
    /// The one that the sentinels call the primary.
    Chosen(Arc<Sentinels>),
}

/// Why the latest dial failed, if it did.
pub(super) type Trouble = Arc<Mutex<Option<StoreError>>>;

/// Makes the pool's connections.
pub(super) struct Dialer {
    pub(super) target: Arc<Target>,
    /// Why the latest dial failed; a pool only says that time ran out.
    pub(super) trouble: Trouble,
    /// Counts how often every connection so far was given up at once.
    pub(super) eras: Arc<AtomicU64>,
}

impl Dialer {
    async fn dial(&self) -> Result<Link, RedisError> {
        let era = self.eras.load(Ordering::Relaxed);
        let access = match &*self.target {
            Target::Fixed(access) => (**access).clone(),
            Target::Chosen(sentinels) => sentinels.primary().await?,
        };
        let broken = Arc::new(AtomicBool::new(false));
        // A call has its own deadline; a timeout here would only hide whose it was.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(DIAL_TIMEOUT))
            .set_response_timeout(None);
        if access.tells_its_end() {
            let broken = Arc::clone(&broken);
            config = config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    broken.store(true, Ordering::Relaxed);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        }
        let client = access.client()?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        if let Target::Chosen(sentinels) = &*self.target {
            sentinels.confirm(&mut connection, &access).await?;
        }
        Ok(Link {
            connection,
            broken,
            unanswered: Arc::default(),
            era,
            eras: Arc::clone(&self.eras),
        })
    }
}

impl ManageConnection for Dialer {
    type Connection = Link;
    type Error = RedisError;

    async fn connect(&self) -> RedisResult<Link> {
        let dialled = self.dial().await;
        let trouble = dialled.as_ref().err().map(store_error);
        *self.trouble.lock().expect("no code panics holding this") = trouble;
        dialled
    }

    async fn is_valid(&self, link: &mut Link) -> RedisResult<()> {
        redis::cmd("PING").query_async(&mut link.connection).await
    }

    fn has_broken(&self, link: &mut Link) -> bool {
        link.is_broken()
    }
}
