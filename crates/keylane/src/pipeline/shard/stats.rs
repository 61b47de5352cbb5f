//! What a shard counts. Plain numbers: they are written under the shard's mutex.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Microseconds from 1 to an hour, within one percent.
const LATENCY_MAX_US: u64 = 3_600_000_000;

/// See the module's description.
#[derive(Debug, Clone)]
pub(crate) struct ShardStats {
    /// Handed to the listener, each attempt counted.
    pub(crate) delivered: u64,
    pub(crate) calls: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) panicked: u64,
    pub(crate) skipped: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) stale: u64,
    pub(crate) busy: Duration,
    /// From pull to listener.
    pub(crate) hand_off_us: Histogram<u64>,
    /// Inside listener calls.
    pub(crate) call_us: Histogram<u64>,
}

impl Default for ShardStats {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_US, 2).expect("constant bounds");
        Self {
            delivered: 0,
            calls: 0,
            succeeded: 0,
            failed: 0,
            panicked: 0,
            skipped: 0,
            dead_lettered: 0,
            stale: 0,
            busy: Duration::ZERO,
            hand_off_us: histogram.clone(),
            call_us: histogram,
        }
    }
}

impl ShardStats {
    /// Adds another shard's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.calls += other.calls;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.panicked += other.panicked;
        self.skipped += other.skipped;
        self.dead_lettered += other.dead_lettered;
        self.stale += other.stale;
        self.busy += other.busy;
        // The bounds are the same, so nothing can be outside of them.
        let _ = self.hand_off_us.add(&other.hand_off_us);
        let _ = self.call_us.add(&other.call_us);
    }

    pub(super) fn began(&mut self, messages: usize) {
        self.calls += 1;
        self.delivered += messages as u64;
    }

    pub(super) fn ended(&mut self, took: Duration) {
        self.busy += took;
        self.call_us.saturating_record(micros(took));
    }

    pub(super) fn handed_off(&mut self, took: Duration, messages: usize) {
        self.hand_off_us.saturating_record_n(micros(took), messages as u64);
    }

    pub(super) fn panicked(&mut self, panicked: bool) {
        self.panicked += u64::from(panicked);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(1)
}
