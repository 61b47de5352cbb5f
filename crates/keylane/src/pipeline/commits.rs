//! Which queues are committed when.

use std::time::Instant;

use keylane_source::{Commit, CommitTag, Source, SourceError};

use super::committer::Answer;
use super::coordinator::Coordinator;
use crate::observer::Event;

impl Coordinator {
    /// Notes that a queue may have something to commit.
    pub(super) fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.queues[slot].dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Commits all queues that have something new, when the interval is over.
    pub(super) fn commit_due(&mut self, source: &mut dyn Source, now: Instant) {
        if now < self.commit_at {
            return;
        }
        self.commit_at = now + self.config.commit_interval;
        self.commit_dirty(source, now);
    }

    pub(super) fn commit_dirty(&mut self, source: &mut dyn Source, now: Instant) {
        for slot in std::mem::take(&mut self.dirty) {
            self.queues[slot].dirty = false;
            self.commit(source, slot, now);
            // A commit under way or backing off is looked at again: it may fail, or be outdated.
            if self.queues[slot].committer.next_due().is_some() {
                self.mark_dirty(slot);
            }
        }
    }

    /// Commits what a queue has finished, if that is new and nothing is under way.
    pub(super) fn commit(&mut self, source: &mut dyn Source, slot: usize, now: Instant) {
        if let Some(commit) = self.queues[slot].committer.unanswered(now) {
            let error = SourceError::retryable("no answer for half a minute");
            self.committed(&commit, Err(error), now);
        }
        let queue = &mut self.queues[slot];
        let Some(watermark) = queue.watermark() else { return };
        self.tags += 1;
        if let Some(commit) = queue.committer.next(watermark, CommitTag(self.tags), now) {
            queue.uncommitted = 0;
            self.counters.commits += 1;
            source.commit(commit);
        }
    }

    /// A commit was answered.
    pub(super) fn committed(
        &mut self,
        commit: &Commit,
        result: Result<(), SourceError>,
        now: Instant,
    ) {
        let Some(&slot) = self.slots.get(&commit.queue) else { return };
        let committer = &mut self.queues[slot].committer;
        let error = result.as_ref().err().cloned();
        let policy = (&self.config.failure, &mut self.random);
        let (queue, watermark) = (commit.queue, commit.watermark);
        match committer.answer(commit, result, now, policy) {
            Answer::Late | Answer::Stored => {}
            Answer::Recovered => {
                self.shared.report_later(Event::CommitRecovered { queue, watermark })
            }
            Answer::Failed(failures) => {
                self.counters.commit_failures += 1;
                let error = error.expect("it failed");
                self.shared.report_later(Event::CommitFailed { queue, watermark, error, failures });
                self.mark_dirty(slot);
            }
        }
    }
}
