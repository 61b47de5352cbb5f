//! A dead-letter sink that stores late, fails, forgets and panics.

use std::time::{Duration, Instant};

use keylane_source::{Ack, DeadLetter, DeadLetterSink, SourceError};
use keylane_testkit::guarantee::{MemberId, Outcome as Said};

use super::plan::SECOND;
use super::world::{Item, SharedWorld, World};

/// See the module's description.
pub(super) struct SimSink {
    pub(super) world: SharedWorld,
    pub(super) member: MemberId,
    /// The engine's epoch that the next letter belongs to; `None`: one that is over.
    pub(super) epoch: Option<u64>,
    pub(super) pending: Vec<Pending>,
}

/// A letter that was taken, and not acknowledged yet.
pub(super) struct Pending {
    pub(super) due: Instant,
    ack: Ack,
    /// `None`: it fails.
    stores: Option<Item>,
    forgets: bool,
}

impl DeadLetterSink for SimSink {
    fn send(&mut self, letter: DeadLetter, ack: Ack) {
        let mut world = self.world.lock();
        let plan = std::sync::Arc::clone(&world.plan);
        let faults = &plan.faults;
        if world.fault(faults.sink_panics) {
            // The acknowledgement is dropped by the unwinding, and reports: not under the mutex.
            drop(world);
            std::panic::resume_unwind(Box::new("the simulation's sink panics"));
        }
        let longest = if world.fault(faults.letter_slow) { 60 * SECOND } else { plan.latency.1 };
        let due = world.now + world.random.time(Duration::from_micros(1), longest);
        let (queue, offset) = (letter.message.queue(), letter.message.offset());
        let lane = world.watch.lane(&letter.message);
        let item = self.epoch.map(|epoch| Item { queue, offset, lane, epoch });
        let stores = item.filter(|_| !world.fault(faults.letter_failed));
        let forgets = world.fault(faults.letter_dropped);
        world.trace.line(|| format!("{:?} letter {queue} {offset}", self.member));
        self.pending.push(Pending { due, ack, stores, forgets });
    }
}

impl SimSink {
    /// When something has to be acknowledged.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.due).min()
    }

    /// Nothing takes longer than until then.
    pub(super) fn hurry(&mut self, until: Instant) {
        self.pending.iter_mut().for_each(|pending| pending.due = pending.due.min(until));
    }

    /// Acknowledges a letter whose time has come.
    /// The engine may take it as a reason to call the sink again, but not from in here.
    pub(super) fn acknowledge(&mut self, now: Instant) {
        let Some(due) = self.pending.iter().position(|pending| pending.due <= now) else { return };
        let Pending { ack, stores, forgets, .. } = self.pending.remove(due);
        match stores {
            Some(item) if !forgets => {
                self.stored(&mut self.world.lock(), &item);
                ack.done();
            }
            None if !forgets => ack.failed(SourceError::retryable("the sink is full")),
            _ => drop(ack),
        }
    }

    fn stored(&self, world: &mut World, item: &Item) {
        world.settle(self.member, None, item, Said::DeadLettered);
    }
}
