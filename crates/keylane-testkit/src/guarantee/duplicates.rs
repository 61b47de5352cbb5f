//! How often a message was delivered after it had succeeded, and whether something explains it.
//!
//! At least once allows duplicates, but not without a reason: a message may come again after it has
//! succeeded where its epoch ended meanwhile (crash, hand-over, loss, reset), or where a declared
//! rewind gave it back. A message that was finished in the running epoch, and comes again in it, is
//! a violation; also one that was skipped or dead-lettered.

use roaring::RoaringTreemap;

use super::event::{Delivered, Event, Settled};
use super::tenure::{PerQueue, follow};
use super::violation::{Findings, Violation};
use super::{Guarantee, Moment};
use keylane_source::{QueueId, ResetCause};

/// The name in violations.
pub const NAME: &str = "duplicates";

/// Counts duplicates and checks that each has a reason.
#[derive(Debug)]
pub struct Duplicates {
    queues: PerQueue<State>,
    duplicates: u64,
    findings: Findings,
}

#[derive(Debug, Default)]
struct State {
    succeeded: RoaringTreemap,
    /// Succeeded in topics of this name that are gone.
    succeeded_before: u64,
    /// Finished, or held, in the running epoch, and not given back.
    settled_now: RoaringTreemap,
}

impl Default for Duplicates {
    fn default() -> Self {
        Self { queues: PerQueue::default(), duplicates: 0, findings: Findings::new(NAME) }
    }
}

impl Guarantee for Duplicates {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        follow(&mut self.queues, event);
        match event {
            Event::Assigned { queue, .. } => {
                self.queues.entry(*queue).or_default().state.settled_now.clear();
            }
            Event::Delivered(delivered) => self.deliver(delivered),
            Event::Settled(settled) => self.settle(settled),
            Event::Rewound { queue, offsets, .. } => {
                let state = &mut self.queues.entry(*queue).or_default().state;
                offsets.iter().for_each(|offset| _ = state.settled_now.remove(offset.get()));
            }
            Event::Reset { queue, cause: ResetCause::Recreated { .. }, .. } => {
                let state = &mut self.queues.entry(*queue).or_default().state;
                state.succeeded_before += state.succeeded.len();
                state.succeeded.clear();
            }
            _ => {}
        }
    }

    fn verify(&self, _moment: Moment) -> Findings {
        self.findings.clone()
    }
}

impl Duplicates {
    /// Deliveries of a message after it had succeeded, with a reason or without.
    pub fn count(&self) -> u64 {
        self.duplicates
    }

    /// How many distinct messages of each queue have succeeded.
    pub fn succeeded(&self) -> impl Iterator<Item = (QueueId, u64)> {
        let count = |state: &State| state.succeeded_before + state.succeeded.len();
        self.queues.iter().map(move |(queue, known)| (*queue, count(&known.state)))
    }

    fn deliver(&mut self, delivered: &Delivered<'_>) {
        let Delivered { queue, epoch, offset, lane, .. } = *delivered;
        let known = self.queues.entry(queue).or_default();
        self.duplicates += u64::from(known.state.succeeded.contains(offset.get()));
        if known.epoch == epoch && known.state.settled_now.contains(offset.get()) {
            self.findings.add(|| {
                let happened = format!("delivered again, though finished in epoch {}", epoch.0);
                let allowed = "again only after a crash, a hand-over, a reset or a rewind";
                Violation::new(happened, allowed).of(queue, offset, lane)
            });
        }
    }

    fn settle(&mut self, settled: &Settled<'_>) {
        let known = self.queues.entry(settled.queue).or_default();
        let offset = settled.offset.get();
        if settled.outcome.is_success() {
            known.state.succeeded.insert(offset);
        }
        if settled.outcome.frees_the_lane() && known.epoch == settled.epoch {
            known.state.settled_now.insert(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::History;
    use super::*;

    /// Duplicates, and those without a reason.
    fn count(history: &str) -> (u64, u64) {
        let mut checker = Duplicates::default();
        History::parse(history).feed(|event| checker.observe(event));
        (checker.count(), checker.verify(Moment::Running).count)
    }

    #[test]
    fn a_duplicate_needs_a_reason() {
        assert_eq!(count("E0 d0 s0 d0 s0"), (1, 1));
        assert_eq!(count("E0 d0 s0 X E0 d0 s0"), (1, 0), "crash");
        assert_eq!(count("E0 d0 s0 V E0 d0 s0"), (1, 0), "hand-over");
        assert_eq!(count("E0 d0 s0 Z E0 d0 s0"), (1, 0), "reset");
        assert_eq!(count("E0 d0 s0 X E0 d0 s0 d0 s0"), (2, 1), "one crash, two repetitions");
        assert_eq!(count("E0 d0 E0 s0 d0 s0"), (1, 0), "finished late, by the old epoch");
    }

    #[test]
    fn a_rewind_is_a_reason_for_what_it_gives_back() {
        assert_eq!(count("E0 d0 h0 d1 h1 R0,1 d0 s0 d1 s1"), (2, 0));
        assert_eq!(count("E0 d0 h0 d1 h1 R1 d0 s0"), (1, 1));
    }

    #[test]
    fn retries_are_no_duplicates() {
        assert_eq!(count("E0 d0 f0 d0 f0 d0 s0"), (0, 0));
        assert_eq!(count("E0 d0,1 f0 i1 d0,1 s0 s1"), (0, 0));
    }

    #[test]
    fn a_dead_letter_that_comes_again_had_not_succeeded_but_is_a_violation() {
        assert_eq!(count("E0 d0 f0 x0 d0 s0"), (0, 1));
    }

    #[test]
    fn successes_are_distinct_and_survive_a_recreated_topic() {
        let mut checker = Duplicates::default();
        let history = History::parse("E0 d0 s0 d1 s1 X E1 d1 s1 d2 f2 T E0 d0 s0");
        history.feed(|event| checker.observe(event));
        let succeeded: Vec<_> = checker.succeeded().map(|(_, count)| count).collect();
        assert_eq!((succeeded, checker.count()), (vec![3], 1));
    }
}
