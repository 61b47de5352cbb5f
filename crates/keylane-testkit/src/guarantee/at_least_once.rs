//! G3, first half: what was produced is delivered and finished, at least once.
//!
//! A message is known from its `Produced`, else from the first `Fetched` that brings it, else from
//! its delivery. It is *lost* when it is known and was never finished, in no epoch and by no
//! member, although the group's stored watermark has passed it, or although the run is over. A
//! finish counts whenever it comes: also the late one of an old epoch, since the listener did
//! succeed.
//!
//! Skipping is a declared thing: a message is owed no longer where an epoch starts behind it and
//! the group had no offset (the policy decides) or a reset was declared; nor is what lay below the
//! group's offset before the first epoch on record. An epoch that starts too high without such an
//! event owes what it skipped.
//!
//! A delivery of something that was neither produced nor fetched is a violation too.

use keylane_source::{Message, Position, QueueId, ResetCause};
use roaring::RoaringTreemap;

use super::event::{CommitStep, Delivered, Event, Found, Settled};
use super::tenure::{PerQueue, follow, in_order};
use super::violation::{Findings, KEPT_IN_WORDS, Violation};
use super::{Guarantee, Moment};

/// The name in violations.
pub const NAME: &str = "at least once";

/// The checker of G3's first half.
#[derive(Debug)]
pub struct AtLeastOnce {
    queues: PerQueue<State>,
    findings: Findings,
}

/// A queue's messages.
#[derive(Debug, Default)]
struct State {
    known: RoaringTreemap,
    finished: RoaringTreemap,
    /// Known, and owed no longer.
    waived: RoaringTreemap,
    /// Whether messages are known before they are delivered.
    is_announced: bool,
    has_begun: bool,
    reset_declared: bool,
    /// The epoch may start anywhere, and began at the first or last message, or at a time: the
    /// first fetch tells where. From here on what lies before its start is waived.
    open_start: Option<u64>,
    stored: u64,
}

impl Default for AtLeastOnce {
    fn default() -> Self {
        Self { queues: PerQueue::default(), findings: Findings::new(NAME) }
    }
}

impl Guarantee for AtLeastOnce {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        follow(&mut self.queues, event);
        match event {
            Event::Produced { queue, first, end } => {
                let state = &mut self.queues.entry(*queue).or_default().state;
                state.is_announced = true;
                state.known.insert_range(first.get()..end.get());
            }
            Event::Assigned { queue, found, start, .. } => {
                self.queues.entry(*queue).or_default().state.begin(*found, *start);
            }
            Event::Fetched { queue, epoch, messages, position } => {
                let queue = self.queues.entry(*queue).or_default();
                if queue.is_current(*epoch) {
                    queue.state.fetched(messages, *position);
                }
            }
            Event::Delivered(delivered) => self.deliver(delivered),
            Event::Settled(settled) => self.settle(settled),
            Event::Committed { queue, watermark, step: CommitStep::Stored, .. } => {
                self.queues.entry(*queue).or_default().state.stored = watermark.get();
            }
            Event::Reset { queue, cause, .. } => {
                let state = &mut self.queues.entry(*queue).or_default().state;
                if matches!(cause, ResetCause::Recreated { .. }) {
                    // Other messages under the same offsets: nothing of the old ones is owed.
                    *state = State::default();
                }
                state.reset_declared = true;
            }
            _ => {}
        }
    }

    fn verify(&self, moment: Moment) -> Findings {
        let mut findings = self.findings.clone();
        for (queue, state) in in_order(&self.queues) {
            let lost = state.lost(moment);
            let room = KEPT_IN_WORDS.saturating_sub(findings.violations.len());
            let worded = lost.iter().take(room);
            worded.for_each(|offset| findings.add(|| state.loss(queue, offset)));
            findings.count += lost.len() - lost.len().min(room as u64);
        }
        findings
    }
}

impl AtLeastOnce {
    /// How many messages are known and were never finished; see [`Moment`].
    pub fn lost(&self, moment: Moment) -> u64 {
        self.queues.values().map(|queue| queue.state.lost(moment).len()).sum()
    }

    fn deliver(&mut self, delivered: &Delivered<'_>) {
        let Delivered { queue, offset, lane, .. } = *delivered;
        let state = &mut self.queues.entry(queue).or_default().state;
        if state.known.insert(offset.get()) && state.is_announced {
            let happened = "delivered, though it was neither produced nor fetched";
            let violation = || Violation::new(happened, "nothing but what is in the queue");
            self.findings.add(|| violation().of(queue, offset, lane));
        }
    }

    fn settle(&mut self, settled: &Settled<'_>) {
        if settled.outcome.finishes() {
            let state = &mut self.queues.entry(settled.queue).or_default().state;
            state.finished.insert(settled.offset.get());
        }
    }
}

impl State {
    fn begin(&mut self, found: Found, start: Option<Position>) {
        let first = !std::mem::replace(&mut self.has_begun, true);
        let declared = std::mem::take(&mut self.reset_declared) || found == Found::Nothing;
        let floor = self.stored;
        if let Found::At(watermark) = found {
            if first {
                self.waived.insert_range(..watermark.get());
            }
            self.stored = watermark.get();
        }
        self.open_start = (declared && start.is_none()).then_some(floor);
        if let (true, Some(start)) = (declared, start) {
            self.waived.insert_range(floor..start.get());
        }
    }

    fn fetched(&mut self, messages: &[Message], position: Position) {
        self.is_announced = true;
        if let Some(floor) = self.open_start.take() {
            let first = messages.first().map_or(position, |message| message.offset().into());
            self.waived.insert_range(floor..first.get());
        }
        for message in messages {
            self.known.insert(message.offset().get());
            if !self.waived.is_empty() {
                self.waived.remove(message.offset().get());
            }
        }
    }

    fn lost(&self, moment: Moment) -> RoaringTreemap {
        let mut lost = &self.known - &self.finished - &self.waived;
        if moment == Moment::Running {
            lost.remove_range(self.stored..);
        }
        lost
    }

    fn loss(&self, queue: QueueId, offset: u64) -> Violation {
        let happened = if offset < self.stored {
            format!("never finished, and the stored watermark {} has passed it", self.stored)
        } else {
            format!("never finished; the stored watermark is {}", self.stored)
        };
        Violation::new(happened, "delivered and finished").at(queue, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::History;
    use super::*;

    fn lost(history: &str, moment: Moment) -> (u64, Vec<u64>) {
        let findings = History::parse(history).verify(AtLeastOnce::default(), moment);
        (findings.count, findings.violations.iter().filter_map(|v| v.offset).collect())
    }

    #[test]
    fn what_is_known_and_never_finished_is_lost_at_the_end() {
        assert_eq!(lost("p0-3 d0 s0 d2 s2", Moment::Drained), (1, vec![1]));
        assert_eq!(lost("p0-3 d0 s0 d2 s2 d1 s1", Moment::Drained), (0, vec![]));
        assert_eq!(lost("E0 q0-3 d0 s0 d1 f1 d2 x2", Moment::Drained), (1, vec![1]));
        assert_eq!(lost("d0 s0 d1", Moment::Drained), (1, vec![1]));
        assert_eq!(lost("d0 h0", Moment::Drained), (1, vec![0]), "held and never committed");
        assert_eq!(lost("d0 i0", Moment::Drained), (1, vec![0]), "ignored and never again");
    }

    #[test]
    fn in_the_middle_of_a_run_only_what_the_stored_watermark_has_passed_is_lost() {
        assert_eq!(lost("p0-9 E0 d0 s0 d2 s2", Moment::Running), (0, vec![]));
        assert_eq!(lost("p0-9 E0 d0 s0 d2 s2 a3 c3", Moment::Running), (1, vec![1]));
        assert_eq!(lost("p0-9 E0 d0 s0 d2 s2 a3", Moment::Running), (0, vec![]), "only asked");
    }

    #[test]
    fn a_late_finish_of_an_old_epoch_counts() {
        assert_eq!(lost("p0-1 E0 d0 E0 s0", Moment::Drained), (0, vec![]));
    }

    #[test]
    fn what_is_skipped_by_declaration_is_owed_no_longer() {
        let skipped_by_reset = "p0-9 E0 d0 s0 a1 c1 Z E8 d8 s8";
        assert_eq!(lost(skipped_by_reset, Moment::Drained), (0, vec![]));
        assert_eq!(lost("p0-9 N8 d8 s8", Moment::Drained), (0, vec![]), "no offset: by policy");
        assert_eq!(lost("p0-9 N q8-9 d8 s8", Moment::Drained), (0, vec![]), "at the latest");
        assert_eq!(lost("p0-9 E8 d8 s8", Moment::Drained), (0, vec![]), "done before the record");
    }

    #[test]
    fn what_is_skipped_without_one_is_lost() {
        let findings = lost("p0-5 E0 d0 s0 a1 c1 G1:3 d3 s3 d4 s4", Moment::Drained);
        assert_eq!(findings, (2, vec![1, 2]));
        let passed = lost("p0-9 E0 d1 s1 a2 c2 Z E8 d8 s8", Moment::Drained);
        assert_eq!(passed, (1, vec![0]), "a reset does not excuse what a commit had passed");
    }

    #[test]
    fn skipped_messages_that_come_after_all_are_owed_again() {
        assert_eq!(lost("N8 q8-9 d8 s8 Z E2 q2-4 d2 s2", Moment::Drained), (1, vec![3]));
    }

    #[test]
    fn a_recreated_topic_owes_nothing_of_the_old_one() {
        assert_eq!(lost("p0-9 E0 d0 s0 T E0 q0-1 d0 s0", Moment::Drained), (0, vec![]));
    }

    #[test]
    fn a_delivery_of_nothing_is_a_violation() {
        let findings = History::parse("p0-2 d2 s2").check(AtLeastOnce::default());
        assert_eq!(
            findings.violations[0].to_string(),
            "at least once: history/0 at 2, key \"k\": delivered, though it was neither produced \
             nor fetched (allowed: nothing but what is in the queue)"
        );
    }

    #[test]
    fn losses_are_counted_beyond_those_in_words() {
        let findings = History::parse("p0-1000").verify(AtLeastOnce::default(), Moment::Drained);
        assert_eq!((findings.count, findings.violations.len()), (1_000, 20));
    }
}
