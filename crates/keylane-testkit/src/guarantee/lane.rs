//! What order and exclusion are kept for: a key, a queue, or nothing.

use std::fmt;
use std::sync::{Arc, LazyLock};

use ahash::RandomState;
use bytes::Bytes;
use keylane_source::{Message, QueueId};

/// The routing key of messages without one, and of those whose key is empty.
pub const NO_KEY: &str = "__nokey";

/// What a message is in line with.
///
/// Order is kept among the messages of one lane *and queue*; exclusion among all of one key, from
/// whichever queues they come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Messages of this routing key.
    Key(Bytes),
    /// All messages of the queue.
    Queue,
    /// Nothing: any order, any overlap.
    Free,
}

impl Lane {
    /// The lane of this key.
    pub fn key(key: impl Into<Bytes>) -> Self {
        Self::Key(key.into())
    }

    /// Names the lane inside a queue: what order is kept for. `None` for a free one.
    pub(crate) fn in_queue(&self, queue: QueueId) -> Option<LaneId> {
        match self {
            Self::Key(key) => Some(LaneId::of(&(queue, &key[..]))),
            Self::Queue => Some(LaneId::of(&queue)),
            Self::Free => None,
        }
    }

    /// Names the lane in the whole process: what exclusion is kept for. `None` for a free one.
    pub(crate) fn in_process(&self, queue: QueueId) -> Option<LaneId> {
        match self {
            Self::Key(key) => Some(LaneId::of(&key[..])),
            Self::Queue => Some(LaneId::of(&queue)),
            Self::Free => None,
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "key \"{}\"", key.escape_ascii()),
            Self::Queue => f.write_str("whole queue"),
            Self::Free => f.write_str("no order"),
        }
    }
}

/// A lane in 16 bytes, whatever the length of its key, so that ten million keys fit.
///
/// Two lanes share an id with a probability of one in 10^24 (ten million keys); they would be taken
/// for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LaneId(u64, u64);

/// Two hash functions, the same for the whole process.
static HASHERS: LazyLock<(RandomState, RandomState)> =
    LazyLock::new(|| (RandomState::with_seeds(1, 2, 3, 4), RandomState::with_seeds(5, 6, 7, 8)));

impl LaneId {
    fn of(name: &(impl std::hash::Hash + ?Sized)) -> Self {
        Self(HASHERS.0.hash_one(name), HASHERS.1.hash_one(name))
    }

    /// One of `parts` parts, the same for the same lane.
    pub(crate) fn part(self, parts: usize) -> usize {
        usize::try_from(self.0 % parts as u64).unwrap_or(0)
    }
}

/// In which scope order and exclusion hold: what an engine's mode and options promise.
#[derive(Clone)]
pub enum Scope {
    /// Per routing key (key-sharded mode).
    Key(NoKey),
    /// Per routing key, which this function takes out of the message.
    Routed(Arc<dyn Fn(&Message) -> Lane + Send + Sync>),
    /// Per queue (queue-locked mode).
    Queue,
    /// Nowhere (concurrent mode).
    Free,
}

/// Where messages without a key belong; an empty key is always [`NO_KEY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoKey {
    /// All of them have the key [`NO_KEY`].
    #[default]
    Shared,
    /// Each queue's are a lane of their own.
    ByQueue,
    /// They are spread and have no order.
    Spread,
}

impl Scope {
    /// Per key, messages without one together: the engine's default.
    pub fn key() -> Self {
        Self::Key(NoKey::Shared)
    }

    /// Per routing key, which `route` takes out of the message.
    pub fn routed(route: impl Fn(&Message) -> Lane + Send + Sync + 'static) -> Self {
        Self::Routed(Arc::new(route))
    }

    /// The lane of a message.
    ///
    /// ```
    /// use keylane_source::{Message, Offset, QueueId};
    /// use keylane_testkit::guarantee::{Lane, NoKey, Scope};
    ///
    /// let message = Message::new(QueueId::new("orders", 0), Offset::ZERO);
    /// assert_eq!(Scope::key().lane(&message), Lane::key("__nokey"));
    /// assert_eq!(Scope::Key(NoKey::Spread).lane(&message), Lane::Free);
    /// assert_eq!(Scope::Key(NoKey::Spread).lane(&message.with_key("")), Lane::key("__nokey"));
    /// ```
    pub fn lane(&self, message: &Message) -> Lane {
        let no_key = || Lane::Key(Bytes::from_static(NO_KEY.as_bytes()));
        match self {
            Self::Free => Lane::Free,
            Self::Queue => Lane::Queue,
            Self::Routed(route) => route(message),
            Self::Key(policy) => match (message.key_bytes(), policy) {
                (Some(key), _) if !key.is_empty() => Lane::Key(key.clone()),
                (Some(_), _) | (None, NoKey::Shared) => no_key(),
                (None, NoKey::ByQueue) => Lane::Queue,
                (None, NoKey::Spread) => Lane::Free,
            },
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(no_key) => write!(f, "Key({no_key:?})"),
            Self::Routed(_) => f.write_str("Routed"),
            Self::Queue => f.write_str("Queue"),
            Self::Free => f.write_str("Free"),
        }
    }
}
