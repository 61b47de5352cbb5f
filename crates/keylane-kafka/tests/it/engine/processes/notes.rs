//! The log that members share: what each of them sees, written before it acts.
//!
//! Every line has [`WIDTH`] bytes and is appended with one write, so that lines of several processes
//! never mix, and a line of one that is killed is there as a whole or not at all.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylane_source::{
    Commit, Committed, FetchLimits, Message, Offset, Position, QueueId, SeekTo, Source,
    SourceError, SourceEvent, SourceWaker, Watermark,
};
use keylane_testkit::guarantee::{
    CallId, CommitStep, Delivered, Epoch, Event, Found, Lane, MemberId, Outcome, Settled,
};
use keylane_testkit::recorder::Recorder;

/// A part of a page, so that no line lies across two.
const WIDTH: usize = 128;

/// Appends lines.
#[derive(Clone)]
pub(super) struct Log {
    file: Arc<File>,
    member: usize,
    calls: Arc<AtomicU64>,
}

impl Log {
    pub(super) fn open(path: &Path) -> Self {
        Self::of_member(path, usize::MAX)
    }

    pub(super) fn of_member(path: &Path, member: usize) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        Self { file: Arc::new(file), member, calls: Arc::default() }
    }

    fn line(&self, text: &str) {
        let line = format!("{text:<width$}\n", width = WIDTH - 1);
        assert_eq!(line.len(), WIDTH, "{text}");
        (&*self.file).write_all(line.as_bytes()).unwrap();
    }

    /// A call begins; its number.
    pub(super) fn begin(&self, message: &Message, shard: usize, attempt: u32) -> u64 {
        // Numbers of one member differ from those of every other.
        let call = self.calls.fetch_add(1, Ordering::Relaxed) * 100 + self.member as u64;
        let key = String::from_utf8_lossy(message.key().unwrap_or_default());
        let (queue, offset) = (message.queue(), message.offset());
        let topic = queue.topic();
        let (member, index) = (self.member, queue.index());
        self.line(&format!(
            "begin {member} {topic} {index} {call} {offset} {shard} {attempt} {key}"
        ));
        call
    }

    pub(super) fn done(&self, call: u64, message: &Message) {
        let (queue, member) = (message.queue(), self.member);
        self.line(&format!("done {member} {} {} {call}", queue.topic(), queue.index()));
    }

    /// This member was killed, and is no more.
    pub(super) fn killed(&self, member: usize) {
        self.line(&format!("killed {member}"));
    }

    fn of_queue(&self, what: &str, queue: QueueId, more: &str) {
        let (member, topic, index) = (self.member, queue.topic(), queue.index());
        self.line(&format!("{what} {member} {topic} {index} {more}"));
    }
}

/// Wraps a member's source: notes where queues begin and end, and what is committed.
pub(super) struct Noted {
    source: keylane_kafka::KafkaSource,
    log: Log,
    /// What was found committed where a queue was assigned and not started yet.
    found: HashMap<QueueId, Option<Watermark>>,
}

impl Noted {
    pub(super) fn new(source: keylane_kafka::KafkaSource, log: Log) -> Self {
        Self { source, log, found: HashMap::new() }
    }

    fn note(&mut self, event: &SourceEvent) {
        match event {
            SourceEvent::Assigned { queue, committed }
            | SourceEvent::LookedUp { queue, committed } => {
                let found = match committed {
                    Committed::At { watermark, .. } => Some(*watermark),
                    _ => None,
                };
                self.found.insert(*queue, found);
            }
            SourceEvent::Lost { queue } => self.log.of_queue("lost", *queue, ""),
            SourceEvent::Reset { queue, cause } => panic!("{queue}: {cause:?}"),
            SourceEvent::CommitResult { commit, result } => {
                let word = if result.is_ok() { "stored" } else { "failed" };
                self.note_commit(word, commit);
            }
            _ => {}
        }
    }

    fn note_commit(&self, word: &str, commit: &Commit) {
        let more = format!("{} {}", commit.watermark, commit.tag.0);
        self.log.of_queue(word, commit.queue, &more);
    }
}

impl Source for Noted {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let before = events.len();
        let polled = self.source.poll(limits, wait, events);
        events[before..].iter().for_each(|event| self.note(event));
        polled
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        if let Some(found) = self.found.remove(&queue) {
            let found = found.map_or("-".to_owned(), |mark| mark.to_string());
            let start = match to {
                SeekTo::Position(position) => position.to_string(),
                _ => "-".to_owned(),
            };
            self.log.of_queue("starts", queue, &format!("{found} {start}"));
        }
        self.source.seek(queue, to);
    }

    fn pause(&mut self, queue: QueueId) {
        self.source.pause(queue);
    }

    fn resume(&mut self, queue: QueueId) {
        self.source.resume(queue);
    }

    fn commit(&mut self, commit: Commit) {
        self.note_commit("asked", &commit);
        self.source.commit(commit);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        self.source.look_up_committed(queue);
    }

    fn release(&mut self, queue: QueueId) {
        self.log.of_queue("released", queue, "");
        self.source.release(queue);
    }

    fn waker(&self) -> SourceWaker {
        self.source.waker()
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let before = events.len();
        let closed = self.source.close(timeout, events);
        events[before..].iter().for_each(|event| self.note(event));
        self.log.line(&format!("stopped {}", self.log.member));
        closed
    }
}

/// How many calls this member has begun.
pub(super) fn calls_of(log: &Path, member: usize) -> usize {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let begin = format!("begin {member} ");
    text.lines().filter(|line| line.starts_with(&begin)).count()
}

/// Tells the recorder what the log says; gives how many members were killed.
pub(super) fn replay(log: &Path, recorder: &Recorder) -> usize {
    let text = std::fs::read_to_string(log).unwrap();
    let mut replay = Replay { recorder, epochs: HashMap::new(), calls: HashMap::new(), killed: 0 };
    text.lines().for_each(|line| replay.line(&line.split_whitespace().collect::<Vec<_>>()));
    replay.killed
}

struct Replay<'a> {
    recorder: &'a Recorder,
    /// In which epoch each member has each queue, or had it last.
    epochs: HashMap<(u32, QueueId), Epoch>,
    calls: HashMap<u64, Running>,
    killed: usize,
}

/// A call that has begun.
struct Running {
    epoch: Epoch,
    offset: Offset,
    lane: Lane,
}

impl Replay<'_> {
    fn line(&mut self, words: &[&str]) {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let member = MemberId(words[1].parse().unwrap());
        match words[0] {
            "killed" => {
                self.killed += 1;
                return self.recorder.note(&Event::Crashed { member });
            }
            "stopped" => return self.recorder.note(&Event::Stopped { member }),
            _ => {}
        }
        let queue = QueueId::new(words[2], words[3].parse().unwrap());
        let epoch = self.epochs.get(&(member.0, queue)).copied().unwrap_or_default();
        let committed = |step| {
            let watermark = Watermark::new(number(4)).unwrap();
            self.recorder.note(&Event::Committed { queue, epoch, watermark, step });
        };
        match words[0] {
            "starts" => self.starts(member, queue, words),
            "begin" => self.begins(member, queue, epoch, words),
            "done" => {
                let id = number(4);
                let Running { epoch, offset, lane } = self.calls.remove(&id).unwrap();
                let (call, lane, outcome) = (Some(CallId(id)), &lane, Outcome::Done);
                let settled = Settled { member, call, queue, epoch, offset, lane, outcome };
                self.recorder.note(&Event::Settled(settled));
            }
            "asked" => committed(CommitStep::Asked),
            "stored" => committed(CommitStep::Stored),
            "failed" => committed(CommitStep::Failed),
            "released" => self.recorder.note(&Event::Revoked { queue, epoch }),
            "lost" => self.recorder.note(&Event::Lost { queue, epoch }),
            other => panic!("{other}: {words:?}"),
        }
    }

    fn starts(&mut self, member: MemberId, queue: QueueId, words: &[&str]) {
        let number = |at: usize| words[at].parse::<u64>().ok();
        let epoch = Epoch(self.recorder.epoch(queue).0 + 1);
        self.epochs.insert((member.0, queue), epoch);
        let found = number(4).map_or(Found::Nothing, |at| Found::At(Watermark::new(at).unwrap()));
        let start = number(5).map(|at| Position::new(at).unwrap());
        self.recorder.note(&Event::Assigned { member, queue, epoch, found, start });
    }

    fn begins(&mut self, member: MemberId, queue: QueueId, epoch: Epoch, words: &[&str]) {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let (call, offset) = (number(4), Offset::new(number(5)).unwrap());
        let lane = Lane::key(words[8].to_owned());
        let (shard, attempt) = (usize::try_from(number(6)).unwrap(), words[7].parse().unwrap());
        let id = CallId(call);
        let delivered =
            Delivered { member, call: id, queue, epoch, offset, lane: &lane, shard, attempt };
        self.recorder.note(&Event::Delivered(delivered));
        self.calls.insert(call, Running { epoch, offset, lane });
    }
}

#[test]
fn what_a_log_says_is_judged() {
    use keylane_testkit::guarantee::Scope;

    let told = |lines: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Log::of_member(&path, 1);
        lines.iter().for_each(|line| log.line(line));
        let recorder = Recorder::new(Scope::key());
        let end = Position::new(2).unwrap();
        recorder.produced_range(QueueId::new("t", 0), Offset::ZERO, end);
        let killed = replay(&path, &recorder);
        (killed, recorder.verdict())
    };
    let (start, end) = ("starts 1 t 0 - -", ["asked 1 t 0 2 1", "stored 1 t 0 2 1"]);
    let (first, second) = ("begin 1 t 0 101 0 0 1 a", "begin 1 t 0 201 1 0 1 a");
    let (first_done, second_done) = ("done 1 t 0 101", "done 1 t 0 201");
    let (killed, well) =
        told(&[start, first, first_done, second, second_done, end[0], end[1], "stopped 1"]);
    well.assert_clean();
    assert_eq!((killed, well.delivered, well.committed), (0, 2, true));
    // The second while the first runs.
    let (_, overlaps) = told(&[start, first, second, first_done, second_done, end[0], end[1]]);
    assert_eq!((overlaps.order_violations, overlaps.overlap_violations), (1, 1));
    // Committed before it is done.
    let (_, early) = told(&[start, first, first_done, second, end[0], end[1], second_done]);
    assert!(early.commit_violations > 0, "{early}");
    // Killed in the second, which nobody does again.
    let (killed, cut) = told(&[start, first, first_done, second, "killed 1"]);
    assert_eq!((killed, cut.delivered, cut.lost), (1, 1, 1));
}
