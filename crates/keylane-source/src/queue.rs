//! The name of a queue, as a value of eight bytes.
//!
//! Every message carries its queue, and a million messages a second are moved between threads: a
//! shared pointer would cost two atomic operations on one cache line per message, a number would
//! say nothing in an error. So names are *interned*: each distinct name is stored once, for the
//! life of the process, and an id is a reference to it. A process that has met N distinct queues
//! keeps N names, about a hundred bytes each; they are never given back.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// A queue: topic, broker where the protocol has more than one per topic, and index.
///
/// `Copy`, compared by reference, ordered by (topic, broker, index). `Display` is
/// `topic/index` or `topic@broker/index`.
///
/// ```
/// use keylane_source::QueueId;
///
/// let queue = QueueId::new("orders", 3);
/// assert_eq!(queue, QueueId::new("orders", 3));
/// assert_eq!((queue.topic(), queue.broker(), queue.index()), ("orders", None, 3));
/// assert_eq!(queue.to_string(), "orders/3");
/// assert_eq!(QueueId::on_broker("orders", "broker-a", 3).to_string(), "orders@broker-a/3");
/// ```
#[derive(Clone, Copy)]
pub struct QueueId(&'static Name);

#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Name {
    topic: Box<str>,
    broker: Option<Box<str>>,
    index: u32,
}

static NAMES: Mutex<Option<HashSet<&'static Name>>> = Mutex::new(None);

impl QueueId {
    /// The queue of `topic` with this index.
    pub fn new(topic: &str, index: u32) -> Self {
        Self::intern(Name { topic: topic.into(), broker: None, index })
    }

    /// The queue of `topic` with this index on the broker of this name.
    pub fn on_broker(topic: &str, broker: &str, index: u32) -> Self {
        Self::intern(Name { topic: topic.into(), broker: Some(broker.into()), index })
    }

    fn intern(name: Name) -> Self {
        // A panic under the lock cannot leave the set half changed: recover it.
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let names = names.get_or_insert_with(HashSet::new);
        if let Some(known) = names.get(&name) {
            return Self(known);
        }
        let kept: &'static Name = Box::leak(Box::new(name));
        names.insert(kept);
        Self(kept)
    }

    /// The topic that the queue belongs to.
    pub fn topic(self) -> &'static str {
        &self.0.topic
    }

    /// The broker that holds the queue, where the protocol names one.
    pub fn broker(self) -> Option<&'static str> {
        self.0.broker.as_deref()
    }

    /// The queue's number inside its topic (and broker).
    pub fn index(self) -> u32 {
        self.0.index
    }
}

impl PartialEq for QueueId {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for QueueId {}

impl Hash for QueueId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // By name, not by address: the same in every run, as the simulator needs it.
        self.0.hash(state);
    }
}

impl PartialOrd for QueueId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueueId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(other.0)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.broker {
            None => write!(f, "{}/{}", self.0.topic, self.0.index),
            Some(broker) => write!(f, "{}@{broker}/{}", self.0.topic, self.0.index),
        }
    }
}

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::QueueId;

    #[test]
    fn equal_names_are_one_id_and_different_names_are_not() {
        let queue = QueueId::new("t", 1);
        assert_eq!(queue, QueueId::new("t", 1));
        assert_ne!(queue, QueueId::new("t", 2));
        assert_ne!(queue, QueueId::new("u", 1));
        assert_ne!(queue, QueueId::on_broker("t", "b", 1));
    }

    #[test]
    fn order_is_topic_then_broker_then_index() {
        let mut queues = [
            QueueId::on_broker("t", "b", 1),
            QueueId::new("t", 10),
            QueueId::on_broker("t", "a", 9),
            QueueId::new("t", 9),
            QueueId::new("s", 99),
        ];
        queues.sort();
        let names = queues.map(|queue| queue.to_string());
        assert_eq!(names, ["s/99", "t/9", "t/10", "t@a/9", "t@b/1"]);
    }
}
