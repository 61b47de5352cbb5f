//! Where messages go that are given up.

use std::fmt;
use std::sync::Arc;

use crate::{Message, SourceError};

/// A message that will not be tried again, and why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message, key and payload unchanged, in memory of its own.
    pub message: Message,
    /// How often the listener was called for it, earlier processes included where the source says.
    pub attempts: u32,
    /// Why it was given up.
    pub reason: DeadLetterReason,
}

impl DeadLetter {
    /// A dead letter.
    pub fn new(message: Message, attempts: u32, reason: DeadLetterReason) -> Self {
        Self { message, attempts, reason }
    }
}

/// Why a message was given up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// It failed as often as the failure policy allows; this is the last error.
    AttemptsExhausted(Arc<str>),
    /// The listener said so, with this reason.
    Listener(Arc<str>),
}

impl fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttemptsExhausted(error) => write!(f, "attempts exhausted, last error: {error}"),
            Self::Listener(reason) => write!(f, "given up by the listener: {reason}"),
        }
    }
}

/// Stores dead letters. The message counts as finished only once its [`Ack`] says so.
///
/// A sink has a thread of its own, so that it may wait for its broker; letters come one after the
/// other. An acknowledgement may come later and from any thread. As long as a letter is not
/// acknowledged the message's lane is held back; a failed one is sent again after a back-off.
///
/// ```
/// use keylane_source::{Ack, DeadLetter, DeadLetterSink};
///
/// struct Print;
/// impl DeadLetterSink for Print {
///     fn send(&mut self, letter: DeadLetter, ack: Ack) {
///         println!("{:?}: {}", letter.message, letter.reason);
///         ack.done();
///     }
/// }
/// ```
pub trait DeadLetterSink: Send {
    /// Stores the letter, or begins to, and reports through `ack` when it is stored durably.
    fn send(&mut self, letter: DeadLetter, ack: Ack);

    /// Called once, at the end, when no further letter will come: to flush and let go.
    fn close(&mut self) {}
}

/// Reports what became of one dead letter. Dropped unused, it reports a failure.
pub struct Ack(Option<Report>);

type Report = Box<dyn FnOnce(Result<(), SourceError>) + Send>;

impl Ack {
    /// An acknowledgement that calls `report`, which must not wait.
    pub fn new(report: impl FnOnce(Result<(), SourceError>) + Send + 'static) -> Self {
        Self(Some(Box::new(report)))
    }

    /// The letter is stored: its message is finished.
    pub fn done(mut self) {
        self.report(Ok(()));
    }

    /// The letter is not stored: it will be sent again.
    pub fn failed(mut self, error: SourceError) {
        self.report(Err(error));
    }

    fn report(&mut self, result: Result<(), SourceError>) {
        if let Some(report) = self.0.take() {
            report(result);
        }
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        self.report(Err(SourceError::retryable("the dead-letter sink dropped the letter's Ack")));
    }
}

impl fmt::Debug for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ack")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn an_ack_reports_exactly_once_and_a_dropped_one_fails() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let ack = || {
            let seen = Arc::clone(&seen);
            Ack::new(move |result| seen.lock().unwrap().push(result.is_ok()))
        };
        ack().done();
        ack().failed(SourceError::retryable("no"));
        drop(ack());
        assert_eq!(*seen.lock().unwrap(), [true, false, false]);
    }
}
