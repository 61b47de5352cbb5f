//! How far members are while they run, as their journal says.

use std::collections::HashMap;
use std::path::Path;

use keylane_source::QueueId;
use keylane_testkit::guarantee::{Event, MemberId};
use keylane_testkit::journal::Reader;

pub(super) struct Tail {
    reader: Reader,
    /// How many messages each member has handled.
    pub(super) handled: HashMap<MemberId, usize>,
    owners: HashMap<QueueId, MemberId>,
}

impl Tail {
    pub(super) fn new(journal: &Path) -> Self {
        let reader = Reader::open(journal).unwrap();
        Self { reader, handled: HashMap::new(), owners: HashMap::new() }
    }

    pub(super) fn look(&mut self) {
        let Self { reader, handled, owners } = self;
        let read = reader.read(|member, event| match event {
            Event::Settled(_) => *handled.entry(member).or_default() += 1,
            Event::Assigned { queue, .. } => _ = owners.insert(*queue, member),
            Event::Revoked { queue, .. } | Event::Lost { queue, .. } => _ = owners.remove(queue),
            Event::Closing { .. } | Event::Crashed { .. } => {
                owners.retain(|_, owner| *owner != member);
            }
            _ => {}
        });
        read.unwrap();
    }

    /// How many queues each of these members has.
    pub(super) fn shares(&self, members: &[MemberId]) -> Vec<usize> {
        let share = |member| self.owners.values().filter(|owner| **owner == member).count();
        members.iter().map(|member| share(*member)).collect()
    }
}
