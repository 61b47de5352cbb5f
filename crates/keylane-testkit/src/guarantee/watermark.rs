//! G3, second half: a commit never passes an unfinished message, nor what was read.
//!
//! What counts is the epoch: a message that was read in it and not finished *in it* holds the
//! watermark, even if a late call of an old epoch has finished it meanwhile. A position that a
//! fetch reported may be committed up to, holes included. Without recorded fetches, what was
//! delivered counts as read.

use keylane_source::{Position, QueueId, Watermark};
use roaring::RoaringTreemap;

use super::event::{CommitStep, Epoch, Event, Settled};
use super::tenure::{PerQueue, follow};
use super::violation::{Findings, Violation};
use super::{Guarantee, Moment};

/// The name in violations.
pub const NAME: &str = "watermark";

/// The checker of G3's second half.
#[derive(Debug)]
pub struct WatermarkRule {
    queues: PerQueue<State>,
    findings: Findings,
}

#[derive(Debug, Default)]
struct State {
    /// Read in this epoch and not finished in it.
    open: RoaringTreemap,
    /// How far was read in this epoch; `None`: no fetch was recorded.
    read_to: Option<u64>,
    start: u64,
}

impl Default for WatermarkRule {
    fn default() -> Self {
        Self { queues: PerQueue::default(), findings: Findings::new(NAME) }
    }
}

impl Guarantee for WatermarkRule {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        follow(&mut self.queues, event);
        match event {
            Event::Assigned { queue, start, .. } => {
                let start = start.map_or(0, Position::get);
                let state = State { start, ..State::default() };
                self.queues.entry(*queue).or_default().state = state;
            }
            Event::Fetched { queue, epoch, messages, position } => {
                let known = self.queues.entry(*queue).or_default();
                if known.is_current(*epoch) {
                    let state = &mut known.state;
                    let read_to = state.read_to.unwrap_or(state.start);
                    // What was read before comes again in an overlapping fetch: no news.
                    let new = messages.iter().filter(|m| m.offset().get() >= read_to);
                    new.for_each(|message| _ = state.open.insert(message.offset().get()));
                    state.read_to = Some(read_to.max(position.get()));
                }
            }
            Event::Delivered(delivered) => {
                let known = self.queues.entry(delivered.queue).or_default();
                if known.is_current(delivered.epoch) && known.state.read_to.is_none() {
                    known.state.open.insert(delivered.offset.get());
                }
            }
            Event::Settled(settled) => self.settle(settled),
            Event::Rewound { queue, offsets, .. } => {
                let state = &mut self.queues.entry(*queue).or_default().state;
                offsets.iter().for_each(|offset| _ = state.open.insert(offset.get()));
            }
            Event::Committed { queue, epoch, watermark, step: CommitStep::Asked } => {
                self.asked(*queue, *epoch, *watermark);
            }
            _ => {}
        }
    }

    fn verify(&self, _moment: Moment) -> Findings {
        self.findings.clone()
    }
}

impl WatermarkRule {
    fn settle(&mut self, settled: &Settled<'_>) {
        let known = self.queues.entry(settled.queue).or_default();
        if settled.outcome.finishes() && known.is_current(settled.epoch) {
            known.state.open.remove(settled.offset.get());
        }
    }

    fn asked(&mut self, queue: QueueId, epoch: Epoch, watermark: Watermark) {
        let known = self.queues.entry(queue).or_default();
        if !known.is_current(epoch) {
            return; // the guarantee `commits` speaks of that
        }
        let State { open, read_to, start } = &known.state;
        let limit = open.min().unwrap_or(u64::MAX);
        let read_to = read_to.map(|read_to| read_to.max(*start));
        let broken = if watermark.get() > limit {
            let happened = format!("a commit at {watermark}, though {limit} is not finished");
            Violation::new(happened, format!("{limit} at most"))
        } else if let Some(read_to) = read_to.filter(|read_to| watermark.get() > *read_to) {
            let happened = format!("a commit at {watermark}, beyond what was read");
            Violation::new(happened, format!("{read_to} at most"))
        } else {
            return;
        };
        self.findings.add(|| broken.at(queue, watermark.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::History;
    use super::*;

    fn count(history: &str) -> u64 {
        History::parse(history).check(WatermarkRule::default()).count
    }

    #[test]
    fn a_commit_stops_at_the_first_unfinished_message() {
        assert_eq!(count("E0 q0-3 d0 s0 a1 d2 s2 a1 d1 s1 a3"), 0);
        assert_eq!(count("E0 q0-3 d0 s0 d2 s2 a2"), 1);
        assert_eq!(count("E0 q0-3 d0 s0 d1 f1 a2"), 1, "failed");
        assert_eq!(count("E0 q0-3 d0 s0 d1 h1 a2"), 1, "held");
        assert_eq!(count("E0 q0-3 d0 s0 d1 h1 D1 a2"), 0, "held, then committed");
        assert_eq!(count("E0 q0-3 d0,1,2 s0 f1 i2 a3"), 1);
        assert_eq!(count("E0 q0-3 d0 f0 x0 a1"), 0, "dead-lettered");
        assert_eq!(count("E0 q0-3 a1"), 1, "not even delivered");
    }

    #[test]
    fn a_commit_passes_holes_that_a_fetch_has_passed_and_no_more() {
        assert_eq!(count("E0 q0-1:9 d0 s0 a9"), 0);
        assert_eq!(count("E0 q0-1:9 d0 s0 a10"), 1);
        assert_eq!(count("E0 q0-1 d0 s0 a1 q1-1:9 a9"), 0, "a fetch of markers only");
        assert_eq!(count("E0 q0-1 d0 q1-1:9 a9"), 1, "not while something runs");
    }

    #[test]
    fn what_an_old_epoch_finishes_late_does_not_count() {
        assert_eq!(count("E0 q0-1 d0 V E0 q0-1 d0 s0 a1"), 0);
        assert_eq!(count("E0 q0-1 d0 V E0 s0 q0-1 a1"), 1);
        assert_eq!(count("E0 q0-1 d0 V E0 q0-1 s0 a1"), 1);
    }

    #[test]
    fn a_fetch_that_overlaps_the_last_one_opens_nothing_again() {
        assert_eq!(count("E0 q0-2 d0 s0 d1 s1 q0-3 a2"), 0);
        assert_eq!(count("E0 q0-2 d0 s0 d1 s1 q0-3 a3"), 1);
    }

    #[test]
    fn a_message_given_back_is_unfinished_again() {
        assert_eq!(count("E0 q0-2 d0 h0 d1 h1 R0,1 a0"), 0);
        assert_eq!(count("E0 q0-2 d0 s0 d1 s1 R1 a2"), 1);
    }

    #[test]
    fn without_recorded_fetches_deliveries_count() {
        assert_eq!(count("E0 d0 s0 d1 a1"), 0);
        assert_eq!(count("E0 d0 s0 d1 a2"), 1);
    }

    #[test]
    fn the_violation_says_what_was_open() {
        let findings = History::parse("E0 q0-9 d0 s0 a5").check(WatermarkRule::default());
        assert_eq!(
            findings.violations[0].to_string(),
            "watermark: history/0 at 5: a commit at 5, though 1 is not finished \
             (allowed: 1 at most)"
        );
    }
}
