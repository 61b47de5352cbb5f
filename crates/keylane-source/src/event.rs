//! What a source tells the engine.

use crate::{Commit, LockReply, Message, Offset, Position, QueueId, SourceError, Watermark};

/// Something that happened to a queue, in the order in which it happened.
///
/// A queue's life: `Assigned`, then (after the engine's [`seek`](crate::Source::seek)) any number
/// of `Fetched`, `Reset`, `QueueError`; then `Revoking` until the engine
/// [releases](crate::Source::release) it, or `Lost` at any moment. No event of a queue comes before
/// its `Assigned` or after its release or `Lost`, save `CommitResult`, which may be late.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceEvent {
    /// The queue is ours. Nothing is fetched from it until the engine has called
    /// [`seek`](crate::Source::seek).
    Assigned {
        /// The queue.
        queue: QueueId,
        /// What the group had committed.
        committed: Committed,
    },
    /// The answer to [`look_up_committed`](crate::Source::look_up_committed).
    LookedUp {
        /// The queue.
        queue: QueueId,
        /// What the group had committed.
        committed: Committed,
    },
    /// Messages, a new position, or both.
    Fetched(Fetch),
    /// The queue's end became known without a fetch.
    End {
        /// The queue.
        queue: QueueId,
        /// Its end.
        end: EndOffset,
    },
    /// The group takes the queue away and waits until the engine answers with
    /// [`release`](crate::Source::release). The engine finishes what runs and commits it first; a
    /// source whose patience ends reports `Lost`.
    Revoking {
        /// The queue.
        queue: QueueId,
    },
    /// The queue is gone: somebody else may have it already. Nothing is committed any more.
    Lost {
        /// The queue.
        queue: QueueId,
    },
    /// What was read so far is no longer the continuation of what comes: the engine ends the
    /// queue's epoch, and starts a new one where `cause` and its own policy say.
    Reset {
        /// The queue.
        queue: QueueId,
        /// Why.
        cause: ResetCause,
    },
    /// What became of a [`commit`](crate::Source::commit). Results may be late and out of order.
    CommitResult {
        /// The commit as it was asked for.
        commit: Commit,
        /// Whether the broker has stored it.
        result: Result<(), SourceError>,
    },
    /// The answer to a call of [`QueueLocks`](crate::QueueLocks), or a lock lost unasked.
    Lock {
        /// The queue.
        queue: QueueId,
        /// What became of its lock.
        reply: LockReply,
    },
    /// One queue has trouble, the others have none. Fatal: the queue ends, the others go on.
    QueueError {
        /// The queue.
        queue: QueueId,
        /// What happened.
        error: SourceError,
    },
}

/// What a group has committed for a queue: three different things.
///
/// "Could not be read" must never be taken for "there is none": the queue would start over, or skip
/// to its end. (RocketMQ's issues 1825 and 2944 are what happens where one number means both.)
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Committed {
    /// This watermark, with the metadata that was committed beside it (empty where there was none).
    At {
        /// The next offset to read.
        watermark: Watermark,
        /// What was committed beside it.
        metadata: String,
    },
    /// The group has never committed this queue.
    None,
    /// The look-up failed. The engine asks again with
    /// [`look_up_committed`](crate::Source::look_up_committed); until then the queue does not start.
    Failed(SourceError),
}

impl Committed {
    /// This watermark, without metadata.
    pub fn at(watermark: Watermark) -> Self {
        Self::At { watermark, metadata: String::new() }
    }
}

/// What one fetch of one queue brought.
#[derive(Debug)]
pub struct Fetch {
    /// The queue.
    pub queue: QueueId,
    /// Messages in ascending order of offset; there may be none, and there may be holes between
    /// them (compaction, transaction markers, filters).
    pub messages: Vec<Message>,
    /// The next offset to read: behind the last message, and behind every hole that the source
    /// knows to hold no message. It is what lets a watermark pass trailing holes.
    pub position: Position,
    /// The queue's end as the broker reported it with this fetch.
    pub end: EndOffset,
}

/// The end of a queue: the offset that its next message will get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOffset {
    /// Not known (yet). Lag is then unknown as well, not zero and not negative.
    Unknown,
    /// Known, at some moment in the past: it may be older than what has been read since.
    At(Position),
}

impl EndOffset {
    /// How many offsets lie between `from` and the end: `None` when unknown, never negative.
    ///
    /// ```
    /// use keylane_source::{EndOffset, Position};
    ///
    /// let at = |n| Position::new(n).unwrap();
    /// assert_eq!(EndOffset::At(at(1_040)).lag(at(1_030)), Some(10));
    /// assert_eq!(EndOffset::At(at(1_000)).lag(at(1_030)), Some(0)); // the end is older
    /// assert_eq!(EndOffset::Unknown.lag(at(1_030)), None);
    /// ```
    pub fn lag(self, from: Position) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::At(end) => Some(from.distance_to(end)),
        }
    }
}

/// Why a queue's epoch ends without the queue being taken away.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ResetCause {
    /// The position asked for does not exist (retention, data loss, a topic created anew). The
    /// engine's policy decides between earliest, latest and failing the queue.
    OutOfRange {
        /// What was asked for.
        asked: Position,
        /// The first offset that the broker has.
        begin: Position,
        /// The offset that the next message will get.
        end: Position,
    },
    /// Somebody moved the group's offset; reading goes on there.
    Moved {
        /// Where to.
        to: Position,
    },
    /// The topic was deleted and created again: same name, other messages.
    Recreated {
        /// The first offset of the new one.
        begin: Offset,
    },
}
