//! G4, first half, and the hand-over: commits ascend inside an epoch, belong to one, and the next
//! epoch begins at one of them.
//!
//! 1. A commit is asked for only while its epoch runs (released, lost, reset: over).
//! 2. It is not below the one before it, nor below the epoch's start.
//! 3. One commit a queue is under way at a time.
//! 4. An epoch starts exactly at the group's offset, where it has one. A declared reset allows one
//!    epoch to start anywhere; a group without an offset starts where its policy says. It never
//!    starts while the look-up has failed.
//! 5. The group's offset is the one that was stored last, or one asked for after that whose answer
//!    is missing or was an error: such a commit may have been stored.
//!
//! | history | verdict | why |
//! | --- | --- | --- |
//! | `E0 a1 c1 a3 c3` | valid | ascending |
//! | `E0 a1 e1 a1 c1` | valid | a failed one again |
//! | `E0 a3 c3 a1` | 1 invalid | descending |
//! | `E5 a4` | 1 invalid | below the epoch's start |
//! | `E0 a1 a2` | 1 invalid | two under way |
//! | `E0 a1 c1 V a2` | 1 invalid | after the release |
//! | `E0 a1 V c1` | valid | only the answer is late |
//! | `E0 L a1` | 1 invalid | after the loss |
//! | `E0 a1 X E0 a1` | valid | what a crash left unanswered is not under way |
//! | `N0 a3 V N0 a5 c3 X E5` | valid | a late answer says nothing about the commit after it |
//! | `E0 a3 c3 X E3` | valid | a crash, and on from the stored one |
//! | `E0 a3 c3 a5 X E5` | valid | the unanswered one was stored |
//! | `E0 a3 c3 a5 X E3` | valid | or was not |
//! | `E0 a3 c3 a5 e5 X E5` | valid | an error does not say that it was not |
//! | `E0 a3 c3 a5 c5 X E3` | 1 invalid | an older one comes back |
//! | `E0 a3 c3 X E4` | 1 invalid | nobody asked for 4 |
//! | `E0 a3 c3 X N0` | 1 invalid | the offset was forgotten |
//! | `N0 a3 X N0` | valid | it may never have been stored |
//! | `E0 a3 c3 X G3:2` | 1 invalid | starts below the group's offset |
//! | `E0 a3 c3 X G3:4` | 1 invalid | starts above it |
//! | `E0 a3 c3 Z G3:9` | valid | a declared reset |
//! | `E0 a3 c3 Z G3:9 X G3:0` | 1 invalid | one reset allows one step |
//! | `U0` | 1 invalid | the look-up had failed |
//! | `N7` | valid | no offset: the policy decides |
//! | `N` | valid | the same, at the latest |
//! | `E3 a5 c5 Z E5 a3` | 1 invalid | descending in the new epoch, too |
//! | `E3 a5 c5 T N0 a1` | valid | recreated: everything begins anew |

use keylane_source::{Position, QueueId, ResetCause, Watermark};

use super::event::{CommitStep, Epoch, Event, Found};
use super::tenure::{PerQueue, Tenured, follow};
use super::violation::{Findings, Violation};
use super::{Guarantee, Moment};

/// The name in violations.
pub const NAME: &str = "commits";

/// The checker of commits and starts.
#[derive(Debug)]
pub struct Commits {
    queues: PerQueue<State>,
    findings: Findings,
}

#[derive(Debug, Default)]
struct State {
    stored: Option<Watermark>,
    /// Asked for after the stored one; the broker may have it or not.
    in_doubt: Vec<Watermark>,
    /// Of this epoch.
    start: Option<Position>,
    last_asked: Option<Watermark>,
    under_way: u32,
    reset_declared: bool,
}

impl Default for Commits {
    fn default() -> Self {
        Self { queues: PerQueue::default(), findings: Findings::new(NAME) }
    }
}

impl Guarantee for Commits {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        follow(&mut self.queues, event);
        match event {
            Event::Assigned { queue, found, start, .. } => self.begin(*queue, *found, *start),
            Event::Committed { queue, epoch, watermark, step } => {
                self.commit(*queue, *epoch, *watermark, *step);
            }
            Event::Reset { queue, cause, .. } => {
                let state = &mut self.queues.entry(*queue).or_default().state;
                if matches!(cause, ResetCause::Recreated { .. }) {
                    *state = State::default();
                }
                state.reset_declared = true;
            }
            _ => {}
        }
    }

    fn verify(&self, _moment: Moment) -> Findings {
        self.findings.clone()
    }
}

impl Commits {
    /// What is stored for each queue, as far as it is known.
    pub fn stored(&self) -> impl Iterator<Item = (QueueId, Option<Watermark>)> {
        self.queues.iter().map(|(queue, known)| (*queue, known.state.stored))
    }

    fn begin(&mut self, queue: QueueId, found: Found, start: Option<Position>) {
        let state = &mut self.queues.entry(queue).or_default().state;
        let declared = std::mem::take(&mut state.reset_declared);
        let broken = match declared {
            true => None,
            false => state.unlike_committed(found).or_else(|| wrong_start(found, start)),
        };
        if let Some(broken) = broken {
            let at = start.map_or(0, Position::get);
            self.findings.add(|| broken.at(queue, at));
        }
        if let Found::At(watermark) = found {
            state.stored = Some(watermark);
            state.in_doubt.clear();
        }
        (state.start, state.last_asked, state.under_way) = (start, None, 0);
    }

    fn commit(&mut self, queue: QueueId, epoch: Epoch, watermark: Watermark, step: CommitStep) {
        let known = self.queues.entry(queue).or_default();
        let is_current = known.is_current(epoch);
        match step {
            CommitStep::Asked => {
                if let Some(broken) = known.wrong_commit(epoch, watermark) {
                    self.findings.add(|| broken.at(queue, watermark.get()));
                }
                let state = &mut known.state;
                state.in_doubt.push(watermark);
                state.last_asked = state.last_asked.max(Some(watermark));
                state.under_way += 1;
            }
            CommitStep::Stored => {
                known.state.stored = Some(watermark);
                known.state.in_doubt.retain(|asked| *asked > watermark);
            }
            CommitStep::Failed => {}
        }
        if step != CommitStep::Asked && is_current {
            known.state.under_way = known.state.under_way.saturating_sub(1);
        }
    }
}

impl Tenured<State> {
    fn wrong_commit(&self, epoch: Epoch, watermark: Watermark) -> Option<Violation> {
        let state = &self.state;
        if !self.is_current(epoch) {
            let over = self.ended().map_or("followed by another epoch", |end| end.in_words());
            let happened = format!("commit of epoch {} after the queue was {over}", epoch.0);
            return Some(Violation::new(happened, "none once the epoch is over"));
        }
        let floor = state.last_asked.map(Position::from).max(state.start);
        if let Some(floor) = floor.filter(|floor| watermark.get() < floor.get()) {
            let happened = format!("the commit goes back to {watermark}");
            return Some(Violation::new(happened, format!("{floor} or higher")));
        }
        (state.under_way > 0).then(|| {
            Violation::new("a commit while another one is unanswered", "one a queue at a time")
        })
    }
}

impl State {
    /// Whether the group's offset is another one than was committed.
    fn unlike_committed(&self, found: Found) -> Option<Violation> {
        let expected = || {
            let doubtful = self.in_doubt.iter().map(ToString::to_string);
            let stored = self.stored.map_or("none".to_owned(), |stored| stored.to_string());
            let all: Vec<_> = std::iter::once(stored).chain(doubtful).collect();
            all.join(" or ")
        };
        let is_explained = match found {
            Found::Unknown => true,
            Found::Nothing => self.stored.is_none(),
            Found::At(watermark) => {
                // An offset from before the record is as good as any.
                self.stored.is_none() && self.in_doubt.is_empty()
                    || self.stored == Some(watermark)
                    || self.in_doubt.contains(&watermark)
            }
        };
        let happened = || match found {
            Found::At(watermark) => format!("the group's offset is {watermark}"),
            _ => "the group's offset is gone".to_owned(),
        };
        (!is_explained).then(|| Violation::new(happened(), expected()))
    }
}

fn wrong_start(found: Found, start: Option<Position>) -> Option<Violation> {
    let begins = start.map_or("elsewhere".to_owned(), |start| format!("at {start}"));
    match found {
        Found::Nothing => None,
        Found::At(watermark) if start == Some(watermark.into()) => None,
        Found::At(watermark) => {
            let happened = format!("the epoch begins {begins}");
            Some(Violation::new(happened, format!("{watermark}, the group's offset")))
        }
        Found::Unknown => {
            let happened = format!("the epoch begins {begins}, though the look-up failed");
            Some(Violation::new(happened, "look up again first"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{History, table};
    use super::*;

    #[test]
    fn the_table_in_the_documentation_holds() {
        let rows = table(include_str!("commits.rs"));
        assert_eq!(rows.len(), 27, "rows are missing, or are not read");
        for (history, verdict) in rows {
            let expected = u64::from(verdict != "valid");
            let findings = History::parse(&history).check(Commits::default());
            assert_eq!(findings.count, expected, "{history}: {:#?}", findings.violations);
        }
    }

    #[test]
    fn violations_say_what_would_have_been_right() {
        let first = |history: &str| {
            let findings = History::parse(history).check(Commits::default());
            findings.violations[0].to_string()
        };
        assert_eq!(
            first("E0 a3 c3 a5 X E4"),
            "commits: history/0 at 4: the group's offset is 4 (allowed: 3 or 5)"
        );
        assert_eq!(
            first("E0 a3 c3 L a4"),
            "commits: history/0 at 4: commit of epoch 1 after the queue was lost \
             (allowed: none once the epoch is over)"
        );
    }
}
