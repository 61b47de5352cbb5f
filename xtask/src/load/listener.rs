//! What the engine calls: it works as told, fails as told, and notes what happened.
//!
//! One instance per shard, so that everything it counts is its own: no lock on the way of a message.
//! What has to outlive an instance (the end, a planned panic) is left behind in the shard's slot,
//! where the next instance finds it.

use std::collections::HashMap;
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use keylane::{
    Batch, BatchHandled, BatchListener, BatchOutcome, Context, Handled, Listener, Message, Outcome,
};
use keylane_testkit::guarantee;
use keylane_testkit::recorder::Recorder;
use keylane_testkit::workload::{Fault, Faults, Work};
use parking_lot::Mutex;

use super::balances::Balances;
use super::timeline::Timeline;
use crate::flags::Break;

/// What all instances share, for reading.
pub(super) struct Shared {
    pub(super) work: Work,
    pub(super) faults: Faults,
    pub(super) recorder: Recorder,
    pub(super) produced: Arc<Timeline>,
    pub(super) pulled: Arc<Timeline>,
    /// Where the balances start; nothing where the messages are no flights.
    pub(super) base: Option<Balances>,
    pub(super) break_on_purpose: Option<Break>,
    /// Whether that was done already.
    pub(super) broken: AtomicBool,
    /// What each shard has counted, while none of its instances has it.
    pub(super) slots: Mutex<HashMap<usize, Box<Tally>>>,
}

/// What one shard has counted.
pub(super) struct Tally {
    /// Successful messages.
    pub(super) handled: u64,
    pub(super) failures: u64,
    pub(super) panics: u64,
    /// When the last message was done.
    pub(super) last_done: Option<Instant>,
    pub(super) balances: Option<Balances>,
    /// Pulled → call, first attempts; pulled → done; produced → done. Microseconds.
    pub(super) hand_off: Histogram<u64>,
    pub(super) in_engine: Histogram<u64>,
    pub(super) end_to_end: Histogram<u64>,
    /// Rows that could not be understood.
    pub(super) unreadable: Vec<String>,
    /// Held back to be handled behind their successor, on purpose.
    held: Vec<Message>,
}

/// One shard's listener.
pub(super) struct Worker {
    shared: Arc<Shared>,
    shard: usize,
    /// There until it is handed over.
    tally: Option<Box<Tally>>,
}

/// The payload of panics that were planned, so that nobody reports them.
pub(super) struct PlannedPanic;

impl Shared {
    /// What the shards have left behind, once the consumer has stopped, in order of shard.
    pub(super) fn tallies(&self) -> Vec<Tally> {
        let mut tallies: Vec<_> = self.slots.lock().drain().collect();
        tallies.sort_by_key(|(shard, _)| *shard);
        tallies.into_iter().map(|(_, tally)| *tally).collect()
    }
}

impl Tally {
    pub(super) fn new(base: Option<&Balances>) -> Self {
        // Whole microseconds within one percent, from 1 µs to an hour: longer ones count as an hour.
        let histogram = || Histogram::new_with_bounds(1, 3_600_000_000, 2);
        let histogram = || histogram().unwrap_or_else(|_| unreachable!("the bounds are constants"));
        Self {
            handled: 0,
            failures: 0,
            panics: 0,
            last_done: None,
            balances: base.map(Balances::empty_like),
            hand_off: histogram(),
            in_engine: histogram(),
            end_to_end: histogram(),
            unreadable: Vec::new(),
            held: Vec::new(),
        }
    }

    fn done(&mut self, message: &Message, shared: &Shared) {
        let (queue, offset, now) = (message.queue(), message.offset(), Instant::now());
        self.handled += 1;
        self.last_done = Some(now);
        if let Some(pulled) = shared.pulled.at(queue, offset) {
            self.in_engine.saturating_record(micros(pulled, now));
        }
        if let Some(produced) = shared.produced.at(queue, offset) {
            self.end_to_end.saturating_record(micros(produced, now));
        }
        if let (Some(balances), Some(base)) = (&mut self.balances, &shared.base) {
            let key = message.key().unwrap_or_default();
            let row = message.payload().unwrap_or_default();
            if let Err(error) = balances.apply_on(base, queue.index(), key, row)
                && self.unreadable.len() < 5
            {
                self.unreadable.push(format!("{queue} offset {offset}: {error}"));
            }
        }
    }
}

impl Worker {
    pub(super) fn new(shared: &Arc<Shared>, shard: usize) -> Self {
        let left = shared.slots.lock().remove(&shard);
        let tally = left.unwrap_or_else(|| Box::new(Tally::new(shared.base.as_ref())));
        Self { shared: Arc::clone(shared), shard, tally: Some(tally) }
    }

    /// Handles the messages of a call; gives the index of the one that failed.
    ///
    /// What comes of a message is noted when the whole call has worked: after a panic in the middle
    /// the engine delivers all of them again.
    fn handle(&mut self, messages: &[Message], attempt: impl Fn(usize) -> u32) -> Option<usize> {
        let Self { shared, shard, tally } = self;
        // Handed over only when no call comes any more.
        let tally = tally.get_or_insert_with(|| Box::new(Tally::new(shared.base.as_ref())));
        if tally.mistreats(messages, shared) {
            return None;
        }
        let now = Instant::now();
        for (index, message) in messages.iter().enumerate() {
            if attempt(index) == 1
                && let Some(pulled) = shared.pulled.at(message.queue(), message.offset())
            {
                tally.hand_off.saturating_record(micros(pulled, now));
            }
        }
        // Dropped by a panic: the call has failed.
        let call = shared.recorder.begin_batch(messages, *shard);
        let mut failed = None;
        for (index, message) in messages.iter().enumerate() {
            shared.work.run();
            match shared.faults.decide(message.queue(), message.offset(), attempt(index)) {
                Fault::None => {}
                Fault::Fail => {
                    tally.failures += 1;
                    failed = Some(index);
                    break;
                }
                Fault::Panic => {
                    tally.panics += 1;
                    panic_any(PlannedPanic);
                }
            }
        }
        let done = &messages[..failed.unwrap_or(messages.len())];
        done.iter().for_each(|message| tally.done(message, shared));
        // Recorded before the engine hears of it: whatever it does next finds it there.
        match failed {
            None => call.settle(guarantee::Outcome::Done),
            // Those without an outcome have failed.
            Some(_) => call.settle_each(&vec![guarantee::Outcome::Done; done.len()]),
        }
        tally.handle_held(messages, shared, *shard);
        failed
    }
}

impl Tally {
    /// Whether these messages are left out, or held back, to break a guarantee: the first ones with
    /// a key, once in a run.
    fn mistreats(&mut self, messages: &[Message], shared: &Shared) -> bool {
        let Some(what) = shared.break_on_purpose else { return false };
        let has_key = messages.first().is_some_and(|message| message.key().is_some());
        let chosen = what != Break::Commit && has_key;
        if !chosen || shared.broken.swap(true, Ordering::Relaxed) {
            return false;
        }
        if what == Break::Order {
            self.held = messages.to_vec();
        }
        true
    }

    /// Handles what was held back, once a later message of its lane was handled.
    fn handle_held(&mut self, after: &[Message], shared: &Shared, shard: usize) {
        let lane = |message: &Message| (message.queue(), message.key_bytes().cloned());
        let Some(first) = self.held.first().map(lane) else { return };
        if after.iter().any(|message| lane(message) == first) {
            let held = std::mem::take(&mut self.held);
            let call = shared.recorder.begin_batch(&held, shard);
            held.iter().for_each(|message| self.done(message, shared));
            call.settle(guarantee::Outcome::Done);
        }
    }
}

impl Worker {
    /// Leaves what was counted where the next instance, or the end of the run, finds it.
    fn hand_over(&mut self) {
        if let Some(tally) = self.tally.take() {
            self.shared.slots.lock().insert(self.shard, tally);
        }
    }
}

impl Drop for Worker {
    /// After a panic.
    fn drop(&mut self) {
        self.hand_over();
    }
}

impl Listener for Worker {
    fn on_message(&mut self, message: &Message, context: &mut Context<'_>) -> Handled {
        match self.handle(std::slice::from_ref(message), |_| context.attempt()) {
            None => Ok(Outcome::Done),
            Some(_) => Err("planned".into()),
        }
    }

    fn on_stop(&mut self) {
        self.hand_over();
    }
}

/// Several messages a call. The work is done for each, one after the other, and the first failure
/// ends the call.
pub(super) struct BatchWorker(pub(super) Worker);

impl BatchListener for BatchWorker {
    fn on_batch(&mut self, batch: &Batch<'_>) -> BatchHandled {
        match self.0.handle(batch, |index| batch.attempt(index)) {
            None => Ok(BatchOutcome::Done),
            Some(index) => Ok(BatchOutcome::FailedAt { index, error: "planned".into() }),
        }
    }

    fn on_stop(&mut self) {
        self.0.hand_over();
    }
}

fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX).max(1)
}

/// Planned panics say nothing; others are reported as before.
pub(super) fn silence_planned_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<PlannedPanic>() {
            report(info);
        }
    }));
}
