//! The deterministic simulator: the engine's own state machines on one thread, in an order drawn
//! from a seed, in a time of their own, against a broker that they share with other processes of
//! their group, while everything goes wrong that may.
//!
//! ```text
//! seed ─► plan: sizes, options, faults
//!           │
//!   ┌───────┴────────┐   steps of    ┌──────────────────────────┐    ┌───────────────────────┐
//!   │ run: who next? │ ────────────► │ processes: source thread,│ ─► │ world: broker, time,  │
//!   └───────┬────────┘               │ shards, sink             │    │ listeners' notes      │
//!           │                        └──────────────────────────┘    └──────────┬────────────┘
//!           └─► surroundings: assignments, crashes, resets, …                   ▼
//!                                                     guarantees of the test kit, watching
//! ```
//!
//! Invariants: *nothing here reads a clock, a map's order or a thread's luck*, so a seed is a run, to
//! the letter; *the world's mutex is not held while the engine is called*; *what a guarantee is told
//! comes from outside of the engine*, its reports excepted where nobody else can know
//! (`process.rs`).
//!
//! What it cannot show: what happens inside a step (that is what the models of `loom` are for), and
//! what an adaptor does.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_testkit::guarantee::Moment;
use parking_lot::Mutex;

mod broker;
mod calm;
mod faults;
mod listener;
mod orderly;
mod plan;
mod process;
mod random;
mod sink;
mod source;
mod surroundings;
#[cfg(test)]
mod tests;
mod watch;
mod worker;
mod world;

use self::plan::{MS, Plan, SECOND};
use self::process::{Actor, Process};
use self::random::Random;
use self::surroundings::Agenda;
use self::worker::Ready;
use self::world::{SharedWorld, World};
use crate::pipeline::{ShardCell, panic_text};

/// How long nothing may happen once there are no faults, in the simulation's time and in steps.
const STANDSTILL: (Duration, u64) = (Duration::from_secs(600), 2_000_000);
/// How many steps somebody may be busy with, while nothing comes of it.
const BUSY_STEPS_MAX: u64 = 10_000;
/// How many steps there are faults.
const CHAOS_STEPS_MAX: u64 = 100_000;

/// How a run went.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// The same for the same seed, and different for nearly any other run.
    pub digest: u64,
    /// Messages that were delivered, each attempt counted.
    pub delivered: u64,
    /// Messages that were produced.
    pub produced: u64,
    /// Steps.
    pub steps: u64,
    /// How much time has passed in the simulation.
    pub virtual_time: Duration,
    /// How many processes there were, one after the other.
    pub processes: usize,
}

/// What was broken, and how it came to that.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was broken.
    pub violation: String,
    /// The options and faults of the run.
    pub plan: String,
    /// The last things that happened.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.plan)?;
        self.trace.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        write!(f, "seed {}: {}", self.seed, self.violation)
    }
}

/// Runs the simulation that this seed stands for.
///
/// # Errors
///
/// The first thing that was broken; the run is then repeated to tell how it came to that.
pub fn run(seed: u64) -> Result<Summary, Box<Failure>> {
    run_once(seed, false).or_else(|_| run_once(seed, true))
}

/// Plants a known bug for the rest of the process; see `docs/testing.md`.
///
/// # Errors
///
/// When this build cannot have any, or has one.
pub fn plant(bug: &str) -> Result<(), String> {
    crate::bug::plant(bug)
}

/// The seeds that have found something, and those that are watched for another reason.
pub fn corpus() -> Vec<u64> {
    let lines = include_str!("../sim-corpus/seeds.txt").lines();
    let seeds = lines.map(|line| line.split('#').next().unwrap_or_default().trim());
    let seeds = seeds.filter(|seed| !seed.is_empty());
    seeds.map(|seed| seed.parse().expect("a number, then a comment")).collect()
}

fn run_once(seed: u64, in_words: bool) -> Result<Summary, Box<Failure>> {
    let mut simulation = Simulation::new(seed, in_words);
    simulation.run();
    simulation.end(seed)
}

/// See the module's description.
struct Simulation {
    world: SharedWorld,
    processes: Vec<Process>,
    agenda: Agenda,
    trouble_pause: Duration,
    produce_pause: Duration,
    phase: Phase,
    /// Each queue has got messages after the faults had ended.
    topped_up: bool,
    /// What had been handled when somebody had last done something, and the step.
    busy_since: (u64, u64),
    ready: Vec<Turn>,
    /// The watermark of each process's queues, with its epoch.
    marks: std::collections::BTreeMap<(u32, keylane_source::QueueId), (u64, u64)>,
    /// When whoever does steps has last read the time.
    read_at: std::collections::BTreeMap<(u32, u64), Instant>,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Faults, until this time.
    Chaos(Instant),
    /// None any more: everything is to be handled.
    Calm(Progress),
    /// Everything was handled: all processes are to stop.
    Stopping,
    Over,
}

/// How far a run has come, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    /// Messages delivered and commits stored.
    handled: u64,
    at: Instant,
    step: u64,
}

impl Progress {
    fn of(world: &World) -> Self {
        let stored: u64 = world.broker.queues.iter().map(|queue| queue.stores).sum();
        Self { handled: world.delivered + stored, at: world.now, step: world.trace.steps() }
    }

    fn stands_still_since(&self, before: &Self) -> bool {
        let (time, steps) = STANDSTILL;
        self.at > before.at + time || self.step > before.step + steps
    }
}

/// Whose turn it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Surroundings,
    Process(usize, Actor),
}

impl Simulation {
    fn new(seed: u64, in_words: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = Arc::new(Plan::draw(seed, &mut random));
        let start = origin();
        let mut world = World::new(Arc::clone(&plan), random, start, in_words);
        world.advance(start);
        for slot in 0..plan.queues {
            let many = world.random.chance(0.5);
            let count = if many { plan.messages / 2 / plan.queues as u64 } else { 0 };
            world.produce(slot, count);
            world.broker.queues[slot].assign_at = Some(start);
        }
        let left_to_produce = plan.messages.saturating_sub(world.produced);
        let (produce_at, trouble_at) = (start, start + world.random.time(MS, SECOND));
        let starts = (0..plan.processes).map(|_| start + world.latency()).collect();
        let agenda = Agenda { produce_at, left_to_produce, trouble_at, starts };
        Self {
            world: Arc::new(Mutex::new(world)),
            processes: Vec::new(),
            agenda,
            trouble_pause: (plan.chaos / 20).max(MS),
            produce_pause: (plan.chaos / 10).max(MS),
            phase: Phase::Chaos(start + plan.chaos),
            topped_up: false,
            busy_since: (0, 0),
            ready: Vec::new(),
            marks: std::collections::BTreeMap::new(),
            read_at: std::collections::BTreeMap::new(),
        }
    }

    fn run(&mut self) {
        while self.phase != Phase::Over && self.world.lock().violation.is_none() {
            match self.next_turn() {
                Some(turn) => self.try_step(turn),
                None => self.wait(),
            }
            self.change_phase();
        }
    }

    /// Whose turn it is, among those who can go on.
    fn next_turn(&mut self) -> Option<Turn> {
        let mut guard = self.world.lock();
        let world = &mut *guard;
        self.ready.clear();
        let now = world.now;
        if Ready::at(self.next_due(world), now) == Ready::Now {
            self.ready.push(Turn::Surroundings);
        }
        for (index, process) in self.processes.iter().enumerate() {
            process.ready(world, |actor, ready| {
                if ready == Ready::Now {
                    self.ready.push(Turn::Process(index, actor));
                }
            });
        }
        if self.ready.is_empty() {
            return None;
        }
        let chosen = world.random.index(self.ready.len());
        Some(self.ready[chosen])
    }

    /// A step; a panic in it is the engine's, since what users' code throws is caught inside.
    fn try_step(&mut self, turn: Turn) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.step(turn))) {
            let what = format!("{turn:?} panicked: {}", panic_text(panic));
            self.world.lock().wrong(what);
        }
    }

    fn step(&mut self, turn: Turn) {
        {
            let mut world = self.world.lock();
            world.trace.step();
            world.trace.add(turn.number());
            // Each step takes its time; sometimes somebody else's.
            let starves = world.plan.faults.starves;
            if world.fault(starves) {
                let time = world.random.time(Duration::from_micros(1), 20 * MS);
                world.lose_time(time);
            } else {
                let to = world.now + Duration::from_nanos(world.random.below(3_000));
                world.advance(to);
            }
        }
        match turn {
            Turn::Surroundings => self.step_surroundings(),
            Turn::Process(index, actor) => {
                self.read_time(index, turn);
                self.processes[index].step(actor);
                self.check(index);
            }
        }
        self.bury();
        self.check_busy(&turn);
    }

    /// A thread may have read the time a moment before its turn: what others have done since lies in
    /// its future. Its own time never goes back.
    fn read_time(&mut self, index: usize, turn: Turn) {
        let world = &mut *self.world.lock();
        let early = world.plan.faults.reads_time_early;
        if early == 0.0 {
            return;
        }
        // A lease is shorter than the broker's by at least twice as much.
        let most = if world.plan.locks.is_some() { MS / 2 } else { 20 * MS };
        let behind = match world.fault(early) {
            true => world.random.time(Duration::from_micros(1), most),
            false => Duration::ZERO,
        };
        // The index changes when others end: the number of the process does not.
        let who = (self.processes[index].member.0, turn.number() & !0xFF00);
        let before = self.read_at.get(&who).copied().unwrap_or(world.start);
        let read = world.now.checked_sub(behind).map_or(before, |read| read.max(before));
        self.read_at.insert(who, read);
        crate::time::Clock.set_virtual(Some(read));
    }

    /// Whoever is busy without end, and gets nothing done, would be so on a core of its own.
    fn check_busy(&mut self, turn: &Turn) {
        let world = &mut *self.world.lock();
        let (handled, steps) = (Progress::of(world).handled, world.trace.steps());
        if handled != self.busy_since.0 {
            self.busy_since = (handled, steps);
        } else if steps - self.busy_since.1 > BUSY_STEPS_MAX {
            world.wrong(format!(
                "{BUSY_STEPS_MAX} steps without a pause, and for nothing: {turn:?}"
            ));
        }
    }

    /// After a step: the invariants of the process, and what the watchers have seen.
    fn check(&mut self, index: usize) {
        let mut guard = self.world.lock();
        let world = &mut *guard;
        let process = &mut self.processes[index];
        let deep = world.random.chance(0.03);
        if !process.is_member() {
            return; // What it has left is nobody's any more.
        }
        if let Err(wrong) = process.coordinator.audit(deep) {
            world.wrong(format!("{:?}: {wrong}", process.member));
        }
        if world.random.chance(0.1) {
            for (queue, epoch, watermark) in process.coordinator.watermarks() {
                let key = (process.member.0, queue);
                let before = self.marks.insert(key, (epoch, watermark.get()));
                let falls = before.is_some_and(|before| before > (epoch, watermark.get()));
                if falls {
                    world.wrong(format!("the watermark of {queue} falls from {before:?}"));
                }
            }
        }
        if let Some(broken) = world.watch.broken() {
            world.wrong(broken);
        }
    }

    /// Takes away what has ended, and starts anew.
    fn bury(&mut self) {
        let Some(over) = self.processes.iter().position(Process::is_over) else { return };
        drop(self.processes.swap_remove(over));
        let mut world = self.world.lock();
        if self.phase != Phase::Stopping {
            let at = world.now + world.random.time(MS, 5 * SECOND);
            self.agenda.starts.push(at);
        }
    }

    /// Nobody can go on: nothing may have been forgotten, and time passes.
    fn wait(&mut self) {
        let mut guard = self.world.lock();
        let world = &mut *guard;
        let mut next = self.next_due(world);
        for process in &self.processes {
            process.ready(world, |_, ready| {
                if let Ready::At(at) = ready {
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
            });
            let waits = |shard: &ShardCell| process.is_waiting(shard);
            let Some(until) = process.waits_until() else { continue };
            if let Err(wrong) = process.coordinator.audit_rest(world.now, until, waits) {
                world.wrong(format!("{:?}: {wrong}", process.member));
            }
        }
        self.busy_since.1 = world.trace.steps();
        match next {
            Some(next) => world.advance(next),
            None => world.wrong("everybody waits, and nothing will come"),
        }
    }

    fn change_phase(&mut self) {
        let now = self.world.lock().now;
        match self.phase {
            Phase::Chaos(until) => {
                let long = self.world.lock().trace.steps() > CHAOS_STEPS_MAX;
                if now >= until || long {
                    self.calm_down(now);
                }
            }
            Phase::Calm(before) => {
                if self.is_drained() {
                    if !self.top_up() {
                        self.stop_all();
                    }
                    return;
                }
                let progress = Progress::of(&self.world.lock());
                if progress.handled != before.handled {
                    self.phase = Phase::Calm(progress);
                } else if progress.stands_still_since(&before) {
                    let holding = self.holding();
                    self.world.lock().wrong(format!("not everything is handled: {holding}"));
                }
            }
            Phase::Stopping if self.processes.is_empty() => {
                self.world.lock().verify(Moment::Drained);
                self.phase = Phase::Over;
            }
            Phase::Stopping | Phase::Over => {}
        }
    }

    fn end(self, seed: u64) -> Result<Summary, Box<Failure>> {
        drop(self.processes);
        crate::time::Clock.set_virtual(None);
        let tickets = std::mem::take(&mut self.world.lock().tickets);
        drop(tickets);
        let world = Arc::into_inner(self.world).map(Mutex::into_inner);
        let world = world.expect("nobody has it any more");
        let Some(violation) = world.violation else {
            return Ok(Summary {
                digest: world.trace.digest(),
                delivered: world.delivered,
                produced: world.produced,
                steps: world.trace.steps(),
                virtual_time: world.now.saturating_duration_since(world.start),
                processes: world.desks.len(),
            });
        };
        let plan = world.plan.in_words();
        Err(Box::new(Failure { seed, violation, plan, trace: world.trace.into_lines() }))
    }
}

impl Turn {
    fn number(self) -> u64 {
        match self {
            Self::Surroundings => 1,
            Self::Process(index, Actor::Source) => 2 + ((index as u64) << 8),
            Self::Process(index, Actor::Sink) => 3 + ((index as u64) << 8),
            Self::Process(index, Actor::Ack) => 4 + ((index as u64) << 8),
            Self::Process(index, Actor::Worker(worker)) => {
                5 + ((index as u64) << 8) + ((worker as u64) << 32)
            }
        }
    }
}

/// Where the time of the simulation begins: only differences count.
fn origin() -> Instant {
    crate::time::Clock.set_virtual(None);
    crate::time::Clock.now()
}
