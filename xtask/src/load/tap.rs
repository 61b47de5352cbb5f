//! Stands between the engine and its source: notes when messages were pulled, and, asked to break a
//! guarantee, commits too much.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{
    Commit, FetchLimits, QueueId, QueueLocks, SeekTo, Source, SourceError, SourceEvent,
    SourceWaker, Watermark,
};

use super::timeline::Timeline;

/// The wrapper. What it does to commits, the recorder below it sees.
pub(super) struct Tap<S> {
    source: S,
    pulled: Arc<Timeline>,
    /// Whether the next commit is to pass a message that is not finished.
    commits_too_much: bool,
}

impl<S: Source> Tap<S> {
    pub(super) fn new(source: S, pulled: Arc<Timeline>, commits_too_much: bool) -> Self {
        Self { source, pulled, commits_too_much }
    }
}

impl<S: Source> Source for Tap<S> {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let before = events.len();
        let result = self.source.poll(limits, wait, events);
        let now = Instant::now();
        for event in &events[before..] {
            if let SourceEvent::Fetched(fetch) = event
                && let Some(first) = fetch.messages.first()
            {
                self.pulled.note(fetch.queue, first.offset(), now);
            }
        }
        result
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        self.source.seek(queue, to);
    }

    fn pause(&mut self, queue: QueueId) {
        self.source.pause(queue);
    }

    fn resume(&mut self, queue: QueueId) {
        self.source.resume(queue);
    }

    fn commit(&mut self, mut commit: Commit) {
        if std::mem::take(&mut self.commits_too_much) {
            let passed = Watermark::new(commit.watermark.get() + 1);
            commit.watermark = passed.unwrap_or(commit.watermark);
        }
        self.source.commit(commit);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        self.source.look_up_committed(queue);
    }

    fn release(&mut self, queue: QueueId) {
        self.source.release(queue);
    }

    fn waker(&self) -> SourceWaker {
        self.source.waker()
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        self.source.locks()
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.source.close(timeout, events)
    }
}
