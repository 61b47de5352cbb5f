//! Every option with its default and its limits, and what fits together with what.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_source::{Message, SeekTo};

use crate::error::Error;
use crate::observer::Observer;
use crate::outcome::BoxError;
use crate::pipeline::SLICE;

/// Decides a message's routing key, in place of its own key.
pub(crate) type RouteBy = Arc<dyn Fn(&Message) -> Result<Option<Bytes>, BoxError> + Send + Sync>;

/// Turns a routing key into a number, in place of `ahash`: for tests.
pub(crate) type Hasher = Arc<dyn Fn(&[u8]) -> u64 + Send + Sync>;

/// How much order is kept. One pipeline; what differs is which messages wait for which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Order per key; N shards, each with a thread of its own. The default.
    #[default]
    KeySharded,
    /// Order per queue, as RocketMQ's MessageListenerOrderly keeps it: one task at a time for each
    /// queue, on a pool of N threads. At most as parallel as there are queues; a retry holds back
    /// its whole queue.
    QueueLocked,
    /// No order: any of N threads takes the next message. A retry holds back its message alone.
    Concurrent,
}

/// What becomes of messages whose key is absent. (An *empty* key is a key: it always takes the lane
/// `"__nokey"`.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum NoKey {
    /// All of them take the lane `"__nokey"`: one shard, in order. The default, since nothing is
    /// known of them.
    #[default]
    OneLane,
    /// One lane per queue: in order inside their queue, queues in parallel.
    ByQueue,
    /// Dealt out to all shards in turn: no order among them.
    Spread,
}

/// Where a queue starts for which nothing has been committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StartFrom {
    /// At the first message that the broker has. The default.
    #[default]
    Earliest,
    /// Behind the last one.
    Latest,
    /// At the first message not older than this, in milliseconds since 1970 (UTC).
    TimestampMs(i64),
}

impl From<StartFrom> for SeekTo {
    fn from(start: StartFrom) -> Self {
        match start {
            StartFrom::Earliest => Self::Earliest,
            StartFrom::Latest => Self::Latest,
            StartFrom::TimestampMs(timestamp) => Self::TimestampMs(timestamp),
        }
    }
}

/// What to do when the position to read from does not exist (any more).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OutOfRange {
    /// Go on at the first message that the broker has. The default.
    #[default]
    Earliest,
    /// Go on behind the last one.
    Latest,
    /// The queue ends with an error, its commit untouched; the other queues go on.
    Fail,
}

/// What to do with a message that has failed as often as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Exhausted {
    /// Give it to the dead-letter sink. The default; needs one.
    #[default]
    DeadLetter,
    /// Give it up, with an event.
    Skip,
    /// Stop the consumer; the message stays unfinished.
    Stop,
}

/// What becomes of a failed attempt.
///
/// By default a message is tried for ever: order is worth nothing if the first failure loses a
/// message. Its lane waits, other keys go on, health is degraded.
///
/// ```
/// use keylane::{Exhausted, FailurePolicy};
/// use std::time::Duration;
///
/// let policy = FailurePolicy::default()
///     .backoff(Duration::from_millis(50), Duration::from_secs(5))
///     .attempts_max(5)
///     .then(Exhausted::Skip);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FailurePolicy {
    pub(crate) backoff_first: Duration,
    pub(crate) backoff_max: Duration,
    pub(crate) jitter: f64,
    pub(crate) attempts_max: Option<u32>,
    pub(crate) exhausted: Exhausted,
}

impl Default for FailurePolicy {
    /// For ever; 100 ms doubling to 30 s, give or take a fifth.
    fn default() -> Self {
        Self {
            backoff_first: Duration::from_millis(100),
            backoff_max: Duration::from_secs(30),
            jitter: 0.2,
            attempts_max: None,
            exhausted: Exhausted::DeadLetter,
        }
    }
}

impl FailurePolicy {
    /// The delay after the first failure, and the cap that it doubles up to. Default 100 ms and
    /// 30 s; `1 ms <= first <= max <= 1 h`.
    #[must_use]
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        (self.backoff_first, self.backoff_max) = (first, max);
        self
    }

    /// By which share a delay varies at random, so that lanes that failed together do not come back
    /// together. Default 0.2; `0.0..=1.0`.
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// How often a message is tried at most, attempts in earlier processes included where the
    /// source reports them. Default: no limit; at least 1.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = Some(attempts);
        self
    }

    /// What happens to a message that has been tried [`attempts_max`](Self::attempts_max) times.
    /// Default [`Exhausted::DeadLetter`].
    #[must_use]
    pub fn then(mut self, exhausted: Exhausted) -> Self {
        self.exhausted = exhausted;
        self
    }
}

/// The checked options. The builder's methods say what each one is for.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) mode: Mode,
    pub(crate) shards: usize,
    pub(crate) channel_capacity: usize,
    pub(crate) batch_max: usize,
    pub(crate) linger: Duration,
    pub(crate) fetch_max: usize,
    pub(crate) fetch_bytes_max: usize,
    pub(crate) in_flight_max: usize,
    pub(crate) in_flight_bytes_max: usize,
    pub(crate) queue_in_flight_max: Option<usize>,
    pub(crate) span_max: u64,
    pub(crate) commit_interval: Duration,
    pub(crate) commit_count: Option<u64>,
    pub(crate) start_from: StartFrom,
    pub(crate) out_of_range: OutOfRange,
    pub(crate) no_key: NoKey,
    pub(crate) route_by: Option<RouteBy>,
    pub(crate) failure: FailurePolicy,
    pub(crate) revoke_timeout: Duration,
    pub(crate) stop_timeout: Duration,
    pub(crate) stall_after: Duration,
    pub(crate) queue_locks: bool,
    pub(crate) hide_keys: bool,
    pub(crate) thread_name: String,
    pub(crate) stack_size: usize,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) hasher: Option<Hasher>,
    /// How long a queue may keep a thread of the pool.
    pub(crate) slice: Duration,
    pub(crate) seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            shards: 16,
            channel_capacity: 1_024,
            batch_max: 32,
            linger: Duration::ZERO,
            fetch_max: 512,
            fetch_bytes_max: 4 << 20,
            in_flight_max: 10_000,
            in_flight_bytes_max: 64 << 20,
            queue_in_flight_max: None,
            span_max: 100_000,
            commit_interval: Duration::from_secs(1),
            commit_count: None,
            start_from: StartFrom::default(),
            out_of_range: OutOfRange::default(),
            no_key: NoKey::default(),
            route_by: None,
            failure: FailurePolicy::default(),
            revoke_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(30),
            stall_after: Duration::from_secs(60),
            queue_locks: true,
            hide_keys: false,
            thread_name: "keylane".to_owned(),
            stack_size: 2 << 20,
            observer: None,
            hasher: None,
            slice: SLICE,
            seed: 0,
        }
    }
}

/// The largest number of shards: a tracker keeps a shard in two bytes, and no machine has use for
/// more threads.
const SHARDS_MAX: usize = 4_096;
const MESSAGES_MAX: usize = 100_000_000;
const BYTES_MAX: usize = 1 << 40;
/// Channels are allocated at the start, at some hundred bytes a message.
const CHANNELS_MAX: usize = 1 << 24;
const HOUR: Duration = Duration::from_secs(3_600);
const MILLISECOND: Duration = Duration::from_millis(1);

impl Config {
    /// Rejects what cannot work, by a sentence that names option, value and what is allowed.
    pub(crate) fn check(&self, has_sink: bool, orderly: bool) -> Result<(), Error> {
        within("shards", self.shards, 1, SHARDS_MAX)?;
        within("channel_capacity", self.channel_capacity, 1, 1 << 20)?;
        if self.shards.saturating_mul(self.channel_capacity) > CHANNELS_MAX {
            let value = format!("{} with {} shards", self.channel_capacity, self.shards);
            let allowed = format!("at most {CHANNELS_MAX} for all shards together");
            return Err(Error::config("channel_capacity", value, allowed));
        }
        within("batch_max", self.batch_max, 1, 1 << 16)?;
        within("linger", Shown(self.linger), Shown(Duration::ZERO), Shown(HOUR))?;
        within("fetch_max", self.fetch_max, 1, 1 << 20)?;
        within("fetch_bytes_max", self.fetch_bytes_max, 1, BYTES_MAX)?;
        within("in_flight_max", self.in_flight_max, 1, MESSAGES_MAX)?;
        within("in_flight_bytes_max", self.in_flight_bytes_max, 1, BYTES_MAX)?;
        if let Some(messages) = self.queue_in_flight_max {
            within("queue_in_flight_max", messages, 1, self.in_flight_max).map_err(|error| {
                if messages > self.in_flight_max {
                    let allowed = format!("1..={} (the option in_flight_max)", self.in_flight_max);
                    Error::config("queue_in_flight_max", messages, allowed)
                } else {
                    error
                }
            })?;
        }
        within("span_max", self.span_max, 1, 1 << 32)?;
        within("commit_interval", Shown(self.commit_interval), Shown(MILLISECOND), Shown(HOUR))?;
        if let Some(count) = self.commit_count {
            within("commit_count", count, 1, u64::MAX)?;
        }
        within("revoke_timeout", Shown(self.revoke_timeout), Shown(MILLISECOND), Shown(HOUR))?;
        within("stop_timeout", Shown(self.stop_timeout), Shown(MILLISECOND), Shown(HOUR))?;
        within("stall_after", Shown(self.stall_after), Shown(MILLISECOND), Shown(24 * HOUR))?;
        within("stack_size", self.stack_size, 16 << 10, 1 << 30)?;
        if self.thread_name.is_empty() || self.thread_name.contains('\0') {
            let shown = format!("{:?}", self.thread_name);
            return Err(Error::config("thread_name", shown, "a name without NUL, not empty"));
        }
        self.check_mode(orderly)?;
        self.failure.check(has_sink)
    }

    /// Options that only routing by key knows.
    fn check_mode(&self, orderly: bool) -> Result<(), Error> {
        if self.mode == Mode::KeySharded {
            return Ok(());
        }
        if self.mode == Mode::Concurrent && orderly {
            let value = "Concurrent with an orderly listener";
            return Err(Error::config("mode", value, "KeySharded, QueueLocked"));
        }
        let mode = format!("{:?}", self.mode);
        if self.route_by.is_some() {
            let value = format!("set in mode {mode}, which has no routing keys");
            return Err(Error::config("route_by", value, "mode KeySharded"));
        }
        if self.no_key != NoKey::default() {
            let value = format!("{:?} in mode {mode}, which has no routing keys", self.no_key);
            return Err(Error::config("no_key", value, "the default, or mode KeySharded"));
        }
        Ok(())
    }

    /// How many messages of one queue may be in flight.
    pub(crate) fn queue_max(&self) -> usize {
        self.queue_in_flight_max.unwrap_or(self.in_flight_max)
    }
}

impl FailurePolicy {
    fn check(&self, has_sink: bool) -> Result<(), Error> {
        let (first, max) = (Shown(self.backoff_first), Shown(self.backoff_max));
        within("failure.backoff.first", first, Shown(MILLISECOND), Shown(HOUR))?;
        within("failure.backoff.max", max, first, Shown(HOUR))?;
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(Error::config("failure.jitter", self.jitter, "0.0..=1.0"));
        }
        let Some(attempts) = self.attempts_max else { return Ok(()) };
        within("failure.attempts_max", attempts, 1, u32::MAX)?;
        if self.exhausted == Exhausted::DeadLetter && !has_sink {
            return Err(Error::config(
                "failure.then",
                "DeadLetter without a dead-letter sink",
                "Skip, Stop, or DeadLetter together with the option dead_letters",
            ));
        }
        Ok(())
    }

    /// The attempts that a message has, `None` for no limit.
    pub(crate) fn limit(&self) -> Option<NonZeroU32> {
        self.attempts_max.and_then(NonZeroU32::new)
    }
}

/// A duration as options print it.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Shown(Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

fn within<T: PartialOrd + fmt::Display>(
    option: &'static str,
    value: T,
    low: T,
    high: T,
) -> Result<(), Error> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(Error::config(option, value, format!("{low}..={high}")))
}
