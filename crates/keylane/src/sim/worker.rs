//! A thread that runs shards, in steps: what [`Worker::run`] does without a pause for the one shard
//! that it has, or a pool's thread for one [`Task`](crate::pipeline::Task) after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use keylane_testkit::guarantee::MemberId;

use super::listener::policy_skips;
use super::world::{SharedWorld, World};
use crate::pipeline::{Look, Next, Runner, ShardCell, Worker};
use crate::time::Clock;

/// See the module's description.
pub(super) struct SimWorker {
    hands: Hands,
    world: SharedWorld,
    member: MemberId,
    state: State,
    per_message: bool,
}

/// How the thread comes by its shard.
enum Hands {
    /// It has one for life.
    Own(Box<Worker>),
    /// It takes the next task that was submitted.
    Pool { submitted: Receiver<Arc<ShardCell>>, task: Option<Box<Running>> },
}

/// A task that runs.
struct Running {
    cell: Arc<ShardCell>,
    runner: Runner,
    began: Instant,
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
    /// A pool's task has seen that there is nothing to do until then; that it ends is not known.
    Resting(Option<Instant>),
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
        Self::with(Hands::Own(Box::new(worker)), State::Look, world, member)
    }

    /// A thread of a pool.
    pub(super) fn of_pool(
        submitted: &Receiver<Arc<ShardCell>>,
        world: &SharedWorld,
        member: MemberId,
    ) -> Self {
        let hands = Hands::Pool { submitted: submitted.clone(), task: None };
        Self::with(hands, State::Waiting(None), world, member)
    }

    fn with(hands: Hands, state: State, world: &SharedWorld, member: MemberId) -> Self {
        let per_message = world.lock().plan.per_message;
        Self { hands, world: world.clone(), member, state, per_message }
    }

    pub(super) fn ready(&self, world: &World) -> Ready {
        match self.state {
            State::Look | State::Settle | State::Settled | State::Resting(_) => Ready::Now,
            State::Announced { at, .. } => Ready::at(Some(at), world.now),
            State::InListener { .. } => {
                let shard = self.hands.shard();
                let calls = &world.desks[self.member.0 as usize].calls;
                match shard.and_then(|shard| calls.get(&shard)).and_then(|call| call.until) {
                    None if world.calm => Ready::Now,
                    until => Ready::at(until, world.now),
                }
            }
            State::Waiting(_) if self.hands.is_woken() => Ready::Now,
            State::Waiting(until) => Ready::at(until, world.now),
            State::Ended => Ready::Woken,
        }
    }

    /// Whether it does nothing any more, once its process takes no part in the group.
    pub(super) fn has_ended(&self) -> bool {
        match self.hands {
            Hands::Own(_) => self.state == State::Ended,
            Hands::Pool { .. } => self.is_waiting() && !self.hands.is_woken(),
        }
    }

    /// Whether the thread waits for something to do.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// Whether it is this shard's own thread, and waits for something to do.
    pub(super) fn waits_for(&self, shard: usize) -> bool {
        self.is_waiting() && self.hands.shard() == Some(shard)
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
            State::Settled => self.settled(),
            State::Resting(until) => self.hands.rest(until),
            State::Waiting(_) => self.wake(),
            State::Ended => State::Ended,
        };
    }

    /// Takes what it has waited for.
    fn wake(&mut self) -> State {
        match &mut self.hands {
            Hands::Own(worker) => {
                let bell_first = self.world.lock().random.chance(0.5);
                worker.end_wait(bell_first);
                State::Look
            }
            Hands::Pool { submitted, task } => {
                let Ok(cell) = submitted.try_recv() else { return State::Waiting(None) };
                let begun = cell.task().and_then(|task| task.begin());
                match begun {
                    Some(runner) => {
                        let began = Clock.now();
                        *task = Some(Box::new(Running { cell, runner, began }));
                        State::Look
                    }
                    None => {
                        if !cell.has_exited() {
                            let index = cell.index;
                            self.world.lock().wrong(format!("shard {index} has two tasks"));
                        }
                        State::Waiting(None)
                    }
                }
            }
        }
    }

    fn look(&mut self) -> State {
        let Some(next) = self.hands.look() else {
            self.hands.end();
            let ended = matches!(self.hands, Hands::Own(_));
            return if ended { State::Ended } else { State::Waiting(None) };
        };
        match next {
            Next::Call => {
                let world = &mut *self.world.lock();
                self.check_locks(world);
                let slow = world.plan.faults.slow_start;
                let pause = if world.fault(slow) { world.latency() } else { Duration::ZERO };
                State::Announced { next: 0, at: world.now + pause }
            }
            Next::Wait(until) if self.hands.is_pool() => State::Resting(until),
            Next::Wait(until) => State::Waiting(until),
        }
    }

    /// A call may only begin while the broker's lock is held, as far as the member can know.
    fn check_locks(&self, world: &mut World) {
        if world.plan.locks.is_none() || !world.plan.options.queue_locks {
            return;
        }
        let Some(runner) = self.hands.runner() else { return };
        for run in &runner.call.runs {
            let (queue, now) = (run.tenure.queue, world.now);
            let known = world.broker.queue(queue);
            let (holder, taken_from) = (known.holder(now), &known.lock_taken_from);
            if holder != Some(self.member) && !taken_from.contains(&self.member) {
                let shard = runner.env.cell.index;
                world.wrong(format!(
                    "{:?} begins a call of {queue} on shard {shard} without its lock, which is \
                     held by {holder:?}",
                    self.member
                ));
            }
        }
    }

    /// Calls the listener for a message of the call, or for those behind it if it is not admitted.
    fn begin(&mut self, index: usize) -> State {
        let Some(runner) = self.hands.runner_mut() else { return State::Look };
        let (length, shard) = (runner.call.len(), runner.env.cell.index);
        for index in index..length {
            let end = if self.per_message { index + 1 } else { length };
            if !self.per_message {
                let call = &runner.call;
                let told = |index| (call.run(index).tenure.epoch, call.attempt(index));
                let announced = (index..end).map(told).collect();
                self.world.lock().desk(self.member).announced = announced;
            }
            runner.call_listener_for(index..end);
            if self.world.lock().desk(self.member).calls.contains_key(&shard) {
                return State::InListener { next: end };
            }
        }
        State::Settle
    }

    fn returned(&mut self, next: usize) -> State {
        let Some(runner) = self.hands.runner() else { return State::Look };
        let (length, shard) = (runner.call.len(), runner.env.cell.index);
        let world = &mut *self.world.lock();
        let call = world.desk(self.member).calls.remove(&shard);
        if let Some(call) = call {
            for (item, said) in call.items.iter().zip(&call.says) {
                if let Some(said) = said {
                    world.settle(self.member, Some(call.id), item, *said);
                }
            }
            world.follow_up(self.member, &call);
        }
        if next < length { State::Announced { next, at: world.now } } else { State::Settle }
    }

    fn settle(&mut self) -> State {
        let pauses = {
            let world = &mut *self.world.lock();
            // What the engine skips is heard of in what follows: nothing may come between.
            let may = !policy_skips(world);
            let probability = world.plan.faults.pauses_inside;
            may && world.fault(probability)
        };
        if let Some(runner) = self.hands.runner_mut() {
            runner.settle(Clock.now());
        }
        if pauses { State::Settled } else { self.settled() }
    }

    fn settled(&mut self) -> State {
        if let Some(runner) = self.hands.runner_mut() {
            runner.carry_out_settled();
        }
        if self.hands.give_way() { State::Waiting(None) } else { State::Look }
    }
}

impl Hands {
    fn is_pool(&self) -> bool {
        matches!(self, Self::Pool { .. })
    }

    fn runner(&self) -> Option<&Runner> {
        match self {
            Self::Own(worker) => Some(&worker.runner),
            Self::Pool { task, .. } => task.as_ref().map(|task| &task.runner),
        }
    }

    fn runner_mut(&mut self) -> Option<&mut Runner> {
        match self {
            Self::Own(worker) => Some(&mut worker.runner),
            Self::Pool { task, .. } => task.as_mut().map(|task| &mut task.runner),
        }
    }

    /// The shard that it has at this time.
    fn shard(&self) -> Option<usize> {
        self.runner().map(|runner| runner.env.cell.index)
    }

    fn is_woken(&self) -> bool {
        match self {
            Self::Own(worker) => worker.is_woken(),
            Self::Pool { submitted, .. } => !submitted.is_empty(),
        }
    }

    /// What there is to do; `None` when it is over.
    fn look(&mut self) -> Option<Next> {
        match self {
            Self::Own(worker) => {
                let next = worker.look()?;
                worker.runner.carry_out();
                Some(next)
            }
            Self::Pool { task, .. } => {
                let Running { cell, runner, .. } = &mut **task.as_mut()?;
                match cell.task()?.look_at(cell, runner) {
                    Look::Call => Some(Next::Call),
                    Look::Wait(until) => Some(Next::Wait(until)),
                    Look::Over => None,
                }
            }
        }
    }

    /// Nothing is called any more.
    fn end(&mut self) {
        match self {
            Self::Own(worker) => worker.end(),
            Self::Pool { task, .. } => {
                let Some(running) = task.take() else { return };
                let Running { cell, runner, .. } = *running;
                if let Some(task) = cell.task() {
                    task.end_for_ever(&cell, runner);
                }
            }
        }
    }

    /// A task with nothing to do ends, unless something has come meanwhile.
    fn rest(&mut self, until: Option<Instant>) -> State {
        let Self::Pool { task, .. } = self else { return State::Look };
        let Some(running) = task.take() else { return State::Look };
        let Running { cell, runner, began } = *running;
        let goes_on = cell.task().and_then(|task| task.end(&cell, runner, until));
        *task = goes_on.map(|runner| Box::new(Running { cell, runner, began }));
        if task.is_some() { State::Look } else { State::Waiting(None) }
    }

    /// A task whose slice is over ends, to be submitted again.
    fn give_way(&mut self) -> bool {
        let Self::Pool { task, .. } = self else { return false };
        let Some(running) = task.take() else { return false };
        let Running { cell, runner, began } = *running;
        match cell.task().map(|task| task.give_way(&cell, runner, began)) {
            None | Some(None) => true,
            Some(Some(runner)) => {
                *task = Some(Box::new(Running { cell, runner, began }));
                false
            }
        }
    }
}
