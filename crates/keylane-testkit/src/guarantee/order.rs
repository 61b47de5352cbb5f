//! G1: inside a queue, the messages of a lane are delivered in order.
//!
//! # The definition
//!
//! A lane's message is handed to the listener only when every earlier message of the lane *that was
//! handed out in this epoch* has freed the lane (succeeded, was skipped, dead-lettered, given up),
//! or stands before it in the same batch. It may be handed out again only while it is unfinished
//! itself, or after an event that says so:
//!
//! - a new epoch (crash, hand-over, reset): the sequence begins anew, at the epoch's start. That
//!   this start is one that was committed, or declared, is checked by the guarantee `commits`;
//! - a declared rewind of the lane: the messages it names are unfinished again, and come first.
//!
//! Each such event allows one step back. A step back that none allows is *one* violation, however
//! many messages follow in order from there. A message that is left out shows as a step back when
//! it comes after all, and as lost when it does not.
//!
//! # In examples
//!
//! Offsets of one lane. `d1` a call begins with offset 1, `d1,2` with a batch of both; `s1` it
//! succeeded, `f1` failed, `i1` was ignored, `x1` was dead-lettered after its call, `h1` succeeded
//! but is held uncommitted; `R1,2` a declared rewind of both; `E1` a new epoch that starts at
//! offset 1. The tests read this table.
//!
//! | history | verdict | why |
//! | --- | --- | --- |
//! | `d0 s0 d1 s1 d2 s2` | valid | one after the other |
//! | `d0 s0 d7 s7` | valid | what lies between belongs to other lanes |
//! | `d0 f0 d0 f0 d0 s0 d1 s1` | valid | a failed message comes again, before any later one |
//! | `d0,1,2 s0 s1 s2` | valid | a batch in order |
//! | `d0,1,2 s0 f1 i2 d1 s1 d2 s2` | valid | a batch fails in the middle: it goes on from there |
//! | `d0,1,2 s0 f1 i2 d1,2 s1 s2` | valid | the same, as a batch again |
//! | `d0 f0 x0 d1 s1` | valid | a dead letter frees the lane |
//! | `d0 h0 d1 h1 R0,1 d0 s0 d1 s1` | valid | a rollback gives both back |
//! | `d0 h0 d1 h1 R1 d1 s1` | valid | a rollback of the last one |
//! | `d0 s0 d1 s1 E1 d1 s1 d2 s2` | valid | after a crash, from the committed offset on |
//! | `d0 s0 d1 E1 d1 s1 d2 s2` | valid | the old call never ended; its successor may |
//! | `d0 s0 d1 E0 s1 d0 s0 d1 s1` | valid | what the old call says after the hand-over is ignored |
//! | `d0 s0 d2 s2 d1 s1` | 1 invalid | 1 comes after a later one |
//! | `d0 d1` | 1 invalid | 0 is not finished |
//! | `d0 f0 d1 s1 d0` | 2 invalid | 1 overtakes 0, then its success counts |
//! | `d0 s0 d0` | 1 invalid | again, and nothing allows it |
//! | `d0 s0 d1 s1 d2 s2 d0 s0 d1 s1 d2 s2` | 1 invalid | one step back |
//! | `d0 s0 d1 s1 E0 d0 s0 d1 s1 d0 s0` | 1 invalid | one event allows one step back |
//! | `d0,1 s0 f1 d2` | 1 invalid | 1 failed and has to come first |
//! | `d0,1,2 s0 f1 i2 d2` | 1 invalid | the same, inside a batch |
//! | `d1,0` | 1 invalid | a batch in the wrong order |
//! | `d0,1 f0 s1` | 1 invalid | the success behind a failure must be ignored |
//! | `d0 h0 d1 h1 R0,1 d1` | 1 invalid | a rollback to 0, and 0 does not come first |
//! | `d0 h0 d1 h1 R1 d0` | 1 invalid | further back than the rollback said |
//! | `d0 d0` | 1 invalid | twice at the same time |
//! | `d0 E0 d0 s0 E1 d1` | valid | hand-over upon hand-over |

use std::collections::HashMap;

use ahash::RandomState;
use keylane_source::{Offset, Position, QueueId};
use smallvec::SmallVec;

use super::event::{CallId, Delivered, Epoch, Event, Settled};
use super::lane::{Lane, LaneId};
use super::violation::{Findings, Violation};
use super::{Guarantee, Moment};

/// The name in violations.
pub const NAME: &str = "order";

/// The checker of G1.
#[derive(Debug)]
pub struct Order {
    lanes: HashMap<LaneId, LaneState, RandomState>,
    findings: Findings,
}

/// Where a lane stands. Invariant: `open` ascends.
#[derive(Debug)]
struct LaneState {
    epoch: Epoch,
    /// Everything that was delivered below is finished, save what is open.
    done_below: Position,
    /// Delivered and unfinished.
    open: SmallVec<[Open; 1]>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    offset: Offset,
    /// The call that has it; `None`: it waits to be delivered again.
    call: Option<CallId>,
}

impl Default for Order {
    fn default() -> Self {
        Self { lanes: HashMap::default(), findings: Findings::new(NAME) }
    }
}

impl Guarantee for Order {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Delivered(delivered) => self.deliver(delivered),
            Event::Settled(settled) => self.settle(settled),
            Event::Rewound { queue, lane, offsets } => self.rewind(*queue, lane, offsets),
            _ => {}
        }
    }

    fn verify(&self, _moment: Moment) -> Findings {
        self.findings.clone()
    }
}

impl Order {
    fn deliver(&mut self, delivered: &Delivered<'_>) {
        let Delivered { call, queue, epoch, offset, lane, .. } = *delivered;
        let Some(id) = lane.in_queue(queue) else { return };
        let state = self.lanes.entry(id).or_insert_with(|| LaneState::new(epoch));
        if epoch > state.epoch {
            *state = LaneState::new(epoch);
        }
        if epoch < state.epoch {
            let happened = format!("a call of epoch {} began in epoch {}", epoch.0, state.epoch.0);
            let violation = Violation::new(happened, "no call of an epoch that is over");
            return self.findings.add(|| violation.of(queue, offset, lane));
        }
        if let Err(broken) = state.deliver(offset, call) {
            self.findings.add(|| broken.violation(offset).of(queue, offset, lane));
        }
    }

    fn settle(&mut self, settled: &Settled<'_>) {
        let Settled { queue, epoch, offset, lane, .. } = *settled;
        let state = lane.in_queue(queue).and_then(|id| self.lanes.get_mut(&id));
        let Some(state) = state.filter(|state| state.epoch == epoch) else { return };
        if let Err(broken) = state.settle(settled) {
            self.findings.add(|| broken.violation(offset).of(queue, offset, lane));
        }
    }

    fn rewind(&mut self, queue: QueueId, lane: &Lane, offsets: &[Offset]) {
        let state = lane.in_queue(queue).and_then(|id| self.lanes.get_mut(&id));
        let (Some(state), Some(first)) = (state, offsets.iter().min()) else { return };
        state.done_below = state.done_below.min((*first).into());
        for &offset in offsets {
            state.open_slot(offset).call = None;
        }
    }
}

impl LaneState {
    fn new(epoch: Epoch) -> Self {
        Self { epoch, done_below: Position::ZERO, open: SmallVec::new() }
    }

    fn deliver(&mut self, offset: Offset, call: CallId) -> Result<(), Broken> {
        let known = self.open.iter().find(|open| open.offset == offset).copied();
        let result = match known {
            Some(Open { call: Some(running), .. }) => Err(Broken::Twice(running)),
            None if Position::from(offset) < self.done_below => Err(Broken::Back(self.done_below)),
            _ => self.check_neighbours(offset, call, known.is_some()),
        };
        if matches!(result, Err(Broken::Back(_))) {
            // One step back is one violation: what follows in order from here is none.
            self.done_below = offset.into();
        }
        self.open_slot(offset).call = Some(call);
        result
    }

    /// Earlier ones must stand before it in the same batch; of later ones none may run, and none
    /// may have been delivered unless this one was, too.
    fn check_neighbours(
        &self,
        offset: Offset,
        call: CallId,
        seen_before: bool,
    ) -> Result<(), Broken> {
        for open in &self.open {
            if open.offset < offset && open.call != Some(call) {
                return Err(Broken::Overtakes(*open));
            }
            if open.offset > offset && (open.call.is_some() || !seen_before) {
                return Err(Broken::Late(*open));
            }
        }
        Ok(())
    }

    fn settle(&mut self, settled: &Settled<'_>) -> Result<(), Broken> {
        let Settled { call, offset, outcome, .. } = *settled;
        let Some(index) = self.open.iter().position(|open| open.offset == offset) else {
            return Ok(()); // it is finished already (held, then committed)
        };
        if call.is_some() && self.open[index].call != call {
            return Ok(()); // not the call that has it now
        }
        if !outcome.frees_the_lane() {
            self.open[index].call = None;
            return Ok(());
        }
        self.open.remove(index);
        self.done_below = self.done_below.max(offset.next());
        match self.open.first() {
            Some(first) if first.offset < offset && first.call.is_none() => {
                Err(Broken::NotIgnored(*first))
            }
            _ => Ok(()),
        }
    }

    /// The entry of this offset, made where there is none.
    fn open_slot(&mut self, offset: Offset) -> &mut Open {
        let index = self.open.partition_point(|open| open.offset < offset);
        if self.open.get(index).is_none_or(|open| open.offset != offset) {
            self.open.insert(index, Open { offset, call: None });
        }
        &mut self.open[index]
    }
}

/// How the order was broken.
enum Broken {
    /// Delivered while this call has it.
    Twice(CallId),
    /// Delivered although the lane had got as far as this.
    Back(Position),
    /// Delivered while this earlier one was unfinished.
    Overtakes(Open),
    /// Delivered for the first time after this later one.
    Late(Open),
    /// Its success was taken although this earlier one had failed.
    NotIgnored(Open),
}

impl Broken {
    fn violation(&self, offset: Offset) -> Violation {
        let how = |open: &Open| match open.call {
            Some(call) => format!("runs in call {}", call.0),
            None => "has failed".to_owned(),
        };
        match self {
            Self::Twice(call) => Violation::new(
                format!("delivered again while call {} has it", call.0),
                "again only after that call",
            ),
            Self::Back(done) => Violation::new(
                format!("delivered after the lane had finished everything below {done}"),
                format!("{done} or later: no event allows the step back"),
            ),
            Self::Overtakes(open) => Violation::new(
                format!("delivered while {}, which is earlier, {}", open.offset, how(open)),
                format!("{} first", open.offset),
            ),
            Self::Late(open) => Violation::new(
                format!("delivered for the first time after {}", open.offset),
                format!("{offset} before {}", open.offset),
            ),
            Self::NotIgnored(open) => Violation::new(
                format!("its success counted although {}, which is earlier, failed", open.offset),
                "ignored, and delivered again",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{History, table};
    use super::*;

    #[test]
    fn the_table_in_the_documentation_holds() {
        let rows = table(include_str!("order.rs"));
        assert_eq!(rows.len(), 26, "rows are missing, or are not read");
        for (history, verdict) in rows {
            let expected = match verdict.strip_suffix(" invalid") {
                Some(count) => count.parse().unwrap(),
                None => {
                    assert_eq!(verdict, "valid", "{history}");
                    0
                }
            };
            let findings = History::parse(&history).check(Order::default());
            assert_eq!(findings.count, expected, "{history}: {:#?}", findings.violations);
        }
    }

    #[test]
    fn a_violation_names_queue_offset_and_key_and_what_was_allowed() {
        let findings = History::parse("d0 s0 d2 s2 d1").check(Order::default());
        assert_eq!(
            findings.violations[0].to_string(),
            "order: history/0 at 1, key \"k\": delivered after the lane had finished everything \
             below 3 (allowed: 3 or later: no event allows the step back)"
        );
    }

    #[test]
    fn lanes_and_queues_are_apart_and_free_messages_have_no_order() {
        let mut history = History::new();
        history.deliver(1, 5).of_lane(Lane::key("a"));
        history.deliver(2, 4).of_lane(Lane::key("b"));
        history.deliver(3, 3).of_lane(Lane::key("a")).of_queue(1);
        history.deliver(4, 9).of_lane(Lane::Free);
        history.deliver(5, 8).of_lane(Lane::Free);
        assert_eq!(history.check(Order::default()).count, 0);
        history.deliver(6, 3).of_lane(Lane::key("a"));
        assert_eq!(history.check(Order::default()).count, 1);
    }

    #[test]
    fn a_call_of_an_epoch_that_is_over_is_a_violation() {
        let mut history = History::new();
        history.deliver(1, 5).of_epoch(2);
        history.deliver(2, 6).of_epoch(1);
        let findings = history.check(Order::default());
        assert_eq!(findings.violations[0].happened, "a call of epoch 1 began in epoch 2");
    }
}
