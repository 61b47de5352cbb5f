//! What an adaptor gives to the suite.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use keylane_source::{Headers, Message, Offset, Position, QueueId, Source, Watermark};

/// A broker, a topic of its own and a group of its own, for one test.
///
/// Every test makes a new one: names must not meet those of another test that runs beside it.
pub trait Fixture: Sized {
    /// The source under test.
    type Source: Source + 'static;

    /// A topic with this many queues, empty, and a group that has committed nothing.
    fn new(queues: u32) -> Self;

    /// Which of the optional things the broker has.
    fn capabilities() -> Capabilities;

    /// The topic's queues, in order.
    fn queues(&self) -> Vec<QueueId>;

    /// Appends a record, waits until the broker has it, and gives its offset.
    fn produce(&mut self, queue: QueueId, record: Record) -> Offset;

    /// A new member of the group, the only one: the one before it is closed or dropped. It is (or
    /// will be, while it is polled) assigned every queue.
    fn source(&mut self) -> Self::Source;

    /// What the broker has stored for the group, asked by another way than the source.
    fn stored(&mut self, queue: QueueId) -> Option<Watermark>;

    /// How long to wait for something that must come. Default 10 s.
    fn patience() -> Duration {
        Duration::from_secs(10)
    }

    /// What the broker answers where the group has committed nothing. Default: `None`, it says so.
    ///
    /// A watermark is for brokers that cannot tell "none" from the start of a queue, as RocketMQ's
    /// before 5.0, which answer 0. Then exactly that is asked of the source:
    /// [`Committed::At`](keylane_source::Committed::At) this watermark.
    fn without_a_commit() -> Option<Watermark> {
        None
    }

    /// How to listen for something that must not come: so many polls, waiting so long in each.
    /// Default: 20 polls that do not wait, right for a source without threads and network.
    fn listening() -> (u32, Duration) {
        (20, Duration::ZERO)
    }

    /// [`Capability::Holes`]: leaves offsets without a message at the end of the queue, and gives
    /// the position behind them.
    fn leave_hole(&mut self, queue: QueueId) -> Position {
        missing(Capability::Holes, queue)
    }

    /// [`Capability::Trim`]: removes every message below this position.
    fn trim(&mut self, queue: QueueId, begin: Position) {
        missing(Capability::Trim, (queue, begin))
    }

    /// [`Capability::FailLookUps`]: lets the next look-up of the group's offset fail, the one that
    /// comes with the assignment included.
    fn fail_next_look_up(&mut self, queue: QueueId) {
        missing(Capability::FailLookUps, queue)
    }

    /// [`Capability::FailCommits`]: lets the next commit of this queue fail.
    fn fail_next_commit(&mut self, queue: QueueId) {
        missing(Capability::FailCommits, queue)
    }

    /// [`Capability::Silence`]: lets the broker answer nothing any more.
    fn fall_silent(&mut self) {
        missing(Capability::Silence, ())
    }

    /// [`Capability::Revoke`]: lets the group take one queue (or more) away from the source, as for
    /// a new member.
    fn revoke_one(&mut self) {
        missing(Capability::Revoke, ())
    }

    /// [`Capability::Lose`]: takes one queue (or more) away at once.
    fn lose_one(&mut self) {
        missing(Capability::Lose, ())
    }

    /// [`Capability::MoveOffset`]: moves the group's offset, as an operator does.
    fn move_offset(&mut self, queue: QueueId, to: Position) {
        missing(Capability::MoveOffset, (queue, to))
    }

    /// [`Capability::Locks`]: lets somebody else hold the queue's lock, until it is released by
    /// [`lock_elsewhere`](Self::lock_elsewhere) of another queue or the test ends.
    fn lock_elsewhere(&mut self, queue: QueueId) {
        missing(Capability::Locks, queue)
    }

    /// [`Capability::Locks`]: whether the broker holds the queue's lock for the source.
    fn is_locked(&mut self, queue: QueueId) -> bool {
        missing(Capability::Locks, queue)
    }
}

fn missing<T>(capability: Capability, _: impl Sized) -> T {
    panic!("the fixture declares {capability:?}, but does not implement its method")
}

/// Something that a broker may have or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// [`Fixture::produce`] may be called while a source reads.
    ProduceLate,
    /// A fetch never brings more messages than its limit (and not only about as many).
    ExactLimits,
    /// What is committed beside a watermark is given back.
    Metadata,
    /// A key may be any bytes.
    BinaryKeys,
    /// An empty key is told apart from none.
    EmptyKeys,
    /// A payload of `None` is told apart from an empty one.
    NullPayloads,
    /// Headers, in order, with names that repeat and values that are missing.
    Headers,
    /// Timestamps that the producer sets.
    Timestamps,
    /// [`SeekTo::TimestampMs`](keylane_source::SeekTo::TimestampMs).
    SeekByTime,
    /// [`EndOffset::At`](keylane_source::EndOffset::At) is told in the end.
    Ends,
    /// [`Fixture::leave_hole`].
    Holes,
    /// [`Fixture::trim`].
    Trim,
    /// [`Fixture::fail_next_look_up`].
    FailLookUps,
    /// [`Fixture::fail_next_commit`].
    FailCommits,
    /// [`Fixture::fall_silent`].
    Silence,
    /// [`Fixture::revoke_one`].
    Revoke,
    /// [`Fixture::lose_one`].
    Lose,
    /// [`Fixture::move_offset`].
    MoveOffset,
    /// [`QueueLocks`](keylane_source::QueueLocks), with [`Fixture::lock_elsewhere`] and
    /// [`Fixture::is_locked`].
    Locks,
}

/// What a broker has, and why it has not the rest.
///
/// ```
/// use keylane_testkit::conformance::{Capabilities, Capability};
///
/// let log = Capabilities::all()
///     .without(Capability::Holes, "every offset of the log holds a record")
///     .without(Capability::Locks, "one process owns a log");
/// assert!(log.has(Capability::Headers));
/// ```
#[derive(Debug, Clone)]
pub struct Capabilities {
    missing: BTreeMap<Capability, &'static str>,
    /// For those that are not named.
    otherwise: Option<&'static str>,
}

impl Capabilities {
    /// Everything.
    pub fn all() -> Self {
        Self { missing: BTreeMap::new(), otherwise: None }
    }

    /// Nothing, for this reason.
    pub fn none(reason: &'static str) -> Self {
        Self { missing: BTreeMap::new(), otherwise: Some(reason) }
    }

    /// Not this one, for this reason: it is printed where a rule is skipped.
    #[must_use]
    pub fn without(mut self, capability: Capability, reason: &'static str) -> Self {
        self.missing.insert(capability, reason);
        self
    }

    /// Whether it is there.
    pub fn has(&self, capability: Capability) -> bool {
        self.reason(capability).is_none()
    }

    pub(super) fn reason(&self, capability: Capability) -> Option<&'static str> {
        self.missing.get(&capability).copied().or(self.otherwise)
    }
}

/// What a fixture is to produce.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The key.
    pub key: Option<Bytes>,
    /// The payload.
    pub payload: Option<Bytes>,
    /// Headers, in order.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
    /// Milliseconds since 1970 (UTC); `None`: whatever the broker sets.
    pub timestamp_ms: Option<i64>,
}

impl Record {
    /// A record without anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the payload.
    #[must_use]
    pub fn with_payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: Option<&'static str>) -> Self {
        self.headers.push((name.into(), value.map(Into::into)));
        self
    }

    /// Sets the timestamp.
    #[must_use]
    pub fn with_timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    /// Puts all of it into a message: for fixtures whose broker stores messages.
    #[must_use]
    pub fn write_to(self, mut message: Message) -> Message {
        if let Some(key) = self.key {
            message = message.with_key(key);
        }
        if let Some(payload) = self.payload {
            message = message.with_payload(payload);
        }
        if let Some(timestamp_ms) = self.timestamp_ms {
            message = message.with_timestamp_ms(timestamp_ms);
        }
        message.with_headers(self.headers.into_iter().collect::<Headers>())
    }
}
