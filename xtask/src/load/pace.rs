//! So many messages per second: when the next one is due, and a source that holds its messages back
//! until they are.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{
    Fetch, FetchLimits, Position, QueueId, SeekTo, Source, SourceError, SourceEvent,
};
use keylane_testkit::tap::Tap;

use super::timeline::Timeline;

/// A schedule: the n-th message is due at `start + n / rate`, whatever became of the ones before
/// it, so that a slow consumer does not make its own latency look better.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    start: Instant,
    rate: f64,
}

impl Pace {
    pub(super) fn new(start: Instant, rate: f64) -> Self {
        Self { start, rate }
    }

    /// When the n-th message (from zero) is due.
    pub(super) fn due(&self, n: u64) -> Instant {
        let after = Duration::try_from_secs_f64(n as f64 / self.rate);
        self.start + after.unwrap_or(Duration::from_secs(u64::from(u32::MAX)))
    }

    /// How many messages are due by now.
    fn due_by(&self, now: Instant) -> u64 {
        let seconds = now.saturating_duration_since(self.start).as_secs_f64();
        #[expect(clippy::cast_possible_truncation, reason = "`as` stops at the ends of u64")]
        let due = (seconds * self.rate) as u64 + 1;
        due
    }

    /// How many messages of one queue come together: those of about a millisecond, so that queues
    /// take turns.
    fn fetch(&self) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "`as` stops at the ends of usize")]
        let messages = (self.rate / 1_000.0).ceil().max(1.0) as usize;
        messages
    }
}

/// Makes a source keep the pace. What it has fetched and not given out waits here, in order, and its
/// queue is paused below: at most one fetch a queue waits.
pub(super) struct Paced {
    pace: Pace,
    produced: Arc<Timeline>,
    given: u64,
    waiting: VecDeque<SourceEvent>,
    /// Paused by the engine.
    paused: HashSet<QueueId>,
}

impl Paced {
    pub(super) fn new(pace: Pace, produced: Arc<Timeline>) -> Self {
        let (waiting, paused) = (VecDeque::new(), HashSet::new());
        Self { pace, produced, given: 0, waiting, paused }
    }

    /// Gives out what is due; the rest of a fetch stays in front.
    fn give(&mut self, source: &mut dyn Source, events: &mut Vec<SourceEvent>) {
        while let Some(event) = self.waiting.pop_front() {
            let SourceEvent::Fetched(mut fetch) = event else {
                events.push(event);
                continue;
            };
            let due = self.pace.due_by(Instant::now()).saturating_sub(self.given);
            let due = usize::try_from(due).unwrap_or(usize::MAX).min(fetch.messages.len());
            if due == 0 && !fetch.messages.is_empty() {
                return self.waiting.push_front(SourceEvent::Fetched(fetch));
            }
            for (n, message) in (self.given..).zip(&fetch.messages[..due]) {
                self.produced.note(fetch.queue, message.offset(), self.pace.due(n));
            }
            self.given += due as u64;
            let rest = fetch.messages.split_off(due);
            if let Some(first) = rest.first() {
                let between = Position::from(first.offset());
                let Fetch { queue, position, end, .. } = fetch;
                let rest = Fetch { queue, messages: rest, position, end };
                self.waiting.push_front(SourceEvent::Fetched(rest));
                fetch.position = between;
            } else if !self.paused.contains(&fetch.queue) {
                source.resume(fetch.queue);
            }
            events.push(SourceEvent::Fetched(fetch));
        }
    }

    /// Forgets what was fetched of a queue and not given out.
    fn forget(&mut self, source: &mut dyn Source, queue: QueueId) {
        self.waiting.retain(|event| !is_fetch_of(event, queue));
        if !self.paused.contains(&queue) {
            source.resume(queue);
        }
    }
}

fn is_fetch_of(event: &SourceEvent, queue: QueueId) -> bool {
    matches!(event, SourceEvent::Fetched(fetch) if fetch.queue == queue)
}

impl Tap for Paced {
    fn poll(
        &mut self,
        source: &mut dyn Source,
        mut limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let before = events.len();
        self.give(source, events);
        let wait = match self.waiting.is_empty() {
            _ if events.len() > before => Duration::ZERO,
            true => wait,
            false => {
                let due = self.pace.due(self.given);
                wait.min(due.saturating_duration_since(Instant::now()))
            }
        };
        limits.messages = limits.messages.min(self.pace.fetch());
        let mut brought = Vec::new();
        source.poll(limits, wait, &mut brought)?;
        for event in &brought {
            if let SourceEvent::Fetched(fetch) = event {
                source.pause(fetch.queue);
            }
        }
        self.waiting.extend(brought);
        self.give(source, events);
        Ok(())
    }

    fn seek(&mut self, source: &mut dyn Source, queue: QueueId, to: SeekTo) {
        self.forget(source, queue);
        source.seek(queue, to);
    }

    fn pause(&mut self, source: &mut dyn Source, queue: QueueId) {
        self.paused.insert(queue);
        source.pause(queue);
    }

    fn resume(&mut self, source: &mut dyn Source, queue: QueueId) {
        self.paused.remove(&queue);
        if !self.waiting.iter().any(|event| is_fetch_of(event, queue)) {
            source.resume(queue);
        }
    }

    fn release(&mut self, source: &mut dyn Source, queue: QueueId) {
        self.forget(source, queue);
        source.release(queue);
    }
}
