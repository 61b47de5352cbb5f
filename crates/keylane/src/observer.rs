//! Things that happen rarely and that somebody should know of.

use std::fmt;
use std::time::Duration;

use keylane_source::{Offset, Position, QueueId, ResetCause, SourceError, Watermark};

use crate::report::ShownKey;

/// Is told of every [`Event`].
///
/// Called off the path of a message that succeeds, from whichever thread the event happens on: it
/// must not wait. A panic in it is caught and logged. Every event is also logged, whether or not
/// there is an observer.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Observer for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}

/// What an [`Observer`] is told, and what is logged. `Display` is the log line.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the fields are named after what they are; each variant is described"
)]
pub enum Event {
    /// A queue starts to be read.
    Started { queue: QueueId, epoch: u64, position: Option<Position> },
    /// The look-up of a queue's committed offset failed; it will be repeated.
    LookUpFailed { queue: QueueId, error: SourceError, failures: u32, again_in: Duration },
    /// A queue that is ours has not been read for longer than the option `stall_after`, for it waits
    /// for its lock, or for what was committed: the source has not answered, or said no each time.
    /// Said again and again, as long as it waits.
    NotRead { queue: QueueId, waits_for: &'static str, waiting: Duration },
    /// A queue's lock is somebody else's, or could not be asked for.
    LockRefused { queue: QueueId, error: Option<SourceError> },
    /// A queue's lock is gone: nothing more is delivered from it.
    LockLost { queue: QueueId },
    /// The group takes a queue away: what runs is awaited.
    Revoking { queue: QueueId },
    /// A queue was given back. Everything below `watermark` is finished; `committed` is below it
    /// where the last commit was not acknowledged in time. `unfinished` are the messages that were
    /// pulled and not finished, those that waited for budget among them: they come again at the
    /// next owner.
    Revoked {
        queue: QueueId,
        watermark: Option<Watermark>,
        committed: Option<Watermark>,
        unfinished: u64,
    },
    /// The bound of a revoke passed while this call was running; what it does is not counted any
    /// more, and may overlap with the queue's next owner.
    RevokeTimedOut { queue: QueueId, shard: usize, offset: Offset, key: ShownKey },
    /// A queue is gone without a hand-over; `unfinished` as of [`Revoked`](Self::Revoked).
    Lost { queue: QueueId, unfinished: u64 },
    /// A queue's epoch ended without the queue being taken away.
    Reset { queue: QueueId, cause: ResetCause },
    /// One queue ended with an error; the others go on.
    QueueFailed { queue: QueueId, error: SourceError },
    /// One queue has trouble that may pass.
    QueueTrouble { queue: QueueId, error: SourceError },
    /// A queue pauses: its budget or its span is full behind this message, or this message has no room.
    Held { queue: QueueId, by: HeldBy, offset: Offset, key: Option<ShownKey> },
    /// A listener call failed; the message's lane waits.
    Failed {
        queue: QueueId,
        offset: Offset,
        key: ShownKey,
        shard: usize,
        attempts: u32,
        error: String,
        panicked: bool,
        again_in: Option<Duration>,
    },
    /// A batch call failed without saying where: its messages come again one by one.
    BatchFailed { shard: usize, messages: usize, error: String, panicked: bool },
    /// A message was given up and counts as finished.
    Skipped { queue: QueueId, offset: Offset, key: ShownKey, attempts: u32, reason: String },
    /// A message is in the dead-letter sink.
    DeadLettered { queue: QueueId, offset: Offset, key: ShownKey, attempts: u32, reason: String },
    /// The dead-letter sink failed; the letter will be sent again.
    DeadLetterFailed {
        queue: QueueId,
        offset: Offset,
        key: ShownKey,
        error: SourceError,
        again_in: Duration,
    },
    /// A listener call (or a ticket) has been running for longer than the option `stall_after`.
    Stalled { queue: QueueId, offset: Offset, key: ShownKey, shard: usize, running_for: Duration },
    /// A commit failed or was not answered; it will be repeated.
    CommitFailed { queue: QueueId, watermark: Watermark, error: SourceError, failures: u32 },
    /// Commits of this queue work again.
    CommitRecovered { queue: QueueId, watermark: Watermark },
    /// The source as a whole has trouble; it is polled again after a back-off.
    SourceTrouble { error: SourceError, failures: u32, again_in: Duration },
    /// Something that listeners of an earlier epoch finished was not counted.
    StaleCompletions { queue: QueueId, messages: u64 },
    /// A hook, the factory or the drop of a listener panicked. (An observer's panic is logged only.)
    HookPanicked { what: &'static str, error: String },
    /// The consumer stops, for this reason.
    Stopping { reason: String },
    /// The consumer has stopped.
    Stopped { summary: String },
}

/// What a queue waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBy {
    /// Its messages in flight are as many (or as large) as the budget allows.
    Budget,
    /// The first unfinished message has `span_max` messages behind it.
    Span,
    /// Messages that succeeded and were never committed fill the budget: a listener with auto-commit
    /// off has to answer `Commit` at times.
    Uncommitted,
    /// The message itself is larger than what other queues leave of the budget; nothing of its own
    /// queue is in flight. One that is larger than the whole budget waits until nothing is.
    Size,
}

impl Event {
    pub(crate) fn level(&self) -> log::Level {
        match self {
            Self::Started { .. }
            | Self::Revoking { .. }
            | Self::Revoked { .. }
            | Self::CommitRecovered { .. }
            | Self::Stopping { .. }
            | Self::Stopped { .. } => log::Level::Info,
            Self::Held { by: HeldBy::Budget | HeldBy::Span, .. } => log::Level::Debug,
            Self::QueueFailed { .. } | Self::RevokeTimedOut { .. } | Self::HookPanicked { .. } => {
                log::Level::Error
            }
            _ => log::Level::Warn,
        }
    }
}

impl fmt::Display for Event {
    #[expect(clippy::too_many_lines, reason = "one line a variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { queue, epoch, position: Some(position) } => {
                write!(f, "{queue}: reads from {position}, epoch {epoch}")
            }
            Self::Started { queue, epoch, position: None } => {
                write!(f, "{queue}: starts as the option start_from says, epoch {epoch}")
            }
            Self::LookUpFailed { queue, error, failures, again_in } => write!(
                f,
                "{queue}: look up the committed offset: {error} (failure {failures}, again in {again_in:?})"
            ),
            Self::NotRead { queue, waits_for, waiting } => {
                write!(f, "{queue}: has waited for {waits_for} for {waiting:.1?}, and is not read")
            }
            Self::LockRefused { queue, error: None } => write!(f, "{queue}: locked by another"),
            Self::LockRefused { queue, error: Some(error) } => write!(f, "{queue}: lock: {error}"),
            Self::LockLost { queue } => write!(f, "{queue}: its lock is lost"),
            Self::Revoking { queue } => write!(f, "{queue}: is being taken away"),
            Self::Revoked { queue, watermark, committed, unfinished } => {
                write!(f, "{queue}: given back at ")?;
                shown(f, *watermark)?;
                match committed {
                    committed if committed >= watermark => {}
                    None => f.write_str(", nothing committed")?,
                    Some(committed) => write!(f, ", committed at {committed}")?,
                }
                write!(f, ", {unfinished} unfinished")
            }
            Self::RevokeTimedOut { queue, shard, offset, key } => write!(
                f,
                "{queue}: given back while the call for offset {offset}, key {key}, still runs on \
                 shard {shard}; it may overlap with the next owner's"
            ),
            Self::Lost { queue, unfinished } => write!(f, "{queue}: lost, {unfinished} unfinished"),
            Self::Reset { queue, cause } => write!(f, "{queue}: reset: {cause:?}"),
            Self::QueueFailed { queue, error } => write!(f, "{queue}: ended: {error}"),
            Self::QueueTrouble { queue, error } => write!(f, "{queue}: {error}"),
            Self::Held { queue, by, offset, key } => {
                let what = match by {
                    HeldBy::Budget => "its budget is full",
                    HeldBy::Span => "its span is full",
                    HeldBy::Uncommitted => "its budget is full of messages that nobody commits",
                    HeldBy::Size => "a message is larger than what others leave of the budget",
                };
                let place = if *by == HeldBy::Size { "at" } else { "behind" };
                write!(f, "{queue}: {what}, {place} offset {offset}")?;
                key.as_ref().map_or(Ok(()), |key| write!(f, ", key {key}"))
            }
            Self::Failed { queue, offset, key, shard, attempts, error, panicked, again_in } => {
                let how = if *panicked { "panicked" } else { "failed" };
                write!(
                    f,
                    "{queue}: offset {offset}, key {key}, shard {shard}: attempt {attempts} {how}: {error}"
                )?;
                again_in.map_or(Ok(()), |delay| write!(f, "; again in {delay:?}"))
            }
            Self::BatchFailed { shard, messages, error, panicked } => {
                let how = if *panicked { "panicked" } else { "failed" };
                write!(
                    f,
                    "shard {shard}: a batch of {messages} {how} without saying where: {error}; its messages come again one by one"
                )
            }
            Self::Skipped { queue, offset, key, attempts, reason } => {
                write!(
                    f,
                    "{queue}: offset {offset}, key {key}: skipped after {attempts} attempts: {reason}"
                )
            }
            Self::DeadLettered { queue, offset, key, attempts, reason } => {
                write!(
                    f,
                    "{queue}: offset {offset}, key {key}: dead letter after {attempts} attempts: {reason}"
                )
            }
            Self::DeadLetterFailed { queue, offset, key, error, again_in } => {
                write!(
                    f,
                    "{queue}: offset {offset}, key {key}: dead letter: {error}; again in {again_in:?}"
                )
            }
            Self::Stalled { queue, offset, key, shard, running_for } => {
                write!(
                    f,
                    "{queue}: the call for offset {offset}, key {key}, on shard {shard} has been running for {running_for:.1?}"
                )
            }
            Self::CommitFailed { queue, watermark, error, failures } => {
                write!(f, "{queue}: commit {watermark}: {error} (failure {failures})")
            }
            Self::CommitRecovered { queue, watermark } => {
                write!(f, "{queue}: commits work again, {watermark} is stored")
            }
            Self::SourceTrouble { error, failures, again_in } => {
                write!(f, "source: {error} (failure {failures}, again in {again_in:?})")
            }
            Self::StaleCompletions { queue, messages } => {
                write!(
                    f,
                    "{queue}: {messages} messages of an earlier epoch were finished too late to count"
                )
            }
            Self::HookPanicked { what, error } => write!(f, "{what} panicked: {error}"),
            Self::Stopping { reason } => write!(f, "stopping: {reason}"),
            Self::Stopped { summary } => write!(f, "{summary}"),
        }
    }
}

fn shown(f: &mut fmt::Formatter<'_>, watermark: Option<Watermark>) -> fmt::Result {
    match watermark {
        None => f.write_str("its start"),
        Some(watermark) => write!(f, "{watermark}"),
    }
}
