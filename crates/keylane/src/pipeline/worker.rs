//! The thread of a shard: takes chunks from the channel and runs the shard's calls. The listener is
//! the only thing that it may wait for; it never ends before the consumer does, whatever the
//! listener does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cell::{Executor, ShardCell};
use super::chunk::Chunk;
use super::runner::Runner;
use super::shard::{Next, Shard};
use super::shared::{GateState, Shared};
use crate::listener::{Env, Factory};
use crate::sync::{Receiver, first_of, removed};

/// How often a thread that has nothing to do lets others run before it parks, where messages come
/// [densely](DENSE). To park and to be woken costs as much as some dozens of messages; meanwhile, more
/// of them come together (`docs/performance.md`).
const YIELDS: usize = if cfg!(loom) { 0 } else { 6 };

/// Messages come densely while so many waits in a row, and all that follow, are shorter than this.
/// Where they do not, or where other programs want the processor, a thread that yields is let run
/// again late; one that parks is woken at once.
const DENSE: (u32, Duration) = (3, Duration::from_millis(1));

/// What a shard's thread listens to: messages, and a bell that says "look again".
#[derive(Clone)]
pub(crate) struct Ears {
    pub(super) chunks: Receiver<Chunk>,
    pub(super) rung: Receiver<()>,
}

/// See the module's description.
pub(crate) struct Worker {
    ears: Ears,
    /// How many waits in a row were short.
    short_waits: u32,
    pub(crate) runner: Runner,
}

impl Worker {
    pub(crate) fn new(
        cell: Arc<ShardCell>,
        shared: Arc<Shared>,
        ears: Ears,
        factory: Factory,
    ) -> Self {
        Self { ears, short_waits: 0, runner: Runner::new(Env { cell, shared }, factory) }
    }

    /// The shard that it runs.
    pub(crate) fn cell(&self) -> &Arc<ShardCell> {
        &self.runner.env.cell
    }

    /// Runs until the consumer stops.
    pub(crate) fn run(mut self) {
        self.runner.make_work();
        while let Some(next) = self.look() {
            self.runner.carry_out();
            match next {
                Next::Call => {
                    self.runner.call_listener();
                    self.runner.settle(self.runner.env.shared.clock.now());
                    self.runner.carry_out_settled();
                }
                Next::Wait(until) => self.wait(until),
            }
        }
        self.end();
    }

    /// Nothing is called any more.
    pub(crate) fn end(&mut self) {
        self.runner.carry_out();
        self.runner.tell_stop();
        self.runner.env.cell.exit();
        self.runner.env.shared.signals.wake();
    }

    /// Takes in what is there and finds out what to do; `None` when it is over.
    pub(crate) fn look(&mut self) -> Option<Next> {
        self.runner.tell_revoked();
        let (cell, shared) = (Arc::clone(&self.runner.env.cell), &self.runner.env.shared);
        let early = removed!("read the gate under the mutex").then(|| shared.gate.state());
        let mut shard = cell.shard.lock();
        // Under the mutex: a call that begins is seen to run by whoever has closed the gate before
        // it looks. And before the channel is looked at: what was sent before the gate moved is seen
        // below.
        let gate = early.unwrap_or_else(|| shared.gate.state());
        let mut empty = false;
        while !empty && shard.room() > 0 {
            match self.ears.chunks.try_recv() {
                Ok(chunk) => take(&cell, shared, &mut shard, chunk),
                Err(_) => empty = true,
            }
        }
        let late = removed!("read the gate before the channel");
        let gate = if late { shared.gate.state() } else { gate };
        match gate {
            GateState::Closed => None,
            GateState::Paused => Some(Next::Wait(None)),
            GateState::Open | GateState::Draining => {
                let now = shared.clock.now();
                let next = self.runner.begin(&mut shard, now);
                let over = gate == GateState::Draining && empty && shard.is_drained();
                if over && next != Next::Call { None } else { Some(next) }
            }
        }
    }

    /// Whether [`wait`](Self::wait) would return although the time has not come.
    pub(crate) fn is_woken(&self) -> bool {
        !self.ears.chunks.is_empty() || !self.ears.rung.is_empty()
    }

    /// Waits for the channel, or until the time given.
    fn wait(&mut self, until: Option<Instant>) {
        let began = self.runner.env.shared.clock.now();
        let yields = if self.short_waits < DENSE.0 { 0 } else { YIELDS };
        for _ in 0..yields {
            if self.is_woken() {
                break;
            }
            std::thread::yield_now();
        }
        let (cell, shared) = (&self.runner.env.cell, &self.runner.env.shared);
        if let Some(chunk) = first_of(&self.ears.chunks, &self.ears.rung, until) {
            take(cell, shared, &mut cell.shard.lock(), chunk);
        }
        let short = shared.clock.now().saturating_duration_since(began) < DENSE.1;
        self.short_waits = if short { self.short_waits.saturating_add(1) } else { 0 };
    }
}

/// For a driver that does the waiting itself.
#[cfg(feature = "sim")]
impl Worker {
    /// The end of [`wait`](Self::wait). Where both are there, either may be taken.
    pub(crate) fn end_wait(&mut self, bell_first: bool) {
        if bell_first && self.ears.rung.try_recv().is_ok() {
            return;
        }
        let (cell, shared) = (&self.runner.env.cell, &self.runner.env.shared);
        match self.ears.chunks.try_recv() {
            Ok(chunk) => take(cell, shared, &mut cell.shard.lock(), chunk),
            Err(_) => drop(self.ears.rung.try_recv()),
        }
    }
}

fn take(cell: &ShardCell, shared: &Shared, shard: &mut Shard, chunk: Chunk) {
    if let Executor::Thread { inbox, .. } = &cell.executor {
        inbox.taken(chunk.len(), &shared.signals);
    }
    shard.offer(chunk);
}
