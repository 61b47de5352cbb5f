//! Looking into a shard, also while its thread is in a listener that does not return.

use std::time::{Duration, Instant};

use keylane_source::{Message, Offset, QueueId};

use super::lane::{Held, Lane, LaneState};
use super::{Shard, ShardStats};
use crate::report::{Abandoned, HoldingState, ShownKey};

/// What is known of an unfinished message.
#[derive(Debug)]
pub(crate) struct HeldMessage {
    pub(crate) state: HoldingState,
    pub(crate) key: ShownKey,
    pub(crate) attempts: u32,
    pub(crate) last_error: Option<String>,
}

/// Which message a listener is looking at, as far as can be seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) call: u64,
    pub(crate) cursor: usize,
    pub(crate) queue: QueueId,
    pub(crate) offset: Offset,
    pub(crate) key: ShownKey,
}

impl Shard {
    /// Whether a call, a ticket or a dead letter of this queue is under way, of whichever tenure; if
    /// so, one of its messages.
    pub(crate) fn busy_with(&self, queue: QueueId) -> Option<(Offset, ShownKey)> {
        if let Some(running) = &self.running {
            let mut index = 0;
            for run in &running.call.runs {
                if run.tenure.queue == queue {
                    let message = &running.call.messages[index];
                    return Some((message.offset(), self.key_of(message)));
                }
                index += run.len;
            }
        }
        let outside = self.outside().filter(|held| held.tenure.queue == queue);
        let outside = outside.min_by_key(|held| held.message.offset())?;
        Some((outside.message.offset(), self.shown_key(outside)))
    }

    /// Whether a ticket or a dead letter is under way.
    pub(crate) fn has_outside(&self) -> bool {
        !self.tickets.is_empty() || !self.letters.is_empty()
    }

    fn outside(&self) -> impl Iterator<Item = &Held> {
        let letters = self.letters.values().map(|(outside, _)| &outside.held);
        self.tickets.values().map(|outside| &outside.held).chain(letters)
    }

    fn key_of(&self, message: &Message) -> ShownKey {
        ShownKey::new(message.key_bytes(), self.settings.hide_keys)
    }

    /// What this message is doing; `None` when it just waits for its turn.
    pub(crate) fn find(&self, epoch: u64, offset: Offset) -> Option<HeldMessage> {
        self.find_running(epoch, offset)
            .or_else(|| self.find_outside(epoch, offset))
            .or_else(|| self.find_in_lanes(epoch, offset))
    }

    fn find_running(&self, epoch: u64, offset: Offset) -> Option<HeldMessage> {
        let call = &self.running.as_ref()?.call;
        let index = (0..call.len()).find(|&index| {
            call.messages[index].offset() == offset && call.run(index).tenure.epoch == epoch
        })?;
        Some(HeldMessage {
            state: HoldingState::Running,
            key: self.key_of(&call.messages[index]),
            attempts: call.attempt(index),
            last_error: call.tags[index].last_error().map(ToString::to_string),
        })
    }

    fn find_outside(&self, epoch: u64, offset: Offset) -> Option<HeldMessage> {
        let is_it = |held: &Held| held.message.offset() == offset && held.tenure.epoch == epoch;
        if let Some(outside) = self.tickets.values().find(|outside| is_it(&outside.held)) {
            let mut found = self.describe(&outside.held, HoldingState::Running);
            found.attempts += 1; // The one that is under way.
            return Some(found);
        }
        let (outside, _) = self.letters.values().find(|(outside, _)| is_it(&outside.held))?;
        Some(self.describe(&outside.held, HoldingState::DeadLettering))
    }

    fn find_in_lanes(&self, epoch: u64, offset: Offset) -> Option<HeldMessage> {
        let is_it = |held: &&Held| held.message.offset() == offset;
        self.lanes.iter().filter(|(id, _)| id.epoch == epoch).find_map(|(_, lane)| {
            if let Some(kept) = lane.kept.iter().find(is_it) {
                return Some(self.describe(kept, HoldingState::Uncommitted));
            }
            if let Some(head) = lane.head.as_ref().filter(is_it) {
                return Some(self.describe(head, head_state(lane)));
            }
            let rest = lane.rest.iter().find(is_it)?;
            Some(self.describe(rest, HoldingState::BehindItsKey))
        })
    }

    fn describe(&self, held: &Held, state: HoldingState) -> HeldMessage {
        HeldMessage {
            state,
            key: self.shown_key(held),
            attempts: held.attempts(),
            last_error: held.tag.last_error().map(ToString::to_string),
        }
    }

    /// The message that the listener is looking at now.
    pub(crate) fn watched(&self) -> Option<Watched> {
        let running = self.running.as_ref()?;
        let cursor = running.call.cursor();
        let message = &running.call.messages[cursor];
        let (queue, offset) = (message.queue(), message.offset());
        Some(Watched { call: running.number, cursor, queue, offset, key: self.key_of(message) })
    }

    /// Tickets that have been open for at least `after`.
    pub(crate) fn old_tickets(
        &self,
        now: Instant,
        after: Duration,
    ) -> impl Iterator<Item = (QueueId, Offset, ShownKey, Duration)> {
        self.tickets.values().filter_map(move |outside| {
            let open_for = now.saturating_duration_since(outside.since);
            let held = &outside.held;
            (open_for >= after)
                .then(|| (held.tenure.queue, held.message.offset(), self.shown_key(held), open_for))
        })
    }

    /// The messages whose call or ticket is not over.
    pub(crate) fn abandoned(&self, now: Instant) -> Vec<Abandoned> {
        let shard = self.settings.index;
        let make = |message: &Message, since: Instant| Abandoned {
            queue: message.queue(),
            offset: message.offset(),
            shard,
            key: self.key_of(message),
            running_for: now.saturating_duration_since(since),
        };
        let running = self.running.iter().flat_map(|running| {
            // What the listener has already passed in this call counts as running too: nobody has
            // settled it.
            running.call.messages.iter().map(move |message| make(message, running.since))
        });
        let tickets = self.tickets.values().map(|out| make(&out.held.message, out.since));
        let letters = self.letters.values().map(|(out, _)| make(&out.held.message, out.since));
        running.chain(tickets).chain(letters).collect()
    }

    /// How many lanes are held back.
    pub(crate) fn lanes_held(&self) -> usize {
        self.lanes.len()
    }

    /// How many messages wait behind the channel for their first call.
    pub(crate) fn waiting(&self) -> usize {
        self.pending_messages
    }

    /// Whether a call is running.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn stats(&self) -> &ShardStats {
        &self.stats
    }

    /// Lanes that wait for another attempt, with the last error of one of them.
    pub(crate) fn backing_off(&self) -> (usize, Option<String>) {
        let mut waiting = 0;
        let mut example = None;
        for (_, lane) in self.lanes.iter() {
            let backs_off =
                matches!(lane.state, LaneState::BackingOff(_) | LaneState::Resending(..));
            if let (true, Some(head)) = (backs_off, &lane.head) {
                waiting += 1;
                example.get_or_insert_with(|| {
                    let (queue, offset) = (head.tenure.queue, head.message.offset());
                    let (key, attempts) = (self.shown_key(head), head.attempts());
                    format!("{queue} offset {offset}, key {key}, failed {attempts} times")
                });
            }
        }
        (waiting, example)
    }
}

fn head_state(lane: &Lane) -> HoldingState {
    match lane.state {
        LaneState::Resending(..) => HoldingState::DeadLettering,
        LaneState::BackingOff(_) | LaneState::Stopped => HoldingState::BackingOff,
        LaneState::Ready
        | LaneState::Running
        | LaneState::Outside
        | LaneState::Behind
        | LaneState::Idle => HoldingState::Waiting,
    }
}
