//! A source that vanishes as by `kill -9`, or whose lock requests get lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keylane_rocketmq::{Config, RocketMqSource};
use keylane_source::{
    Commit, FetchLimits, LockReply, QueueId, QueueLocks, SeekTo, Source, SourceError, SourceEvent,
    SourceWaker,
};

/// What a test does to it.
#[derive(Clone, Default)]
pub(super) struct Fate(Arc<Switches>);

#[derive(Default)]
struct Switches {
    is_dead: AtomicBool,
    locks_get_lost: AtomicBool,
}

impl Fate {
    /// From now on it says nothing to anybody: its connections end, without a farewell.
    pub(super) fn kill(&self) {
        self.0.is_dead.store(true, Ordering::Release);
    }

    /// Whether requests for locks get lost on their way.
    pub(super) fn lose_locks(&self, lose: bool) {
        self.0.locks_get_lost.store(lose, Ordering::Release);
    }
}

pub(super) struct Mortal {
    source: Option<RocketMqSource>,
    waker: SourceWaker,
    lease: Duration,
    fate: Fate,
    /// Requests that are to be answered as lost.
    lost: Vec<QueueId>,
}

impl Mortal {
    pub(super) fn join(config: Config) -> (Self, Fate) {
        let mut source = RocketMqSource::new(config).unwrap();
        let (waker, fate) = (source.waker(), Fate::default());
        let lease = source.locks().unwrap().lease();
        let lost = Vec::new();
        (Self { source: Some(source), waker, lease, fate: fate.clone(), lost }, fate)
    }

    fn alive(&mut self) -> Option<&mut RocketMqSource> {
        if self.fate.0.is_dead.load(Ordering::Acquire) {
            self.source = None;
        }
        self.source.as_mut()
    }
}

impl Source for Mortal {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let failed = || LockReply::Failed(SourceError::retryable("lost on its way"));
        let lost = self.lost.drain(..);
        events.extend(lost.map(|queue| SourceEvent::Lock { queue, reply: failed() }));
        match self.alive() {
            // So that a death is noticed soon.
            Some(source) => source.poll(limits, wait.min(Duration::from_millis(20)), events),
            None => {
                std::thread::sleep(wait.min(Duration::from_millis(20)));
                Ok(())
            }
        }
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        if let Some(source) = self.alive() {
            source.seek(queue, to);
        }
    }

    fn pause(&mut self, queue: QueueId) {
        if let Some(source) = self.alive() {
            source.pause(queue);
        }
    }

    fn resume(&mut self, queue: QueueId) {
        if let Some(source) = self.alive() {
            source.resume(queue);
        }
    }

    fn commit(&mut self, commit: Commit) {
        if let Some(source) = self.alive() {
            source.commit(commit);
        }
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        if let Some(source) = self.alive() {
            source.look_up_committed(queue);
        }
    }

    fn release(&mut self, queue: QueueId) {
        if let Some(source) = self.alive() {
            source.release(queue);
        }
    }

    fn waker(&self) -> SourceWaker {
        self.waker.clone()
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        Some(self)
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        match self.alive() {
            Some(source) => source.close(timeout, events),
            None => Ok(()),
        }
    }
}

impl QueueLocks for Mortal {
    fn lease(&self) -> Duration {
        self.lease
    }

    fn acquire(&mut self, queues: &[QueueId]) {
        if self.fate.0.locks_get_lost.load(Ordering::Acquire) {
            return self.lost.extend(queues);
        }
        if let Some(locks) = self.alive().and_then(Source::locks) {
            locks.acquire(queues);
        }
    }

    fn release(&mut self, queues: &[QueueId]) {
        if let Some(locks) = self.alive().and_then(Source::locks) {
            locks.release(queues);
        }
    }
}
