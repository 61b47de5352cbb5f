//! Finishing a message later, from any thread.

use std::fmt;

use crate::outcome::{BoxError, Handled, Outcome};

/// Which deferred call; unique inside its shard for the life of the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TicketId(pub(crate) u64);

/// Says what becomes of a deferred message, once.
///
/// Made by [`Context::defer`](crate::Context::defer). As long as it is open it counts as a running
/// call: no other call for the same key begins, a revoke and a stop wait for it (within their
/// bounds). Dropped without an answer, it counts as a failed attempt, so that nothing is ever held
/// back by a ticket that nobody has.
///
/// A ticket answered after its queue was taken away changes nothing; it is counted
/// ([`Metrics::stale_completions`](crate::Metrics::stale_completions)).
pub struct Ticket(Option<Box<dyn FnOnce(Handled) + Send + Sync>>);

impl Ticket {
    pub(crate) fn new(settle: impl FnOnce(Handled) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(settle)))
    }

    /// The message is finished.
    pub fn done(self) {
        self.settle(Ok(Outcome::Done));
    }

    /// The attempt failed.
    pub fn fail(self, error: impl Into<BoxError>) {
        self.settle(Err(error.into()));
    }

    /// Whatever a listener could have returned. [`Outcome::Deferred`] a second time is a failed
    /// attempt.
    pub fn settle(mut self, handled: Handled) {
        if let Some(settle) = self.0.take() {
            settle(handled);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(settle) = self.0.take() {
            settle(Err("the ticket was dropped without an answer".into()));
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}
