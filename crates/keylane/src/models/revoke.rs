//! A queue's end, and tickets, against calls: the coordinator and one shard's worker, as in
//! production, but only in the steps that matter. What comes before them (the assignment, the fetch,
//! the hand-over to the shard) is done before there is a second thread, so that nothing of it is
//! tried in different orders.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keylane_source::{Message, Source, SourceEvent};
use loom::thread;

use super::consumer::config;
use super::counts::now;
use super::source::{ModelSource, Work};
use crate::config::Config;
use crate::listener::{Factory, IntoListener, listen};
use crate::outcome::{BatchOutcome, Outcome};
use crate::pipeline::{Coordinator, GateState, Next, Parts, Shared, Step, Worker};
use crate::sync::{AtomicBool, Ordering};

/// The source's thread, whose steps the model asks for.
struct SourceThread {
    source: ModelSource,
    coordinator: Coordinator,
    events: Vec<SourceEvent>,
}

impl SourceThread {
    /// Polls, which waits for at most this long, and does what is due; returns how long it has
    /// nothing to do then.
    fn step(&mut self, wait: Duration) -> Duration {
        let limits = self.coordinator.limits();
        let polled = self.source.poll(limits, wait, &mut self.events);
        let now = crate::time::Clock.now();
        match self.coordinator.step(&mut self.source, &mut self.events, polled, now) {
            Step::Poll(wait) => wait,
            other => panic!("nothing fails here: {other:?}"),
        }
    }

    /// Gives the queue back, and returns what was committed of it. Nothing but a wake-up ends a
    /// wait.
    fn revoke(&mut self, work: &Work) -> u64 {
        self.source.revoke();
        let mut wait = Duration::ZERO;
        while !work.is_released.load(Ordering::SeqCst) {
            wait = self.step(wait);
        }
        work.committed.load(Ordering::Relaxed)
    }
}

/// A consumer with these messages in front of its one shard.
fn ready(
    messages: u64,
    work: &Arc<Work>,
    factory: &Factory,
) -> (SourceThread, Worker, Arc<Shared>) {
    now();
    let mut source = ModelSource::new(messages, work);
    source.stops = false;
    let capacity = usize::try_from(messages).expect("few");
    // No budget and no commit wakes the source's thread.
    let config = Config {
        channel_capacity: capacity,
        in_flight_max: capacity,
        commit_count: None,
        ..config()
    };
    let parts = Parts::new(&Arc::new(config), source.waker(), false, factory, None);
    let Parts { shared, coordinator, mut workers, .. } = parts;
    let mut thread = SourceThread { source, coordinator, events: Vec::new() };
    let _assigned = thread.step(Duration::ZERO);
    // What a full fetch brought is kept until the next one.
    while thread.step(Duration::ZERO).is_zero() {}
    (thread, workers.remove(0), shared)
}

/// As [`Worker::run`], for two looks and the call that one of them may find: the first may find that
/// the listener has to be told of a queue's end, and nothing else.
fn look_twice(worker: &mut Worker) {
    for _ in 0..2 {
        let next = worker.look();
        worker.runner.carry_out();
        if next == Some(Next::Call) {
            worker.runner.call_listener();
            worker.runner.settle(crate::time::Clock.now());
            return worker.runner.carry_out_settled();
        }
    }
}

fn begin_call(work: &Work) {
    // To be told of later: a panic in here would be the listener's.
    if work.is_released.load(Ordering::SeqCst) {
        work.is_late.store(true, Ordering::Relaxed);
    }
    work.is_running.store(true, Ordering::SeqCst);
}

fn end_call(work: &Work, message: u64) {
    work.done.store(message + 1, Ordering::Relaxed);
    work.is_running.store(false, Ordering::SeqCst);
}

/// The queue is taken away while its shard is about to call the listener. That takes batches: of one
/// message at a time, the tenure is looked at once more.
pub(super) fn revoke() {
    let work = Arc::<Work>::default();
    let of_listener = Arc::clone(&work);
    let handle = move |_: &crate::Batch<'_>| {
        begin_call(&of_listener);
        end_call(&of_listener, 0);
        Ok(BatchOutcome::Done)
    };
    let factory = listen::batches(handle).into_factory();
    let (mut source, mut worker, _shared) = ready(1, &work, &factory);
    let shard = thread::spawn(move || look_twice(&mut worker));
    let committed = source.revoke(&work);
    shard.join().expect("it ends");
    assert!(!work.is_late.load(Ordering::Relaxed), "a call after the release");
    assert_eq!(committed, work.done.load(Ordering::Relaxed), "what was handled counts");
}

/// The consumer is paused while its shard is about to call the listener, which takes batches: of one
/// message at a time, the gate is looked at once more.
pub(super) fn pause() {
    let work = Arc::<Work>::default();
    let of_listener = Arc::clone(&work);
    let is_quiet = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_quiet);
    let handle = move |_: &crate::Batch<'_>| {
        if seen.load(Ordering::SeqCst) {
            of_listener.is_late.store(true, Ordering::Relaxed);
        }
        Ok(BatchOutcome::Done)
    };
    let factory = listen::batches(handle).into_factory();
    let (source, mut worker, shared) = ready(1, &work, &factory);
    let shard = thread::spawn(move || look_twice(&mut worker));
    shared.gate.pause(true);
    let runs = source.coordinator.shards().iter().any(|cell| cell.shard.lock().is_running());
    is_quiet.store(!runs, Ordering::SeqCst);
    shard.join().expect("it ends");
    assert!(!work.is_late.load(Ordering::Relaxed), "a call after nothing was seen to run");
}

/// The first message is finished by another thread, at any moment from within its call on; the
/// second one has the same key.
pub(super) fn ticket() {
    let work = Arc::<Work>::default();
    let of_listener = Arc::clone(&work);
    let gate = Arc::<OnceLock<Arc<Shared>>>::default();
    let of_all = Arc::clone(&gate);
    let handle = move |message: &Message, context: &mut crate::Context<'_>| {
        if message.offset().get() == 1 {
            if of_listener.done.load(Ordering::Relaxed) == 1 {
                of_listener.done.store(2, Ordering::Relaxed);
            }
            // Nothing more is to come, and the worker ends.
            gate.get().expect("it was set").gate.move_to(GateState::Closed);
            return Ok(Outcome::Done);
        }
        let (ticket, deferred) = context.defer();
        let work = Arc::clone(&of_listener);
        thread::spawn(move || {
            work.done.store(1, Ordering::Relaxed);
            ticket.done();
        });
        Ok(deferred)
    };
    let factory = listen::each(handle).into_factory();
    let (_source, worker, shared) = ready(2, &work, &factory);
    assert!(of_all.set(shared).is_ok(), "set once");
    worker.run();
    assert_eq!(work.done.load(Ordering::Relaxed), 2, "called before the ticket was settled");
}

/// The queue is taken away while a ticket of its one call is settled elsewhere.
pub(super) fn leave() {
    let work = Arc::<Work>::default();
    let of_listener = Arc::clone(&work);
    let handle = move |_: &Message, context: &mut crate::Context<'_>| {
        begin_call(&of_listener);
        let (ticket, deferred) = context.defer();
        let work = Arc::clone(&of_listener);
        thread::spawn(move || {
            end_call(&work, 0);
            ticket.done();
        });
        Ok(deferred)
    };
    let factory = listen::each(handle).into_factory();
    let (mut source, mut worker, _shared) = ready(1, &work, &factory);
    look_twice(&mut worker);
    assert_eq!(source.revoke(&work), 1, "what was handled counts");
}
