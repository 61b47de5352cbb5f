//! One process of the group: a consumer as `start` makes it, and its threads in steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use keylane_source::{Source, SourceError, SourceEvent};
use keylane_testkit::guarantee::MemberId;

use super::listener::{self, SKIPPED};
use super::sink::SimSink;
use super::source::SimSource;
use super::worker::{Ready, SimWorker};
use super::world::{Desk, SharedWorld, World};
use crate::config::{Config, Exhausted};
use crate::error::Error;
use crate::observer::Event;
use crate::pipeline::{
    Coordinator, Parts, Pool, Posted, ShardCell, Shared, Step, Task, needs_pool, send_letter,
};
use crate::report::StopReport;
use crate::time::Clock;

/// What a stop may take beyond its deadline.
const GRACE: Duration = Duration::from_millis(500);

/// See the module's description.
pub(super) struct Process {
    pub(super) member: MemberId,
    pub(super) source: SimSource,
    pub(super) coordinator: Coordinator,
    pub(super) shared: Arc<Shared>,
    pub(super) workers: Vec<SimWorker>,
    posted: Option<Receiver<Posted>>,
    pub(super) sink: SimSink,
    world: SharedWorld,
    events: Vec<SourceEvent>,
    polled: Result<(), SourceError>,
    state: State,
    /// When a stop was asked for from here, and within which time.
    stop_asked: Option<(Instant, Duration)>,
    pub(super) ended: Option<Result<StopReport, Error>>,
}

/// Where the source's thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Step,
    Polling(Instant),
    BackingOff(Instant),
    Closing(Instant),
    Ended,
}

/// Somebody who can do a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Actor {
    Source,
    Worker(usize),
    /// The sink's thread takes a letter.
    Sink,
    /// Something is acknowledged.
    Ack,
}

impl Process {
    pub(super) fn start(world: &SharedWorld) -> Self {
        let (member, plan) = {
            let world = &mut *world.lock();
            let member = MemberId(u32::try_from(world.desks.len()).expect("few processes"));
            world.desks.push(Desk::default());
            world.trace.line(|| format!("{member:?} starts"));
            (member, Arc::clone(&world.plan))
        };
        let told = world.clone();
        let observer = move |event: &Event| observe(&mut told.lock(), member, event);
        let config = Arc::new(plan.config(u64::from(member.0), Arc::new(observer)));
        check(&config, plan.has_sink);
        let source = SimSource::new(world.clone(), member);
        let factory = listener::factory(world, member);
        let (pool, submitted) = unbounded();
        let pool = needs_pool(config.mode).then(|| Pool::Steps(pool));
        let of_pool = if pool.is_some() { config.shards } else { 0 };
        let parts = Parts::new(&config, source.waker(), plan.has_sink, &factory, pool);
        let Parts { shared, coordinator, workers, posted } = parts;
        let workers = workers.into_iter().map(|worker| SimWorker::new(worker, world, member));
        let of_pool = (0..of_pool).map(|_| SimWorker::of_pool(&submitted, world, member));
        Self {
            member,
            source,
            coordinator,
            shared,
            workers: workers.chain(of_pool).collect(),
            posted,
            sink: SimSink { world: world.clone(), member, epoch: None, pending: Vec::new() },
            world: world.clone(),
            events: Vec::new(),
            polled: Ok(()),
            state: State::Step,
            stop_asked: None,
            ended: None,
        }
    }

    /// Whether it takes part in the group.
    pub(super) fn is_member(&self) -> bool {
        self.state != State::Ended
    }

    /// Whether a dead letter is on its way.
    pub(super) fn has_letters(&self) -> bool {
        let posted = self.posted.as_ref().is_some_and(|posted| !posted.is_empty());
        posted || self.sink.next_due().is_some()
    }

    /// Whether the source's thread waits for the source, and for nothing else.
    pub(super) fn waits_for_source(&self) -> bool {
        self.waits_until().is_some()
    }

    /// Until when it does.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        match self.state {
            State::Polling(until) => Some(until),
            _ => None,
        }
    }

    /// Whether nobody runs this shard, nor will without somebody else's doing.
    pub(super) fn is_waiting(&self, shard: &ShardCell) -> bool {
        match shard.task() {
            Some(task) => task.is_at_rest() && !shard.has_exited(),
            None => self.workers.iter().any(|worker| worker.waits_for(shard.index)),
        }
    }

    /// Whether nothing of it is left.
    pub(super) fn is_over(&self) -> bool {
        !self.is_member() && self.workers.iter().all(SimWorker::has_ended)
    }

    /// Tells `found` of everybody who can go on, now or at a time.
    pub(super) fn ready(&self, world: &World, mut found: impl FnMut(Actor, Ready)) {
        found(Actor::Source, self.source_ready(world));
        for (index, worker) in self.workers.iter().enumerate() {
            found(Actor::Worker(index), worker.ready(world));
        }
        if self.posted.as_ref().is_some_and(|posted| !posted.is_empty()) {
            found(Actor::Sink, Ready::Now);
        }
        found(Actor::Ack, Ready::at(self.sink.next_due(), world.now));
    }

    fn source_ready(&self, world: &World) -> Ready {
        let now = world.now;
        match self.state {
            State::Step => Ready::Now,
            State::Polling(_) | State::BackingOff(_) if self.source.is_woken() => Ready::Now,
            State::Polling(until) => {
                let due = self.source.next_due(world).map_or(until, |due| due.min(until));
                Ready::at(Some(due), now)
            }
            State::BackingOff(until) => Ready::at(Some(until), now),
            State::Closing(until) => {
                let answered = self.source.answered_at(world);
                Ready::at(Some(answered.map_or(until, |at| at.min(until))), now)
            }
            State::Ended => Ready::Woken,
        }
    }

    pub(super) fn step(&mut self, actor: Actor) {
        match actor {
            Actor::Source => self.step_source(),
            Actor::Worker(index) => self.workers[index].step(),
            Actor::Sink => self.step_sink(),
            Actor::Ack => {
                let now = self.world.lock().now;
                self.sink.acknowledge(now);
            }
        }
    }

    fn step_sink(&mut self) {
        let Some(posted) = self.posted.as_ref().and_then(|posted| posted.try_recv().ok()) else {
            return;
        };
        self.sink.epoch = posted.epoch();
        send_letter(&mut self.sink, posted, &self.shared);
    }

    fn step_source(&mut self) {
        let now = Clock.now();
        match self.state {
            State::Step => self.step_coordinator(now),
            State::Polling(_) | State::BackingOff(_) => {
                let limits = self.coordinator.limits();
                self.polled = self.source.poll(limits, Duration::ZERO, &mut self.events);
                self.state = State::Step;
            }
            State::Closing(_) => {
                let closed = self.source.close(Duration::ZERO, &mut self.events);
                let events = std::mem::take(&mut self.events);
                self.coordinator.take_last_answers(events, now);
                let result = self.coordinator.result(closed, now);
                self.shared.timers.close();
                self.state = State::Ended;
                self.check_end(&result, now);
                self.ended = Some(result);
            }
            State::Ended => {}
        }
    }

    fn step_coordinator(&mut self, now: Instant) {
        if self.shared.stop_asked().is_some() {
            self.world.lock().desk(self.member).is_stopping = true;
        }
        let polled = std::mem::replace(&mut self.polled, Ok(()));
        let step = self.coordinator.step(&mut self.source, &mut self.events, polled, now);
        self.shared.report_noted();
        if !self.events.is_empty() {
            self.world.lock().wrong("a step did not take what the source had reported");
        }
        self.state = match step {
            Step::Poll(wait) => State::Polling(now + wait),
            Step::BackOff(delay) => State::BackingOff(now + delay),
            Step::Close(timeout) => State::Closing(now + timeout),
        };
    }

    /// Asks for a stop, as its user would.
    pub(super) fn stop(&mut self, deadline: Duration) {
        let mut world = self.world.lock();
        world.trace.line(|| format!("{:?} is to stop within {deadline:?}", self.member));
        let now = world.now;
        drop(world);
        let until = |(at, within): (Instant, Duration)| at + within;
        let asked = (now, deadline);
        let first = self.stop_asked.is_none_or(|before| until(asked) < until(before));
        // What is asked for while the source is closed comes too late to change anything.
        if first && !matches!(self.state, State::Closing(_) | State::Ended) {
            self.stop_asked = Some(asked);
        }
        self.shared.request_stop_within("the simulation stops it", deadline);
    }

    /// What an end promises.
    fn check_end(&self, result: &Result<StopReport, Error>, now: Instant) {
        let mut world = self.world.lock();
        let member = self.member;
        world.trace.line(|| format!("{member:?} has ended: {result:?}"));
        if let Some((asked_at, deadline)) = self.stop_asked {
            let late = now.saturating_duration_since(asked_at);
            if late > deadline + GRACE + world.lost_time_since(asked_at) {
                world.wrong(format!("{member:?} took {late:?} to stop within {deadline:?}"));
            }
        }
        let Ok(report) = result else { return };
        if self.workers.iter().any(SimWorker::is_in_call) {
            world.wrong(format!("{member:?} stopped well while a call is running"));
        }
        if !report.all_committed() {
            world.wrong(format!("{member:?} stopped well without its commits: {report}"));
        }
    }
}

impl Drop for Process {
    /// A shard on a pool and what runs it refer to each other until the shard has ended: one that
    /// was killed never does.
    fn drop(&mut self) {
        self.shared.timers.close();
        for cell in self.coordinator.shards() {
            drop(cell.task().and_then(Task::begin));
        }
    }
}

fn check(config: &Config, has_sink: bool) {
    config.check(has_sink, false).expect("the simulator draws options that can work");
}

/// What the engine reports, as far as the watchers have to know.
fn observe(world: &mut World, member: MemberId, event: &Event) {
    if world.desk(member).is_dead {
        return;
    }
    world.trace.line(|| format!("{member:?} reports: {event}"));
    match event {
        Event::Started { queue, epoch, .. } => {
            world.started(member, *queue, *epoch);
        }
        Event::LockLost { queue } => world.lock_lost(member, *queue),
        Event::RevokeTimedOut { queue, .. } => world.timed_out(member, *queue),
        Event::Skipped { queue, offset, attempts, reason, .. } if reason != SKIPPED => {
            let policy = &world.plan.options.failure;
            let allowed = policy.exhausted == Exhausted::Skip
                && policy.attempts_max.is_some_and(|most| *attempts >= most);
            if !allowed {
                world.wrong(format!("{queue} {offset} is skipped after {attempts} attempts"));
            }
            world.given_up(member, *queue, *offset);
        }
        _ => {}
    }
}
