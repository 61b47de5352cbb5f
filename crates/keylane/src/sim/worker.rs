//! A shard's thread in steps: what [`Worker::run`] does without a pause, with pauses.

use std::time::{Duration, Instant};

use keylane_testkit::guarantee::MemberId;

use super::listener::policy_skips;
use super::world::{SharedWorld, World};
use crate::pipeline::{Next, Worker};

/// See the module's description.
pub(super) struct SimWorker {
    worker: Worker,
    world: SharedWorld,
    member: MemberId,
    shard: usize,
    state: State,
    per_message: bool,
}

/// Where the thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Look,
    /// A call was announced; the listener is called for this message then.
    Announced {
        next: usize,
        at: Instant,
    },
    /// The listener is in a message (or the batch); `next` comes after it.
    InListener {
        next: usize,
    },
    Settle,
    /// The call is settled; what follows from it is not done.
    Settled,
    Waiting(Option<Instant>),
    Ended,
}

/// When somebody can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    Now,
    At(Instant),
    /// Not without somebody else's doing.
    Woken,
}

impl Ready {
    pub(super) fn at(due: Option<Instant>, now: Instant) -> Self {
        match due {
            None => Self::Woken,
            Some(due) if due <= now => Self::Now,
            Some(due) => Self::At(due),
        }
    }
}

impl SimWorker {
    pub(super) fn new(worker: Worker, world: &SharedWorld, member: MemberId) -> Self {
        let shard = worker.cell().index;
        let per_message = world.lock().plan.per_message;
        Self { worker, world: world.clone(), member, shard, state: State::Look, per_message }
    }

    pub(super) fn ready(&self, world: &World) -> Ready {
        match self.state {
            State::Look | State::Settle | State::Settled => Ready::Now,
            State::Announced { at, .. } => Ready::at(Some(at), world.now),
            State::InListener { .. } => {
                let call = world.desks[self.member.0 as usize].calls.get(&self.shard);
                match call.and_then(|call| call.until) {
                    None if world.calm => Ready::Now,
                    until => Ready::at(until, world.now),
                }
            }
            State::Waiting(_) if self.worker.is_woken() => Ready::Now,
            State::Waiting(until) => Ready::at(until, world.now),
            State::Ended => Ready::Woken,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether the thread waits for something to do.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// Whether a listener has a call of it.
    pub(super) fn is_in_call(&self) -> bool {
        matches!(self.state, State::Announced { .. } | State::InListener { .. } | State::Settle)
    }

    pub(super) fn step(&mut self) {
        self.state = match self.state {
            State::Look => self.look(),
            State::Announced { next, .. } => self.begin(next),
            State::InListener { next } => self.returned(next),
            State::Settle => self.settle(),
            State::Settled => {
                self.worker.runner.carry_out_settled();
                State::Look
            }
            State::Waiting(_) => {
                let bell_first = self.world.lock().random.chance(0.5);
                self.worker.end_wait(bell_first);
                State::Look
            }
            State::Ended => State::Ended,
        };
    }

    fn look(&mut self) -> State {
        let Some(next) = self.worker.look() else {
            self.worker.end();
            return State::Ended;
        };
        self.worker.runner.carry_out();
        match next {
            Next::Call => {
                let world = &mut *self.world.lock();
                self.check_locks(world);
                let slow = world.plan.faults.slow_start;
                let pause = if world.fault(slow) { world.latency() } else { Duration::ZERO };
                State::Announced { next: 0, at: world.now + pause }
            }
            Next::Wait(until) => State::Waiting(until),
        }
    }

    /// A call may only begin while the broker's lock is held, as far as the member can know.
    fn check_locks(&self, world: &mut World) {
        if world.plan.locks.is_none() || !world.plan.options.queue_locks {
            return;
        }
        for run in &self.worker.runner.call.runs {
            let (queue, now) = (run.tenure.queue, world.now);
            let known = world.broker.queue(queue);
            let (holder, taken_from) = (known.holder(now), known.lock_taken_from);
            if holder != Some(self.member) && taken_from != Some(self.member) {
                let shard = self.shard;
                world.wrong(format!(
                    "{:?} begins a call of {queue} on shard {shard} without its lock, which is held \
                     by {holder:?}",
                    self.member
                ));
            }
        }
    }

    /// Calls the listener for a message of the call, or for those behind it if it is not admitted.
    fn begin(&mut self, index: usize) -> State {
        let length = self.worker.runner.call.len();
        for index in index..length {
            let end = if self.per_message { index + 1 } else { length };
            self.worker.runner.call_listener_for(index..end);
            if self.world.lock().desk(self.member).calls.contains_key(&self.shard) {
                return State::InListener { next: end };
            }
        }
        State::Settle
    }

    fn returned(&mut self, next: usize) -> State {
        let world = &mut *self.world.lock();
        let call = world.desk(self.member).calls.remove(&self.shard);
        if let Some(call) = call {
            for (item, said) in call.items.iter().zip(&call.says) {
                if let Some(said) = said {
                    world.settle(self.member, Some(call.id), item, *said);
                }
            }
        }
        let more = next < self.worker.runner.call.len();
        if more { State::Announced { next, at: world.now } } else { State::Settle }
    }

    fn settle(&mut self) -> State {
        let (now, pauses) = {
            let world = &mut *self.world.lock();
            // What the engine skips is heard of in what follows: nothing may come between.
            let may = !policy_skips(world);
            let probability = world.plan.faults.pauses_inside;
            (world.now, may && world.fault(probability))
        };
        self.worker.runner.settle(now);
        if pauses {
            return State::Settled;
        }
        self.worker.runner.carry_out_settled();
        State::Look
    }
}
