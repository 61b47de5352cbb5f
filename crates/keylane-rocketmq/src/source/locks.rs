//! The brokers' locks on queues, as far as they have to be remembered: which are held, and which
//! are to be given back once nothing stands in the way. No thread, no clock, no I/O.
//!
//! Invariants: a lock is given back to the broker only after every request for it, and every commit
//! of its queue, has been answered; and it is asked for again only after that was answered. Brokers
//! handle the three in different threads: sent one behind the other, they could be carried out in
//! another order, and a successor would read an older offset, a lock be taken that nobody holds, or
//! one be lost that is believed to be held.

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
    /// It is being given back.
    returning: bool,
    /// It is wanted again meanwhile.
    wanted: bool,
}

impl Locks {
    /// The lock is to be asked for; `false`: not before it has been [given back](Self::returned).
    pub(crate) fn asking(&mut self, queue: QueueId) -> bool {
        let lock = self.0.entry(queue).or_default();
        lock.give_back = false;
        lock.wanted = lock.returning;
        lock.asking += u32::from(!lock.returning);
        !lock.returning
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
            lock.wanted = false;
            lock.give_back = !lock.returning;
        }
    }

    /// The locks that can be given back now, which is to be done.
    pub(crate) fn take_returnable(&mut self, committing: impl Fn(QueueId) -> bool) -> Vec<QueueId> {
        let mut queues = Vec::new();
        for (queue, lock) in &mut self.0 {
            if lock.give_back && lock.asking == 0 && !committing(*queue) {
                *lock = Lock { returning: true, ..Lock::default() };
                queues.push(*queue);
            }
        }
        queues.sort();
        queues
    }

    /// The broker has taken the lock back, or has failed to; `true`: it is wanted again.
    pub(crate) fn returned(&mut self, queue: QueueId) -> bool {
        self.0.remove(&queue).is_some_and(|lock| lock.wanted)
    }

    /// Whether a lock waits to be given back, or is being given back.
    pub(crate) fn is_giving_back(&self) -> bool {
        self.0.values().any(|lock| lock.give_back || lock.returning)
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
        assert!(locks.take_returnable(|_| false).is_empty(), "once");
        assert!(locks.is_giving_back());
        assert!(!locks.returned(queue(0)));
        assert!(!locks.is_giving_back());
    }

    #[test]
    fn a_lock_that_is_being_given_back_is_asked_for_again_afterwards() {
        let mut locks = Locks::default();
        ask(&mut locks, Ok(true));
        locks.release(queue(0));
        assert_eq!(locks.take_returnable(|_| false), [queue(0)]);
        assert!(!locks.asking(queue(0)), "not while it is on its way back");
        assert!(locks.returned(queue(0)), "but then");
        assert!(locks.asking(queue(0)));
        assert!(matches!(locks.answered(queue(0), Ok(true)), LockReply::Held));

        locks.release(queue(0));
        assert_eq!(locks.take_returnable(|_| false), [queue(0)]);
        assert!(!locks.asking(queue(0)));
        locks.release(queue(0));
        assert!(!locks.returned(queue(0)), "given up meanwhile");
        assert!(!locks.is_giving_back());
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
