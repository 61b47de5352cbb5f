//! What the members' journal says about hand-overs, beside what the test kit's checkers say of it.
//!
//! A queue goes from hand to hand like this, or [`Handed::new`] panics:
//!
//! 1. While a call of one member runs, no other member begins one with a message of that queue
//!    (unless the first was killed).
//! 2. A new owner begins at an offset that was committed: not before the last commit that was
//!    answered, not behind the last one that was asked for.
//! 3. Where the queue was given back in peace, that is exactly the first message that is not
//!    finished: what ran has finished, and its offset was written before the lock was free.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use keylane_source::{Position, QueueId};
use keylane_testkit::guarantee::{CallId, CommitStep, Delivered, Event, MemberId, Settled};
use keylane_testkit::journal::Reader;
use keylane_testkit::recorder::Recorder;

/// How queues went from hand to hand.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Handed {
    /// Given back, and taken by the next one.
    pub(super) in_peace: usize,
    /// Left by a kill, a loss, or a lock that ran out.
    pub(super) otherwise: usize,
}

impl Handed {
    /// Judges a journal, and tells the recorder what is in it.
    pub(super) fn new(journal: &Path, recorder: &Recorder) -> Self {
        let mut judge = Judge::default();
        let mut reader = Reader::open(journal).unwrap();
        let read = reader.read(|member, event| {
            judge.see(member, event);
            recorder.note(event);
        });
        read.unwrap();
        judge.handed
    }
}

#[derive(Default)]
struct Judge {
    queues: HashMap<QueueId, Queue>,
    /// The calls that run, and whose they are.
    calls: HashMap<CallId, (MemberId, QueueId)>,
    handed: Handed,
}

#[derive(Default)]
struct Queue {
    has_begun: bool,
    owner: Option<MemberId>,
    /// Whether the last owner has given it back.
    given_back: bool,
    stored: u64,
    asked: u64,
    /// By the owner, behind the prefix. What an owner before it had finished there comes again.
    finished: BTreeSet<u64>,
    /// Everything below is finished.
    prefix: u64,
}

impl Judge {
    fn see(&mut self, member: MemberId, event: &Event<'_>) {
        match event {
            Event::Assigned { queue, start, .. } => {
                self.starts(member, *queue, start.map_or(0, Position::get));
            }
            Event::Delivered(delivered) => self.begins(delivered),
            Event::Settled(settled) => self.ends(settled),
            Event::Committed { queue, watermark, step, .. } => {
                let queue = self.queues.entry(*queue).or_default();
                match step {
                    CommitStep::Asked => queue.asked = queue.asked.max(watermark.get()),
                    CommitStep::Stored => queue.stored = queue.stored.max(watermark.get()),
                    CommitStep::Failed => {}
                }
            }
            Event::Revoked { queue, .. } => self.queues.entry(*queue).or_default().left(true),
            Event::Lost { queue, .. } => self.queues.entry(*queue).or_default().left(false),
            Event::Closing { .. } => self.left(member, true),
            Event::Crashed { .. } => {
                self.left(member, false);
                self.calls.retain(|_, (owner, _)| *owner != member);
            }
            Event::Fetched { .. } | Event::Stopped { .. } => {}
            other => panic!("member {}: {other:?}", member.0),
        }
    }

    /// A member leaves whatever it has.
    fn left(&mut self, member: MemberId, in_peace: bool) {
        let its = self.queues.values_mut().filter(|queue| queue.owner == Some(member));
        its.for_each(|queue| queue.left(in_peace));
    }

    fn starts(&mut self, MemberId(member): MemberId, id: QueueId, start: u64) {
        let queue = self.queues.entry(id).or_default();
        let (stored, asked, prefix) = (queue.stored, queue.asked, queue.prefix);
        assert!(
            (stored..=asked).contains(&start),
            "{id}: member {member} begins at {start}; committed was {stored} to {asked}"
        );
        let in_peace = queue.owner.is_none() && queue.given_back;
        if in_peace {
            assert_eq!(
                start, prefix,
                "{id}: member {member} begins elsewhere than the last one has ended"
            );
            self.handed.in_peace += 1;
        } else if queue.has_begun {
            self.handed.otherwise += 1;
        }
        (queue.has_begun, queue.owner, queue.prefix) = (true, Some(MemberId(member)), start);
        queue.finished.clear();
    }

    fn begins(&mut self, delivered: &Delivered<'_>) {
        let Delivered { member, call, queue, .. } = *delivered;
        let mut others = self.calls.values().filter(|(_, of)| *of == queue);
        if let Some((MemberId(other), _)) = others.find(|(owner, _)| *owner != member) {
            let MemberId(member) = member;
            panic!("{queue}: a call of member {member} begins while one of member {other} runs");
        }
        self.calls.insert(call, (member, queue));
    }

    fn ends(&mut self, settled: &Settled<'_>) {
        let call = settled.call.and_then(|call| self.calls.remove(&call));
        assert!(call.is_some() && settled.outcome.finishes(), "{settled:?}");
        let queue = self.queues.entry(settled.queue).or_default();
        if settled.offset.get() >= queue.prefix {
            queue.finished.insert(settled.offset.get());
        }
        while queue.finished.remove(&queue.prefix) {
            queue.prefix += 1;
        }
    }
}

impl Queue {
    fn left(&mut self, in_peace: bool) {
        (self.owner, self.given_back) = (None, in_peace);
    }
}

#[cfg(test)]
mod tests {
    use keylane_source::{Message, Offset, Watermark};
    use keylane_testkit::guarantee::{Epoch, Found, Outcome, Scope, Verdict};
    use keylane_testkit::journal::Journal;
    use keylane_testkit::recorder::Call;

    use super::*;

    /// A member, and what it says.
    struct Said(Recorder);

    impl Said {
        fn epoch(&self) -> Epoch {
            self.0.epoch(queue())
        }

        fn starts(&self, number: u32, found: Option<u64>, start: u64) {
            let (member, queue, epoch) = (MemberId(number), queue(), Epoch(self.epoch().0 + 1));
            let found = found.map_or(Found::Nothing, |at| Found::At(Watermark::new(at).unwrap()));
            let start = Position::new(start);
            self.0.note(&Event::Assigned { member, queue, epoch, found, start });
        }

        fn begins(&self, offset: u64, key: &'static str) -> Call {
            let message = Message::new(queue(), Offset::new(offset).unwrap()).with_key(key);
            self.0.begin(&message, 0, 1)
        }

        fn handles(&self, offset: u64, key: &'static str) {
            self.begins(offset, key).settle(Outcome::Done);
        }

        fn commits(&self, watermark: u64) {
            let (queue, epoch) = (queue(), self.epoch());
            let watermark = Watermark::new(watermark).unwrap();
            for step in [CommitStep::Asked, CommitStep::Stored] {
                self.0.note(&Event::Committed { queue, epoch, watermark, step });
            }
        }

        fn releases(&self) {
            self.0.note(&Event::Revoked { queue: queue(), epoch: self.epoch() });
        }
    }

    fn queue() -> QueueId {
        QueueId::on_broker("judged", "a", 0)
    }

    /// What is said of a journal of members 1 to 3, or the panic's words.
    fn told(say: impl FnOnce([Said; 3], &Journal)) -> Result<(Handed, Verdict), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let journal = Journal::open(&path).unwrap();
        let member = |number| Recorder::journaled(Scope::key(), MemberId(number), &journal);
        say([1, 2, 3].map(|number| Said(member(number))), &journal);
        let recorder = Recorder::new(Scope::key());
        recorder.produced_range(queue(), Offset::ZERO, Position::new(2).unwrap());
        let judged = || Handed::new(&path, &recorder);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(judged)) {
            Ok(handed) => Ok((handed, recorder.verdict())),
            Err(panic) => Err(panic.downcast_ref::<String>().unwrap().clone()),
        }
    }

    fn first(one: &Said) {
        one.starts(1, None, 0);
        one.handles(0, "a");
        one.commits(1);
    }

    fn second(two: &Said) {
        two.starts(2, Some(1), 1);
        two.handles(1, "a");
        two.commits(2);
        two.0.stopped();
    }

    #[test]
    fn a_queue_that_is_handed_over() {
        let handed_over = told(|[one, two, _], _| {
            first(&one);
            one.releases();
            second(&two);
        });
        let (handed, verdict) = handed_over.unwrap();
        verdict.assert_clean();
        assert_eq!(handed, Handed { in_peace: 1, otherwise: 0 });
        assert_eq!((verdict.delivered, verdict.duplicates, verdict.committed), (2, 0, true));
        let killed = told(|[one, two, _], journal| {
            first(&one);
            journal.crashed(MemberId(1));
            second(&two);
        });
        let (handed, verdict) = killed.unwrap();
        verdict.assert_clean();
        assert_eq!(handed, Handed { in_peace: 0, otherwise: 1 });
    }

    #[test]
    fn an_older_offset_is_found() {
        let older = told(|[one, two, _], _| {
            first(&one);
            one.releases();
            two.starts(2, Some(0), 0);
        });
        let expected = "judged@a/0: member 2 begins at 0; committed was 1 to 1";
        assert_eq!(older.unwrap_err(), expected);
    }

    #[test]
    fn an_offset_that_was_not_written_is_found() {
        let not_written = told(|[one, two, _], _| {
            one.starts(1, None, 0);
            one.handles(0, "a");
            one.releases();
            two.starts(2, None, 0);
        });
        let error = not_written.unwrap_err();
        assert!(error.contains("begins elsewhere than the last one has ended"), "{error}");
    }

    #[test]
    fn what_an_earlier_owner_had_finished_behind_an_unfinished_message_is_not_finished() {
        let told = told(|[one, two, three], _| {
            one.starts(1, None, 0);
            one.handles(1, "b");
            one.commits(0);
            one.releases();
            two.starts(2, Some(0), 0);
            two.handles(0, "a");
            two.commits(1);
            two.releases();
            three.starts(3, Some(1), 1);
            three.handles(1, "b");
            three.commits(2);
            three.0.stopped();
        });
        let (handed, verdict) = told.unwrap();
        verdict.assert_clean();
        assert_eq!((handed.in_peace, verdict.duplicates), (2, 1));
    }

    #[test]
    fn calls_that_overlap_are_found_unless_the_member_was_killed() {
        let overlap = |is_killed: bool| {
            told(|[one, two, _], journal| {
                first(&one);
                std::mem::forget(one.begins(1, "a"));
                if is_killed {
                    journal.crashed(MemberId(1));
                }
                two.starts(2, Some(1), 1);
                std::mem::forget(two.begins(1, "a"));
            })
        };
        let error = overlap(false).unwrap_err();
        let expected = "judged@a/0: a call of member 2 begins while one of member 1 runs";
        assert_eq!(error, expected);
        overlap(true).unwrap();
    }
}
