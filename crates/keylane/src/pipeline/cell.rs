//! A shard with what surrounds it: how messages get in, and who runs it.
//!
//! What a shard is and which thread runs it are two questions. This is the answer to the second
//! one: [`Executor::Thread`] is a thread of its own behind a bounded channel,
//! [`Executor::Pool`] a task on a thread pool.

use std::sync::Arc;

use crossbeam_channel::TrySendError;
use keylane_source::SourceError;

use super::chunk::Chunk;
use super::pool::Task;
use super::shard::{Effects, LetterId, Shard};
use super::shared::{Shared, Signals};
use crate::bug::bug;
use crate::outcome::Handled;
use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, Receiver, Sender, bounded, removed,
};
use crate::ticket::TicketId;

/// See the module's description.
pub(crate) struct ShardCell {
    pub(crate) index: usize,
    pub(crate) shard: Mutex<Shard>,
    pub(super) executor: Executor,
    exited: AtomicBool,
    tickets: AtomicU64,
}

/// Who runs a shard.
pub(crate) enum Executor {
    Thread { inbox: Arc<Inbox>, bell: Sender<()> },
    Pool(Box<Task>),
}

/// A bounded channel, and how full it is. The capacity counts messages.
pub(crate) struct Inbox {
    sender: Sender<Chunk>,
    capacity: usize,
    /// Messages in the channel.
    waiting: AtomicUsize,
    /// The router waits for room.
    overflows: AtomicBool,
}

impl Inbox {
    pub(crate) fn new(capacity: usize) -> (Arc<Self>, Receiver<Chunk>) {
        // A place for each message; a chunk has at least one.
        let (sender, receiver) = bounded(capacity);
        let (waiting, overflows) = (AtomicUsize::new(0), AtomicBool::new(false));
        (Arc::new(Self { sender, capacity, waiting, overflows }), receiver)
    }

    /// How many messages there is room for.
    pub(crate) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.waiting.load(Ordering::SeqCst))
    }

    /// Sends a chunk that is known to fit. Returns whether the channel is crowded: more than an
    /// eighth of what it can hold waits in it, so its thread is behind.
    pub(crate) fn send(&self, chunk: Chunk) -> bool {
        let messages = chunk.len();
        let waiting = self.waiting.fetch_add(messages, Ordering::SeqCst) + messages;
        match self.sender.try_send(chunk) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => unreachable!("more chunks than messages"),
            // The shard's thread has ended: the message stays unfinished, and its end was reported.
            Err(TrySendError::Disconnected(_)) => {}
        }
        waiting > self.capacity / 8
    }

    /// A thread has taken a chunk out of the channel.
    pub(crate) fn taken(&self, messages: usize, signals: &Signals) {
        let left = self.waiting.fetch_sub(messages, Ordering::SeqCst) - messages;
        if self.overflows.load(Ordering::SeqCst)
            && left <= self.capacity / 2
            && self.overflows.swap(false, Ordering::SeqCst)
        {
            signals.wake();
        }
    }

    /// Asks for a wake-up once the channel is half empty. False when it is already.
    pub(crate) fn wait_for_room(&self) -> bool {
        self.overflows.store(true, Ordering::SeqCst);
        removed!("look at the room again")
            || self.waiting.load(Ordering::SeqCst) > self.capacity / 2
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether somebody who [waits for room](Self::wait_for_room) should have been woken.
    #[cfg(feature = "sim")]
    pub(super) fn is_half_empty(&self) -> bool {
        self.waiting() <= self.capacity / 2
    }
}

impl ShardCell {
    pub(crate) fn new(index: usize, shard: Shard, executor: Executor) -> Self {
        Self {
            index,
            shard: Mutex::new(shard),
            executor,
            exited: AtomicBool::new(false),
            tickets: AtomicU64::new(0),
        }
    }

    /// Messages in front of the shard, in its channel.
    pub(crate) fn waiting(&self) -> usize {
        match &self.executor {
            Executor::Thread { inbox, .. } => inbox.waiting(),
            Executor::Pool(_) => 0,
        }
    }

    /// Makes whoever runs the shard look at it again.
    pub(crate) fn nudge(self: &Arc<Self>) {
        match &self.executor {
            // A bell that is ringing already will be heard.
            Executor::Thread { bell, .. } => drop(bell.try_send(())),
            Executor::Pool(task) => task.schedule(self),
        }
    }

    pub(crate) fn new_ticket(&self) -> TicketId {
        TicketId(self.tickets.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn settle_ticket(self: &Arc<Self>, shared: &Shared, id: TicketId, handled: Handled) {
        self.change(shared, |shard, out| shard.settle_ticket(id, handled, shared.clock.now(), out));
    }

    pub(crate) fn settle_letter(
        self: &Arc<Self>,
        shared: &Shared,
        id: LetterId,
        result: Result<(), SourceError>,
    ) {
        self.change(shared, |shard, out| shard.settle_letter(id, result, shared.clock.now(), out));
    }

    /// Changes the shard from another thread, and has it looked at.
    fn change(self: &Arc<Self>, shared: &Shared, change: impl FnOnce(&mut Shard, &mut Effects)) {
        let mut out = Effects::default();
        change(&mut self.shard.lock(), &mut out);
        shared.carry_out(self, &mut out);
        if !bug!("lose_wake_up") && !removed!("ring when a ticket is settled") {
            self.nudge();
        }
        if !removed!("tell of a settled ticket") {
            shared.signals.settled();
        }
    }

    /// Nothing of this shard will be called any more.
    pub(crate) fn exit(&self) {
        self.exited.store(true, Ordering::Release);
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.exited.load(Ordering::Acquire)
    }
}
