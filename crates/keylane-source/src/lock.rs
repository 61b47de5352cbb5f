//! Locks on queues, for brokers that have them.

use std::time::Duration;

use crate::{QueueId, SourceError};

/// A broker's lock on a queue: one member of the group holds it, and it expires unless renewed.
///
/// The engine decides when to acquire, renew and release (so that its simulator tests it); an
/// adaptor only carries it out. No call waits: each is answered by
/// [`SourceEvent::Lock`](crate::SourceEvent::Lock).
///
/// RocketMQ's broker grants such locks (`LOCK_BATCH_MQ`) for 60 s; its client trusts one for 30 s
/// and renews every 20 s.
pub trait QueueLocks {
    /// How long a lock may be trusted after the moment at which it was *asked* for. It must be
    /// shorter than the broker's own expiry.
    fn lease(&self) -> Duration;

    /// Asks for the locks of these queues, or prolongs them where they are held: the broker's
    /// request is the same. Each queue is answered.
    fn acquire(&mut self, queues: &[QueueId]);

    /// Gives these locks back. Not answered: what fails here expires at the broker.
    fn release(&mut self, queues: &[QueueId]);
}

/// What became of a queue's lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LockReply {
    /// Granted or prolonged: held for [`QueueLocks::lease`] from the moment of asking.
    Held,
    /// Somebody else has it.
    Refused,
    /// It was held and is not any more: nothing more may be delivered from the queue.
    Lost,
    /// No answer. A lock that is held stays so until its lease ends.
    Failed(SourceError),
}
