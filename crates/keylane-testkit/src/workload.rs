//! Messages and listeners made to measure, the same for the same seed.
//!
//! Everything about a message is a function of (seed, queue, offset), and what a listener does with
//! it of (seed, queue, offset, attempt): no state, so that threads, order and restarts change
//! nothing. The numbers are the same on every machine; only the thresholds of
//! [`Keys::zipf`] are computed with floating point, where a last bit may differ between platforms
//! and move one draw in 10^15.
//!
//! ```
//! use keylane_testkit::workload::{Keys, Sizes, Workload};
//!
//! let workload = Workload::new(7)
//!     .queues("load", 4)
//!     .messages(10_000)
//!     .keys(Keys::zipf(1_000, 1.0))
//!     .sizes(Sizes::Fixed(100));
//! let topic = workload.topic(); // a source in memory
//! assert_eq!(topic.messages(), 10_000);
//! println!("{workload}"); // names everything that it takes to have it again
//! ```

use std::fmt;

use bytes::Bytes;
use keylane_source::{Message, Offset, QueueId};

use crate::memory::MemoryTopic;

mod faults;
mod keys;
mod prng;
mod sizes;
mod work;

pub use faults::{Fault, Faults};
pub use keys::Keys;
pub use prng::{Prng, mix};
pub use sizes::Sizes;
pub use work::{ParseWorkError, Work};

/// What a topic is filled with.
///
/// Defaults: 4 queues of the topic `load`, 100,000 messages, 1,000 uniform keys, 100 bytes.
#[derive(Debug, Clone)]
pub struct Workload {
    seed: u64,
    topic: String,
    queues: u32,
    messages: u64,
    keys: Keys,
    sizes: Sizes,
}

/// Tells what is drawn from the same (seed, queue, offset) apart.
const FOR_KEY: u64 = 1;
const FOR_SIZE: u64 = 2;

impl Workload {
    /// The defaults, with this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            topic: "load".to_owned(),
            queues: 4,
            messages: 100_000,
            keys: Keys::uniform(1_000),
            sizes: Sizes::Fixed(100),
        }
    }

    /// The topic and its number of queues, at least 1.
    #[must_use]
    pub fn queues(mut self, topic: &str, queues: u32) -> Self {
        (self.topic, self.queues) = (topic.to_owned(), queues.max(1));
        self
    }

    /// How many messages there are in all queues together.
    #[must_use]
    pub fn messages(mut self, messages: u64) -> Self {
        self.messages = messages;
        self
    }

    /// How keys are drawn.
    #[must_use]
    pub fn keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    /// How large payloads are.
    #[must_use]
    pub fn sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// How many messages this queue gets: queues differ by one at most, the first ones have more.
    pub fn messages_of(&self, queue: u32) -> u64 {
        let queues = u64::from(self.queues);
        self.messages / queues + u64::from(u64::from(queue) < self.messages % queues)
    }

    /// The message that stands there. Its payload is a slice of one shared buffer.
    pub fn message(&self, queue: QueueId, offset: Offset) -> Message {
        let place = [self.seed, u64::from(queue.index()), offset.get()];
        let draw = |what| mix(&[place[0], place[1], place[2], what]);
        let key = self.keys.pick(draw(FOR_KEY));
        Message::new(queue, offset)
            .with_key(Keys::name(key))
            .with_payload(self.sizes.payload(draw(FOR_SIZE)))
    }

    /// All of it in memory, made when it is read.
    pub fn topic(&self) -> MemoryTopic {
        let workload = self.clone();
        let sizes: Vec<_> = (0..self.queues).map(|queue| self.messages_of(queue)).collect();
        MemoryTopic::generate_sized(&self.topic, &sizes, move |queue, offset| {
            workload.message(queue, offset)
        })
    }

    /// All of it in memory, made now: for benchmarks of what comes after the source.
    pub fn topic_made(&self) -> MemoryTopic {
        let of_queue = |index: u32| {
            let queue = QueueId::new(&self.topic, index);
            let offsets = (0..self.messages_of(index)).filter_map(Offset::new);
            offsets.map(move |offset| self.message(queue, offset))
        };
        MemoryTopic::from_messages((0..self.queues).flat_map(of_queue))
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, topic, queues, messages, keys, sizes } = self;
        write!(
            f,
            "seed {seed}: {messages} messages in {queues} queues of \"{topic}\", {keys}, {sizes}"
        )
    }
}

/// Zeros to cut payloads from.
pub(crate) fn zeros(length: usize) -> Bytes {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    match ZEROS.get(..length) {
        Some(slice) => Bytes::from_static(slice),
        None => Bytes::from(vec![0; length]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_same_seed_gives_the_same_messages_made_early_or_late() {
        let workload = Workload::new(3).queues("w", 3).messages(100).sizes(Sizes::Range(1, 9));
        let of = |workload: &Workload, queue, offset| {
            let queue = QueueId::new("w", queue);
            let message = workload.message(queue, Offset::new(offset).unwrap());
            (message.key().unwrap().to_vec(), message.payload().unwrap().len())
        };
        // Fixed for ever: a change here makes every recorded seed mean something else.
        let first: Vec<_> = (0..3).map(|queue| of(&workload, queue, 0)).collect();
        let expected = [("key-277", 3), ("key-639", 5), ("key-604", 2)];
        assert_eq!(first, expected.map(|(key, size)| (key.as_bytes().to_vec(), size)));
        let other = Workload::new(4).queues("w", 3).messages(100);
        assert_ne!(of(&other, 0, 0).0, first[0].0);
    }

    #[test]
    fn messages_are_divided_among_queues() {
        let workload = Workload::new(1).queues("w", 3).messages(11);
        let divided: Vec<_> = (0..3).map(|queue| workload.messages_of(queue)).collect();
        assert_eq!(divided, [4, 4, 3]);
        for topic in [workload.topic(), workload.topic_made()] {
            assert_eq!(topic.messages(), 11);
            let ends: HashSet<_> = topic.queues().map(|q| topic.end(q).unwrap().get()).collect();
            assert_eq!(ends, HashSet::from([4, 3]));
        }
    }

    #[test]
    fn a_workload_names_what_it_takes_to_have_it_again() {
        let workload = Workload::new(7).queues("w", 2).keys(Keys::hot(10, 0.5));
        assert_eq!(
            workload.to_string(),
            "seed 7: 100000 messages in 2 queues of \"w\", 10 keys, the first one with 50 % of the \
             messages, 100 bytes each"
        );
    }
}
