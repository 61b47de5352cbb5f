//! Between the engine and the log: writes the history of what was read and committed. For a test of
//! the test it can commit too early.

use std::collections::HashMap;
use std::sync::Arc;

use keylane_source::{Commit, Committed, QueueId, SeekTo, Source, SourceEvent, Watermark};
use keylane_testkit::tap::Tap;

use super::history::{Line, Looked, Step, Writer};

/// What writes it. The embedded log has no locks, takes no queue away and resets none: anything of
/// that kind is written as a failed look-up, which no checker lets pass.
pub(super) struct Historian {
    history: Arc<Writer>,
    found: HashMap<QueueId, Looked>,
    /// How far each queue was read, where commits are to be that far.
    too_early: Option<HashMap<QueueId, Watermark>>,
    /// Called after a commit was handed on.
    committed: Box<dyn FnMut() + Send>,
}

impl Historian {
    pub(super) fn new(
        history: Arc<Writer>,
        commits_too_early: bool,
        committed: Box<dyn FnMut() + Send>,
    ) -> Self {
        let too_early = commits_too_early.then(HashMap::new);
        Self { history, found: HashMap::new(), too_early, committed }
    }
}

impl Tap for Historian {
    fn event(&mut self, event: &SourceEvent) {
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

    fn seek(&mut self, source: &mut dyn Source, queue: QueueId, to: SeekTo) {
        // One epoch a queue and process: the first seek begins it.
        if let Some(found) = self.found.remove(&queue) {
            let start = match to {
                SeekTo::Position(position) => Some(position.get()),
                _ => None,
            };
            self.history.write(&Line::Begins { queue: queue.index(), found, start });
        }
        source.seek(queue, to);
    }

    fn commit(&mut self, source: &mut dyn Source, mut commit: Commit) {
        if let Some(read) = &self.too_early
            && let Some(read) = read.get(&commit.queue)
        {
            commit.watermark = *read;
        }
        let (queue, watermark) = (commit.queue.index(), commit.watermark.get());
        self.history.write(&Line::Commit { queue, watermark, step: Step::Asked });
        source.commit(commit);
        (self.committed)();
    }

    fn release(&mut self, source: &mut dyn Source, queue: QueueId) {
        self.history.write(&Line::Released { queue: queue.index() });
        source.release(queue);
    }

    fn closed(&mut self) {
        self.history.write(&Line::Stopped);
    }
}
