//! What a listener of ours counts: the same as those of the others, and as cheaply.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use keylane::Message;
use parking_lot::Mutex;

/// So that two threads seldom want the same map.
const STRIPES: usize = 32;

/// The messages of a topic that holds nothing else, whose queues begin at offset 0.
pub(super) struct Tally {
    messages: u64,
    start: Instant,
    /// Nanoseconds after the start, of the first and the last new message.
    first: AtomicU64,
    last: AtomicU64,
    delivered: AtomicU64,
    duplicates: AtomicU64,
    order_violations: AtomicU64,
    queues: Vec<Queue>,
    hasher: RandomState,
    all: SyncSender<()>,
}

struct Queue {
    /// A bit an offset: whether it was there.
    seen: Vec<AtomicU64>,
    /// By key: the highest offset.
    keys: [Mutex<HashMap<Box<[u8]>, u64>>; STRIPES],
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Total {
    pub(super) delivered: u64,
    pub(super) elapsed: Duration,
    pub(super) duplicates: u64,
    pub(super) order_violations: u64,
}

impl Tally {
    /// For so many messages; the receiver is told when all have come.
    pub(super) fn new(queues: u32, messages: u64) -> (Self, Receiver<()>) {
        let (all, receiver) = sync_channel(1);
        let words = usize::try_from(messages.div_ceil(64)).unwrap_or(usize::MAX);
        let queue = || Queue {
            seen: (0..words).map(|_| AtomicU64::new(0)).collect(),
            keys: std::array::from_fn(|_| Mutex::default()),
        };
        let tally = Self {
            messages,
            start: Instant::now(),
            first: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            order_violations: AtomicU64::new(0),
            queues: (0..queues).map(|_| queue()).collect(),
            hasher: RandomState::new(),
            all,
        };
        (tally, receiver)
    }

    /// A message was handled. One that cannot be in the topic counts as out of order.
    pub(super) fn note(&self, message: &Message) {
        let offset = message.offset().get();
        let queue = self.queues.get(message.queue().index() as usize);
        let word = usize::try_from(offset / 64).unwrap_or(usize::MAX);
        let Some((queue, word)) = queue.and_then(|queue| Some((queue, queue.seen.get(word)?)))
        else {
            self.order_violations.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let bit = 1 << (offset % 64);
        if word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            self.duplicates.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if !self.is_in_order(queue, message.key().unwrap_or_default(), offset) {
            self.order_violations.fetch_add(1, Ordering::Relaxed);
        }
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Only ever lowered once or twice: a plain load tells.
        if now < self.first.load(Ordering::Relaxed) {
            self.first.fetch_min(now, Ordering::Relaxed);
        }
        self.last.fetch_max(now, Ordering::Relaxed);
        if self.delivered.fetch_add(1, Ordering::Relaxed) + 1 == self.messages {
            // There is room: it is sent once.
            let _ = self.all.try_send(());
        }
    }

    fn is_in_order(&self, queue: &Queue, key: &[u8], offset: u64) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "any part of a hash will do")]
        let stripe = self.hasher.hash_one(key) as usize % STRIPES;
        let mut keys = queue.keys[stripe].lock();
        match keys.get_mut(key) {
            Some(last) if *last > offset => false,
            Some(last) => {
                *last = offset;
                true
            }
            None => {
                keys.insert(key.into(), offset);
                true
            }
        }
    }

    /// What has come so far.
    pub(super) fn total(&self) -> Total {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let elapsed = of(&self.last).saturating_sub(of(&self.first));
        Total {
            delivered: of(&self.delivered),
            elapsed: Duration::from_nanos(elapsed),
            duplicates: of(&self.duplicates),
            order_violations: of(&self.order_violations),
        }
    }
}

#[cfg(test)]
mod tests {
    use keylane_source::{Offset, QueueId};

    use super::*;

    fn message(queue: u32, offset: u64, key: &'static str) -> Message {
        Message::new(QueueId::new("t", queue), Offset::new(offset).unwrap()).with_key(key)
    }

    #[test]
    fn order_is_a_keys_in_a_queue_and_twice_is_no_disorder() {
        let (tally, all) = Tally::new(2, 6);
        tally.note(&message(0, 3, "a"));
        tally.note(&message(0, 1, "b"));
        tally.note(&message(1, 2, "a"));
        let total = tally.total();
        assert_eq!((total.delivered, total.duplicates, total.order_violations), (3, 0, 0));
        tally.note(&message(0, 3, "a"));
        tally.note(&message(0, 2, "a"));
        // Neither the queue nor the offset exists.
        tally.note(&message(2, 0, "a"));
        tally.note(&message(0, 64, "a"));
        let total = tally.total();
        assert_eq!((total.delivered, total.duplicates, total.order_violations), (4, 1, 3));
        assert!(all.try_recv().is_err());
        tally.note(&message(0, 4, "a"));
        tally.note(&message(0, 5, "a"));
        assert!(all.try_recv().is_ok());
    }
}
