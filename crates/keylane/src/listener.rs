//! What user code looks like to the engine.
//!
//! Closures and instances enter through [`listen`](crate::listen); inside, there is one interface:
//! [`Work`] runs over the messages of a call and says what became of each.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use keylane_source::{Message, QueueId};

use crate::bug::bug;
use crate::outcome::{BatchHandled, Deferred, Handled, Outcome};
use crate::pipeline::{Call, Run, ShardCell, Shared, Verdict, Verdicts};
use crate::ticket::Ticket;

pub mod listen;
mod orderly;

pub(crate) use orderly::PerOrderly;
#[cfg(test)]
pub(crate) use orderly::settle as settle_orderly;
pub use orderly::{OrderlyContext, OrderlyListener, OrderlyStatus};

/// Handles one message at a time; one instance per shard, made by
/// [`listen::per_shard`], so that it may keep state without a lock.
///
/// All calls of an instance come from its shard's thread, one after the other. The instance sees
/// all messages of its keys, and no other shard sees any of them.
///
/// **After a panic** in one of its methods the instance is dropped and a new one is made: state that
/// a panic may have torn is not used again. What has to survive belongs into a store, or behind an
/// `Arc` that the factory hands to each instance.
pub trait Listener: Send + 'static {
    /// Handles one message. `Ok` says what is to become of it; an `Err` is a failed attempt, as is a
    /// panic.
    ///
    /// # Errors
    ///
    /// Whatever went wrong; its text appears in events and logs.
    fn on_message(&mut self, message: &Message, context: &mut Context<'_>) -> Handled;

    /// A queue's tenure has ended (revoked, lost or reset), and no message of it will come before
    /// its next tenure. Called before any such message, on the shard's thread; the hand-over does
    /// not wait for it. Default: nothing.
    fn on_revoked(&mut self, queue: QueueId) {
        let _ = queue;
    }

    /// The consumer stops; this was the last call, unless the shard is abandoned at the deadline
    /// because a call does not return. Default: nothing.
    fn on_stop(&mut self) {}
}

/// Handles several messages at a time; one instance per shard, made by
/// [`listen::per_shard_batches`]. See [`Listener`] about threads, state and panics.
pub trait BatchListener: Send + 'static {
    /// Handles up to `batch_max` messages: for each key in order, several of one key among them.
    ///
    /// # Errors
    ///
    /// Whatever went wrong. Since it does not say where, a batch that fails this way (or panics)
    /// costs its messages no attempt: they come again one by one, and those calls count.
    fn on_batch(&mut self, batch: &Batch<'_>) -> BatchHandled;

    /// See [`Listener::on_revoked`].
    fn on_revoked(&mut self, queue: QueueId) {
        let _ = queue;
    }

    /// See [`Listener::on_stop`].
    fn on_stop(&mut self) {}
}

/// What a call may know and ask for beside its message.
pub struct Context<'a> {
    call: &'a Call,
    index: usize,
    env: &'a Env,
}

impl Context<'_> {
    /// The number of this attempt, counted from one; attempts in earlier processes included where
    /// the source reports them.
    pub fn attempt(&self) -> u32 {
        self.call.attempt(self.index)
    }

    /// The shard, counted from zero.
    pub fn shard(&self) -> usize {
        self.env.cell.index
    }

    /// The tenure that the message belongs to: larger each time a queue is assigned or reset.
    pub fn epoch(&self) -> u64 {
        self.call.run(self.index).tenure.epoch
    }

    /// Whether the message's queue is being taken away, or the consumer stops: a long call may as
    /// well end early, with an error. Until the bound is reached, finishing still counts.
    pub fn is_cancelled(&self) -> bool {
        self.env.shared.gate.is_stopping() || !self.call.run(self.index).tenure.is_open()
    }

    /// Finishes the message later, from any thread: keep the ticket, return the outcome.
    ///
    /// ```
    /// # use keylane::{listen, Outcome};
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// let listener = listen::each(move |message, context| {
    ///     let (ticket, deferred) = context.defer();
    ///     sender.send((message.detach(), ticket))?;
    ///     Ok(deferred)
    /// });
    /// # drop((listener, receiver));
    /// ```
    pub fn defer(&mut self) -> (Ticket, Outcome) {
        let (cell, shared) = (Arc::clone(&self.env.cell), Arc::clone(&self.env.shared));
        let id = cell.new_ticket();
        let settle = move |handled| cell.settle_ticket(&shared, id, handled);
        (Ticket::new(settle), Outcome::Deferred(Deferred(id)))
    }

    /// Asks the consumer to stop, with the option `stop_timeout` as its deadline. Returns at once.
    pub fn request_stop(&self) {
        self.env.shared.request_stop("a listener asked for it");
    }
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("shard", &self.shard())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

/// The messages of one call; a slice of them, and what may be known beside.
pub struct Batch<'a> {
    call: &'a Call,
    env: &'a Env,
}

impl Batch<'_> {
    /// The number of this attempt for the message at `index`, counted from one.
    ///
    /// # Panics
    ///
    /// When `index` is not in the batch.
    pub fn attempt(&self, index: usize) -> u32 {
        self.call.attempt(index)
    }

    /// The tenure of the message at `index`: larger each time a queue is assigned or reset.
    ///
    /// # Panics
    ///
    /// When `index` is not in the batch.
    pub fn epoch(&self, index: usize) -> u64 {
        self.call.run(index).tenure.epoch
    }

    /// The shard, counted from zero.
    pub fn shard(&self) -> usize {
        self.env.cell.index
    }

    /// Whether the consumer stops, or the queue of any of the messages is being taken away.
    pub fn is_cancelled(&self) -> bool {
        self.env.shared.gate.is_stopping() || self.call.runs.iter().any(|run| !run.tenure.is_open())
    }

    /// Asks the consumer to stop, with the option `stop_timeout` as its deadline. Returns at once.
    pub fn request_stop(&self) {
        self.env.shared.request_stop("a listener asked for it");
    }
}

impl Deref for Batch<'_> {
    type Target = [Message];

    fn deref(&self) -> &[Message] {
        &self.call.messages
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Turns into what [`start`](crate::ConsumerBuilder::start) takes; implemented by what
/// [`listen`](crate::listen) makes.
pub trait IntoListener {
    #[doc(hidden)]
    fn into_factory(self) -> Factory;
}

/// Makes the work of a shard, at its start and after a panic.
#[derive(Clone)]
pub struct Factory {
    pub(crate) make: Arc<dyn Fn(usize) -> Box<dyn Work> + Send + Sync>,
    /// It handles one message at a time.
    pub(crate) per_message: bool,
    /// A call gets messages of one lane only.
    pub(crate) one_lane: bool,
}

impl Factory {
    fn per_message(make: impl Fn(usize) -> Box<dyn Work> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), per_message: true, one_lane: false }
    }

    fn per_batch(make: impl Fn(usize) -> Box<dyn Work> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), per_message: false, one_lane: false }
    }

    fn orderly(make: impl Fn(usize) -> Box<dyn Work> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), per_message: false, one_lane: true }
    }
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Factory")
    }
}

/// What the call's surroundings are.
pub(crate) struct Env {
    pub(crate) cell: Arc<ShardCell>,
    pub(crate) shared: Arc<Shared>,
}

/// The one interface behind all listeners.
pub(crate) trait Work: Send {
    /// Handles these messages of the call (a batch listener: all), and says what became of each. May
    /// panic: then the call's cursor tells where.
    fn run(&mut self, call: &Call, messages: Range<usize>, env: &Env, verdicts: &mut Verdicts);

    /// [`run`](Self::run) has panicked: says what became of which messages, and from which index on
    /// it is to be called again, if at all.
    fn blame(&mut self, call: &Call, error: &str, verdicts: &mut Verdicts) -> Option<usize>;

    fn on_revoked(&mut self, queue: QueueId);

    fn on_stop(&mut self);
}

/// Remembers which run a message of a call belongs to, so that it is looked for once a run.
#[derive(Default)]
struct Covered {
    run: usize,
    end: usize,
}

impl Covered {
    /// The run of the message at `index`; to be asked in ascending order.
    fn at<'a>(&mut self, call: &'a Call, index: usize) -> &'a Run {
        if self.end == 0 {
            self.end = call.runs[0].len;
        }
        while index >= self.end {
            self.run += 1;
            self.end += call.runs[self.run].len;
        }
        &call.runs[self.run]
    }
}

pub(crate) struct PerMessage<L>(pub(crate) L);

impl<L: Listener> Work for PerMessage<L> {
    fn run(&mut self, call: &Call, messages: Range<usize>, env: &Env, verdicts: &mut Verdicts) {
        let mut run = Covered::default();
        for index in messages {
            call.move_cursor(index);
            if !verdicts.admits(call, index) {
                continue;
            }
            // A call is announced as a whole, so the end of a tenure waits for it; inside, each
            // message asks again, so that it does not wait for all of them.
            if !env.shared.gate.admits() {
                return verdicts.return_from(call, index);
            }
            if !run.at(call, index).tenure.is_open() {
                verdicts.decide(call, index, Verdict::Returned { alone: false });
                continue;
            }
            let mut context = Context { call, index, env };
            match self.0.on_message(&call.messages[index], &mut context) {
                Ok(Outcome::Done) => {}
                handled => {
                    let verdict = Verdict::of(handled);
                    let stops = matches!(verdict, Verdict::Stop(_));
                    verdicts.decide(call, index, verdict);
                    if stops {
                        return verdicts.return_from(call, index + 1);
                    }
                }
            }
        }
    }

    fn blame(&mut self, call: &Call, error: &str, verdicts: &mut Verdicts) -> Option<usize> {
        let at = call.cursor();
        if !bug!("forget_panic") {
            verdicts.decide(call, at, Verdict::panicked(error));
        }
        Some(at + 1)
    }

    fn on_revoked(&mut self, queue: QueueId) {
        self.0.on_revoked(queue);
    }

    fn on_stop(&mut self) {
        self.0.on_stop();
    }
}

pub(crate) struct PerBatch<L>(pub(crate) L);

impl<L: BatchListener> Work for PerBatch<L> {
    fn run(&mut self, call: &Call, _all: Range<usize>, env: &Env, verdicts: &mut Verdicts) {
        match self.0.on_batch(&Batch { call, env }) {
            Ok(outcome) => verdicts.batch(call, outcome),
            Err(error) => verdicts.failed_whole(call, &error.to_string(), false),
        }
    }

    fn blame(&mut self, call: &Call, error: &str, verdicts: &mut Verdicts) -> Option<usize> {
        verdicts.clear();
        verdicts.failed_whole(call, error, true);
        None
    }

    fn on_revoked(&mut self, queue: QueueId) {
        self.0.on_revoked(queue);
    }

    fn on_stop(&mut self) {
        self.0.on_stop();
    }
}
