//! A source whose requests for locks get lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_source::{
    FetchLimits, LockReply, QueueId, QueueLocks, Source, SourceError, SourceEvent,
};
use keylane_testkit::tap::Tap;

/// Whether they get lost at present.
#[derive(Clone, Default)]
pub(super) struct Losses(Arc<AtomicBool>);

impl Losses {
    pub(super) fn set(&self, lose: bool) {
        self.0.store(lose, Ordering::Release);
    }
}

pub(super) struct Lossy {
    losses: Losses,
    /// Requests that are to be answered as lost.
    lost: Vec<QueueId>,
}

impl Lossy {
    pub(super) fn new(losses: &Losses) -> Self {
        Self { losses: losses.clone(), lost: Vec::new() }
    }
}

impl Tap for Lossy {
    fn poll(
        &mut self,
        source: &mut dyn Source,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let failed = || LockReply::Failed(SourceError::retryable("lost on its way"));
        let lost = self.lost.drain(..);
        events.extend(lost.map(|queue| SourceEvent::Lock { queue, reply: failed() }));
        // What is lost meanwhile is told soon.
        source.poll(limits, wait.min(Duration::from_millis(20)), events)
    }

    fn acquire(&mut self, locks: &mut dyn QueueLocks, queues: &[QueueId]) {
        if self.losses.0.load(Ordering::Acquire) {
            return self.lost.extend(queues);
        }
        locks.acquire(queues);
    }
}
