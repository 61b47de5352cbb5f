//! Answers what the handle asks: numbers, health, what holds a watermark back. Also while shards
//! are stuck: nothing here waits for a listener.

use std::time::{Duration, Instant};

use keylane_source::EndOffset;

use super::cell::ShardCell;
use super::coordinator::Coordinator;
use super::queue::{Queue, Stage};
use super::shard::ShardStats;
use crate::metrics::{Latency, Metrics, QueueMetrics, ShardMetrics};
use crate::report::{Health, Holding, HoldingState};

impl Coordinator {
    pub(crate) fn metrics(&mut self, now: Instant) -> Metrics {
        let mut all = ShardStats::default();
        let mut shards = Vec::new();
        for cell in &self.shards {
            let shard = cell.shard.lock();
            all.add(shard.stats());
            shards.push(ShardMetrics {
                shard: cell.index,
                delivered: shard.stats().delivered,
                waiting: (cell.waiting() + shard.waiting()) as u64,
                overflow: self.router.overflow_of(cell.index) as u64,
                running: shard.is_running(),
                lanes_held: shard.lanes_held() as u64,
                busy: shard.stats().busy,
            });
        }
        let assigned = self.queues.iter_mut().filter(|queue| queue.is_assigned());
        let mut queues: Vec<_> = assigned.map(|queue| queue_metrics(queue, now)).collect();
        queues.sort_by_key(|queue| queue.queue);
        let total = self.budget.total();
        Metrics {
            pulled: self.counters.pulled,
            repeated: self.counters.repeated,
            admitted: self.counters.admitted,
            delivered: all.delivered,
            succeeded: all.succeeded,
            failed: all.failed,
            panicked: all.panicked,
            skipped: all.skipped,
            dead_lettered: all.dead_lettered,
            stale_completions: all.stale,
            commits: self.counters.commits,
            commit_failures: self.counters.commit_failures,
            in_flight: queues.iter().map(|queue| queue.in_flight).sum(),
            in_flight_bytes: total.bytes as u64,
            in_flight_max: self.counters.in_flight_max as u64,
            in_flight_bytes_max: self.counters.in_flight_bytes_max as u64,
            stashed: queues.iter().map(|queue| queue.stashed).sum(),
            overflow: self.router.overflow() as u64,
            lanes_held: shards.iter().map(|shard| shard.lanes_held).sum(),
            hand_off: Latency::of(&all.hand_off_us),
            call: Latency::of(&all.call_us),
            queues,
            shards,
        }
    }

    /// For each queue that is not finished up to what was pulled: the message that holds it back.
    pub(crate) fn holding(&mut self, now: Instant) -> Vec<Holding> {
        let mut all = Vec::new();
        for (slot, queue) in self.queues.iter_mut().enumerate() {
            let Some(reading) = &mut queue.reading else { continue };
            let Some(tracker) = &mut reading.tracker else { continue };
            tracker.watermark();
            let Some(first) = tracker.first_unfinished() else { continue };
            let (epoch, offset) = (reading.tenure.epoch, first.offset);
            let find = |cell: &ShardCell| cell.shard.lock().find(epoch, offset);
            let (shard, found) = match self.mode.shard_of(slot, first.way) {
                Some(shard) => (Some(shard), find(&self.shards[shard])),
                None => self
                    .shards
                    .iter()
                    .find_map(|cell| Some((Some(cell.index), Some(find(cell)?))))
                    .unwrap_or_default(),
            };
            let state = found.as_ref().map_or(HoldingState::Waiting, |held| held.state);
            let (key, attempts, last_error) = match found {
                None => (None, None, None),
                Some(held) => (Some(held.key), Some(held.attempts), held.last_error),
            };
            let queue = queue.id;
            let age = now.saturating_duration_since(first.registered_at);
            let span = tracker.span();
            all.push(Holding { queue, offset, shard, state, age, key, attempts, last_error, span });
        }
        all.sort_by_key(|holding| holding.queue);
        all
    }

    pub(crate) fn health(&self, now: Instant) -> Health {
        if self.stopping.is_some() {
            return Health::Stopped;
        }
        let mut reasons = Vec::new();
        if let Some(error) = &self.source_error {
            reasons.push(format!("the source has trouble: {error}"));
        }
        let after = self.config.stall_after;
        self.queues.iter().for_each(|queue| queue_trouble(queue, now, after, &mut reasons));
        reasons.extend(self.watch.stalled());
        for cell in &self.shards {
            if let (lanes @ 1.., Some(example)) = cell.shard.lock().backing_off() {
                let shard = cell.index;
                reasons.push(format!(
                    "shard {shard}: {lanes} lanes wait to be tried again: {example}"
                ));
            }
        }
        if reasons.is_empty() { Health::Healthy } else { Health::Degraded(reasons) }
    }
}

fn queue_metrics(queue: &mut Queue, now: Instant) -> QueueMetrics {
    let watermark = queue.watermark();
    let reading = queue.reading.as_ref();
    let tracker = reading.and_then(|reading| reading.tracker.as_ref());
    QueueMetrics {
        queue: queue.id,
        epoch: reading.map(|reading| reading.tenure.epoch),
        watermark,
        committed: queue.committer.acknowledged(),
        end: match queue.end {
            EndOffset::At(end) => Some(end),
            EndOffset::Unknown => None,
        },
        lag: watermark.and_then(|watermark| queue.end.lag(watermark.into())),
        in_flight: tracker.map_or(0, |tracker| tracker.unfinished()),
        stashed: reading.map_or(0, |reading| reading.stash.len() as u64),
        span: tracker.map_or(0, |tracker| tracker.span()),
        paused: reading.is_some_and(|reading| reading.paused),
        waiting: queue.waits_for().map(|(_, since)| now.saturating_duration_since(since)),
    }
}

/// `after` that long, a queue that waits to be read is in trouble.
fn queue_trouble(queue: &Queue, now: Instant, after: Duration, reasons: &mut Vec<String>) {
    let id = queue.id;
    match &queue.stage {
        Stage::LookingUp { failures: failures @ 1.., .. } => {
            reasons.push(format!("{id}: its committed offset could not be read, {failures} times"));
        }
        Stage::Failed(error) => reasons.push(format!("{id}: ended: {error}")),
        _ => {}
    }
    if let Some((what, since)) = queue.waits_for() {
        let waited = now.saturating_duration_since(since);
        let refused = matches!(queue.stage, Stage::Locking { again_at: Some(_) });
        if refused || waited >= after {
            reasons.push(format!("{id}: has waited for {what} for {waited:.1?}"));
        }
    }
    if let (failures @ 1.., Some(error)) =
        (queue.committer.failures(), queue.committer.last_error())
    {
        reasons.push(format!("{id}: commits have failed {failures} times: {error}"));
    }
}
