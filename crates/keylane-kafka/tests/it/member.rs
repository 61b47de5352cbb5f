//! A source in the hands of a test: polls until something has happened, keeps what was told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use keylane_kafka::{KafkaSource, KafkaSourceBuilder};
use keylane_source::{
    Commit, CommitTag, Committed, EndOffset, FetchLimits, Message, Position, QueueId, ResetCause,
    SeekTo, Source, SourceError, SourceEvent, Watermark,
};

/// How long anything may take before a test has failed.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const ALL: FetchLimits = FetchLimits { messages: 1_000, bytes: 1 << 20 };

pub(crate) struct Member {
    pub(crate) source: KafkaSource,
    pub(crate) limits: FetchLimits,
    /// What was assigned and not taken away since.
    pub(crate) owned: BTreeMap<QueueId, Committed>,
    pub(crate) looked_up: Vec<(QueueId, Committed)>,
    pub(crate) messages: BTreeMap<QueueId, Vec<Message>>,
    pub(crate) positions: BTreeMap<QueueId, Position>,
    pub(crate) ends: BTreeMap<QueueId, EndOffset>,
    pub(crate) results: Vec<(Commit, Result<(), SourceError>)>,
    pub(crate) revoking: Vec<QueueId>,
    pub(crate) lost: Vec<QueueId>,
    pub(crate) resets: Vec<(QueueId, ResetCause)>,
    pub(crate) queue_errors: Vec<(QueueId, SourceError)>,
    pub(crate) errors: Vec<SourceError>,
    /// Whether assigned queues are started at their commit, or at their begin without one.
    pub(crate) starts: bool,
    /// Whether a revoke is answered at once.
    pub(crate) releases: bool,
}

pub(crate) fn queue(index: u32) -> QueueId {
    QueueId::new("t", index)
}

pub(crate) fn position(n: u64) -> Position {
    Position::new(n).unwrap()
}

pub(crate) fn commit(queue: QueueId, watermark: u64, metadata: &str) -> Commit {
    let watermark = Watermark::new(watermark).unwrap();
    Commit { queue, watermark, metadata: metadata.to_owned(), tag: CommitTag(watermark.get()) }
}

impl Member {
    pub(crate) fn new(builder: KafkaSourceBuilder) -> Self {
        Self {
            source: builder.build().unwrap(),
            limits: ALL,
            owned: BTreeMap::new(),
            looked_up: Vec::new(),
            messages: BTreeMap::new(),
            positions: BTreeMap::new(),
            ends: BTreeMap::new(),
            results: Vec::new(),
            revoking: Vec::new(),
            lost: Vec::new(),
            resets: Vec::new(),
            queue_errors: Vec::new(),
            errors: Vec::new(),
            starts: true,
            releases: true,
        }
    }

    /// A member that has been assigned this many queues.
    pub(crate) fn joined(builder: KafkaSourceBuilder, queues: usize) -> Self {
        let mut member = Self::new(builder);
        member.until("queues are assigned", |m| m.owned.len() == queues);
        member
    }

    pub(crate) fn poll(&mut self, wait: Duration) {
        let mut events = Vec::new();
        if let Err(error) = self.source.poll(self.limits, wait, &mut events) {
            assert!(events.is_empty(), "an error and events in one poll");
            self.errors.push(error);
        }
        for event in events {
            self.note(event);
        }
    }

    pub(crate) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "never happened: {what}; {}", self.shown());
            self.poll(Duration::from_millis(50));
        }
    }

    fn note(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Assigned { queue, committed } => {
                let to = match &committed {
                    Committed::At { watermark, .. } => SeekTo::Position((*watermark).into()),
                    _ => SeekTo::Earliest,
                };
                let known = self.owned.insert(queue, committed);
                assert!(known.is_none(), "{queue} assigned twice");
                if self.starts {
                    self.source.seek(queue, to);
                }
            }
            SourceEvent::LookedUp { queue, committed } => self.looked_up.push((queue, committed)),
            SourceEvent::Fetched(fetch) => {
                assert!(self.owned.contains_key(&fetch.queue), "fetched before it was assigned");
                self.positions.insert(fetch.queue, fetch.position);
                self.ends.insert(fetch.queue, fetch.end);
                self.messages.entry(fetch.queue).or_default().extend(fetch.messages);
            }
            SourceEvent::Revoking { queue } => {
                self.revoking.push(queue);
                if self.releases {
                    self.release(queue);
                }
            }
            SourceEvent::Lost { queue } => {
                // Released as an answer to a `Revoking` of the same poll, it may be lost behind it.
                let released = self.releases && self.revoking.contains(&queue);
                let owned = self.owned.remove(&queue).is_some();
                assert!(owned || released, "{queue} lost and not owned");
                self.lost.push(queue);
            }
            SourceEvent::Reset { queue, cause } => self.resets.push((queue, cause)),
            SourceEvent::CommitResult { commit, result } => self.results.push((commit, result)),
            SourceEvent::QueueError { queue, error } => self.queue_errors.push((queue, error)),
            SourceEvent::End { queue, end } => {
                assert!(self.owned.contains_key(&queue), "an end before it was assigned");
                self.ends.insert(queue, end);
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn release(&mut self, queue: QueueId) {
        self.owned.remove(&queue);
        self.source.release(queue);
    }

    pub(crate) fn close(&mut self) -> Result<(), SourceError> {
        let mut events = Vec::new();
        let result = self.source.close(Duration::from_secs(10), &mut events);
        for event in events {
            self.note(event);
        }
        result
    }

    /// Commits and waits for the result.
    pub(crate) fn commit(&mut self, commit: Commit) -> Result<(), SourceError> {
        let (before, tag, queue) = (self.results.len(), commit.tag, commit.queue);
        self.source.commit(commit);
        self.until("the commit is answered", |m| m.results.len() > before);
        let (answered, result) = self.results.pop().unwrap();
        assert_eq!((answered.tag, answered.queue), (tag, queue));
        result
    }

    pub(crate) fn offsets(&self, queue: QueueId) -> Vec<u64> {
        let all = self.messages.get(&queue).map(Vec::as_slice).unwrap_or_default();
        all.iter().map(|message| message.offset().get()).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.messages.values().map(Vec::len).sum()
    }

    fn shown(&self) -> String {
        format!(
            "owned {:?}, messages {}, positions {:?}, revoking {:?}, lost {:?}, resets {:?}, \
             results {:?}, queue errors {:?}, errors {:?}",
            self.owned,
            self.count(),
            self.positions,
            self.revoking,
            self.lost,
            self.resets,
            self.results,
            self.queue_errors,
            self.errors
        )
    }
}

/// Polls both in turn until it has happened.
pub(crate) fn both_until(
    a: &mut Member,
    b: &mut Member,
    what: &str,
    done: impl Fn(&Member, &Member) -> bool,
) {
    let start = Instant::now();
    while !done(a, b) {
        let late = start.elapsed() >= PATIENCE;
        assert!(!late, "never happened: {what}\n a: {}\n b: {}", a.shown(), b.shown());
        a.poll(Duration::from_millis(10));
        b.poll(Duration::from_millis(10));
    }
}
