//! A source whose requests for locks get lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_rocketmq::{Config, RocketMqSource};
use keylane_source::{
    Commit, FetchLimits, LockReply, QueueId, QueueLocks, SeekTo, Source, SourceError, SourceEvent,
    SourceWaker,
};

/// Whether they get lost at present.
#[derive(Clone, Default)]
pub(super) struct Losses(Arc<AtomicBool>);

impl Losses {
    pub(super) fn set(&self, lose: bool) {
        self.0.store(lose, Ordering::Release);
    }
}

pub(super) struct Lossy {
    source: RocketMqSource,
    lease: Duration,
    losses: Losses,
    /// Requests that are to be answered as lost.
    lost: Vec<QueueId>,
}

impl Lossy {
    pub(super) fn join(config: Config) -> (Self, Losses) {
        let (mut source, losses) = (RocketMqSource::new(config).unwrap(), Losses::default());
        let lease = source.locks().unwrap().lease();
        (Self { source, lease, losses: losses.clone(), lost: Vec::new() }, losses)
    }
}

impl Source for Lossy {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let failed = || LockReply::Failed(SourceError::retryable("lost on its way"));
        let lost = self.lost.drain(..);
        events.extend(lost.map(|queue| SourceEvent::Lock { queue, reply: failed() }));
        // What is lost meanwhile is told soon.
        self.source.poll(limits, wait.min(Duration::from_millis(20)), events)
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        self.source.seek(queue, to);
    }

    fn pause(&mut self, queue: QueueId) {
        self.source.pause(queue);
    }

    fn resume(&mut self, queue: QueueId) {
        self.source.resume(queue);
    }

    fn commit(&mut self, commit: Commit) {
        self.source.commit(commit);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        self.source.look_up_committed(queue);
    }

    fn release(&mut self, queue: QueueId) {
        self.source.release(queue);
    }

    fn waker(&self) -> SourceWaker {
        self.source.waker()
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        Some(self)
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.source.close(timeout, events)
    }
}

impl Lossy {
    fn broker(&mut self) -> &mut dyn QueueLocks {
        self.source.locks().expect("RocketMQ has locks")
    }
}

impl QueueLocks for Lossy {
    fn lease(&self) -> Duration {
        self.lease
    }

    fn acquire(&mut self, queues: &[QueueId]) {
        if self.losses.0.load(Ordering::Acquire) {
            return self.lost.extend(queues);
        }
        self.broker().acquire(queues);
    }

    fn release(&mut self, queues: &[QueueId]) {
        self.broker().release(queues);
    }
}
