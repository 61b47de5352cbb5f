//! A source that tells the recorder what was read and committed.

use std::collections::HashMap;
use std::time::Duration;

use keylane_source::{
    Commit, CommitTag, LockReply, QueueId, ResetCause, SeekTo, Source, SourceError, SourceEvent,
};

use super::Recorder;
use crate::guarantee::{CommitStep, Epoch, Event, Found};
use crate::tap::{Tap, Tapped};

/// Wraps a source. An epoch begins with the first `seek` after an assignment, a reset or a look-up,
/// and ends with the release, the loss (of the queue or of its lock), the reset, or the close.
///
/// No source says that a lock has run out: the engine knows by the clock. That the epoch is over is
/// seen when it holds the lock again and asks what is committed, which it does between epochs only.
///
/// Events are recorded before the engine sees them, calls before the source sees them.
pub type Recorded<S> = Tapped<S, Recording>;

/// What [`Recorded`] puts on the source.
#[derive(Debug)]
pub struct Recording {
    recorder: Recorder,
    queues: HashMap<QueueId, View>,
    /// In which epoch the commits were asked for that are not answered yet.
    asked: HashMap<(QueueId, CommitTag), Epoch>,
}

/// A queue as it is known here.
#[derive(Debug)]
struct View {
    found: Found,
    /// The epoch that runs, or the last one.
    epoch: Epoch,
    runs: bool,
}

impl<S: Source> Recorded<S> {
    /// The same source, with this recorder listening.
    pub fn new(source: S, recorder: &Recorder) -> Self {
        let recorder = recorder.clone();
        Recording { recorder, queues: HashMap::new(), asked: HashMap::new() }.on(source)
    }
}

impl Tap for Recording {
    fn event(&mut self, event: &SourceEvent) {
        match event {
            SourceEvent::Assigned { queue, committed } => {
                let epoch = self.recorder.epoch(*queue);
                self.queues.insert(*queue, View { found: committed.into(), epoch, runs: false });
            }
            SourceEvent::LookedUp { queue, committed } => {
                if let Some(view) = self.queues.get_mut(queue) {
                    view.found = committed.into();
                }
            }
            SourceEvent::Fetched(fetch) => {
                let queue = fetch.queue;
                let Some(view) = self.queues.get(&queue) else { return };
                self.recorder.note(&Event::Fetched {
                    queue,
                    epoch: view.epoch,
                    messages: &fetch.messages,
                    position: fetch.position,
                });
            }
            SourceEvent::Lost { queue } | SourceEvent::Lock { queue, reply: LockReply::Lost } => {
                self.lost(*queue);
            }
            SourceEvent::QueueError { queue, error } if error.is_fatal() => self.lost(*queue),
            SourceEvent::Reset { queue, cause } => self.reset(*queue, cause),
            SourceEvent::CommitResult { commit, result } => {
                let step = match result {
                    Ok(()) => CommitStep::Stored,
                    Err(_) => CommitStep::Failed,
                };
                let asked = self.asked.remove(&(commit.queue, commit.tag));
                self.committed(commit, asked.unwrap_or_default(), step);
            }
            _ => {}
        }
    }

    fn seek(&mut self, source: &mut dyn Source, queue: QueueId, to: SeekTo) {
        if let Some(view) = self.queues.get_mut(&queue).filter(|view| !view.runs) {
            let start = match to {
                SeekTo::Position(position) => Some(position),
                _ => None,
            };
            view.epoch = self.recorder.begin_epoch(queue, view.found, start);
            view.runs = true;
        }
        source.seek(queue, to);
    }

    fn commit(&mut self, source: &mut dyn Source, commit: Commit) {
        let epoch = self.queues.get(&commit.queue).map(|view| view.epoch).unwrap_or_default();
        self.asked.insert((commit.queue, commit.tag), epoch);
        self.committed(&commit, epoch, CommitStep::Asked);
        source.commit(commit);
    }

    fn look_up_committed(&mut self, source: &mut dyn Source, queue: QueueId) {
        self.lost(queue);
        source.look_up_committed(queue);
    }

    fn release(&mut self, source: &mut dyn Source, queue: QueueId) {
        if let Some(view) = self.queues.get_mut(&queue).filter(|view| view.runs) {
            view.runs = false;
            self.recorder.note(&Event::Revoked { queue, epoch: view.epoch });
        }
        source.release(queue);
    }

    fn close(
        &mut self,
        source: &mut dyn Source,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.recorder.closing();
        source.close(timeout, events)
    }

    fn closed(&mut self) {
        self.recorder.stopped();
    }
}

impl Recording {
    fn lost(&mut self, queue: QueueId) {
        if let Some(view) = self.queues.get_mut(&queue).filter(|view| view.runs) {
            view.runs = false;
            self.recorder.note(&Event::Lost { queue, epoch: view.epoch });
        }
    }

    fn reset(&mut self, queue: QueueId, cause: &ResetCause) {
        let Some(view) = self.queues.get_mut(&queue) else { return };
        view.runs = false;
        match cause {
            ResetCause::Moved { to } => view.found = Found::At((*to).into()),
            ResetCause::Recreated { .. } => view.found = Found::Nothing,
            _ => {}
        }
        self.recorder.note(&Event::Reset { queue, epoch: view.epoch, cause });
    }

    fn committed(&self, commit: &Commit, epoch: Epoch, step: CommitStep) {
        let (queue, watermark) = (commit.queue, commit.watermark);
        self.recorder.note(&Event::Committed { queue, epoch, watermark, step });
    }
}
