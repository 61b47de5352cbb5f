//! A source with one queue, whose waits end only when it is woken.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keylane_source::{
    Commit, Committed, EndOffset, Fetch, FetchLimits, Message, Position, QueueId, SeekTo, Source,
    SourceError, SourceEvent, SourceWaker,
};
use loom::thread;

use super::counts::{offset, queue};
use crate::pipeline::Shared;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// What the listener has done, as the source may check it.
#[derive(Default)]
pub(super) struct Work {
    /// So many messages are done, from the first on.
    pub(super) done: AtomicU64,
    pub(super) is_running: AtomicBool,
    /// The queue was given back.
    pub(super) is_released: AtomicBool,
    /// A call began after that.
    pub(super) is_late: AtomicBool,
    /// The last commit.
    pub(super) committed: AtomicU64,
}

/// See the module's description.
pub(super) struct ModelSource {
    pub(super) produced: u64,
    /// Asks for a stop once everything is committed.
    pub(super) stops: bool,
    pub(super) work: Arc<Work>,
    pub(super) shared: Arc<OnceLock<Arc<Shared>>>,
    next: Option<u64>,
    is_paused: bool,
    events: VecDeque<SourceEvent>,
    woken: Arc<AtomicBool>,
}

impl ModelSource {
    pub(super) fn new(produced: u64, work: &Arc<Work>) -> Self {
        let assigned = SourceEvent::Assigned { queue: queue(), committed: Committed::None };
        Self {
            produced,
            stops: true,
            work: Arc::clone(work),
            shared: Arc::default(),
            next: None,
            is_paused: false,
            events: VecDeque::from([assigned]),
            woken: Arc::new(AtomicBool::new(false)),
        }
    }

    fn fetch(&mut self, limits: FetchLimits, events: &mut Vec<SourceEvent>) -> bool {
        let Some(next) = self.next.filter(|next| *next < self.produced && !self.is_paused) else {
            return false;
        };
        let end = self.produced.min(next + limits.messages as u64);
        let messages = (next..end).map(|at| Message::new(queue(), offset(at))).collect();
        let position = Position::from(offset(end));
        let fetch = Fetch { queue: queue(), messages, position, end: EndOffset::At(position) };
        events.push(SourceEvent::Fetched(fetch));
        self.next = Some(end);
        true
    }

    /// The group takes the queue away.
    pub(super) fn revoke(&mut self) {
        self.events.push_back(SourceEvent::Revoking { queue: queue() });
    }

    fn end(&self) {
        if let Some(shared) = self.shared.get() {
            shared.request_stop("the model is at its end");
        }
    }
}

impl Source for ModelSource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        loop {
            if !self.events.is_empty() {
                events.extend(self.events.drain(..));
                return Ok(());
            }
            if self.fetch(limits, events) || self.woken.swap(false, Ordering::SeqCst) {
                return Ok(());
            }
            if wait.is_zero() {
                return Ok(());
            }
            thread::yield_now();
        }
    }

    fn seek(&mut self, _queue: QueueId, to: SeekTo) {
        self.next = Some(match to {
            SeekTo::Position(position) => position.get(),
            _ => 0,
        });
    }

    fn pause(&mut self, _queue: QueueId) {
        self.is_paused = true;
    }

    fn resume(&mut self, _queue: QueueId) {
        self.is_paused = false;
    }

    fn commit(&mut self, commit: Commit) {
        let (watermark, done) = (commit.watermark.get(), self.work.done.load(Ordering::Relaxed));
        assert!(watermark <= done, "a commit at {watermark}, and {done} are done");
        self.work.committed.store(watermark, Ordering::Relaxed);
        if watermark == self.produced && self.stops {
            self.end();
        }
        self.events.push_back(SourceEvent::CommitResult { commit, result: Ok(()) });
    }

    fn look_up_committed(&mut self, _queue: QueueId) {}

    fn release(&mut self, _queue: QueueId) {
        assert!(!self.work.is_running.load(Ordering::SeqCst), "released under a call");
        self.work.is_released.store(true, Ordering::SeqCst);
    }

    fn waker(&self) -> SourceWaker {
        let woken = Arc::clone(&self.woken);
        SourceWaker::new(move || woken.store(true, Ordering::SeqCst))
    }

    fn close(
        &mut self,
        _timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        events.extend(self.events.drain(..));
        Ok(())
    }
}
