//! One queue as the source thread sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use keylane_source::{EndOffset, Message, Position, QueueId, SeekTo, SourceError, Watermark};

use super::budget::Used;
use super::committer::Committer;
use super::tenure::Tenure;
use super::tracker::Tracker;

/// A queue that was assigned at some time. It keeps its slot for the life of the consumer.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) stage: Stage,
    pub(crate) reading: Option<Reading>,
    /// What the last tenure has left, where no other has followed.
    pub(crate) left: Left,
    /// Since when it has waited to be read, and how often an event has said so.
    pub(crate) unread: Option<(Instant, u32)>,
    pub(crate) committer: Committer,
    pub(crate) end: EndOffset,
    /// Stands in the list of queues that may have something to commit.
    pub(crate) dirty: bool,
    /// Stands in the list of queues whose timers are looked at.
    pub(crate) unsettled: bool,
    /// Finished since the last commit.
    pub(crate) uncommitted: u64,
    /// Until when its lock is held, for sources with locks.
    pub(crate) lock: Option<Lock>,
    pub(crate) asks: Asks,
}

/// Where a queue is in its life.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Asks for the queue's lock.
    Locking { again_at: Option<Instant> },
    /// Asks what was committed; `again_at` after a failure, else an answer is awaited.
    LookingUp { again_at: Option<Instant>, failures: u32 },
    /// Messages come.
    Reading,
    /// Is being given back: waits for what runs.
    Closing(Closing),
    /// Ended with an error; its commit stays untouched.
    Failed(SourceError),
    /// Not ours.
    Gone,
}

/// The revocation of a queue.
#[derive(Debug)]
pub(crate) struct Closing {
    /// The bound.
    pub(crate) until: Instant,
    /// Shards in which something of the queue was running when last looked at.
    pub(crate) busy: Vec<usize>,
    /// Nothing counts any more; the last commit is awaited.
    pub(crate) fenced: bool,
    /// A call was still running at the bound: the lock is left to expire.
    pub(crate) timed_out: bool,
}

/// The queue's lock. It is trusted for a lease from the moment at which it was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lock {
    /// `None` until the broker has granted it.
    pub(crate) until: Option<Instant>,
    /// Two thirds into the lease, then often enough to try more than once before its end.
    pub(crate) renew_at: Instant,
}

impl Lock {
    /// Notes that the lock is asked for, or asked for again.
    pub(crate) fn ask(lock: &mut Option<Self>, lease: Duration, now: Instant) {
        let until = lock.as_ref().and_then(|lock| lock.until);
        *lock = Some(Self { until, renew_at: now + lease / 6 });
    }

    /// A lock that the broker has granted when it was asked for then.
    pub(crate) fn granted(lease: Duration, asked_at: Instant) -> Self {
        Self { until: Some(asked_at + lease), renew_at: asked_at + lease * 2 / 3 }
    }

    /// When it has to be asked for again, or ends.
    fn next_due(&self) -> Instant {
        self.until.map_or(self.renew_at, |until| until.min(self.renew_at))
    }
}

/// Requests for a queue's lock that are not answered. An answer does not say which request it is of:
/// a grant is dated from the oldest that it may be of; and what was asked for before the lock was
/// lost, or longer ago than a lease, grants nothing, though its answer may still come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asks {
    open: u32,
    oldest: Option<Instant>,
    lease: Duration,
    /// How many answers are to be passed over, and how long they are awaited.
    void: u32,
    void_until: Option<Instant>,
}

impl Asks {
    pub(crate) fn ask(&mut self, lease: Duration, now: Instant) {
        self.lease = lease;
        if self.oldest.is_some_and(|oldest| now >= oldest + lease) {
            self.void(now);
        }
        self.open += 1;
        self.oldest.get_or_insert(now);
    }

    /// Nothing that was asked for so far grants anything: the lock is lost. (Where that was an
    /// answer itself, one more is passed over than need be, and the lock is asked for again.)
    pub(crate) fn void(&mut self, now: Instant) {
        self.void += self.open;
        self.void_until = Some(now + self.lease);
        (self.open, self.oldest) = (0, None);
    }

    /// When was asked what is answered now, at the earliest; `None`: nothing that still counts.
    pub(crate) fn answered(&mut self, now: Instant) -> Option<Instant> {
        if self.void > 0 && self.void_until.is_some_and(|until| now < until) {
            self.void -= 1;
            return None;
        }
        self.void = 0;
        let oldest = self.oldest?;
        self.open -= 1;
        if self.open == 0 {
            self.oldest = None;
        }
        Some(oldest)
    }

    pub(crate) fn are_open(&self) -> bool {
        self.open > 0
    }
}

/// A tenure, as the source thread sees it.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) tenure: Arc<Tenure>,
    /// In which look at the source it began.
    pub(crate) begun_in: u64,
    /// `None` until the first fetch, where the start was not a number.
    pub(crate) tracker: Option<Tracker>,
    pub(crate) used: Used,
    /// Finished messages and bytes as of the last look.
    pub(crate) seen: (u64, u64),
    /// What a fetch brought and the budget had no room for.
    pub(crate) stash: IntoIter<Message>,
    /// How many messages of it were dropped at the end.
    dropped: u64,
    /// The position behind the stash.
    pub(crate) stash_position: Position,
    /// The source was told to pause the queue.
    pub(crate) paused: bool,
    /// Since when the queue has been held back, and whether an event has said so.
    pub(crate) held: Option<(Instant, bool)>,
}

/// How far a tenure has come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Left {
    /// Everything below is finished; `None` where nothing was read.
    pub(crate) watermark: Option<Watermark>,
    /// See [`Reading::unfinished`].
    pub(crate) unfinished: u64,
    /// Finished, and not below the watermark.
    pub(crate) finished_above: u64,
}

impl Queue {
    pub(crate) fn new(id: QueueId) -> Self {
        Self {
            id,
            stage: Stage::Gone,
            reading: None,
            left: Left::default(),
            unread: None,
            committer: Committer::new(id, None),
            end: EndOffset::Unknown,
            dirty: false,
            unsettled: false,
            uncommitted: 0,
            lock: None,
            asks: Asks::default(),
        }
    }

    /// Whether it counts for the division of the budget.
    pub(crate) fn is_assigned(&self) -> bool {
        !matches!(self.stage, Stage::Gone | Stage::Failed(_))
    }

    /// What it waits for before it can be read, in words, and since when.
    pub(crate) fn waits_for(&self) -> Option<(&'static str, Instant)> {
        let what = match &self.stage {
            Stage::Locking { .. } => "its lock",
            Stage::LookingUp { .. } => "its committed offset",
            Stage::Reading | Stage::Closing(_) | Stage::Failed(_) | Stage::Gone => return None,
        };
        Some((what, self.unread?.0))
    }

    /// Whether its lock is asked for again: a queue at its end needs it as long as it waits for
    /// calls, and not once its bound has passed.
    pub(crate) fn renews_lock(&self) -> bool {
        !matches!(&self.stage, Stage::Closing(closing) if closing.timed_out)
    }

    /// When the lock has to be looked at.
    pub(crate) fn lock_due(&self) -> Option<Instant> {
        self.lock.filter(|_| self.renews_lock()).map(|lock| lock.next_due())
    }

    /// Everything below is finished; `None` as long as nothing is known.
    pub(crate) fn watermark(&mut self) -> Option<Watermark> {
        Some(self.reading.as_mut()?.tracker.as_mut()?.watermark())
    }

    /// How far its tenure has come, or its last one.
    pub(crate) fn has_left(&mut self) -> Left {
        let watermark = self.watermark();
        let Some(reading) = &self.reading else { return self.left };
        let above = |tracker: &Tracker| tracker.span() - tracker.unfinished();
        let finished_above = reading.tracker.as_ref().map_or(0, above);
        Left { watermark, unfinished: reading.unfinished(), finished_above }
    }

    /// Nothing of its tenure is committed any more; what that has left is remembered.
    pub(crate) fn end_reading(&mut self) {
        self.left = self.has_left();
        self.reading = None;
    }

    /// The same, where the offsets mean something else by now.
    pub(crate) fn end_reading_at_reset(&mut self) {
        self.end_reading();
        self.left.watermark = None;
    }
}

impl Reading {
    pub(crate) fn new(tenure: Tenure, from: SeekTo, look: u64) -> Self {
        let tracker = match from {
            SeekTo::Position(position) => Some(Tracker::new(position)),
            _ => None,
        };
        Self {
            tenure: Arc::new(tenure),
            begun_in: look,
            tracker,
            used: Used::default(),
            seen: (0, 0),
            stash: IntoIter::default(),
            dropped: 0,
            stash_position: Position::ZERO,
            paused: false,
            held: None,
        }
    }

    /// Messages pulled and not finished, those in the stash among them, also after its end.
    pub(crate) fn unfinished(&self) -> u64 {
        let registered = self.tracker.as_ref().map_or(0, Tracker::unfinished);
        registered + self.stash.len() as u64 + self.dropped
    }

    /// What waits for budget will come again, elsewhere or later.
    pub(crate) fn drop_stash(&mut self) {
        self.dropped += self.stash.len() as u64;
        self.stash = IntoIter::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn a_grant_counts_from_the_oldest_request_that_it_may_answer() {
        let start = crate::time::Clock.now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut asks = Asks::default();
        asks.ask(LEASE, at(0));
        assert_eq!(asks.answered(at(1)), Some(at(0)));
        assert_eq!(asks.answered(at(1)), None, "nothing is asked");

        asks.ask(LEASE, at(20));
        asks.ask(LEASE, at(25));
        // Perhaps the broker has seen only the first of the two.
        assert_eq!(asks.answered(at(26)), Some(at(20)));
        asks.ask(LEASE, at(30));
        // Perhaps this is still the first one's.
        assert_eq!(asks.answered(at(31)), Some(at(20)));
        assert_eq!(asks.answered(at(31)), Some(at(20)));
        assert!(!asks.are_open());
        asks.ask(LEASE, at(40));
        assert_eq!(asks.answered(at(41)), Some(at(40)));
    }

    #[test]
    fn what_was_asked_before_a_loss_grants_nothing() {
        let start = crate::time::Clock.now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut asks = Asks::default();
        asks.ask(LEASE, at(0));
        asks.void(at(1));
        asks.ask(LEASE, at(1));
        assert_eq!(asks.answered(at(2)), None);
        assert_eq!(asks.answered(at(2)), Some(at(1)));
    }

    #[test]
    fn what_was_asked_longer_ago_than_a_lease_grants_nothing() {
        let start = crate::time::Clock.now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut asks = Asks::default();
        asks.ask(LEASE, at(0));
        asks.ask(LEASE, at(30));
        assert_eq!(asks.answered(at(31)), None, "it may be the first one's");
        assert_eq!(asks.answered(at(31)), Some(at(30)));

        asks.ask(LEASE, at(40));
        asks.ask(LEASE, at(70));
        // An answer that has not come by now never will.
        assert_eq!(asks.answered(at(100)), Some(at(70)));
        let lock = Lock::granted(LEASE, at(70));
        assert_eq!((lock.until, lock.renew_at), (Some(at(100)), at(90)));
    }
}
