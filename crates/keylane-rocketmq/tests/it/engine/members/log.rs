//! The log that members share: what each of them sees, written before it acts.
//!
//! Every line has [`WIDTH`] bytes and is appended with one write: the operating system keeps the
//! lines of several processes in an order that is possible, and one of a process that is killed is
//! there as a whole or not at all.
//!
//! | line (behind it the member's number, and the queue's where it has one) | says |
//! | --- | --- |
//! | `starts` found start | an epoch begins |
//! | `begin` call offset key, `done` call | a listener call |
//! | `asked` watermark, `stored` watermark, `failed` watermark | a commit |
//! | `released`, `lost` | the epoch ends |
//! | `leaves`, `stopped`, `killed` | the member ends |

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylane_rocketmq::RocketMqSource;
use keylane_source::{
    Commit, Committed, FetchLimits, Message, QueueId, QueueLocks, SeekTo, Source, SourceError,
    SourceEvent, SourceWaker, Watermark,
};

/// A part of a page, so that no line lies across two.
const WIDTH: usize = 64;

/// Appends lines.
#[derive(Clone)]
pub(super) struct Log {
    file: Arc<File>,
    member: usize,
    calls: Arc<AtomicU64>,
}

impl Log {
    pub(super) fn of_member(path: &Path, member: usize) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        Self { file: Arc::new(file), member, calls: Arc::default() }
    }

    pub(super) fn line(&self, text: &str) {
        let line = format!("{text:<width$}\n", width = WIDTH - 1);
        assert_eq!(line.len(), WIDTH, "{text}");
        (&*self.file).write_all(line.as_bytes()).unwrap();
    }

    /// A call begins; its number.
    pub(super) fn begin(&self, message: &Message) -> u64 {
        // Numbers of one member differ from those of every other.
        let call = self.calls.fetch_add(1, Ordering::Relaxed) * 100 + self.member as u64;
        let key = String::from_utf8_lossy(message.key().unwrap_or_default());
        self.of_queue("begin", message.queue(), &format!("{call} {} {key}", message.offset()));
        call
    }

    pub(super) fn done(&self, call: u64, message: &Message) {
        self.of_queue("done", message.queue(), &call.to_string());
    }

    /// Something about the member itself.
    fn of_member_itself(&self, what: &str) {
        self.line(&format!("{what} {}", self.member));
    }

    /// This member was killed, and is no more.
    pub(super) fn killed(&self) {
        self.of_member_itself("killed");
    }

    fn of_queue(&self, what: &str, queue: QueueId, more: &str) {
        self.line(&format!("{what} {} {} {more}", self.member, queue.index()));
    }
}

/// Wraps a member's source: notes where queues begin and end, and what is committed.
pub(super) struct Noted {
    source: RocketMqSource,
    log: Log,
    /// What was found committed last.
    found: HashMap<QueueId, Option<Watermark>>,
}

impl Noted {
    pub(super) fn new(source: RocketMqSource, log: Log) -> Self {
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
        self.log.of_queue(word, commit.queue, &commit.watermark.to_string());
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
        let found = self.found.get(&queue).copied().flatten();
        let found = found.map_or("-".to_owned(), |mark| mark.to_string());
        let start = match to {
            SeekTo::Position(position) => position.to_string(),
            _ => "0".to_owned(),
        };
        self.log.of_queue("starts", queue, &format!("{found} {start}"));
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
        // The lock is on its way back only after this: with the next poll.
        self.log.of_queue("released", queue, "");
        self.source.release(queue);
    }

    fn waker(&self) -> SourceWaker {
        self.source.waker()
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        self.source.locks()
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.log.of_member_itself("leaves");
        let before = events.len();
        let closed = self.source.close(timeout, events);
        events[before..].iter().for_each(|event| self.note(event));
        self.log.of_member_itself("stopped");
        closed
    }
}

/// Reads what is new in the log.
pub(super) struct Tail {
    pub(super) path: PathBuf,
    read: u64,
    /// How many calls each member has finished.
    pub(super) done: HashMap<usize, usize>,
    /// Who has each queue, as far as the log says.
    pub(super) owners: HashMap<u32, usize>,
}

impl Tail {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, read: 0, done: HashMap::new(), owners: HashMap::new() }
    }

    pub(super) fn look(&mut self) {
        let Ok(mut file) = File::open(&self.path) else { return };
        file.seek(SeekFrom::Start(self.read)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text.truncate(text.len() / WIDTH * WIDTH);
        self.read += text.len() as u64;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let what = words.next().unwrap();
            let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
            let (member, queue) = (number().unwrap(), number());
            let queue = queue.map(|queue| u32::try_from(queue).unwrap());
            match what {
                "done" => *self.done.entry(member).or_default() += 1,
                "starts" => _ = self.owners.insert(queue.unwrap(), member),
                "released" | "lost" => _ = self.owners.remove(&queue.unwrap()),
                "leaves" | "killed" => self.owners.retain(|_, owner| *owner != member),
                _ => {}
            }
        }
    }

    /// How many queues each of these members has.
    pub(super) fn shares(&self, members: &[usize]) -> Vec<usize> {
        let share = |member| self.owners.values().filter(|owner| **owner == member).count();
        members.iter().map(|member| share(*member)).collect()
    }
}
