//! What checkers are told.

use keylane_source::{Committed, Message, Offset, Position, QueueId, ResetCause, Watermark};

use super::lane::Lane;

/// One consumer of the group; a process may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MemberId(pub u32);

/// One call of a listener: all messages of a batch have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// One tenure of a queue, counted for each queue in the whole group: 1 is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u32);

/// Something that happened. Events of one queue, and those of one key, come in the order in which
/// they happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'a> {
    /// These offsets of the queue hold messages; each must be delivered.
    Produced {
        /// The queue.
        queue: QueueId,
        /// The first one.
        first: Offset,
        /// The position behind the last one.
        end: Position,
    },
    /// A member begins to read a queue: an epoch begins.
    Assigned {
        /// Which member.
        member: MemberId,
        /// The queue.
        queue: QueueId,
        /// The epoch that begins.
        epoch: Epoch,
        /// What the look-up of the group's offset had said last.
        found: Found,
        /// Where reading starts; `None`: at the first or last message, or at a time.
        start: Option<Position>,
    },
    /// A fetch brought messages, a new position, or both.
    Fetched {
        /// The queue.
        queue: QueueId,
        /// In which epoch.
        epoch: Epoch,
        /// The messages.
        messages: &'a [Message],
        /// The next offset to read.
        position: Position,
    },
    /// A listener call with this message begins.
    Delivered(Delivered<'a>),
    /// What became of a message.
    Settled(Settled<'a>),
    /// A commit was asked for, or answered.
    Committed {
        /// The queue.
        queue: QueueId,
        /// In which epoch it was asked for.
        epoch: Epoch,
        /// The watermark.
        watermark: Watermark,
        /// Asked or answered.
        step: CommitStep,
    },
    /// Declared: these messages of one lane are given back, although they had succeeded (rollback,
    /// suspend). The next delivery of the lane is the first of them.
    Rewound {
        /// The queue.
        queue: QueueId,
        /// The lane.
        lane: &'a Lane,
        /// Ascending.
        offsets: &'a [Offset],
    },
    /// The member has released the queue: the epoch ends.
    Revoked {
        /// The queue.
        queue: QueueId,
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// The member has lost the queue: the epoch ends.
    Lost {
        /// The queue.
        queue: QueueId,
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// Declared: what comes is not the continuation of what came. The epoch ends; the next one may
    /// start anywhere.
    Reset {
        /// The queue.
        queue: QueueId,
        /// The epoch that ends.
        epoch: Epoch,
        /// Why.
        cause: &'a ResetCause,
    },
    /// The member begins to leave: from here on others may have its queues, although it has not
    /// released them.
    Closing {
        /// Which member.
        member: MemberId,
    },
    /// The member is gone, as after `kill -9`: its epochs end, its calls are no more.
    Crashed {
        /// Which member.
        member: MemberId,
    },
    /// The member has stopped: its epochs end, no call of it may begin any more.
    Stopped {
        /// Which member.
        member: MemberId,
    },
}

/// One message of a listener call that begins.
#[derive(Debug, Clone, Copy)]
pub struct Delivered<'a> {
    /// Which member.
    pub member: MemberId,
    /// The call. The messages of a batch come in the batch's order.
    pub call: CallId,
    /// The message's queue.
    pub queue: QueueId,
    /// In which epoch.
    pub epoch: Epoch,
    /// Its offset.
    pub offset: Offset,
    /// Its lane.
    pub lane: &'a Lane,
    /// Which shard runs the call.
    pub shard: usize,
    /// Which attempt it is, from 1 on; 0 where that is not known.
    pub attempt: u32,
}

/// What became of one message.
#[derive(Debug, Clone, Copy)]
pub struct Settled<'a> {
    /// Which member.
    pub member: MemberId,
    /// The call that ends with it; `None` where a message is settled after its call.
    pub call: Option<CallId>,
    /// The message's queue.
    pub queue: QueueId,
    /// The epoch in which its call began.
    pub epoch: Epoch,
    /// Its offset.
    pub offset: Offset,
    /// Its lane.
    pub lane: &'a Lane,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a delivered message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The listener succeeded: the message is finished.
    Done,
    /// The listener succeeded, but nothing may be committed yet (manual commit): the lane goes on,
    /// the message is not finished before it is settled as `Done`.
    Held,
    /// The listener said to skip it: finished.
    Skipped,
    /// A dead-letter sink has acknowledged it: finished.
    DeadLettered,
    /// It was given up by another explicit decision: finished.
    GivenUp,
    /// The listener failed, panicked, or asked for a retry or a dead letter.
    Failed,
    /// It stood in a batch behind a message of its lane that failed: its result does not count.
    Ignored,
}

impl Outcome {
    /// Whether the message is finished: a commit may pass it.
    pub fn finishes(self) -> bool {
        matches!(self, Self::Done | Self::Skipped | Self::DeadLettered | Self::GivenUp)
    }

    /// Whether the lane goes on to its next message.
    pub fn frees_the_lane(self) -> bool {
        self == Self::Held || self.finishes()
    }

    /// Whether the listener succeeded.
    pub fn is_success(self) -> bool {
        matches!(self, Self::Done | Self::Held)
    }
}

/// The steps of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitStep {
    /// The engine asks for it.
    Asked,
    /// The broker has stored it.
    Stored,
    /// The broker has answered with an error; it may be stored nevertheless.
    Failed,
}

/// What the group's offset was when an epoch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Found {
    /// This.
    At(Watermark),
    /// The group has none.
    Nothing,
    /// The last look-up had failed.
    Unknown,
}

impl From<&Committed> for Found {
    fn from(committed: &Committed) -> Self {
        match committed {
            Committed::At { watermark, .. } => Self::At(*watermark),
            Committed::None => Self::Nothing,
            _ => Self::Unknown,
        }
    }
}
