//! Which epoch of a queue is running: what every checker of commits and completions needs to know.

use std::collections::HashMap;

use ahash::RandomState;
use keylane_source::QueueId;

use super::event::{Epoch, Event, MemberId};

/// State per queue, with the epoch in which it stands.
pub(super) type PerQueue<T> = HashMap<QueueId, Tenured<T>, RandomState>;

/// The queues in order, so that what is said about them is the same in every run.
pub(super) fn in_order<T>(queues: &PerQueue<T>) -> Vec<(QueueId, &T)> {
    let mut all: Vec<_> = queues.iter().map(|(queue, known)| (*queue, &known.state)).collect();
    all.sort_unstable_by_key(|(queue, _)| *queue);
    all
}

/// A queue's state, and its epoch.
#[derive(Debug, Default)]
pub(super) struct Tenured<T> {
    pub(super) epoch: Epoch,
    member: MemberId,
    /// Why the epoch is over; `None` while it runs. The epoch 0, before the first, never ran.
    ended: Option<End>,
    pub(super) state: T,
}

/// How an epoch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Revoked,
    Lost,
    Reset,
    Crashed,
    Stopped,
}

impl End {
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Revoked => "released",
            Self::Lost => "lost",
            Self::Reset => "reset",
            Self::Crashed => "left by a crash",
            Self::Stopped => "left by a stop",
        }
    }
}

impl<T> Tenured<T> {
    /// Whether a completion or a commit of this epoch counts: it is the newest one and runs.
    pub(super) fn is_current(&self, epoch: Epoch) -> bool {
        self.epoch == epoch && self.ended.is_none()
    }

    pub(super) fn ended(&self) -> Option<End> {
        self.ended
    }
}

/// Keeps the epochs of all queues; to be called with every event, before anything else is done
/// with it.
pub(super) fn follow<T: Default>(queues: &mut PerQueue<T>, event: &Event<'_>) {
    let mut end = |queue: &QueueId, epoch: &Epoch, how: End| {
        let known = queues.entry(*queue).or_default();
        if known.epoch == *epoch {
            known.ended.get_or_insert(how);
        }
    };
    match event {
        Event::Revoked { queue, epoch } => end(queue, epoch, End::Revoked),
        Event::Lost { queue, epoch } => end(queue, epoch, End::Lost),
        Event::Reset { queue, epoch, .. } => end(queue, epoch, End::Reset),
        Event::Crashed { member } => end_all(queues, *member, End::Crashed),
        Event::Stopped { member } => end_all(queues, *member, End::Stopped),
        Event::Assigned { member, queue, epoch, .. } => {
            let known = queues.entry(*queue).or_default();
            (known.epoch, known.member, known.ended) = (*epoch, *member, None);
        }
        _ => {}
    }
}

fn end_all<T>(queues: &mut PerQueue<T>, member: MemberId, how: End) {
    let of_member = |queue: &&mut Tenured<T>| queue.member == member && queue.epoch > Epoch(0);
    for queue in queues.values_mut().filter(of_member) {
        queue.ended.get_or_insert(how);
    }
}
