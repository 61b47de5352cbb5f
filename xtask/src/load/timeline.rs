//! When the messages of each queue were produced, or pulled: one entry for many messages.

use std::time::Instant;

use keylane_source::{Offset, QueueId};
use parking_lot::RwLock;

/// Per queue, by index: from which offset on, and when. Both ascend.
#[derive(Debug)]
pub(super) struct Timeline(Vec<RwLock<Vec<(u64, Instant)>>>);

impl Timeline {
    pub(super) fn new(queues: usize) -> Self {
        Self(std::iter::repeat_with(RwLock::default).take(queues).collect())
    }

    /// Everything from this offset on came at this time, until a later note says otherwise.
    pub(super) fn note(&self, queue: QueueId, first: Offset, at: Instant) {
        let Some(entries) = self.0.get(queue.index() as usize) else { return };
        let mut entries = entries.write();
        // What is read again after a seek had come before.
        if entries.last().is_none_or(|(known, _)| *known < first.get()) {
            entries.push((first.get(), at));
        }
    }

    /// When this message came.
    pub(super) fn at(&self, queue: QueueId, offset: Offset) -> Option<Instant> {
        let entries = self.0.get(queue.index() as usize)?.read();
        let behind = entries.partition_point(|(first, _)| *first <= offset.get());
        entries.get(behind.checked_sub(1)?).map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_message_came_with_the_last_note_that_is_not_behind_it() {
        let (timeline, queue) = (Timeline::new(1), QueueId::new("timeline", 0));
        let offset = |n| Offset::new(n).unwrap();
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        timeline.note(queue, offset(5), start);
        timeline.note(queue, offset(9), later);
        timeline.note(queue, offset(5), later);
        assert_eq!(timeline.at(queue, offset(4)), None);
        assert_eq!(timeline.at(queue, offset(8)), Some(start));
        assert_eq!(timeline.at(queue, offset(9)), Some(later));
        assert_eq!(timeline.at(QueueId::new("timeline", 1), offset(9)), None);
    }
}
