//! The trait that an adaptor implements.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Message, Position, QueueId, QueueLocks, SourceError, SourceEvent, Watermark};

/// A broker, or something like one, as the engine sees it.
///
/// One thread owns a source and calls it (`&mut self`), because broker clients want it so. Rules:
///
/// 1. **Only two calls wait**: [`poll`](Self::poll), for at most `wait`, and [`close`](Self::close).
///    Everything else notes what is to be done and returns; its effect or its failure arrives as an
///    event of a later `poll`.
/// 2. **A queue starts with a seek.** After `Assigned` nothing is fetched until the engine calls
///    [`seek`](Self::seek).
/// 3. **`poll` is called all the time**, whether or not anything may be fetched: heartbeats and
///    group membership depend on it. A paused queue brings no messages, and loses none.
/// 4. **Order.** Messages of one queue come in ascending order of offset. A message that comes again
///    (a fetch that overlaps the last one) is recognised and dropped by the engine, and counted.
/// 5. **Nothing is given up in silence.** A queue leaves by `Revoking` and `release`, or by `Lost`.
///
/// The conformance suite in `keylane-testkit` tests each of these.
pub trait Source: Send {
    /// Waits for at most `wait` until something happens, and appends it to `events`.
    ///
    /// Returns at once when events are there or the [waker](Self::waker) was used since the last
    /// call; with `wait` zero it never waits. It may bring several queues at a time, each at most
    /// about `limits` (one fetch of a queue may be larger; the engine keeps the rest).
    ///
    /// # Errors
    ///
    /// Trouble of the source as a whole; trouble of one queue is
    /// [`SourceEvent::QueueError`]. Retryable: the engine backs off and polls again. Fatal: the
    /// consumer stops.
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError>;

    /// Reads the queue from here on. Whatever was fetched before and not yet given out is dropped.
    fn seek(&mut self, queue: QueueId, to: SeekTo);

    /// Brings no messages of this queue until [`resume`](Self::resume). Idempotent. A fetch that is
    /// already under way may still come; its messages are kept by the engine.
    fn pause(&mut self, queue: QueueId);

    /// Ends [`pause`](Self::pause): the next message is the one behind the last one given out.
    fn resume(&mut self, queue: QueueId);

    /// Stores a watermark for the group. The result is a [`SourceEvent::CommitResult`]. The engine
    /// has at most one commit a queue under way.
    fn commit(&mut self, commit: Commit);

    /// Asks again what the group has committed; the answer is [`SourceEvent::LookedUp`].
    fn look_up_committed(&mut self, queue: QueueId);

    /// Answers [`SourceEvent::Revoking`]: the queue is drained, its last commit has been answered,
    /// it may go to somebody else. Also ends a queue that the engine gives up on its own.
    fn release(&mut self, queue: QueueId);

    /// A handle that ends the wait of [`poll`](Self::poll) from any thread.
    fn waker(&self) -> SourceWaker;

    /// Gives back the vector of a fetch, emptied, to be filled again. Default: it is dropped.
    ///
    /// For sources that bring millions of messages a second: memory that the source thread filled a
    /// moment ago is in its processor's cache, and what an allocator gives out may be in another
    /// one's. Not every fetch's vector comes back. [`Emptied`](crate::Emptied) keeps some.
    fn recycle(&mut self, emptied: Vec<Message>) {
        drop(emptied);
    }

    /// The locks on queues, where the broker has them. Default: it has none.
    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        None
    }

    /// Waits until every commit handed over is answered, or until `timeout` has passed; then leaves
    /// the group and lets go of connections. Appends what is still to be told to `events`, commit
    /// results above all. Called once, as the last call; must return within `timeout` even when the
    /// broker is away, and must leave the group even when a commit failed.
    ///
    /// # Errors
    ///
    /// What could not be done, by queue where that is known.
    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError>;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        (**self).poll(limits, wait, events)
    }
    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        (**self).seek(queue, to);
    }
    fn pause(&mut self, queue: QueueId) {
        (**self).pause(queue);
    }
    fn resume(&mut self, queue: QueueId) {
        (**self).resume(queue);
    }
    fn commit(&mut self, commit: Commit) {
        (**self).commit(commit);
    }
    fn look_up_committed(&mut self, queue: QueueId) {
        (**self).look_up_committed(queue);
    }
    fn release(&mut self, queue: QueueId) {
        (**self).release(queue);
    }
    fn waker(&self) -> SourceWaker {
        (**self).waker()
    }
    fn recycle(&mut self, emptied: Vec<Message>) {
        (**self).recycle(emptied);
    }
    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        (**self).locks()
    }
    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        (**self).close(timeout, events)
    }
}

/// How much one fetch of one queue may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchLimits {
    /// Messages, at least 1.
    pub messages: usize,
    /// Bytes of key, payload and headers; one message is brought whatever its size.
    pub bytes: usize,
}

/// Where to read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SeekTo {
    /// At this position. A position outside the queue is answered by
    /// [`ResetCause::OutOfRange`](crate::ResetCause::OutOfRange).
    Position(Position),
    /// At the first message that the broker has.
    Earliest,
    /// Behind the last one.
    Latest,
    /// At the first message whose timestamp is not before this one (milliseconds since 1970, UTC);
    /// behind the last one where there is none.
    TimestampMs(i64),
}

/// One commit, as asked for and as answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The queue.
    pub queue: QueueId,
    /// Everything below is finished: the next offset to read after a restart.
    pub watermark: Watermark,
    /// Stored beside the watermark and given back at the next assignment, where the broker can;
    /// brokers that cannot drop it. Empty: none.
    pub metadata: String,
    /// Tells one commit's result from another's.
    pub tag: CommitTag,
}

/// A number that the engine gives to a commit and finds again in its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitTag(pub u64);

/// Ends the wait of [`Source::poll`] from any thread.
///
/// A wake is never lost: used while nobody waits, it makes the next `poll` return at once.
///
/// ```
/// use keylane_source::SourceWaker;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::sync::Arc;
///
/// let woken = Arc::new(AtomicBool::new(false));
/// let waker = SourceWaker::new({
///     let woken = woken.clone();
///     move || woken.store(true, Ordering::Release)
/// });
/// waker.clone().wake();
/// assert!(woken.load(Ordering::Acquire));
/// ```
#[derive(Clone)]
pub struct SourceWaker(Arc<dyn Fn() + Send + Sync>);

impl SourceWaker {
    /// Wakes by calling `wake`, which must not wait.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// For a source that never waits.
    pub fn noop() -> Self {
        Self::new(|| {})
    }

    /// Ends the wait under way, or the next one.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for SourceWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceWaker")
    }
}
