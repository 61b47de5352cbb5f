//! The brokers' locks on queues, as far as they have to be remembered: which are held, and which
//! are to be given back once nothing stands in the way. No thread, no clock, no I/O.
//!
//! Invariant: a lock is given back to the broker only after every request for it, and every commit
//! of its queue, has been answered. Brokers handle the three in different threads: sent one behind
//! the other, they could be carried out in another order, and a successor would read an older
//! offset, or a lock be taken that nobody holds.

use std::collections::HashMap;
use std::time::Duration;

use keylane_source::{LockReply, QueueId, QueueLocks, SourceError};

/// What the engine has asked for, in its order, until the source carries it out.
#[derive(Debug)]
pub(crate) struct LockCalls {
    lease: Duration,
    calls: Vec<LockCall>,
}

#[derive(Debug)]
pub(crate) enum LockCall {
    Acquire(Vec<QueueId>),
    Release(Vec<QueueId>),
}

impl LockCalls {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { lease, calls: Vec::new() }
    }

    pub(crate) fn take(&mut self) -> Vec<LockCall> {
        std::mem::take(&mut self.calls)
    }
}

impl QueueLocks for LockCalls {
    fn lease(&self) -> Duration {
        self.lease
    }

    fn acquire(&mut self, queues: &[QueueId]) {
        self.calls.push(LockCall::Acquire(queues.to_vec()));
    }

    fn release(&mut self, queues: &[QueueId]) {
        self.calls.push(LockCall::Release(queues.to_vec()));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Locks(HashMap<QueueId, Lock>);

#[derive(Debug, Default)]
struct Lock {
    held: bool,
    /// Requests under way.
    asking: u32,
    give_back: bool,
}

impl Locks {
    /// The lock is asked for.
    pub(crate) fn asking(&mut self, queue: QueueId) {
        let lock = self.0.entry(queue).or_default();
        lock.asking += 1;
        lock.give_back = false;
    }

    /// The broker has answered whether it granted the lock, or has failed to.
    pub(crate) fn answered(
        &mut self,
        queue: QueueId,
        granted: Result<bool, SourceError>,
    ) -> LockReply {
        let lock = self.0.entry(queue).or_default();
        lock.asking = lock.asking.saturating_sub(1);
        let held = lock.held;
        let reply = match granted {
            Ok(true) => {
                lock.held = true;
                LockReply::Held
            }
            Ok(false) => {
                lock.held = false;
                if held { LockReply::Lost } else { LockReply::Refused }
            }
            // Granted it may have been: who gives up gives it back all the same.
            Err(error) => LockReply::Failed(error),
        };
        if !lock.held && lock.asking == 0 && !lock.give_back && matches!(reply, LockReply::Refused)
        {
            self.0.remove(&queue);
        }
        reply
    }

    /// The lock is not needed any more.
    pub(crate) fn release(&mut self, queue: QueueId) {
        if let Some(lock) = self.0.get_mut(&queue) {
            lock.give_back = true;
        }
    }

    /// The locks that can be given back now; they are forgotten here.
    pub(crate) fn take_returnable(&mut self, committing: impl Fn(QueueId) -> bool) -> Vec<QueueId> {
        let ready = |queue: &QueueId, lock: &mut Lock| {
            lock.give_back && lock.asking == 0 && !committing(*queue)
        };
        let mut queues: Vec<QueueId> = self.0.extract_if(ready).map(|(queue, _)| queue).collect();
        queues.sort();
        queues
    }

    /// Whether a lock waits to be given back.
    pub(crate) fn is_giving_back(&self) -> bool {
        self.0.values().any(|lock| lock.give_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(index: u32) -> QueueId {
        QueueId::on_broker("t", "a", index)
    }

    fn shown(reply: &LockReply) -> &'static str {
        match reply {
            LockReply::Held => "held",
            LockReply::Refused => "refused",
            LockReply::Lost => "lost",
            _ => "failed",
        }
    }

    fn ask(locks: &mut Locks, granted: Result<bool, SourceError>) -> &'static str {
        locks.asking(queue(0));
        shown(&locks.answered(queue(0), granted))
    }

    #[test]
    fn a_lock_that_was_held_is_lost_and_one_that_was_not_is_refused() {
        let mut locks = Locks::default();
        assert_eq!(ask(&mut locks, Ok(false)), "refused");
        assert_eq!(ask(&mut locks, Ok(true)), "held");
        assert_eq!(ask(&mut locks, Err(SourceError::retryable("no answer"))), "failed");
        assert_eq!(ask(&mut locks, Ok(true)), "held");
        assert_eq!(ask(&mut locks, Ok(false)), "lost");
        assert_eq!(ask(&mut locks, Ok(false)), "refused");
    }

    #[test]
    fn a_lock_is_given_back_after_requests_and_commits() {
        let mut locks = Locks::default();
        ask(&mut locks, Ok(true));
        locks.asking(queue(0));
        locks.release(queue(0));
        assert!(locks.take_returnable(|_| false).is_empty(), "it is being asked for");
        locks.answered(queue(0), Ok(true));
        assert!(locks.take_returnable(|_| true).is_empty(), "its queue is being committed");
        assert!(locks.is_giving_back());
        assert_eq!(locks.take_returnable(|_| false), [queue(0)]);
        assert!(!locks.is_giving_back());
        assert!(locks.take_returnable(|_| false).is_empty(), "once");
    }

    #[test]
    fn one_whose_request_failed_may_be_held_and_is_given_back() {
        let mut locks = Locks::default();
        ask(&mut locks, Err(SourceError::retryable("no answer")));
        locks.release(queue(0));
        assert_eq!(locks.take_returnable(|_| false), [queue(0)]);
    }

    #[test]
    fn asked_for_again_it_is_kept() {
        let mut locks = Locks::default();
        ask(&mut locks, Ok(true));
        locks.release(queue(0));
        locks.asking(queue(0));
        locks.answered(queue(0), Ok(true));
        assert!(locks.take_returnable(|_| false).is_empty());
    }

    #[test]
    fn one_that_was_never_asked_for_is_not_given_back() {
        let mut locks = Locks::default();
        locks.release(queue(0));
        assert!(!locks.is_giving_back());
    }
}
