//! Histories in a short notation, for the tests of the checkers.
//!
//! Queue 0 and the lane "k" unless said otherwise. `p0-3` produced 0..3; `E5` an epoch begins, with
//! 5 committed and started from; `N5` the same where the group has no offset, `N` from wherever the
//! policy says; `G1:3` begins at 3 though 1 is committed; `U5` at 5 after a failed look-up; `q0-3`
//! a fetch of 0..3 with position 3, `q0-3:9` with position 9; `d1,2` a call with two messages
//! begins; `s f i h` it succeeded, failed, was ignored, is held; `x` is dead-lettered after its
//! call; `R1,2` are given back; `a5` a commit is asked, `c5` stored, `e5` failed; `V` released, `L`
//! lost, `Z` reset out of range, `T` recreated, `X` crashed, `S` stopped.

use keylane_source::{Message, Offset, Position, QueueId, ResetCause, Watermark};

use super::event::{
    CallId, CommitStep, Delivered, Epoch, Event, Found, MemberId, Outcome, Settled,
};
use super::lane::Lane;
use super::violation::Findings;
use super::{Guarantee, Moment};

/// A list of events, with what they borrow.
#[derive(Default)]
pub(super) struct History {
    steps: Vec<Step>,
    calls: u64,
    epoch: u32,
}

/// One event, in values of its own.
pub(super) struct Step {
    what: What,
    queue: QueueId,
    lane: Lane,
    member: MemberId,
    epoch: Epoch,
}

enum What {
    Produced(u64, u64),
    Assigned(Found, Option<Position>),
    Fetched(Vec<Message>, Position),
    Delivered(CallId, Offset),
    Settled(Option<CallId>, Offset, Outcome),
    Committed(Watermark, CommitStep),
    Rewound(Vec<Offset>),
    Revoked,
    Lost,
    Reset(ResetCause),
    Crashed,
    Stopped,
}

fn at(position: u64) -> Position {
    Position::new(position).unwrap()
}

fn offset(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

impl History {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn parse(history: &str) -> Self {
        let mut parsed = Self::new();
        history.split_whitespace().for_each(|word| parsed.word(word));
        parsed
    }

    fn word(&mut self, word: &str) {
        let (letter, rest) = word.split_at(1);
        let number = || rest.parse::<u64>().unwrap_or_else(|_| panic!("a number in {word}"));
        let mark = |number| Watermark::new(number).unwrap();
        match letter {
            "p" => {
                let (first, end) = pair(rest, '-').unwrap();
                self.push(What::Produced(first, end));
            }
            "q" => {
                let (range, position) = rest.split_once(':').unwrap_or((rest, ""));
                let (first, end) = pair(range, '-').unwrap();
                let position = position.parse().unwrap_or(end);
                let message = |n| Message::new(QueueId::new("history", 0), offset(n));
                self.push(What::Fetched((first..end).map(message).collect(), at(position)));
            }
            "E" => self.begin(Found::At(mark(number())), Some(number())),
            "N" => self.begin(Found::Nothing, rest.parse().ok()),
            "U" => self.begin(Found::Unknown, Some(number())),
            "G" => {
                let (committed, start) = pair(rest, ':').unwrap();
                self.begin(Found::At(mark(committed)), Some(start));
            }
            "d" => {
                self.calls += 1;
                for number in rest.split(',') {
                    self.deliver(self.calls, number.parse().unwrap());
                }
            }
            "s" => self.settle(number(), Outcome::Done),
            "f" => self.settle(number(), Outcome::Failed),
            "i" => self.settle(number(), Outcome::Ignored),
            "h" => self.settle(number(), Outcome::Held),
            "x" => self.push(What::Settled(None, offset(number()), Outcome::DeadLettered)),
            "D" => self.push(What::Settled(None, offset(number()), Outcome::Done)),
            "R" => {
                let offsets = rest.split(',').map(|n| offset(n.parse().unwrap())).collect();
                self.push(What::Rewound(offsets));
            }
            "a" => self.push(What::Committed(mark(number()), CommitStep::Asked)),
            "c" => self.push(What::Committed(mark(number()), CommitStep::Stored)),
            "e" => self.push(What::Committed(mark(number()), CommitStep::Failed)),
            "V" => self.push(What::Revoked),
            "L" => self.push(What::Lost),
            "Z" => {
                let (asked, begin, end) = (at(0), at(0), at(0));
                self.push(What::Reset(ResetCause::OutOfRange { asked, begin, end }));
            }
            "T" => self.push(What::Reset(ResetCause::Recreated { begin: offset(0) })),
            "X" => self.push(What::Crashed),
            "S" => self.push(What::Stopped),
            _ => panic!("no such word: {word}"),
        }
    }

    fn push(&mut self, what: What) {
        self.steps.push(Step {
            what,
            queue: QueueId::new("history", 0),
            lane: Lane::key("k"),
            member: MemberId(0),
            epoch: Epoch(self.epoch),
        });
    }

    fn begin(&mut self, found: Found, start: Option<u64>) {
        self.epoch += 1;
        self.push(What::Assigned(found, start.map(at)));
    }

    /// Begins a call, or one more message of it.
    pub(super) fn deliver(&mut self, call: u64, number: u64) -> &mut Step {
        self.calls = self.calls.max(call);
        self.push(What::Delivered(CallId(call), offset(number)));
        self.steps.last_mut().unwrap()
    }

    /// Settles the message in the call that got it last, in that call's epoch.
    fn settle(&mut self, number: u64, outcome: Outcome) {
        let delivery = |step: &Step| match step.what {
            What::Delivered(call, at) if at.get() == number => Some((call, step.epoch)),
            _ => None,
        };
        let (call, epoch) = self.steps.iter().rev().find_map(delivery).expect("delivered before");
        let what = What::Settled(Some(call), offset(number), outcome);
        self.push(what);
        self.steps.last_mut().unwrap().epoch = epoch;
    }

    /// Feeds the checker and asks it at the end of a run that was not drained.
    pub(super) fn check(&self, guarantee: impl Guarantee) -> Findings {
        self.verify(guarantee, Moment::Running)
    }

    pub(super) fn verify(&self, mut guarantee: impl Guarantee, moment: Moment) -> Findings {
        self.feed(|event| guarantee.observe(event));
        let findings = guarantee.verify(moment);
        assert_eq!(findings.guarantee, guarantee.name());
        findings
    }

    pub(super) fn feed(&self, mut observe: impl FnMut(&Event<'_>)) {
        self.steps.iter().for_each(|step| observe(&step.event()));
    }
}

impl Step {
    pub(super) fn of_lane(&mut self, lane: Lane) -> &mut Self {
        self.lane = lane;
        self
    }

    pub(super) fn of_queue(&mut self, index: u32) -> &mut Self {
        self.queue = QueueId::new("history", index);
        self
    }

    pub(super) fn of_epoch(&mut self, epoch: u32) -> &mut Self {
        self.epoch = Epoch(epoch);
        self
    }

    pub(super) fn of_member(&mut self, member: u32) -> &mut Self {
        self.member = MemberId(member);
        self
    }

    fn event(&self) -> Event<'_> {
        let Self { queue, lane, member, epoch, .. } = self;
        let (queue, member, epoch) = (*queue, *member, *epoch);
        match &self.what {
            What::Produced(first, end) => {
                Event::Produced { queue, first: offset(*first), end: at(*end) }
            }
            What::Assigned(found, start) => {
                Event::Assigned { member, queue, epoch, found: *found, start: *start }
            }
            What::Fetched(messages, position) => {
                Event::Fetched { queue, epoch, messages, position: *position }
            }
            What::Delivered(call, offset) => Event::Delivered(Delivered {
                member,
                call: *call,
                queue,
                epoch,
                offset: *offset,
                lane,
                shard: 0,
                attempt: 0,
            }),
            What::Settled(call, offset, outcome) => Event::Settled(Settled {
                member,
                call: *call,
                queue,
                epoch,
                offset: *offset,
                lane,
                outcome: *outcome,
            }),
            What::Committed(watermark, step) => {
                Event::Committed { queue, epoch, watermark: *watermark, step: *step }
            }
            What::Rewound(offsets) => Event::Rewound { queue, lane, offsets },
            What::Revoked => Event::Revoked { queue, epoch },
            What::Lost => Event::Lost { queue, epoch },
            What::Reset(cause) => Event::Reset { queue, epoch, cause },
            What::Crashed => Event::Crashed { member },
            What::Stopped => Event::Stopped { member },
        }
    }
}

fn pair(text: &str, between: char) -> Option<(u64, u64)> {
    let (first, second) = text.split_once(between)?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// The histories and verdicts of the table in a module's documentation.
pub(super) fn table(source: &str) -> Vec<(String, String)> {
    let row = |line: &str| {
        let (history, rest) = line.strip_prefix("//! | `")?.split_once("` | ")?;
        let (verdict, _) = rest.split_once(" | ")?;
        Some((history.to_owned(), verdict.to_owned()))
    };
    source.lines().filter_map(row).collect()
}
