//! What happens on the source thread: puller, router, committer and assignment take turns on it.
//!
//! A state machine: it is given the source, the time and what the source has reported, does a
//! bounded amount of work without waiting, and says how long it has nothing to do. `threads.rs`
//! drives it in production; a simulator drives it on a thread of its own choosing.
//!
//! Invariants:
//!
//! 1. *Nothing here waits*, neither for a shard nor for the source (G6).
//! 2. *Only this thread registers, admits and commits*; shards only set bits and count what they
//!    have finished ([`Tenure`](super::tenure::Tenure)).
//! 3. `pulled ≥ admitted ≥ finished`, and `admitted − finished` is what the budget counts (G5).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{FetchLimits, QueueId, Source, SourceError, SourceEvent};

use super::budget::{Budget, Used};
use super::cell::ShardCell;
use super::in_memory;
use super::mode::{Layout, ModeState};
use super::queue::{Queue, Stage};
use super::retry::Random;
use super::router::{Door, Router};
use super::shared::Shared;
use super::shutdown::Stopping;
use super::watch::Watch;
use crate::config::Config;
use crate::observer::Event;
use crate::sync::removed;

/// How often the shards are looked at for calls that do not return, and the longest wait for the
/// source.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// The longest wait for the source while messages wait for budget: what slow calls give back one by
/// one is used so soon.
pub(super) const SCARCE: Duration = Duration::from_millis(5);

/// How many messages for each way are collected over several fetches, if the source has them at
/// once: a chunk of one message costs nearly as much as one of many, and a thread that is let run
/// for it costs as much as some dozens.
const COLLECTED: usize = 64;

/// See the module's description.
pub(crate) struct Coordinator {
    pub(super) config: Arc<Config>,
    pub(super) shared: Arc<Shared>,
    /// By slot.
    pub(super) queues: Vec<Queue>,
    pub(super) slots: HashMap<QueueId, usize>,
    pub(super) mode: ModeState,
    pub(super) shards: Vec<Arc<ShardCell>>,
    pub(super) router: Router,
    pub(super) budget: Budget,
    /// Queues have come or gone since the budget was divided.
    pub(super) undivided: bool,
    /// Queues (by slot) with something in their stash, in the order in which they get their turn.
    pub(super) stashed: Vec<usize>,
    pub(super) turn: usize,
    /// Queues (by slot) that may have something to commit.
    pub(super) dirty: Vec<usize>,
    pub(super) commit_at: Instant,
    /// Queues (by slot) that are not simply being read: their timers are looked at in each step.
    pub(super) unsettled: Vec<usize>,
    pub(super) epochs: u64,
    /// Counts looks at the source: what was reported before a seek is not what follows it.
    pub(super) looks: u64,
    pub(super) tags: u64,
    pub(super) notes: Vec<usize>,
    pub(super) random: Random,
    pub(super) watch: Watch,
    pub(super) stopping: Option<Stopping>,
    pub(super) source_failures: u32,
    pub(super) source_error: Option<SourceError>,
    /// The source failed for good.
    pub(super) fatal: Option<SourceError>,
    pub(super) counters: Counters,
}

/// What the source thread counts, in the order of the data.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counters {
    pub(crate) pulled: u64,
    /// Messages that came again inside one epoch, and were dropped.
    pub(crate) repeated: u64,
    pub(crate) admitted: u64,
    pub(crate) commits: u64,
    pub(crate) commit_failures: u64,
    pub(crate) in_flight_max: usize,
    pub(crate) in_flight_bytes_max: usize,
}

/// What the source thread has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Poll the source, and wait for at most this long.
    Poll(Duration),
    /// The source has trouble: poll it again after this long.
    BackOff(Duration),
    /// Close the source, within this time: everything is over.
    Close(Duration),
}

impl Coordinator {
    pub(crate) fn new(
        config: Arc<Config>,
        shared: Arc<Shared>,
        mode: ModeState,
        layout: Layout,
        now: Instant,
    ) -> Self {
        let shards = Vec::from_iter(layout.threads.into_iter().map(|(cell, _)| cell));
        let max = Used { messages: config.in_flight_max, bytes: config.in_flight_bytes_max };
        Self {
            queues: Vec::new(),
            slots: HashMap::new(),
            mode,
            router: Router::new(layout.doors, layout.chunk_max),
            budget: Budget::new(max, config.queue_max()),
            undivided: false,
            stashed: Vec::new(),
            turn: 0,
            dirty: Vec::new(),
            commit_at: now + config.commit_interval,
            unsettled: Vec::new(),
            epochs: 0,
            looks: 0,
            tags: 0,
            notes: Vec::new(),
            random: Random::new(config.seed),
            watch: Watch::new(now),
            shards,
            stopping: None,
            source_failures: 0,
            source_error: None,
            fatal: None,
            counters: Counters::default(),
            config,
            shared,
        }
    }

    /// Whether a thread was behind with what this sent since it was last asked.
    pub(crate) fn take_crowded(&mut self) -> bool {
        self.router.take_crowded()
    }

    /// Every shard there is.
    pub(crate) fn shards(&self) -> &[Arc<ShardCell>] {
        &self.shards
    }

    /// Makes the shard that a newly met queue needs, if the mode has one per queue.
    pub(super) fn make_shard(&mut self, slot: usize) {
        if let Some(cell) = self.mode.make_shard(slot, &self.shared) {
            debug_assert_eq!(self.shards.len(), slot, "slots and shards are made together");
            self.router.add(Door::Shard(Arc::clone(&cell)));
            if self.stopping.is_some() {
                cell.nudge(); // The others were told that it is over before there was this one.
            }
            self.shards.push(cell);
        }
    }

    /// How much a fetch may bring.
    pub(crate) fn limits(&self) -> FetchLimits {
        FetchLimits { messages: self.config.fetch_max, bytes: self.config.fetch_bytes_max }
    }

    /// Takes what the source has reported, and does what is due.
    pub(crate) fn step(
        &mut self,
        source: &mut dyn Source,
        events: &mut Vec<SourceEvent>,
        polled: Result<(), SourceError>,
        now: Instant,
    ) -> Step {
        self.looks += 1;
        let backs_off = self.polled(polled);
        let full = self.is_full(events);
        for event in events.drain(..) {
            self.handle(source, event, now);
        }
        self.shared.timers.fire(now);
        self.collect(source, now);
        self.router.flush_overflow();
        self.admit_stashed(source, now);
        if full && self.collects_on() {
            return Step::Poll(Duration::ZERO);
        }
        self.router.flush();
        self.look_after_queues(source, now);
        self.commit_due(source, now);
        self.watch_shards(now);
        if let Some(step) = self.step_stopping(source, now) {
            return match (step, backs_off) {
                // It would answer at once, and fail again.
                (Step::Poll(wait), Some(delay)) => Step::BackOff(wait.min(delay)),
                (step, _) => step,
            };
        }
        match backs_off {
            Some(delay) => Step::BackOff(delay),
            None => Step::Poll(self.next_wait(now)),
        }
    }

    /// Whether the source has brought as much of a queue as it was asked for: it probably has more.
    fn is_full(&self, events: &[SourceEvent]) -> bool {
        let fetch_max = self.config.fetch_max;
        let full = |event: &SourceEvent| match event {
            SourceEvent::Fetched(fetch) => fetch.messages.len() >= fetch_max,
            _ => false,
        };
        events.iter().any(full)
    }

    /// Whether what was collected goes together with the next fetch, which is not waited for. It
    /// grows each time, so this ends.
    fn collects_on(&self) -> bool {
        let collected = self.router.collected();
        let few = collected > 0 && collected < COLLECTED * self.router.ways();
        few && self.stashed.is_empty() && self.stopping.is_none()
    }

    /// Trouble of the source as a whole.
    fn polled(&mut self, polled: Result<(), SourceError>) -> Option<Duration> {
        let Err(error) = polled else {
            (self.source_failures, self.source_error) = (0, None);
            return None;
        };
        self.source_error = Some(error.clone());
        if error.is_fatal() {
            if self.fatal.is_none() {
                self.shared.request_stop(&format!("the source failed: {error}"));
                self.fatal = Some(error);
            }
            return Some(Duration::from_millis(10));
        }
        self.source_failures = self.source_failures.saturating_add(1);
        let again_in = self.config.failure.delay(self.source_failures, &mut self.random);
        let failures = self.source_failures;
        self.shared.report_later(Event::SourceTrouble { error, failures, again_in });
        Some(again_in)
    }

    fn handle(&mut self, source: &mut dyn Source, event: SourceEvent, now: Instant) {
        match event {
            SourceEvent::Assigned { queue, committed } => {
                self.assigned(source, queue, committed, now);
            }
            SourceEvent::LookedUp { queue, committed } => {
                self.looked_up(source, queue, committed, now);
            }
            SourceEvent::Fetched(fetch) => self.fetched(source, fetch, now),
            SourceEvent::End { queue, end } => {
                if let Some(slot) = self.slot(queue) {
                    self.queues[slot].end = end;
                }
            }
            SourceEvent::Revoking { queue } => self.revoking(source, queue, now),
            SourceEvent::Lost { queue } => self.lost(queue),
            SourceEvent::Reset { queue, cause } => self.reset(source, queue, cause, now),
            SourceEvent::CommitResult { commit, result } => self.committed(&commit, result, now),
            SourceEvent::Lock { queue, reply } => self.lock_reply(source, queue, reply, now),
            SourceEvent::QueueError { queue, error } => self.queue_error(source, queue, error),
            // A newer boundary than this engine: nothing that it must answer.
            other => {
                log::warn!(target: "keylane", "the source reported {other:?}, which is unknown here")
            }
        }
    }

    /// The slot of a queue that is ours.
    pub(super) fn slot(&self, queue: QueueId) -> Option<usize> {
        let slot = *self.slots.get(&queue)?;
        self.queues[slot].is_assigned().then_some(slot)
    }

    /// Looks at what the shards have finished since the last time.
    fn collect(&mut self, source: &mut dyn Source, now: Instant) {
        let mut notes = std::mem::take(&mut self.notes);
        self.shared.take_notes(&mut notes);
        for slot in notes.drain(..) {
            let queue = &mut self.queues[slot];
            let Some(reading) = &mut queue.reading else { continue };
            let (messages, bytes) = reading.tenure.looked();
            let finished = messages - reading.seen.0;
            if matches!(queue.stage, Stage::Reading) {
                let bytes = in_memory(bytes - reading.seen.1);
                self.budget.release(&mut reading.used, in_memory(finished), bytes);
            }
            reading.seen = (messages, bytes);
            queue.uncommitted += finished;
            let at_once = self.config.commit_count.is_some_and(|count| queue.uncommitted >= count);
            self.mark_dirty(slot);
            if at_once {
                self.commit(source, slot, now);
            }
        }
        self.notes = notes;
    }

    /// How long there is nothing to do, unless the source has something or somebody wakes it.
    fn next_wait(&mut self, now: Instant) -> Duration {
        let mut until = self.watch.next_at();
        let mut earlier = |at: Instant| until = until.min(at);
        if !self.dirty.is_empty() || self.budget.total().messages > 0 {
            earlier(self.commit_at);
        }
        if let Some(at) = self.shared.timers.next_due() {
            earlier(at);
        }
        for &slot in &self.unsettled {
            if let Some(at) = self.queues[slot].next_due() {
                earlier(at);
            }
        }
        let wait = until.saturating_duration_since(now);
        let Some(enough) = self.enough() else {
            self.shared.signals.disarm();
            return wait;
        };
        // What has been finished up to here was noted; what comes later wakes us.
        self.shared.signals.arm(enough);
        match () {
            () if self.shared.has_notes() && !removed!("look at the notes again") => Duration::ZERO,
            () if !self.stashed.is_empty() => wait.min(SCARCE),
            () => wait,
        }
    }

    /// After how many finished messages there is something to do: budget is short, or the option
    /// `commit_count` asks for a commit.
    fn enough(&self) -> Option<u64> {
        let budget = || (self.config.in_flight_max / 8).clamp(1, self.config.fetch_max) as u64;
        let budget = (!self.stashed.is_empty()).then(budget);
        budget.into_iter().chain(self.config.commit_count).min()
    }
}
