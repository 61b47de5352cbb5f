//! G2: in one process, two listener calls for one key never overlap, from whichever queues they
//! come.
//!
//! A call lasts from its `Delivered` to its `Settled`; a deferred one until its ticket has settled.
//! Epochs do not matter: a call of an old epoch runs until it returns, and holds off the new one's.
//! Only running calls are remembered.

use std::collections::HashMap;

use ahash::RandomState;
use smallvec::SmallVec;

use super::event::{CallId, Delivered, Event, MemberId, Settled};
use super::lane::LaneId;
use super::violation::{Findings, Violation};
use super::{Guarantee, Moment};

/// The name in violations.
pub const NAME: &str = "exclusion";

/// The checker of G2.
#[derive(Debug)]
pub struct Exclusion {
    running: HashMap<(MemberId, LaneId), SmallVec<[Running; 1]>, RandomState>,
    findings: Findings,
}

/// A call, and how many messages of the lane it still has.
#[derive(Debug, Clone, Copy)]
struct Running {
    call: CallId,
    messages: u32,
}

impl Default for Exclusion {
    fn default() -> Self {
        Self { running: HashMap::default(), findings: Findings::new(NAME) }
    }
}

impl Guarantee for Exclusion {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Delivered(delivered) => self.begin(delivered),
            Event::Settled(settled) => self.end(settled),
            Event::Crashed { member } => self.running.retain(|(owner, _), _| owner != member),
            _ => {}
        }
    }

    fn verify(&self, _moment: Moment) -> Findings {
        self.findings.clone()
    }
}

impl Exclusion {
    fn begin(&mut self, delivered: &Delivered<'_>) {
        let Delivered { member, call, queue, offset, lane, shard, .. } = *delivered;
        let Some(id) = lane.in_process(queue) else { return };
        let running = self.running.entry((member, id)).or_default();
        if let Some(same) = running.iter_mut().find(|running| running.call == call) {
            same.messages += 1;
            return;
        }
        if let Some(other) = running.first().map(|running| running.call.0) {
            self.findings.add(|| {
                let happened = format!("a call began on shard {shard} while call {other} ran");
                Violation::new(happened, "one call of a key at a time").of(queue, offset, lane)
            });
        }
        running.push(Running { call, messages: 1 });
    }

    fn end(&mut self, settled: &Settled<'_>) {
        let (Some(call), Some(id)) = (settled.call, settled.lane.in_process(settled.queue)) else {
            return;
        };
        let lane = (settled.member, id);
        let Some(running) = self.running.get_mut(&lane) else { return };
        running.iter_mut().filter(|running| running.call == call).for_each(|r| r.messages -= 1);
        running.retain(|running| running.messages > 0);
        if running.is_empty() {
            self.running.remove(&lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::History;
    use super::super::lane::Lane;
    use super::*;

    fn count(history: &History) -> u64 {
        history.check(Exclusion::default()).count
    }

    #[test]
    fn calls_of_a_key_may_follow_each_other_but_not_overlap() {
        assert_eq!(count(&History::parse("d0 s0 d1 f1 d1 s1")), 0);
        assert_eq!(count(&History::parse("d0 d1 s0 s1")), 1);
        assert_eq!(count(&History::parse("d0,1 s0 s1 d2")), 0, "a batch is one call");
        assert_eq!(count(&History::parse("d0,1 s0 d2")), 1, "the batch still runs");
    }

    #[test]
    fn keys_are_the_same_in_all_queues_and_whole_queues_are_not() {
        let mut history = History::new();
        history.deliver(1, 0).of_lane(Lane::key("a"));
        history.deliver(2, 0).of_lane(Lane::key("b"));
        history.deliver(3, 1).of_lane(Lane::Free);
        history.deliver(4, 2).of_lane(Lane::Free);
        history.deliver(5, 0).of_lane(Lane::Queue);
        history.deliver(6, 0).of_lane(Lane::Queue).of_queue(1);
        assert_eq!(count(&history), 0);
        history.deliver(7, 0).of_lane(Lane::key("a")).of_queue(1);
        let findings = history.check(Exclusion::default());
        assert_eq!(findings.count, 1);
        assert_eq!(
            findings.violations[0].to_string(),
            "exclusion: history/1 at 0, key \"a\": a call began on shard 0 while call 1 ran \
             (allowed: one call of a key at a time)"
        );
    }

    #[test]
    fn an_old_epochs_call_holds_off_the_new_ones_until_it_returns() {
        assert_eq!(count(&History::parse("d0 E0 d0")), 1);
        assert_eq!(count(&History::parse("d0 E0 s0 d0")), 0);
    }

    #[test]
    fn calls_of_a_crashed_member_are_no_more_and_members_do_not_exclude_each_other() {
        assert_eq!(count(&History::parse("d0 X d0")), 0);
        let mut history = History::new();
        history.deliver(1, 0);
        history.deliver(2, 0).of_member(1);
        assert_eq!(count(&history), 0);
    }
}
