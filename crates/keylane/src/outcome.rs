//! What a listener says about a message.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::ticket::TicketId;

/// Any error; what `?` turns errors into.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What a listener returns for one message: an error is a failed attempt, as a panic is.
pub type Handled = Result<Outcome, BoxError>;

/// What a batch listener returns.
pub type BatchHandled = Result<BatchOutcome, BoxError>;

/// What is to become of a message.
#[must_use]
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Finished.
    Done,
    /// A failed attempt: again, after the delay of the failure policy. Later messages of its key
    /// wait.
    Retry,
    /// A failed attempt: again, after this delay.
    RetryAfter(Duration),
    /// Give it to the dead-letter sink, for this reason; finished once the sink has acknowledged
    /// it. Without a sink it is a failed attempt.
    DeadLetter(String),
    /// Give it up, for this reason: it counts as finished, and an event says so.
    Skip(String),
    /// Stop the whole consumer. The message stays unfinished: no further call begins anywhere, and
    /// the stop report names it.
    Stop(String),
    /// A [`Ticket`](crate::Ticket) will say it, from any thread: see
    /// [`Context::defer`](crate::Context::defer), which alone can make one.
    Deferred(Deferred),
}

/// The promise that a ticket exists; made by [`Context::defer`](crate::Context::defer).
#[derive(Debug)]
pub struct Deferred(pub(crate) TicketId);

/// What is to become of the messages of a batch. Indexes count from zero inside the batch; one
/// outside of it is a failure of the call, as an `Err` is.
///
/// A message's failure holds back its key alone: what the batch says about *later messages of that
/// key* is ignored, and they are delivered again after it.
#[must_use]
#[derive(Debug)]
#[non_exhaustive]
pub enum BatchOutcome {
    /// All finished.
    Done,
    /// The messages up to and including this index are finished; the others were not looked at and
    /// are delivered again, at once and without counting an attempt.
    DoneThrough(usize),
    /// The messages before `index` are finished, the one at `index` failed, the ones behind it were
    /// not looked at.
    FailedAt {
        /// The message that failed.
        index: usize,
        /// Why.
        error: BoxError,
    },
    /// One answer per message, in order; as many as there are messages.
    Each(Vec<Handled>),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Retry => f.write_str("retry"),
            Self::RetryAfter(delay) => write!(f, "retry after {delay:?}"),
            Self::DeadLetter(reason) => write!(f, "dead letter: {reason}"),
            Self::Skip(reason) => write!(f, "skip: {reason}"),
            Self::Stop(reason) => write!(f, "stop: {reason}"),
            Self::Deferred(_) => f.write_str("deferred"),
        }
    }
}
