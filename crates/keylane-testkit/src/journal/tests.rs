//! What is written is read, whatever a kill leaves of it, and judged as if it had been seen.

use std::path::PathBuf;
use std::time::Duration;

use keylane_source::{
    FetchLimits, Message, Offset, Position, ResetCause, SeekTo, Source, Watermark,
};

use super::*;
use crate::guarantee::{CommitStep, Found, Lane, Outcome, Scope, Verdict};
use crate::recorder::{Recorded, Recorder};
use crate::script::Script;

struct Stage {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { path: folder.path().join("journal"), _folder: folder }
    }

    fn journal(&self) -> Journal {
        Journal::open(&self.path).unwrap()
    }

    fn member(&self, number: u32) -> Recorder {
        Recorder::journaled(Scope::key(), MemberId(number), &self.journal())
    }

    fn append(&self, text: &str) {
        (&*self.journal().0).write_all(text.as_bytes()).unwrap();
    }

    fn read(&self) -> io::Result<Vec<String>> {
        read(&mut Reader::open(&self.path).unwrap())
    }

    /// With two messages that have to be delivered.
    fn verdict(&self) -> Verdict {
        let judge = Recorder::new(Scope::key());
        judge.produced_range(queue(), Offset::ZERO, Position::new(2).unwrap());
        Reader::open(&self.path).unwrap().read(|_, event| judge.note(event)).unwrap();
        judge.verdict()
    }
}

fn read(reader: &mut Reader) -> io::Result<Vec<String>> {
    let mut seen = Vec::new();
    reader.read(|member, event| seen.push(format!("{} {event:?}", member.0)))?;
    Ok(seen)
}

fn queue() -> QueueId {
    QueueId::new("journal", 0)
}

fn message(offset: u64) -> Message {
    Message::new(queue(), Offset::new(offset).unwrap()).with_key("a")
}

fn assigned(member: u32, epoch: u32) -> Event<'static> {
    let (member, epoch) = (MemberId(member), Epoch(epoch));
    Event::Assigned { member, queue: queue(), epoch, found: Found::Nothing, start: None }
}

/// Writes these events of member 0 and reads them again. An epoch 1 has begun before.
#[track_caller]
fn check_round_trip(events: &[Event<'_>]) {
    let stage = Stage::new();
    let (member, queue, epoch) = (MemberId(0), awkward(), Epoch(1));
    let begins =
        Event::Assigned { member, queue, epoch, found: Found::Unknown, start: Position::new(5) };
    let events = || std::iter::once(&begins).chain(events);
    events().for_each(|event| stage.journal().write(member, event));
    let expected: Vec<_> = events().map(|event| format!("0 {event:?}")).collect();
    assert_eq!(stage.read().unwrap(), expected);
}

/// A queue whose names have what a line is made of.
fn awkward() -> QueueId {
    QueueId::on_broker("top ic/;@\n", "bro%ker", 7)
}

fn offset(at: u64) -> Offset {
    Offset::new(at).unwrap()
}

fn position(at: u64) -> Position {
    Position::new(at).unwrap()
}

#[test]
fn what_is_written_of_a_queue_is_read() {
    let (member, queue, epoch) = (MemberId(0), awkward(), Epoch(1));
    let watermark = Watermark::new(5).unwrap();
    let messages = [0, 1, 2, 7, 9].map(|n| Message::new(queue, offset(n)));
    let fetched =
        |messages, end| Event::Fetched { queue, epoch, messages, position: position(end) };
    let committed = |step| Event::Committed { queue, epoch, watermark, step };
    let out_of_range =
        ResetCause::OutOfRange { asked: position(1), begin: position(2), end: Offset::MAX.next() };
    let moved = ResetCause::Moved { to: position(8) };
    let recreated = ResetCause::Recreated { begin: offset(6) };
    check_round_trip(&[
        Event::Produced { queue, first: offset(2), end: position(4) },
        fetched(&messages, 12),
        fetched(&[], 13),
        committed(CommitStep::Asked),
        committed(CommitStep::Stored),
        committed(CommitStep::Failed),
        Event::Reset { queue, epoch, cause: &out_of_range },
        Event::Reset { queue, epoch, cause: &moved },
        Event::Reset { queue, epoch, cause: &recreated },
        Event::Revoked { queue, epoch },
        Event::Lost { queue, epoch },
        Event::Closing { member },
        Event::Stopped { member },
        Event::Crashed { member },
    ]);
    for found in [Found::At(watermark), Found::Nothing] {
        let (epoch, start) = (Epoch(2), None);
        check_round_trip(&[Event::Assigned { member, queue, epoch, found, start }]);
    }
}

#[test]
fn what_is_written_of_calls_is_read() {
    let (member, queue, epoch, at) = (MemberId(0), awkward(), Epoch(1), offset(3));
    let (key, empty) = (Lane::key(&b"a key \xff;\n"[..]), Lane::key(""));
    let delivered = |lane, shard, attempt| {
        let call = CallId(4);
        let offset = at;
        Event::Delivered(Delivered { member, call, queue, epoch, offset, lane, shard, attempt })
    };
    let settled = |call, lane, outcome| {
        let offset = at;
        Event::Settled(Settled { member, call, queue, epoch, offset, lane, outcome })
    };
    let offsets = [offset(3), offset(4), offset(6)];
    check_round_trip(&[
        delivered(&key, 3, 2),
        delivered(&Lane::Queue, 0, 0),
        delivered(&Lane::Free, 0, 1),
        settled(Some(CallId(4)), &key, Outcome::Done),
        settled(Some(CallId(4)), &key, Outcome::Held),
        settled(Some(CallId(4)), &key, Outcome::Skipped),
        settled(Some(CallId(4)), &key, Outcome::Failed),
        settled(Some(CallId(4)), &key, Outcome::Ignored),
        settled(None, &empty, Outcome::DeadLettered),
        settled(None, &Lane::Queue, Outcome::GivenUp),
        Event::Rewound { queue, lane: &key, offsets: &offsets },
    ]);
}

#[test]
fn epochs_and_calls_of_several_members_are_told_apart() {
    let stage = Stage::new();
    let (first, second) = (stage.member(1), stage.member(2));
    first.note(&assigned(1, 1));
    let call = first.begin(&message(0), 0, 1);
    second.note(&assigned(2, 1));
    second.begin(&message(0), 0, 1).settle(Outcome::Done);
    call.settle(Outcome::Done);
    first.note(&assigned(1, 2));
    let mut seen = Vec::new();
    Reader::open(&stage.path)
        .unwrap()
        .read(|member, event| {
            seen.push(match event {
                Event::Assigned { epoch, .. } => (member.0, epoch.0, None),
                Event::Delivered(Delivered { epoch, call, .. }) => {
                    (member.0, epoch.0, Some(call.0))
                }
                Event::Settled(Settled { epoch, call, .. }) => {
                    (member.0, epoch.0, call.map(|call| call.0))
                }
                other => panic!("{other:?}"),
            });
        })
        .unwrap();
    let (one, two) = (Some((1 << 40) + 1), Some((2 << 40) + 1));
    let expected = [
        (1, 1, None),
        (1, 1, one),
        (2, 2, None),
        (2, 2, two),
        (2, 2, two),
        (1, 1, one),
        (1, 3, None),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_torn_line_is_passed_over_and_one_that_grows_is_awaited() {
    let stage = Stage::new();
    let journal = stage.journal();
    journal.crashed(MemberId(1));
    let mut reader = Reader::open(&stage.path).unwrap();
    assert_eq!(read(&mut reader).unwrap(), ["1 Crashed { member: MemberId(1) }"]);
    stage.append("\n2 cra");
    assert!(read(&mut reader).unwrap().is_empty());
    stage.append("shed ;");
    assert_eq!(read(&mut reader).unwrap(), ["2 Crashed { member: MemberId(2) }"]);
    // Killed inside a number: half of it is one, too.
    stage.append("\n3 produced journal/0 0 10");
    assert!(read(&mut reader).unwrap().is_empty());
    journal.crashed(MemberId(4));
    assert_eq!(read(&mut reader).unwrap(), ["4 Crashed { member: MemberId(4) }"]);
    assert!(read(&mut reader).unwrap().is_empty());
    assert_eq!(stage.read().unwrap().len(), 3);
}

#[test]
fn a_line_that_is_none_is_an_error_that_shows_it() {
    for line in [
        "x crashed",
        "1 perhaps",
        "1 produced journal/0 0",
        "1 produced journal 0 1",
        "1 produced journal/%f/0 0 1",
        "1 fetched journal/0 1 3 4",
        "1 delivered - journal/0 1 3 key:a 0 1",
        "1 settled 1 journal/0 1 3 key:a well",
        "1 settled 1 journal/0 1 3 a done",
        "1 reset journal/0 1 moved",
        "1 committed journal/0 1 9223372036854775809 asked",
    ] {
        let stage = Stage::new();
        stage.append(&format!("\n{line} ;"));
        let error = stage.read().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(line), "{error}");
    }
}

#[test]
fn a_journal_is_judged() {
    let begins = |recorder: &Recorder| recorder.note(&assigned(1, 1));
    let commit = |recorder: &Recorder, step| {
        let (queue, epoch, watermark) = (queue(), Epoch(1), Watermark::new(2).unwrap());
        recorder.note(&Event::Committed { queue, epoch, watermark, step });
    };
    let commits = |recorder: &Recorder| {
        commit(recorder, CommitStep::Asked);
        commit(recorder, CommitStep::Stored);
    };
    let told = |what: &dyn Fn(&Stage, &Recorder)| {
        let stage = Stage::new();
        let recorder = stage.member(1);
        begins(&recorder);
        what(&stage, &recorder);
        stage.verdict()
    };
    let well = told(&|_, recorder| {
        done(recorder, 0);
        done(recorder, 1);
        commits(recorder);
        recorder.stopped();
    });
    well.assert_clean();
    assert_eq!((well.delivered, well.committed), (2, true));
    let overlaps = told(&|_, recorder| {
        let first = recorder.begin(&message(0), 0, 1);
        done(recorder, 1);
        first.settle(Outcome::Done);
        commits(recorder);
    });
    assert_eq!((overlaps.order_violations, overlaps.overlap_violations), (1, 1));
    let early = told(&|_, recorder| {
        done(recorder, 0);
        let second = recorder.begin(&message(1), 0, 1);
        commits(recorder);
        second.settle(Outcome::Done);
    });
    assert!(early.commit_violations > 0, "{early}");
    // Killed in the second call, which another member does again, or nobody.
    let killed = |stage: &Stage, recorder: &Recorder| {
        done(recorder, 0);
        std::mem::forget(recorder.begin(&message(1), 0, 1));
        stage.journal().crashed(MemberId(1));
    };
    let cut = told(&killed);
    assert_eq!((cut.delivered, cut.lost), (1, 1));
    let again = told(&|stage, recorder| {
        killed(stage, recorder);
        let successor = stage.member(2);
        successor.note(&assigned(2, 1));
        done(&successor, 0);
        done(&successor, 1);
        commits(&successor);
    });
    again.assert_clean();
    assert_eq!((again.delivered, again.duplicates), (2, 1));
}

#[test]
fn what_a_source_and_a_crash_say_is_written() {
    let (stage, script) = (Stage::new(), Script::new());
    script.assign(queue());
    script.produce(queue(), "a", "one");
    let recorder = stage.member(1);
    let mut source = Recorded::new(script.source(), &recorder);
    let (limits, mut events) = (FetchLimits { messages: 9, bytes: usize::MAX }, Vec::new());
    source.poll(limits, Duration::ZERO, &mut events).unwrap();
    source.seek(queue(), SeekTo::Earliest);
    source.poll(limits, Duration::ZERO, &mut events).unwrap();
    source.close(Duration::ZERO, &mut events).unwrap();
    let successor = recorder.crash();
    done(&recorder, 0);
    done(&successor, 0);
    let said = stage.read().unwrap();
    let words: Vec<_> = said.iter().map(|event| &event[..event.len().min(9)]).collect();
    let expected =
        ["1 Assigne", "1 Fetched", "1 Closing", "1 Stopped", "1 Crashed", "2 Deliver", "2 Settled"];
    assert_eq!(words, expected);
}

fn done(recorder: &Recorder, offset: u64) {
    recorder.begin(&message(offset), 0, 1).settle(Outcome::Done);
}
