//! G4, second half: when everything is finished, the stored watermark is at the end.
//!
//! The end of a queue is the highest position that is known: behind what was produced, and where
//! the last fetch ended, trailing holes included. Looked at only when the run is
//! [drained](Moment::Drained). A queue in which nothing was read needs no commit.

use keylane_source::{Position, QueueId, ResetCause, Watermark};

use super::event::{CommitStep, Event, Found};
use super::tenure::{PerQueue, follow, in_order};
use super::violation::{Findings, Violation};
use super::{Guarantee, Moment};

/// The name in violations.
pub const NAME: &str = "progress";

/// The checker of G4's second half.
#[derive(Debug, Default)]
pub struct Progress {
    queues: PerQueue<State>,
}

#[derive(Debug, Default)]
struct State {
    end: u64,
    stored: Option<Watermark>,
    has_read: bool,
    /// Whether the epoch starts where a policy says, and not at a committed offset.
    starts_by_policy: bool,
}

impl Guarantee for Progress {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        follow(&mut self.queues, event);
        let mut state = |queue: &QueueId, change: &dyn Fn(&mut State)| {
            change(&mut self.queues.entry(*queue).or_default().state);
        };
        match event {
            Event::Produced { queue, end, .. } => state(queue, &|state| state.reach(*end)),
            Event::Assigned { queue, found, .. } => state(queue, &|state| state.begin(*found)),
            Event::Fetched { queue, messages, position, .. } => state(queue, &|state| {
                state.reach(*position);
                state.has_read |= !messages.is_empty();
            }),
            Event::Delivered(delivered) => state(&delivered.queue, &|state| {
                state.reach(delivered.offset.next());
                state.has_read = true;
            }),
            Event::Committed { queue, watermark, step: CommitStep::Stored, .. } => {
                state(queue, &|state| state.stored = Some(*watermark));
            }
            Event::Reset { queue, cause: ResetCause::Recreated { .. }, .. } => {
                state(queue, &|state| *state = State::default());
            }
            _ => {}
        }
    }

    fn verify(&self, moment: Moment) -> Findings {
        let mut findings = Findings::new(NAME);
        if moment == Moment::Drained {
            let behind = |(_, state): &(QueueId, &State)| !state.is_done();
            for (queue, state) in in_order(&self.queues).into_iter().filter(behind) {
                findings.add(|| state.violation(queue));
            }
        }
        findings
    }
}

/// Where a queue stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueProgress {
    /// What is stored for the group, where that is known.
    pub stored: Option<Watermark>,
    /// The highest position that is known.
    pub end: u64,
    /// Whether nothing is left to commit.
    pub is_done: bool,
}

impl Progress {
    /// Where each queue stands.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, QueueProgress)> {
        self.queues.iter().map(|(queue, known)| {
            let State { stored, end, .. } = known.state;
            (*queue, QueueProgress { stored, end, is_done: known.state.is_done() })
        })
    }
}

impl State {
    fn reach(&mut self, position: Position) {
        self.end = self.end.max(position.get());
    }

    fn begin(&mut self, found: Found) {
        if let Found::At(watermark) = found {
            self.stored = Some(watermark);
        }
        self.starts_by_policy = found == Found::Nothing;
    }

    fn is_done(&self) -> bool {
        let stored = self.stored.map_or(0, Watermark::get);
        stored >= self.end || (self.starts_by_policy && !self.has_read)
    }

    fn violation(&self, queue: QueueId) -> Violation {
        let stored = self.stored.map_or("nothing".to_owned(), |stored| stored.to_string());
        let happened = format!("stored is {stored}, though the queue ends at {}", self.end);
        Violation::new(happened, self.end.to_string()).at(queue, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::History;
    use super::*;

    fn count(history: &str) -> u64 {
        History::parse(history).verify(Progress::default(), Moment::Drained).count
    }

    #[test]
    fn the_stored_watermark_reaches_the_end() {
        assert_eq!(count("p0-3 E0 q0-3 a3 c3"), 0);
        assert_eq!(count("p0-3 E0 q0-3 a2 c2"), 1);
        assert_eq!(count("p0-3 E0 q0-3 a3"), 1, "asked, never answered");
        assert_eq!(count("p0-3"), 1, "never read");
        assert_eq!(count("E3 q3-3"), 0, "at the end from the start");
        assert_eq!(count("d4"), 1, "a delivery is behind the stored watermark");
    }

    #[test]
    fn trailing_holes_belong_to_the_queue() {
        assert_eq!(count("E0 q0-3:9 a3 c3"), 1);
        assert_eq!(count("E0 q0-3 a3 c3 q3-3:9"), 1);
        assert_eq!(count("E0 q0-3 a3 c3 q3-3:9 a9 c9"), 0);
    }

    #[test]
    fn a_queue_read_from_its_end_on_needs_no_commit_before_a_message_comes() {
        assert_eq!(count("p0-3 N"), 0);
        assert_eq!(count("p0-3 N p3-4 q3-4"), 1);
    }

    #[test]
    fn in_the_middle_of_a_run_nothing_is_asked() {
        let findings = History::parse("p0-3").verify(Progress::default(), Moment::Running);
        assert_eq!(findings.count, 0);
    }

    #[test]
    fn the_violation_says_how_far_it_came() {
        let findings = History::parse("E0 q0-3 a2 c2");
        let findings = findings.verify(Progress::default(), Moment::Drained);
        assert_eq!(
            findings.violations[0].to_string(),
            "progress: history/0 at 3: stored is 2, though the queue ends at 3 (allowed: 3)"
        );
    }
}
