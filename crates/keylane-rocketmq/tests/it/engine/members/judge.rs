//! What the members' log says about hand-overs, beside what the test kit's checkers say of it.
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

use keylane_source::{Offset, Position, QueueId, Watermark};
use keylane_testkit::guarantee::{
    CallId, CommitStep, Delivered, Epoch, Event, Found, Lane, MemberId, Outcome, Scope, Settled,
};
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
    /// Judges a log, and tells the recorder what is in it.
    pub(super) fn new(log: &Path, queues: &[QueueId], recorder: &Recorder, scope: &Scope) -> Self {
        let text = std::fs::read_to_string(log).unwrap();
        let mut judge = Judge {
            topic: queues,
            recorder,
            scope,
            queues: HashMap::new(),
            calls: HashMap::new(),
            handed: Self::default(),
        };
        for line in text.lines() {
            judge.line(&line.split_whitespace().collect::<Vec<_>>());
        }
        judge.handed
    }
}

struct Judge<'a> {
    topic: &'a [QueueId],
    recorder: &'a Recorder,
    scope: &'a Scope,
    queues: HashMap<u32, Queue>,
    /// The calls that run.
    calls: HashMap<u64, Call>,
    handed: Handed,
}

#[derive(Default)]
struct Queue {
    owner: Option<u32>,
    /// Whether the last owner has given it back.
    given_back: bool,
    epochs: HashMap<u32, Epoch>,
    stored: u64,
    asked: u64,
    /// By the owner, behind the prefix. What an owner before it had finished there comes again.
    finished: BTreeSet<u64>,
    /// Everything below is finished.
    prefix: u64,
}

struct Call {
    member: u32,
    queue: u32,
    epoch: Epoch,
    offset: Offset,
    lane: Lane,
}

impl Judge<'_> {
    fn line(&mut self, words: &[&str]) {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let member: u32 = words[1].parse().unwrap();
        let id = MemberId(member);
        match words[0] {
            "leaves" => return self.ended(member, true),
            "stopped" => return self.recorder.note(&Event::Stopped { member: id }),
            "killed" => {
                self.ended(member, false);
                self.calls.retain(|_, call| call.member != member);
                return self.recorder.note(&Event::Crashed { member: id });
            }
            _ => {}
        }
        let index: u32 = words[2].parse().unwrap();
        let queue = self.topic[index as usize];
        let known = self.queues.entry(index).or_default();
        let epoch = known.epochs.get(&member).copied().unwrap_or_default();
        let committed = |step| {
            let watermark = Watermark::new(number(3)).unwrap();
            self.recorder.note(&Event::Committed { queue, epoch, watermark, step });
        };
        match words[0] {
            "starts" => self.starts(member, index, words[3].parse().ok(), number(4)),
            "begin" => self.begins(member, index, epoch, words),
            "done" => self.done(number(3)),
            "asked" => {
                known.asked = known.asked.max(number(3));
                committed(CommitStep::Asked);
            }
            "stored" => {
                known.stored = known.stored.max(number(3));
                committed(CommitStep::Stored);
            }
            "failed" => committed(CommitStep::Failed),
            "released" => {
                (known.owner, known.given_back) = (None, true);
                self.recorder.note(&Event::Revoked { queue, epoch });
            }
            "lost" => {
                (known.owner, known.given_back) = (None, false);
                self.recorder.note(&Event::Lost { queue, epoch });
            }
            other => panic!("{other}: {words:?}"),
        }
    }

    fn ended(&mut self, member: u32, in_peace: bool) {
        for queue in self.queues.values_mut().filter(|queue| queue.owner == Some(member)) {
            (queue.owner, queue.given_back) = (None, in_peace);
        }
    }

    fn starts(&mut self, member: u32, index: u32, found: Option<u64>, start: u64) {
        let queue = self.queues.get_mut(&index).unwrap();
        let (stored, asked, prefix) = (queue.stored, queue.asked, queue.prefix);
        assert!(
            (stored..=asked).contains(&start),
            "queue {index}: member {member} begins at {start}; committed was {stored} to {asked}"
        );
        let in_peace = queue.owner.is_none() && queue.given_back;
        if in_peace {
            assert_eq!(
                start, prefix,
                "queue {index}: member {member} begins elsewhere than the last one has ended"
            );
            self.handed.in_peace += 1;
        } else if !queue.epochs.is_empty() {
            self.handed.otherwise += 1;
        }
        (queue.owner, queue.prefix) = (Some(member), start);
        queue.finished.clear();
        let queue_id = self.topic[index as usize];
        let epoch = Epoch(self.recorder.epoch(queue_id).0 + 1);
        queue.epochs.insert(member, epoch);
        let found = found.map_or(Found::Nothing, |at| Found::At(Watermark::new(at).unwrap()));
        let (member, start) = (MemberId(member), Position::new(start));
        self.recorder.note(&Event::Assigned { member, queue: queue_id, epoch, found, start });
    }

    fn begins(&mut self, member: u32, index: u32, epoch: Epoch, words: &[&str]) {
        let mut others = self.calls.values().filter(|call| call.queue == index);
        if let Some(other) = others.find(|call| call.member != member) {
            panic!(
                "queue {index}: a call of member {member} begins while one of member {} runs",
                other.member
            );
        }
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let (call, offset) = (number(3), Offset::new(number(4)).unwrap());
        let lane = match self.scope {
            Scope::Queue => Lane::Queue,
            _ => Lane::key(words[5].to_owned()),
        };
        let queue = self.topic[index as usize];
        let delivered = Delivered {
            member: MemberId(member),
            call: CallId(call),
            queue,
            epoch,
            offset,
            lane: &lane,
            shard: 0,
            attempt: 0,
        };
        self.recorder.note(&Event::Delivered(delivered));
        self.calls.insert(call, Call { member, queue: index, epoch, offset, lane });
    }

    fn done(&mut self, call: u64) {
        let Call { member, queue: index, epoch, offset, lane } = self.calls.remove(&call).unwrap();
        let settled = Settled {
            member: MemberId(member),
            call: Some(CallId(call)),
            queue: self.topic[index as usize],
            epoch,
            offset,
            lane: &lane,
            outcome: Outcome::Done,
        };
        self.recorder.note(&Event::Settled(settled));
        let queue = self.queues.get_mut(&index).unwrap();
        if offset.get() >= queue.prefix {
            queue.finished.insert(offset.get());
        }
        while queue.finished.remove(&queue.prefix) {
            queue.prefix += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::Log;
    use super::*;

    /// What is said of a log, or the panic's words.
    fn told(lines: &[&str]) -> Result<(Handed, keylane_testkit::guarantee::Verdict), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Log::of_member(&path, 0);
        lines.iter().for_each(|line| log.line(line));
        let queue = QueueId::on_broker("judged", "a", 0);
        let recorder = Recorder::new(Scope::key());
        recorder.produced_range(queue, Offset::ZERO, Position::new(2).unwrap());
        let judged = || Handed::new(&path, &[queue], &recorder, &Scope::key());
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(judged)) {
            Ok(handed) => Ok((handed, recorder.verdict())),
            Err(panic) => Err(panic.downcast_ref::<String>().unwrap().clone()),
        }
    }

    const FIRST: [&str; 5] =
        ["starts 1 0 - 0", "begin 1 0 101 0 a", "done 1 0 101", "asked 1 0 1", "stored 1 0 1"];
    const SECOND: [&str; 6] = [
        "starts 2 0 1 1",
        "begin 2 0 202 1 a",
        "done 2 0 202",
        "asked 2 0 2",
        "stored 2 0 2",
        "stopped 2",
    ];

    #[test]
    fn a_queue_that_is_handed_over() {
        let (handed, verdict) = told(&[&FIRST[..], &["released 1 0"], &SECOND].concat()).unwrap();
        verdict.assert_clean();
        assert_eq!(handed, Handed { in_peace: 1, otherwise: 0 });
        assert_eq!((verdict.delivered, verdict.duplicates, verdict.committed), (2, 0, true));
        let (handed, verdict) = told(&[&FIRST[..], &["killed 1"], &SECOND].concat()).unwrap();
        verdict.assert_clean();
        assert_eq!(handed, Handed { in_peace: 0, otherwise: 1 });
    }

    #[test]
    fn an_older_offset_is_found() {
        let error = told(&[&FIRST[..], &["released 1 0", "starts 2 0 0 0"]].concat()).unwrap_err();
        assert_eq!(error, "queue 0: member 2 begins at 0; committed was 1 to 1");
    }

    #[test]
    fn an_offset_that_was_not_written_is_found() {
        let lines = [&FIRST[..3], &["released 1 0", "starts 2 0 0 0"]].concat();
        let error = told(&lines).unwrap_err();
        assert!(error.contains("begins elsewhere than the last one has ended"), "{error}");
    }

    #[test]
    fn what_an_earlier_owner_had_finished_behind_an_unfinished_message_is_not_finished() {
        let lines = [
            "starts 1 0 - 0",
            "begin 1 0 101 1 b",
            "done 1 0 101",
            "asked 1 0 0",
            "stored 1 0 0",
            "released 1 0",
            "starts 2 0 0 0",
            "begin 2 0 201 0 a",
            "done 2 0 201",
            "asked 2 0 1",
            "stored 2 0 1",
            "released 2 0",
            "starts 3 0 1 1",
            "begin 3 0 301 1 b",
            "done 3 0 301",
            "asked 3 0 2",
            "stored 3 0 2",
            "stopped 3",
        ];
        let (handed, verdict) = told(&lines).unwrap();
        verdict.assert_clean();
        assert_eq!((handed.in_peace, verdict.duplicates), (2, 1));
    }

    #[test]
    fn calls_that_overlap_are_found_unless_the_member_was_killed() {
        let (begin, over) = (["begin 1 0 301 1 a"], [&SECOND[..2]].concat());
        let error = told(&[&FIRST[..], &begin, &over].concat()).unwrap_err();
        assert_eq!(error, "queue 0: a call of member 2 begins while one of member 1 runs");
        told(&[&FIRST[..], &begin, &["killed 1"], &over].concat()).unwrap();
    }
}
