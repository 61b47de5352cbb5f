//! G8, as far as events show it: nothing begins any more where something has ended.
//!
//! No listener call of a member begins after it has stopped, and none of a queue's after the queue
//! was released. (A call may begin after the queue was *lost*: the engine cannot know at once.)

use std::collections::HashSet;

use super::event::{Delivered, Event, MemberId};
use super::tenure::{End, PerQueue, follow};
use super::violation::{Findings, Violation};
use super::{Guarantee, Moment};

/// The name in violations.
pub const NAME: &str = "shutdown";

/// The checker of what comes after an end.
#[derive(Debug)]
pub struct Shutdown {
    queues: PerQueue<()>,
    stopped: HashSet<MemberId>,
    findings: Findings,
}

impl Default for Shutdown {
    fn default() -> Self {
        let findings = Findings::new(NAME);
        Self { queues: PerQueue::default(), stopped: HashSet::new(), findings }
    }
}

impl Guarantee for Shutdown {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        follow(&mut self.queues, event);
        match event {
            Event::Stopped { member } => _ = self.stopped.insert(*member),
            // A member that begins to read lives (again).
            Event::Assigned { member, .. } => _ = self.stopped.remove(member),
            Event::Delivered(delivered) => self.deliver(delivered),
            _ => {}
        }
    }

    fn verify(&self, _moment: Moment) -> Findings {
        self.findings.clone()
    }
}

impl Shutdown {
    fn deliver(&mut self, delivered: &Delivered<'_>) {
        let Delivered { member, queue, epoch, offset, lane, .. } = *delivered;
        let ended = self.queues.get(&queue).filter(|known| known.epoch == epoch);
        let happened = if self.stopped.contains(&member) {
            "a call began after the consumer had stopped"
        } else if ended.is_some_and(|known| known.ended() == Some(End::Revoked)) {
            "a call began after the queue was released"
        } else {
            return;
        };
        self.findings.add(|| Violation::new(happened, "none").of(queue, offset, lane));
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::History;
    use super::*;

    fn first(history: &str) -> Option<String> {
        let findings = History::parse(history).check(Shutdown::default());
        findings.violations.first().map(|violation| violation.happened.clone())
    }

    #[test]
    fn nothing_begins_after_the_end() {
        let stopped = "a call began after the consumer had stopped";
        assert_eq!(first("E0 d0 s0 S d1").as_deref(), Some(stopped));
        let released = "a call began after the queue was released";
        assert_eq!(first("E0 d0 s0 V d1").as_deref(), Some(released));
    }

    #[test]
    fn what_began_before_may_end_later_and_a_new_epoch_may_begin() {
        assert_eq!(first("E0 d0 V s0"), None);
        assert_eq!(first("E0 d0 V E0 d0 s0"), None);
        assert_eq!(first("E0 d0 s0 S E1 d1 s1"), None);
        assert_eq!(first("E0 d0 L d1"), None, "the engine could not know yet");
    }
}
