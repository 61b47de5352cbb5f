//! A source with something between it and the engine, that watches or changes some of the calls.
//!
//! A [`Tap`] says what it does to which call; all other calls pass as they are, those that have a
//! default in [`Source`] included. [`Tap::on`] puts it on a source of any kind, and what comes out
//! is a source again: taps can stand one before the other.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Duration;
//! use keylane_source::{Commit, FetchLimits, QueueId, Source, SourceEvent};
//! use keylane_testkit::script::Script;
//! use keylane_testkit::tap::Tap;
//!
//! /// Counts assignments, and loses every commit.
//! #[derive(Clone, Default)]
//! struct Losing(Arc<AtomicU64>);
//!
//! impl Tap for Losing {
//!     fn event(&mut self, event: &SourceEvent) {
//!         if let SourceEvent::Assigned { .. } = event {
//!             self.0.fetch_add(1, Ordering::Relaxed);
//!         }
//!     }
//!     fn commit(&mut self, _source: &mut dyn Source, _commit: Commit) {}
//! }
//!
//! let queue = QueueId::new("orders", 0);
//! let script = Script::new();
//! script.assign(queue);
//! let losing = Losing::default();
//! let mut source = losing.clone().on(script.source());
//!
//! let (limits, mut events) = (FetchLimits { messages: 1, bytes: 1 }, Vec::new());
//! source.poll(limits, Duration::ZERO, &mut events)?;
//! assert_eq!((events.len(), losing.0.load(Ordering::Relaxed)), (1, 1));
//! # use keylane_source::{CommitTag, Watermark};
//! # let (watermark, metadata, tag) = (Watermark::ZERO, String::new(), CommitTag(1));
//! # let commit = Commit { queue, watermark, metadata, tag };
//! source.commit(commit);
//! assert_eq!(script.committed(queue), None);
//! # Ok::<(), keylane_source::SourceError>(())
//! ```

use std::time::Duration;

use keylane_source::{
    Commit, FetchLimits, Message, QueueId, QueueLocks, SeekTo, Source, SourceError, SourceEvent,
    SourceWaker,
};

#[cfg(test)]
mod tests;

/// What stands between a source and the engine; see the [module](self).
///
/// A method is called in place of the source's of the same name and is given the source, to hand
/// the call on, as it is or changed, before or after its own work, or not at all. By default it
/// hands it on as it is. [`event`](Self::event) and [`closed`](Self::closed) are told what came of
/// it. The waker, and whether there are locks, is always the source's own affair.
///
/// The rules of [`Source`] hold for what the engine sees: nothing here may wait, save in `poll` and
/// `close`.
pub trait Tap: Send {
    /// Puts this tap on a source.
    fn on<S: Source>(self, source: S) -> Tapped<S, Self>
    where
        Self: Sized,
    {
        Tapped(Pair { source, tap: self, lease: Duration::ZERO })
    }

    /// The engine is about to see this event, which [`poll`](Self::poll) or [`close`](Self::close)
    /// has brought (this tap's own, where it has changed them). Default: nothing is done.
    fn event(&mut self, _event: &SourceEvent) {}

    /// [`Source::poll`].
    ///
    /// # Errors
    ///
    /// The source's, by default.
    fn poll(
        &mut self,
        source: &mut dyn Source,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        source.poll(limits, wait, events)
    }

    /// [`Source::seek`].
    fn seek(&mut self, source: &mut dyn Source, queue: QueueId, to: SeekTo) {
        source.seek(queue, to);
    }

    /// [`Source::pause`].
    fn pause(&mut self, source: &mut dyn Source, queue: QueueId) {
        source.pause(queue);
    }

    /// [`Source::resume`].
    fn resume(&mut self, source: &mut dyn Source, queue: QueueId) {
        source.resume(queue);
    }

    /// [`Source::commit`].
    fn commit(&mut self, source: &mut dyn Source, commit: Commit) {
        source.commit(commit);
    }

    /// [`Source::look_up_committed`].
    fn look_up_committed(&mut self, source: &mut dyn Source, queue: QueueId) {
        source.look_up_committed(queue);
    }

    /// [`Source::release`].
    fn release(&mut self, source: &mut dyn Source, queue: QueueId) {
        source.release(queue);
    }

    /// [`QueueLocks::acquire`], of a source that has locks.
    fn acquire(&mut self, locks: &mut dyn QueueLocks, queues: &[QueueId]) {
        locks.acquire(queues);
    }

    /// [`QueueLocks::release`], of a source that has locks.
    fn unlock(&mut self, locks: &mut dyn QueueLocks, queues: &[QueueId]) {
        locks.release(queues);
    }

    /// [`Source::close`].
    ///
    /// # Errors
    ///
    /// The source's, by default.
    fn close(
        &mut self,
        source: &mut dyn Source,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        source.close(timeout, events)
    }

    /// The source was closed, well or not, and the last events were seen. Default: nothing is done.
    fn closed(&mut self) {}
}

/// A source with a [`Tap`] on it; made by [`Tap::on`].
#[derive(Debug)]
pub struct Tapped<S, T>(Pair<S, T>);

/// Both, as one thing that can be lent as [`QueueLocks`].
#[derive(Debug)]
struct Pair<S, T> {
    source: S,
    tap: T,
    /// The source's, as it was when its locks were asked for.
    lease: Duration,
}

impl<S, T: Tap> Pair<S, T> {
    fn show(&mut self, events: &[SourceEvent]) {
        events.iter().for_each(|event| self.tap.event(event));
    }
}

#[deny(clippy::missing_trait_methods, reason = "a default would hide the source's own method")]
impl<S: Source, T: Tap> Source for Tapped<S, T> {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let before = events.len();
        let polled = self.0.tap.poll(&mut self.0.source, limits, wait, events);
        self.0.show(&events[before..]);
        polled
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        self.0.tap.seek(&mut self.0.source, queue, to);
    }

    fn pause(&mut self, queue: QueueId) {
        self.0.tap.pause(&mut self.0.source, queue);
    }

    fn resume(&mut self, queue: QueueId) {
        self.0.tap.resume(&mut self.0.source, queue);
    }

    fn commit(&mut self, commit: Commit) {
        self.0.tap.commit(&mut self.0.source, commit);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        self.0.tap.look_up_committed(&mut self.0.source, queue);
    }

    fn release(&mut self, queue: QueueId) {
        self.0.tap.release(&mut self.0.source, queue);
    }

    fn waker(&self) -> SourceWaker {
        self.0.source.waker()
    }

    fn recycle(&mut self, emptied: Vec<Message>) {
        self.0.source.recycle(emptied);
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        self.0.lease = self.0.source.locks()?.lease();
        Some(&mut self.0)
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let before = events.len();
        let closed = self.0.tap.close(&mut self.0.source, timeout, events);
        self.0.show(&events[before..]);
        self.0.tap.closed();
        closed
    }
}

#[deny(clippy::missing_trait_methods, reason = "a default would hide the source's own method")]
impl<S: Source, T: Tap> QueueLocks for Pair<S, T> {
    fn lease(&self) -> Duration {
        self.lease
    }

    fn acquire(&mut self, queues: &[QueueId]) {
        if let Some(locks) = self.source.locks() {
            self.tap.acquire(locks, queues);
        }
    }

    fn release(&mut self, queues: &[QueueId]) {
        if let Some(locks) = self.source.locks() {
            self.tap.unlock(locks, queues);
        }
    }
}
