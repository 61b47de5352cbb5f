//! A dead-letter sink that keeps what it gets.

use std::sync::Arc;

use keylane::source::SourceError;
use keylane::{Ack, DeadLetter, DeadLetterSink};
use parking_lot::Mutex;

use super::Log;

/// What a sink does with a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Plan {
    /// Acknowledges it.
    #[default]
    Store,
    /// Says that it failed.
    Fail,
    /// Drops the Ack.
    Drop,
    /// Panics, and the Ack with it.
    Panic,
    /// Keeps the Ack, to be answered by the test.
    Keep,
}

/// Does with each letter what the next plan says, and stores when there is none. Clones are the same
/// sink.
#[derive(Clone, Default)]
pub(crate) struct Letters {
    plans: Arc<Mutex<Vec<Plan>>>,
    /// What was sent, whatever became of it: offset, attempts, reason.
    pub(crate) sent: Log<(u64, u32, String)>,
    pub(crate) stored: Log<u64>,
    kept: Arc<Mutex<Vec<Ack>>>,
    pub(crate) closed: Log<()>,
}

impl Letters {
    pub(crate) fn planned(plans: impl IntoIterator<Item = Plan>) -> Self {
        let letters = Self::default();
        letters.plans.lock().extend(plans);
        letters
    }

    /// The Acks that were kept, oldest first.
    pub(crate) fn kept(&self) -> Vec<Ack> {
        std::mem::take(&mut *self.kept.lock())
    }
}

impl DeadLetterSink for Letters {
    fn send(&mut self, letter: DeadLetter, ack: Ack) {
        let offset = letter.message.offset().get();
        let plan = {
            let mut plans = self.plans.lock();
            if plans.is_empty() { Plan::Store } else { plans.remove(0) }
        };
        if plan == Plan::Keep {
            self.kept.lock().push(ack);
            return self.sent.push((offset, letter.attempts, letter.reason.to_string()));
        }
        self.sent.push((offset, letter.attempts, letter.reason.to_string()));
        match plan {
            Plan::Fail => ack.failed(SourceError::retryable("the topic for letters is full")),
            Plan::Panic => std::panic::resume_unwind(Box::new("the sink has a bug")),
            Plan::Drop => drop(ack),
            Plan::Store | Plan::Keep => {
                self.stored.push(offset);
                ack.done();
            }
        }
    }

    fn close(&mut self) {
        self.closed.push(());
    }
}
