//! A consumer in numbers.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use keylane_source::{Position, QueueId, Watermark};

/// A snapshot, in the order of the data: a stall shows as the first number that stops moving.
///
/// Counters start at zero with the consumer and never fall. Messages of one snapshot are counted at
/// slightly different moments.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Messages that the source has brought.
    pub pulled: u64,
    /// Messages that came again inside one epoch, and were dropped.
    pub repeated: u64,
    /// Messages that entered the budget, were registered and routed.
    pub admitted: u64,
    /// Messages put into listener calls; each attempt counts.
    pub delivered: u64,
    /// Messages finished by a listener.
    pub succeeded: u64,
    /// Failed attempts, panics among them.
    pub failed: u64,
    /// Panics of listeners.
    pub panicked: u64,
    /// Messages given up.
    pub skipped: u64,
    /// Messages that the dead-letter sink has acknowledged.
    pub dead_lettered: u64,
    /// Messages finished after their tenure had ended: not counted, and delivered again elsewhere.
    pub stale_completions: u64,
    /// Commits sent.
    pub commits: u64,
    /// Commits that failed or were not answered.
    pub commit_failures: u64,
    /// Messages admitted and not finished.
    pub in_flight: u64,
    /// Their bytes.
    pub in_flight_bytes: u64,
    /// The most messages that were ever in flight.
    pub in_flight_max: u64,
    /// The most bytes that were ever in flight.
    pub in_flight_bytes_max: u64,
    /// Messages pulled and waiting for budget.
    pub stashed: u64,
    /// Messages in flight that wait in front of full channels.
    pub overflow: u64,
    /// Lanes that hold something back.
    pub lanes_held: u64,
    /// From pull to the beginning of the listener call, first attempts.
    pub hand_off: Latency,
    /// How long listener calls take.
    pub call: Latency,
    /// Per assigned queue, in order of name.
    pub queues: Vec<QueueMetrics>,
    /// Per shard.
    pub shards: Vec<ShardMetrics>,
}

/// One queue.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QueueMetrics {
    /// The queue.
    pub queue: QueueId,
    /// Its tenure; `None` while it has not begun, or has ended with an error.
    pub epoch: Option<u64>,
    /// Everything below is finished.
    pub watermark: Option<Watermark>,
    /// What the broker has acknowledged.
    pub committed: Option<Watermark>,
    /// The queue's end, as last reported.
    pub end: Option<Position>,
    /// Offsets between watermark and end; `None` while either is unknown, never negative.
    pub lag: Option<u64>,
    /// Messages admitted and not finished.
    pub in_flight: u64,
    /// Messages waiting for budget.
    pub stashed: u64,
    /// Registered messages from the watermark to the newest one.
    pub span: u64,
    /// Whether the queue is paused at the source, for want of budget or span.
    pub paused: bool,
    /// For how long it has waited to be read, for its lock or for its committed offset; `None` while
    /// it is read.
    pub waiting: Option<Duration>,
}

/// One shard.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardMetrics {
    /// Its index.
    pub shard: usize,
    /// Messages put into its calls.
    pub delivered: u64,
    /// Messages in its channel and behind it.
    pub waiting: u64,
    /// Messages in front of its channel.
    pub overflow: u64,
    /// Whether a call is running, or is on its way to the listener.
    pub running: bool,
    /// Lanes held back.
    pub lanes_held: u64,
    /// Time spent in listener calls that have ended.
    pub busy: Duration,
}

/// A distribution of durations, within one percent, from 1 µs to an hour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// Half are shorter.
    pub p50: Duration,
    /// 99 % are shorter.
    pub p99: Duration,
    /// 99.9 % are shorter.
    pub p999: Duration,
    /// The longest.
    pub max: Duration,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| Duration::from_micros(histogram.value_at_quantile(quantile));
        Self {
            count: histogram.len(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: Duration::from_micros(histogram.max()),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50, p99, p999, max, .. } = self;
        write!(f, "p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}, max {max:?}")
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "pulled {} · admitted {} · delivered {} · succeeded {} · failed {} · skipped {} · \
             dead letters {} · commits {}",
            self.pulled,
            self.admitted,
            self.delivered,
            self.succeeded,
            self.failed,
            self.skipped,
            self.dead_lettered,
            self.commits
        )?;
        writeln!(
            f,
            "in flight {} ({} bytes) · stashed {} · overflow {} · lanes held {}",
            self.in_flight, self.in_flight_bytes, self.stashed, self.overflow, self.lanes_held
        )?;
        write!(f, "hand-off {} · call {}", self.hand_off, self.call)
    }
}
