//! A listener in the shape of RocketMQ's MessageListenerOrderly, for both ordered modes.
//!
//! | status | `auto_commit` on | `auto_commit` off |
//! | --- | --- | --- |
//! | `Success` | finished, with all that was kept | kept: handled, and finished by a later `Commit` |
//! | `Commit` | as `Success` | finished, with all that was kept |
//! | `Rollback` | this batch comes again | this batch and all that was kept come again |
//! | `SuspendCurrentQueueAMoment`, panic | this batch comes again, and it counts | the same; what was kept stays |
//!
//! Whatever comes again does so after the suspend time; until then its lane is held back: the key in
//! key-sharded mode, the queue in queue-locked mode. Where this differs from the Java client, and
//! why, is in `docs/rocketmq-differences.md`.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use keylane_source::{Message, QueueId};

use super::{Env, Work};
use crate::pipeline::{Call, Verdict, Verdicts};

/// The shortest and the longest suspend time, as RocketMQ has them.
const SUSPEND_MIN: Duration = Duration::from_millis(10);
const SUSPEND_MAX: Duration = Duration::from_secs(30);
/// RocketMQ's suspendCurrentQueueTimeMillis.
pub(super) const SUSPEND_DEFAULT: Duration = Duration::from_secs(1);

/// What an [`OrderlyListener`] says about its messages.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderlyStatus {
    /// Handled. With `auto_commit` off they are kept, uncommitted and inside the budget, until a
    /// later `Commit`.
    Success,
    /// Handled, and all that was kept is committed with them.
    Commit,
    /// All that was not committed comes again, in order; no attempt is counted.
    Rollback,
    /// These messages come again, and it counts as an attempt.
    SuspendCurrentQueueAMoment,
}

/// Handles messages of one lane at a time: of one key in key-sharded mode, of one queue in
/// queue-locked mode. Not to be used in concurrent mode, which `start` rejects.
///
/// Made by [`listen::per_shard_orderly`](super::listen::per_shard_orderly); for a closure see
/// [`listen::orderly`](super::listen::orderly). About threads, state and panics see
/// [`Listener`](super::Listener).
pub trait OrderlyListener: Send + 'static {
    /// Handles the messages, at most `batch_max` of them, in order of offset.
    fn consume(&mut self, messages: &[Message], context: &mut OrderlyContext) -> OrderlyStatus;

    /// See [`Listener::on_revoked`](super::Listener::on_revoked).
    fn on_revoked(&mut self, queue: QueueId) {
        let _ = queue;
    }

    /// See [`Listener::on_stop`](super::Listener::on_stop).
    fn on_stop(&mut self) {}
}

/// How a call is to be understood. Made anew for each call; read after it has returned.
pub struct OrderlyContext {
    auto_commit: bool,
    suspend: Duration,
    queue: QueueId,
    attempt: u32,
}

impl OrderlyContext {
    /// Whether `Success` commits. Default `true`.
    pub fn auto_commit(&self) -> bool {
        self.auto_commit
    }

    /// Sets whether `Success` commits. A consumer that never commits comes to a halt once its
    /// budget is full of kept messages; an event ([`HeldBy::Uncommitted`](crate::HeldBy)) says so.
    pub fn set_auto_commit(&mut self, auto_commit: bool) {
        self.auto_commit = auto_commit;
    }

    /// How long the lane is suspended if it is. Default 1 s, or what the listener was made with.
    pub fn suspend_current_queue_time(&self) -> Duration {
        self.suspend
    }

    /// Sets the suspend time of this call; held to 10 ms to 30 s.
    pub fn set_suspend_current_queue_time(&mut self, suspend: Duration) {
        self.suspend = suspend.clamp(SUSPEND_MIN, SUSPEND_MAX);
    }

    /// The queue of the messages.
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// The number of this attempt for the first message, counted from one.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl fmt::Debug for OrderlyContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderlyContext")
            .field("queue", &self.queue)
            .field("auto_commit", &self.auto_commit)
            .field("suspend", &self.suspend)
            .finish_non_exhaustive()
    }
}

pub(crate) struct PerOrderly<L> {
    pub(super) listener: L,
    pub(super) suspend: Duration,
}

impl<L> PerOrderly<L> {
    pub(super) fn new(listener: L, suspend: Duration) -> Self {
        Self { listener, suspend: suspend.clamp(SUSPEND_MIN, SUSPEND_MAX) }
    }
}

impl<L: OrderlyListener> Work for PerOrderly<L> {
    fn run(&mut self, call: &Call, _messages: Range<usize>, _env: &Env, verdicts: &mut Verdicts) {
        let mut context = OrderlyContext {
            auto_commit: true,
            suspend: self.suspend,
            queue: call.messages[0].queue(),
            attempt: call.attempt(0),
        };
        let status = self.listener.consume(&call.messages, &mut context);
        settle(call, status, &context, verdicts);
    }

    fn blame(&mut self, call: &Call, error: &str, verdicts: &mut Verdicts) -> Option<usize> {
        verdicts.clear();
        verdicts.suspend(call, error, self.suspend, true);
        None
    }

    fn on_revoked(&mut self, queue: QueueId) {
        self.listener.on_revoked(queue);
    }

    fn on_stop(&mut self) {
        self.listener.on_stop();
    }
}

/// The table in the module's description.
pub(crate) fn settle(
    call: &Call,
    status: OrderlyStatus,
    context: &OrderlyContext,
    verdicts: &mut Verdicts,
) {
    let suspend = context.suspend;
    match (status, context.auto_commit) {
        (OrderlyStatus::Success, true) | (OrderlyStatus::Commit, _) => {
            verdicts.all_but_last(call, || Verdict::Keep, Verdict::Commit);
        }
        (OrderlyStatus::Success, false) => {
            verdicts.all_but_last(call, || Verdict::Keep, Verdict::Keep);
        }
        // Nothing is kept with auto-commit on, so this is the batch alone.
        (OrderlyStatus::Rollback, _) => {
            verdicts.all_but_last(call, || Verdict::Keep, Verdict::Rollback(suspend));
        }
        (OrderlyStatus::SuspendCurrentQueueAMoment, _) => {
            verdicts.suspend(call, "the listener suspended its lane", suspend, false);
        }
    }
}

#[cfg(test)]
impl OrderlyContext {
    /// As a call would get it.
    pub(crate) fn for_test(queue: QueueId, auto_commit: bool) -> Self {
        Self { auto_commit, suspend: SUSPEND_DEFAULT, queue, attempt: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suspend_time_is_held_to_its_range() {
        let mut context = OrderlyContext::for_test(QueueId::new("orderly", 0), true);
        assert_eq!(context.suspend_current_queue_time(), Duration::from_secs(1));
        for (asked, got) in [(0, 10), (10, 10), (500, 500), (30_000, 30_000), (60_000, 30_000)] {
            context.set_suspend_current_queue_time(Duration::from_millis(asked));
            assert_eq!(context.suspend_current_queue_time(), Duration::from_millis(got));
        }
    }
}
