//! Shards that run as tasks on a thread pool: as many as there are, on as many threads as there are.
//!
//! Two layers keep a shard to one thread at a time:
//!
//! 1. the *consuming* flag: whoever sets it submits the one task; the task clears it when there is
//!    nothing more to do, and looks once more;
//! 2. the lock around the runner, as a safety net. A task that finds it taken does not wait (a call
//!    that hangs would hold a second pool thread) but comes back later.
//!
//! A task gives its thread away after a [slice](SLICE). It is submitted again by the source thread
//! and not by itself: a task submitted from inside the pool goes to the front of that thread's own
//! queue, and would be next.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rayon::ThreadPool;

use super::cell::{Executor, ShardCell};
use super::runner::Runner;
use super::shard::Next;
use super::shared::{GateState, Shared, panic_text};
use crate::sync::{AtomicBool, Mutex, Ordering, removed};

/// How long a shard with a backlog may keep a thread (RocketMQ's MAX_TIME_CONSUME_CONTINUOUSLY).
pub(crate) const SLICE: Duration = Duration::from_secs(60);
/// When a task that found its shard taken comes back.
const COME_BACK: Duration = Duration::from_millis(100);

/// What runs tasks.
#[derive(Clone)]
pub(crate) enum Pool {
    /// They end with the source thread, which owns them, once no task runs.
    Threads(Weak<ThreadPool>),
    /// The simulator takes the shards from here, and steps their tasks itself.
    #[cfg(feature = "sim")]
    Steps(crossbeam_channel::Sender<Arc<ShardCell>>),
}

impl Pool {
    fn submit(&self, cell: &Arc<ShardCell>) {
        let cell = Arc::clone(cell);
        match self {
            Self::Threads(threads) => {
                // When they have ended, the consumer has, and nothing is left to do.
                if let Some(threads) = threads.upgrade() {
                    threads.spawn(move || run(&cell));
                }
            }
            #[cfg(feature = "sim")]
            Self::Steps(submitted) => drop(submitted.send(cell)),
        }
    }
}

/// The pool's side of a shard.
pub(crate) struct Task {
    pool: Pool,
    shared: Arc<Shared>,
    /// A task of this shard is submitted or running.
    consuming: AtomicBool,
    /// Absent until the cell was made, to which it refers, and after the end.
    runner: Mutex<Option<Runner>>,
    slice: Duration,
}

impl Task {
    pub(crate) fn new(pool: Pool, shared: Arc<Shared>, slice: Duration) -> Self {
        let (consuming, runner) = (AtomicBool::new(false), Mutex::new(None));
        Self { pool, shared, consuming, runner, slice }
    }

    pub(crate) fn set_runner(&self, runner: Runner) {
        *self.runner.lock() = Some(runner);
    }

    /// Submits the shard's task, unless there is one.
    pub(crate) fn schedule(&self, cell: &Arc<ShardCell>) {
        if !self.consuming.swap(true, Ordering::AcqRel) {
            self.pool.submit(cell);
        }
    }

    /// Runs the shard until it has nothing to do, or its slice is over.
    fn run(&self, cell: &Arc<ShardCell>) {
        let Some(mut slot) = self.runner.try_lock() else {
            if self.shared.gate.state() == GateState::Closed {
                return; // Whoever has it sees that it is over.
            }
            // Should nobody look after the time any more: as above.
            let _ = self.shared.wait_until(self.shared.clock.now() + COME_BACK, cell, true);
            return;
        };
        let Some(runner) = slot.as_mut() else { return };
        let end = self.shared.clock.now() + self.slice;
        loop {
            match self.look(cell, runner) {
                Look::Call => {
                    runner.call_listener();
                    let now = self.shared.clock.now();
                    runner.settle(now);
                    runner.carry_out_settled();
                    if now >= end && self.shared.wait_until(now, cell, true) {
                        return;
                    }
                }
                Look::Wait(until) => {
                    if self.rests(cell, until) {
                        return;
                    }
                }
                Look::Over => {
                    runner.tell_stop();
                    *slot = None;
                    cell.exit();
                    return self.shared.signals.wake();
                }
            }
        }
    }

    /// There is nothing to do until then: the task ends, unless something has come meanwhile.
    fn rests(&self, cell: &Arc<ShardCell>, until: Option<Instant>) -> bool {
        self.consuming.store(false, Ordering::SeqCst);
        if let Some(until) = until {
            // Where nobody looks after it, the consumer has ended, and there is work: to end too.
            let _ = self.shared.wait_until(until, cell, false);
        }
        // What came before the flag was cleared did not submit a task.
        let came = self.has_work(cell, until);
        !came || removed!("look for work again") || self.consuming.swap(true, Ordering::AcqRel)
    }

    fn look(&self, cell: &Arc<ShardCell>, runner: &mut Runner) -> Look {
        runner.make_work();
        runner.tell_revoked();
        let mut shard = cell.shard.lock();
        // Under the mutex, as in `Worker::look`.
        let gate = self.shared.gate.state();
        let look = match gate {
            _ if cell.has_exited() => Look::Wait(None),
            GateState::Closed => Look::Over,
            GateState::Paused => Look::Wait(None),
            GateState::Open | GateState::Draining => {
                match runner.begin(&mut shard, self.shared.clock.now()) {
                    Next::Call => Look::Call,
                    Next::Wait(_) if gate == GateState::Draining && shard.is_drained() => {
                        Look::Over
                    }
                    Next::Wait(until) => Look::Wait(until),
                }
            }
        };
        drop(shard);
        runner.carry_out();
        look
    }

    fn has_work(&self, cell: &ShardCell, until: Option<Instant>) -> bool {
        let (gate, now) = (self.shared.gate.state(), self.shared.clock.now());
        match gate {
            _ if cell.has_exited() => false,
            GateState::Paused => false,
            GateState::Closed => true,
            GateState::Open => cell.shard.lock().has_work(now, until),
            GateState::Draining => {
                let shard = cell.shard.lock();
                shard.has_work(now, until) || shard.is_drained()
            }
        }
    }
}

/// Runs a shard's task, on whichever thread.
pub(crate) fn run(cell: &Arc<ShardCell>) {
    let Executor::Pool(task) = &cell.executor else { return };
    // A panic in here is our own fault, not a listener's.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task.run(cell))) {
        let what = format!("shard {} panicked: {}", cell.index, panic_text(panic));
        log::error!(target: "keylane", "{what}");
        cell.exit();
        task.shared.fail(&what);
    }
}

/// What a task is to do.
pub(crate) enum Look {
    Call,
    Wait(Option<Instant>),
    Over,
}

/// [`Task::run`] in steps, for a driver that has other things to do between them.
#[cfg(feature = "sim")]
impl Task {
    /// Begins: `None` when somebody else has the shard, or it has ended.
    pub(crate) fn begin(&self) -> Option<Runner> {
        self.runner.lock().take()
    }

    pub(crate) fn look_at(&self, cell: &Arc<ShardCell>, runner: &mut Runner) -> Look {
        self.look(cell, runner)
    }

    /// Ends if the slice that began at this time is over, to be submitted again; else the runner is
    /// given back.
    pub(crate) fn give_way(
        &self,
        cell: &Arc<ShardCell>,
        runner: Runner,
        began: Instant,
    ) -> Option<Runner> {
        let now = self.shared.clock.now();
        if now < began + self.slice {
            return Some(runner);
        }
        *self.runner.lock() = Some(runner);
        if self.shared.wait_until(now, cell, true) { None } else { self.begin() }
    }

    /// Ends, unless something has come meanwhile: then the runner is given back.
    pub(crate) fn end(
        &self,
        cell: &Arc<ShardCell>,
        runner: Runner,
        until: Option<Instant>,
    ) -> Option<Runner> {
        *self.runner.lock() = Some(runner);
        if self.rests(cell, until) { None } else { self.begin() }
    }

    /// Whether there is no task of the shard, submitted or running.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.consuming.load(Ordering::SeqCst)
    }

    /// Ends for ever.
    pub(crate) fn end_for_ever(&self, cell: &ShardCell, mut runner: Runner) {
        runner.tell_stop();
        cell.exit();
        self.shared.signals.wake();
    }
}

#[cfg(feature = "sim")]
impl ShardCell {
    /// The shard's task, where it runs on a pool.
    pub(crate) fn task(&self) -> Option<&Task> {
        match &self.executor {
            Executor::Pool(task) => Some(task),
            Executor::Thread { .. } => None,
        }
    }
}

/// Shards that wait for a time. The source thread looks after them.
#[derive(Default)]
pub(crate) struct Timers(Mutex<Waiting>);

/// By time; the number makes equal times different. `true`: the shard's task counts as submitted.
#[derive(Default)]
struct Waiting {
    /// Nobody looks after them any more.
    closed: bool,
    made: u64,
    by_time: BTreeMap<(Instant, u64), (Arc<ShardCell>, bool)>,
}

impl Shared {
    /// Has the shard looked at again at this time; `submitted` says that its task counts as
    /// submitted all the while. False when nobody looks after times any more: the consumer has ended.
    #[must_use]
    fn wait_until(&self, at: Instant, cell: &Arc<ShardCell>, submitted: bool) -> bool {
        let mut waiting = self.timers.0.lock();
        if waiting.closed {
            return false;
        }
        waiting.made += 1;
        let number = waiting.made;
        waiting.by_time.insert((at, number), (Arc::clone(cell), submitted));
        drop(waiting);
        self.signals.wake();
        true
    }
}

fn submit(cell: &Arc<ShardCell>) {
    if let Executor::Pool(task) = &cell.executor {
        task.pool.submit(cell);
    }
}

impl Timers {
    /// The source thread ends: what waits is looked at once more, to end as well. Shards and what
    /// they share refer to each other through here.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut waiting = self.0.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.by_time)
        };
        waiting
            .into_values()
            .filter(|(_, submitted)| *submitted)
            .for_each(|(cell, _)| submit(&cell));
    }

    /// Has shards looked at whose time has come.
    pub(crate) fn fire(&self, now: Instant) {
        loop {
            let mut waiting = self.0.lock();
            let Some(first) = waiting.by_time.first_entry().filter(|first| first.key().0 <= now)
            else {
                return;
            };
            let (cell, submitted) = first.remove();
            drop(waiting);
            if submitted { submit(&cell) } else { cell.nudge() }
        }
    }

    /// When the next one's time comes.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.0.lock().by_time.first_key_value().map(|((at, _), _)| *at)
    }
}

#[cfg(test)]
mod tests;
