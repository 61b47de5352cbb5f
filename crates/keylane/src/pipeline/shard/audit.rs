//! What holds for a shard between two steps, for the simulator.

use std::time::Instant;

use super::effects::LetterId;
use super::{Outside, Shard};
use crate::pipeline::audit::{Audited, ensure};

impl Shard {
    pub(crate) fn audit(&self) -> Audited {
        let pending: usize = self.pending.iter().map(|chunk| chunk.len()).sum();
        let noted = self.pending_messages;
        ensure!(pending == noted, "{pending} messages are pending, {noted} are noted");
        let outside =
            || self.letters.values().map(|(outside, _)| outside).chain(self.tickets.values());
        self.lanes.audit(
            |id| self.running.is_some() && self.in_call.contains(id),
            |id| outside().any(|Outside { lane, .. }| lane == id),
        )?;
        for Outside { lane, .. } in self.tickets.values() {
            ensure!(self.lanes.is_open(&lane.name), "{lane:?} has a ticket, and its key is free");
        }
        Ok(())
    }

    /// Whether a message of it stops the consumer, though that may not be asked for yet.
    pub(crate) fn has_stopped(&self) -> bool {
        self.lanes.has_stopped()
    }

    /// Every message that is in here, in whichever place.
    pub(crate) fn messages(&self) -> usize {
        let running = self.running.as_ref().map_or(0, |running| running.call.len());
        let outside = self.tickets.len() + self.letters.len();
        self.pending_messages + self.front.len() + self.lanes.messages() + running + outside
    }

    /// Whether there is something to call, or whose time has come, that no wake-up is to be awaited
    /// for.
    pub(crate) fn is_forgotten(&self, now: Instant) -> bool {
        let lingers = !self.settings.linger.is_zero();
        let due = self.lanes.next_due().is_some_and(|due| due <= now);
        due || !self.front.is_empty()
            || self.lanes.has_ready()
            || (!lingers && !self.pending.is_empty())
    }

    /// The epoch that a letter's message belongs to.
    pub(crate) fn epoch_of_letter(&self, id: LetterId) -> Option<u64> {
        self.letters.get(&id).map(|(outside, _)| outside.lane.epoch)
    }
}
