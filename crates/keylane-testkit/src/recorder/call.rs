//! A listener call under way, and what is settled after its call.

use std::fmt;

use keylane_source::{Offset, QueueId};
use smallvec::SmallVec;

use super::Recorder;
use crate::guarantee::{CallId, Epoch, Lane, Outcome};

/// One message of a call, as events name it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) queue: QueueId,
    pub(super) epoch: Epoch,
    pub(super) offset: Offset,
    pub(super) lane: Lane,
}

/// A listener call that has begun. Dropped without an outcome, as by a panic, it has failed.
///
/// `Send`: a deferred call takes it along and settles it when its ticket does.
#[must_use = "dropped, the call has failed"]
pub struct Call {
    recorder: Recorder,
    id: CallId,
    items: SmallVec<[Item; 1]>,
}

impl Call {
    pub(super) fn new(recorder: Recorder, id: CallId, items: SmallVec<[Item; 1]>) -> Self {
        Self { recorder, id, items }
    }

    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    /// The number of this call in violations.
    pub fn id(&self) -> CallId {
        self.id
    }

    /// Ends the call: this became of each of its messages. In a batch that has failed as a whole
    /// ([`Outcome::Failed`]) every message has.
    pub fn settle(mut self, outcome: Outcome) {
        self.end(|_| outcome);
    }

    /// Ends the call: this became of its messages, one by one; those without an outcome have
    /// failed.
    ///
    /// It may be given as the listener said it: a success behind a failure of the same lane is
    /// recorded as [`Outcome::Ignored`], as G1 demands.
    pub fn settle_each(mut self, outcomes: &[Outcome]) {
        self.end(|index| outcomes.get(index).copied().unwrap_or(Outcome::Failed));
    }

    fn end(&mut self, outcome: impl Fn(usize) -> Outcome) {
        let items = std::mem::take(&mut self.items);
        let mut outcomes: SmallVec<[Outcome; 1]> = SmallVec::with_capacity(items.len());
        let mut failed: Vec<(QueueId, &Lane)> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let said = outcome(index);
            let behind = failed.contains(&(item.queue, &item.lane));
            match said.frees_the_lane() {
                true if behind => outcomes.push(Outcome::Ignored),
                true => outcomes.push(said),
                false => {
                    outcomes.push(said);
                    if item.lane != Lane::Free {
                        failed.push((item.queue, &item.lane));
                    }
                }
            }
        }
        self.recorder.settle_items(Some(self.id), items.iter().zip(outcomes.iter().copied()));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(|_| Outcome::Failed);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("id", &self.id).field("items", &self.items).finish()
    }
}

/// A message that is settled after its call: see [`Recorder::later`]. Dropped, it stays as it is.
#[derive(Debug)]
#[must_use]
pub struct Later {
    recorder: Recorder,
    item: Item,
}

impl Later {
    pub(super) fn new(recorder: Recorder, item: Item) -> Self {
        Self { recorder, item }
    }

    /// This became of it: [`Outcome::Done`] for one that was held, [`Outcome::DeadLettered`],
    /// [`Outcome::GivenUp`]. Recorded in the epoch in which [`Recorder::later`] was called.
    pub fn settle(self, outcome: Outcome) {
        self.recorder.settle_items(None, std::iter::once((&self.item, outcome)));
    }
}
