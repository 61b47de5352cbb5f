//! Drives a source as an engine would, and waits for what a rule needs to see.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use keylane_source::{
    Commit, CommitTag, Committed, Fetch, FetchLimits, Message, Offset, Position, QueueId, SeekTo,
    Source, SourceError, SourceEvent, Watermark,
};

use super::fixture::{Capability, Fixture, Record};

/// As much as anybody wants.
pub(super) const WIDE: FetchLimits = FetchLimits { messages: 1_000, bytes: 1 << 20 };
/// Longer than any test may take: a wait that nothing ends is seen as a hang.
pub(super) const FOR_EVER: Duration = Duration::from_secs(24 * 3_600);
/// How long a single poll waits while something is awaited.
const STEP: Duration = Duration::from_millis(100);

/// Whether the fixture has it; says why the rule is skipped where it has not.
pub(super) fn has<F: Fixture>(capability: Capability) -> bool {
    let reason = F::capabilities().reason(capability);
    if let Some(reason) = reason {
        skipped(capability, reason);
    }
    reason.is_none()
}

#[expect(clippy::print_stderr, reason = "a test that skips says so where tests speak")]
fn skipped(capability: Capability, reason: &str) {
    eprintln!("skipped, for want of {capability:?}: {reason}");
}

/// A source, its events in order, and how far each queue was read.
pub(super) struct Driver<F: Fixture> {
    pub(super) source: F::Source,
    pub(super) limits: FetchLimits,
    /// Arrived and not looked at.
    inbox: VecDeque<SourceEvent>,
    /// The next offset of each queue, as the engine counts it: what is below has come already.
    next: HashMap<QueueId, Position>,
    tags: u64,
}

impl<F: Fixture> Driver<F> {
    pub(super) fn new(source: F::Source) -> Self {
        let (inbox, next) = (VecDeque::new(), HashMap::new());
        Self { source, limits: WIDE, inbox, next, tags: 0 }
    }

    /// A member of the group that has been assigned every queue, with what each had committed.
    pub(super) fn assigned(fixture: &mut F) -> (Self, HashMap<QueueId, Committed>) {
        let mut driver = Self::new(fixture.source());
        let mut found = HashMap::new();
        while found.len() < fixture.queues().len() {
            let (queue, committed) =
                driver.expect("the queue to be assigned", |event| match event {
                    SourceEvent::Assigned { queue, committed } => Ok((queue, committed)),
                    other => Err(other),
                });
            let again = found.insert(queue, committed).is_some();
            assert!(!again, "{queue} was assigned twice without being taken away");
        }
        (driver, found)
    }

    /// A member that reads every queue from its first message on.
    pub(super) fn reading(fixture: &mut F) -> Self {
        let (mut driver, _) = Self::assigned(fixture);
        fixture.queues().into_iter().for_each(|queue| driver.seek(queue, SeekTo::Earliest));
        driver
    }

    pub(super) fn seek(&mut self, queue: QueueId, to: SeekTo) {
        // What arrived before belongs to what was read before.
        self.inbox.retain(|event| !matches!(event, SourceEvent::Fetched(f) if f.queue == queue));
        self.next.remove(&queue);
        self.source.seek(queue, to);
    }

    /// Polls once; what it brings is put into the inbox.
    pub(super) fn poll(&mut self, wait: Duration) {
        let mut events = Vec::new();
        match self.source.poll(self.limits, wait, &mut events) {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {}
            Err(error) => panic!("poll reports a fatal error: {error}"),
        }
        self.inbox.extend(events);
    }

    /// Waits for an event that `pick` takes; the others stay in the inbox. Fetches are checked.
    #[track_caller]
    pub(super) fn expect<T>(
        &mut self,
        what: &str,
        mut pick: impl FnMut(SourceEvent) -> Result<T, SourceEvent>,
    ) -> T {
        let deadline = Instant::now() + F::patience();
        let mut passed = VecDeque::new();
        loop {
            while let Some(event) = self.inbox.pop_front() {
                match pick(event) {
                    Ok(found) => {
                        passed.append(&mut self.inbox);
                        self.inbox = passed;
                        return found;
                    }
                    Err(event) => passed.push_back(event),
                }
            }
            if Instant::now() >= deadline {
                panic!("waited {:?} in vain for {what}; there came {passed:?}", F::patience());
            }
            self.poll(STEP);
        }
    }

    /// Listens for events that must not come: `wrong` names what is wrong about one, if it is.
    #[track_caller]
    pub(super) fn expect_none(&mut self, what: &str, mut wrong: impl FnMut(&SourceEvent) -> bool) {
        let (polls, wait) = F::listening();
        for _ in 0..=polls {
            if let Some(event) = self.inbox.iter().find(|event| wrong(event)) {
                panic!("{what}, but there came {event:?}");
            }
            self.poll(wait);
        }
    }

    /// Waits for the next fetch of this queue and checks that it is in order; what had come before
    /// is taken out.
    #[track_caller]
    pub(super) fn fetch(&mut self, queue: QueueId) -> Fetch {
        let mut fetch = self.expect(&format!("a fetch of {queue}"), |event| match event {
            SourceEvent::Fetched(fetch) if fetch.queue == queue => Ok(fetch),
            other => Err(other),
        });
        check_fetch(&fetch);
        let next = self.next.entry(queue).or_insert(Position::ZERO);
        fetch.messages.retain(|message| Position::from(message.offset()) >= *next);
        *next = fetch.position.max(*next);
        fetch
    }

    /// Reads until so many messages of the queue have come.
    #[track_caller]
    pub(super) fn read(&mut self, queue: QueueId, messages: usize) -> Vec<Message> {
        let mut read = Vec::new();
        while read.len() < messages {
            read.append(&mut self.fetch(queue).messages);
        }
        read
    }

    /// Reads until so many messages of the queue have come, and gives their offsets.
    #[track_caller]
    pub(super) fn read_offsets(&mut self, queue: QueueId, messages: usize) -> Vec<Offset> {
        self.read(queue, messages).iter().map(Message::offset).collect()
    }

    /// Reads until the position of the queue is this one.
    #[track_caller]
    pub(super) fn read_to(&mut self, queue: QueueId, position: Position) -> Vec<Message> {
        let mut read = Vec::new();
        while self.next.get(&queue) != Some(&position) {
            read.append(&mut self.fetch(queue).messages);
            let now = self.next[&queue];
            assert!(now <= position, "{queue}: the position is {now}, behind the end {position}");
        }
        read
    }

    /// The messages of this queue that have arrived already.
    pub(super) fn arrived(&mut self, queue: QueueId) -> Vec<Message> {
        let mut messages = Vec::new();
        while self.inbox.iter().any(|e| matches!(e, SourceEvent::Fetched(f) if f.queue == queue)) {
            messages.append(&mut self.fetch(queue).messages);
        }
        messages
    }

    /// Listens whether this queue is taken away, too.
    pub(super) fn keeps(&mut self, queue: QueueId) -> bool {
        let (polls, wait) = F::listening();
        (0..polls).for_each(|_| self.poll(wait));
        !self.inbox.iter().any(|event| match event {
            SourceEvent::Revoking { queue: going } => *going == queue,
            _ => false,
        })
    }

    pub(super) fn commit(
        &mut self,
        queue: QueueId,
        watermark: Watermark,
        metadata: &str,
    ) -> Commit {
        self.tags += 1;
        let (metadata, tag) = (metadata.to_owned(), CommitTag(self.tags));
        let commit = Commit { queue, watermark, metadata, tag };
        self.source.commit(commit.clone());
        commit
    }

    /// Waits for the result of this commit.
    #[track_caller]
    pub(super) fn result(&mut self, expected: &Commit) -> Result<(), SourceError> {
        let what = format!("the result of {expected:?}");
        let (commit, result) = self.expect(&what, |event| match event {
            SourceEvent::CommitResult { commit, result } if commit.tag == expected.tag => {
                Ok((commit, result))
            }
            other => Err(other),
        });
        assert_eq!(&commit, expected, "the result names another commit than was asked for");
        result
    }

    /// Commits and waits until it is stored.
    #[track_caller]
    pub(super) fn commit_now(&mut self, queue: QueueId, watermark: Watermark) {
        let commit = self.commit(queue, watermark, "");
        if let Err(error) = self.result(&commit) {
            panic!("commit {queue} at {watermark}: {error}");
        }
    }
}

/// What holds for every fetch.
#[track_caller]
fn check_fetch(fetch: &Fetch) {
    let offsets: Vec<_> = fetch.messages.iter().map(Message::offset).collect();
    let ascending = offsets.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(ascending, "{}: offsets do not ascend: {offsets:?}", fetch.queue);
    let stray = fetch.messages.iter().find(|message| message.queue() != fetch.queue);
    assert!(stray.is_none(), "a fetch of {} has a message of another queue", fetch.queue);
    let last = offsets.last().map_or(Position::ZERO, |last| last.next());
    assert!(
        fetch.position >= last,
        "{}: the position {} is not behind the last message, {last}",
        fetch.queue,
        fetch.position
    );
}

/// Picks fetches of this queue.
pub(super) fn fetched_of(queue: QueueId) -> impl FnMut(&SourceEvent) -> bool {
    move |event| matches!(event, SourceEvent::Fetched(fetch) if fetch.queue == queue)
}

/// Picks fetches of this queue that bring messages.
pub(super) fn messages_of(queue: QueueId) -> impl FnMut(&SourceEvent) -> bool {
    move |event| match event {
        SourceEvent::Fetched(fetch) => fetch.queue == queue && !fetch.messages.is_empty(),
        _ => false,
    }
}

/// The watermark once this message is finished and all before it.
pub(super) fn behind(offset: Offset) -> Watermark {
    offset.next().into()
}

/// Produces so many records and gives their offsets.
pub(super) fn produce<F: Fixture>(fixture: &mut F, queue: QueueId, records: usize) -> Vec<Offset> {
    let record = |n: usize| Record::new().with_key("key").with_payload(format!("payload {n}"));
    (0..records).map(|n| fixture.produce(queue, record(n))).collect()
}

/// Runs it on a thread of its own, and panics when it hangs. (The thread is then left to itself.)
#[track_caller]
pub(super) fn within<T: Send + 'static>(
    patience: Duration,
    what: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, finished) = mpsc::channel();
    let worker = thread::spawn(move || _ = done.send(run()));
    match finished.recv_timeout(patience) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: not over after {patience:?}"),
        Err(RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("a worker that returns has sent its result"),
        },
    }
}
