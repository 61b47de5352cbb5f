//! How much order is kept: the only place that tells the modes apart.
//!
//! | | key-sharded | queue-locked | concurrent |
//! | --- | --- | --- | --- |
//! | shards | N, for the life of the consumer | one per queue | N, for the life of the consumer |
//! | run by | a thread each | tasks on a pool of N threads | a thread each |
//! | a message goes to | its key's shard | its queue's shard | the channel that all share |
//! | its lane | its routing key | its queue | itself |
//!
//! What a lane is follows from the [`Route`] that is given here; everything behind (shard, tracker,
//! retries, commits, shutdown) is the same code and does not know which mode it is in.

use std::sync::Arc;

use keylane_source::Message;

use super::cell::{Executor, Inbox, ShardCell};
use super::chunk::{Extra, Route};
use super::pool::{Pool, Task};
use super::puller::Admission;
use super::router::Door;
use super::runner::Runner;
use super::shard::{Shard, ShardSettings};
use super::shared::Shared;
use crate::config::{Config, Mode};
use crate::listener::{Env, Factory};

mod keys;

use keys::Keys;

/// Where a message goes.
pub(crate) struct Target {
    /// The router's way; in key-sharded mode also the shard.
    pub(super) way: usize,
    pub(super) route: Route,
    pub(super) extra: Option<Box<Extra>>,
}

/// See the module's description.
pub(crate) enum ModeState {
    KeySharded(Keys),
    QueueLocked(QueueShards),
    Concurrent,
}

/// Makes the shards of queue-locked mode.
pub(crate) struct QueueShards {
    pub(super) pool: Pool,
    pub(super) config: Arc<Config>,
    pub(super) has_sink: bool,
    pub(super) factory: Factory,
}

/// What a consumer starts with.
pub(crate) struct Layout {
    /// The shards that have a thread of their own, and the channel that each reads.
    pub(super) threads: Vec<(Arc<ShardCell>, super::worker::Ears)>,
    pub(super) doors: Vec<Door>,
    pub(super) chunk_max: usize,
}

impl ModeState {
    /// `pool` is there if [`needs_pool`].
    pub(crate) fn new(
        config: &Arc<Config>,
        pool: Option<Pool>,
        has_sink: bool,
        factory: &Factory,
    ) -> Self {
        match (config.mode, pool) {
            (Mode::QueueLocked, Some(pool)) => {
                let (config, factory) = (Arc::clone(config), factory.clone());
                Self::QueueLocked(QueueShards { pool, config, has_sink, factory })
            }
            (Mode::Concurrent, _) => Self::Concurrent,
            (Mode::KeySharded | Mode::QueueLocked, _) => Self::KeySharded(Keys::new(config)),
        }
    }

    /// Admits messages as long as they fit. The mode is looked at once; the loop inside is its own.
    pub(crate) fn admit(&mut self, slot: usize, admission: &mut Admission<'_>) {
        match self {
            Self::KeySharded(keys) => admission.run(|message| keys.target(message)),
            Self::QueueLocked(_) => {
                admission.run(|_: &Message| Target::new(slot, Route::NoKeyOfQueue))
            }
            Self::Concurrent => admission.run(|_: &Message| Target::new(0, Route::Spread)),
        }
    }

    /// A queue was assigned to this slot for the first time: the shard that it needs, if any.
    pub(crate) fn make_shard(&self, slot: usize, shared: &Arc<Shared>) -> Option<Arc<ShardCell>> {
        match self {
            Self::QueueLocked(queues) => Some(queues.make_shard(slot, shared)),
            Self::KeySharded(_) | Self::Concurrent => None,
        }
    }

    /// The shard of a message, from the way that the tracker noted; `None` where any may have it.
    pub(crate) fn shard_of(&self, slot: usize, noted: u16) -> Option<usize> {
        match self {
            Self::KeySharded(_) => Some(usize::from(noted)),
            Self::QueueLocked(_) => Some(slot),
            Self::Concurrent => None,
        }
    }
}

impl Target {
    fn new(way: usize, route: Route) -> Self {
        Self { way, route, extra: None }
    }
}

impl QueueShards {
    fn make_shard(&self, slot: usize, shared: &Arc<Shared>) -> Arc<ShardCell> {
        let task = Task::new(self.pool.clone(), Arc::clone(shared), self.config.slice);
        let settings = ShardSettings::new(&self.config, slot, self.has_sink, &self.factory);
        let cell =
            Arc::new(ShardCell::new(slot, Shard::new(settings), Executor::Pool(Box::new(task))));
        if let Executor::Pool(task) = &cell.executor {
            let env = Env { cell: Arc::clone(&cell), shared: Arc::clone(shared) };
            task.set_runner(Runner::new(env, self.factory.clone()));
        }
        cell
    }
}

/// Whether the mode runs its shards on a thread pool.
pub(crate) fn needs_pool(mode: Mode) -> bool {
    mode == Mode::QueueLocked
}

/// The shards and channels that are there from the start.
pub(crate) fn lay_out(config: &Config, has_sink: bool, factory: &Factory) -> Layout {
    let threaded = |index, settings, inbox: &Arc<Inbox>, chunks| {
        let (bell, rung) = crate::sync::bounded(1);
        let executor = Executor::Thread { inbox: Arc::clone(inbox), bell };
        let cell = Arc::new(ShardCell::new(index, Shard::new(settings), executor));
        (cell, super::worker::Ears { chunks, rung })
    };
    let mut layout = Layout { threads: Vec::new(), doors: Vec::new(), chunk_max: usize::MAX };
    match config.mode {
        Mode::KeySharded => {
            for index in 0..config.shards {
                let (inbox, chunks) = Inbox::new(config.channel_capacity);
                let settings = ShardSettings::new(config, index, has_sink, factory);
                layout.threads.push(threaded(index, settings, &inbox, chunks));
                layout.doors.push(Door::Inbox(inbox));
            }
        }
        Mode::QueueLocked => {}
        Mode::Concurrent => {
            // One channel, as long as all of them would be; and from it, no thread takes more than
            // it is about to handle.
            let (inbox, chunks) = Inbox::new(config.channel_capacity * config.shards);
            layout.chunk_max = if factory.per_message { 1 } else { config.batch_max };
            for index in 0..config.shards {
                let mut settings = ShardSettings::new(config, index, has_sink, factory);
                settings.batch_max = layout.chunk_max;
                layout.threads.push(threaded(index, settings, &inbox, chunks.clone()));
            }
            layout.doors.push(Door::Inbox(inbox));
        }
    }
    layout
}
