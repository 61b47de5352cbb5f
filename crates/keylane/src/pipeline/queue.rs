//! One queue as the source thread sees it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// Requests for a queue's lock that are not answered. An answer does not say which request it is of,
/// so a grant is dated from the oldest that it may be of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asks {
    open: u32,
    oldest: Option<Instant>,
}

impl Asks {
    pub(crate) fn ask(&mut self, lease: Duration, now: Instant) {
        if self.oldest.is_some_and(|oldest| now >= oldest + lease) {
            *self = Self::default(); // An answer that is still to come would be worth nothing.
        }
        self.open += 1;
        self.oldest.get_or_insert(now);
    }

    /// When was asked what is answered now, at the earliest; `None`: nothing was.
    pub(crate) fn answered(&mut self) -> Option<Instant> {
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
    pub(crate) stash: VecDeque<Message>,
    /// The position behind the stash.
    pub(crate) stash_position: Position,
    /// The source was told to pause the queue.
    pub(crate) paused: bool,
    /// Since when the queue has been held back, and whether an event has said so.
    pub(crate) held: Option<(Instant, bool)>,
}

impl Queue {
    pub(crate) fn new(id: QueueId) -> Self {
        Self {
            id,
            stage: Stage::Gone,
            reading: None,
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
            stash: VecDeque::new(),
            stash_position: Position::ZERO,
            paused: false,
            held: None,
        }
    }

    /// Messages pulled and not finished, those in the stash among them.
    pub(crate) fn unfinished(&self) -> u64 {
        self.tracker.as_ref().map_or(0, Tracker::unfinished) + self.stash.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_counts_from_the_oldest_request_that_it_may_answer() {
        let (lease, start) = (Duration::from_secs(30), crate::time::Clock.now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut asks = Asks::default();
        asks.ask(lease, at(0));
        assert_eq!(asks.answered(), Some(at(0)));
        assert_eq!(asks.answered(), None, "nothing is asked");

        asks.ask(lease, at(20));
        asks.ask(lease, at(25));
        // Perhaps the broker has seen only the first of the two.
        assert_eq!(asks.answered(), Some(at(20)));
        asks.ask(lease, at(30));
        // Perhaps this is still the first one's.
        assert_eq!((asks.answered(), asks.answered()), (Some(at(20)), Some(at(20))));
        assert!(!asks.are_open());
        asks.ask(lease, at(40));
        assert_eq!(asks.answered(), Some(at(40)));
    }

    #[test]
    fn an_answer_that_never_comes_is_forgotten_after_a_lease() {
        let (lease, start) = (Duration::from_secs(30), crate::time::Clock.now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut asks = Asks::default();
        asks.ask(lease, at(0));
        asks.ask(lease, at(30));
        assert_eq!(asks.answered(), Some(at(30)));
        assert!(!asks.are_open());
        let lock = Lock::granted(lease, at(30));
        assert_eq!((lock.until, lock.renew_at), (Some(at(60)), at(50)));
    }
}
