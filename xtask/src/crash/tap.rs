//! Between the engine and the log: writes the history of what was read and committed. For a test of
//! the test it can commit too early.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use keylane_source::{
    Commit, Committed, FetchLimits, QueueId, QueueLocks, SeekTo, Source, SourceError, SourceEvent,
    SourceWaker, Watermark,
};

use super::history::{Line, Looked, Step, Writer};

/// The wrapper. The embedded log has no locks, takes no queue away and resets none: anything of
/// that kind is written as a failed look-up, which no checker lets pass.
pub(super) struct Tap<S> {
    source: S,
    history: Arc<Writer>,
    found: HashMap<QueueId, Looked>,
    /// How far each queue was read, where commits are to be that far.
    too_early: Option<HashMap<QueueId, Watermark>>,
    /// Called after a commit was handed on.
    committed: Box<dyn FnMut() + Send>,
}

impl<S: Source> Tap<S> {
    pub(super) fn new(
        source: S,
        history: Arc<Writer>,
        commits_too_early: bool,
        committed: Box<dyn FnMut() + Send>,
    ) -> Self {
        let too_early = commits_too_early.then(HashMap::new);
        Self { source, history, found: HashMap::new(), too_early, committed }
    }

    fn note(&mut self, event: &SourceEvent) {
        match event {
            SourceEvent::Assigned { queue, committed }
            | SourceEvent::LookedUp { queue, committed } => {
                let found = match committed {
                    Committed::At { watermark, .. } => Looked::At(watermark.get()),
                    Committed::None => Looked::Nothing,
                    _ => Looked::Unknown,
                };
                self.found.insert(*queue, found);
            }
            SourceEvent::Fetched(fetch) => {
                if let Some(read) = &mut self.too_early {
                    read.insert(fetch.queue, fetch.position.into());
                }
                self.history.write(&Line::Fetched {
                    queue: fetch.queue.index(),
                    offsets: fetch.messages.iter().map(|message| message.offset().get()).collect(),
                    position: fetch.position.get(),
                });
            }
            SourceEvent::CommitResult { commit, result } => {
                let step = if result.is_ok() { Step::Stored } else { Step::Failed };
                let (queue, watermark) = (commit.queue.index(), commit.watermark.get());
                self.history.write(&Line::Commit { queue, watermark, step });
            }
            SourceEvent::Lost { queue } | SourceEvent::Reset { queue, .. } => {
                let (queue, found) = (queue.index(), Looked::Unknown);
                self.history.write(&Line::Begins { queue, found, start: None });
            }
            _ => {}
        }
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
        events[before..].iter().for_each(|event| self.note(event));
        result
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        // One epoch a queue and process: the first seek begins it.
        if let Some(found) = self.found.remove(&queue) {
            let start = match to {
                SeekTo::Position(position) => Some(position.get()),
                _ => None,
            };
            self.history.write(&Line::Begins { queue: queue.index(), found, start });
        }
        self.source.seek(queue, to);
    }

    fn pause(&mut self, queue: QueueId) {
        self.source.pause(queue);
    }

    fn resume(&mut self, queue: QueueId) {
        self.source.resume(queue);
    }

    fn commit(&mut self, mut commit: Commit) {
        if let Some(read) = &self.too_early
            && let Some(read) = read.get(&commit.queue)
        {
            commit.watermark = *read;
        }
        let (queue, watermark) = (commit.queue.index(), commit.watermark.get());
        self.history.write(&Line::Commit { queue, watermark, step: Step::Asked });
        self.source.commit(commit);
        (self.committed)();
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        self.source.look_up_committed(queue);
    }

    fn release(&mut self, queue: QueueId) {
        self.history.write(&Line::Released { queue: queue.index() });
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
        let before = events.len();
        let result = self.source.close(timeout, events);
        events[before..].iter().for_each(|event| self.note(event));
        self.history.write(&Line::Stopped);
        result
    }
}
