//! A whole consumer: the source thread with its coordinator, and one shard's thread, as
//! `threads.rs` starts them.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::counts::now;
use super::source::{ModelSource, Work};
use crate::config::Config;
use crate::listener::{Factory, IntoListener, listen};
use crate::outcome::Outcome;
use crate::pipeline::{Parts, Shared, run_source};
use crate::report::StopReport;
use crate::sync::{Mutex, Ordering};
use crate::ticket::Ticket;

/// As little of everything as there can be.
fn config() -> Config {
    Config {
        shards: 1,
        channel_capacity: 1,
        batch_max: 1,
        fetch_max: 2,
        in_flight_max: 1,
        commit_count: Some(1),
        commit_interval: Duration::from_secs(3_600),
        hasher: Some(Arc::new(|_: &[u8]| 0)),
        ..Config::default()
    }
}

/// A listener that says what it does.
fn listener(work: &Arc<Work>) -> Factory {
    let work = Arc::clone(work);
    let handle = move |message: &keylane_source::Message, _: &mut crate::Context<'_>| {
        work.is_running.store(true, Ordering::SeqCst);
        assert!(!work.is_released.load(Ordering::SeqCst), "a call after the release");
        work.done.store(message.offset().get() + 1, Ordering::Relaxed);
        work.is_running.store(false, Ordering::SeqCst);
        Ok(Outcome::Done)
    };
    listen::each(handle).into_factory()
}

/// Runs a consumer of this source to its end; `beside` runs on a thread of its own.
fn run(
    source: ModelSource,
    config: Config,
    factory: &Factory,
    beside: Option<Box<dyn FnOnce(Arc<Shared>) + Send>>,
) -> StopReport {
    now();
    let to_source = Arc::clone(&source.shared);
    let waker = keylane_source::Source::waker(&source);
    let parts = Parts::new(&Arc::new(config), waker, false, factory, None);
    let Parts { shared, coordinator, workers, .. } = parts;
    assert!(to_source.set(Arc::clone(&shared)).is_ok(), "set once");
    let workers = workers.into_iter().map(|worker| thread::spawn(move || worker.run()));
    let mut threads: Vec<_> = workers.collect();
    if let Some(beside) = beside {
        let shared = Arc::clone(&shared);
        threads.push(thread::spawn(move || beside(shared)));
    }
    // The handle's lock: nobody else has it here.
    let coordinator = parking_lot::Mutex::new(coordinator);
    let result = run_source(Box::new(source), &coordinator, &shared);
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    result.expect("it stops in order")
}

/// Two messages, of which one is in flight at a time; then a stop.
pub(super) fn consume() {
    let work = Arc::<Work>::default();
    let report = run(ModelSource::new(2, &work), config(), &listener(&work), None);
    assert_eq!((work.done.load(Ordering::Relaxed), report.unfinished), (2, 0));
    assert!(report.all_committed(), "{report}");
}

/// A message that is on its way to the shard when the stop is asked for.
pub(super) fn stop() {
    let work = Arc::<Work>::default();
    let mut source = ModelSource::new(1, &work);
    source.stops = false;
    let stop = Box::new(|shared: Arc<Shared>| shared.request_stop("the model asks"));
    let report = run(source, config(), &listener(&work), Some(stop));
    let done = work.done.load(Ordering::Relaxed);
    // It was never pulled, or was handled: no deadline has come.
    assert_eq!(report.unfinished, 0, "{report}");
    let committed = report.queues.first().and_then(|queue| queue.committed);
    assert_eq!(committed.map_or(0, |watermark| watermark.get()), done, "{report}");
}

/// The queue is taken away while the shard is about to call the listener.
pub(super) fn revoke() {
    let work = Arc::<Work>::default();
    let mut source = ModelSource::new(1, &work);
    source.revokes = true;
    run(source, config(), &listener(&work), None);
    assert!(work.is_released.load(Ordering::SeqCst), "never released");
}

/// The first message is finished by another thread; the second one waits for it.
pub(super) fn ticket() {
    let work = Arc::<Work>::default();
    let ticket = Arc::<Mutex<Option<Ticket>>>::default();
    let (left, done) = (Arc::clone(&ticket), Arc::clone(&work));
    let handle = move |message: &keylane_source::Message, context: &mut crate::Context<'_>| {
        if message.offset().get() == 1 {
            assert_eq!(done.done.load(Ordering::Relaxed), 1, "before its ticket was settled");
            done.done.store(2, Ordering::Relaxed);
            return Ok(Outcome::Done);
        }
        let (ticket, deferred) = context.defer();
        *left.lock() = Some(ticket);
        Ok(deferred)
    };
    let factory = listen::each(handle).into_factory();
    let settled = Arc::clone(&work);
    let settle = Box::new(move |_: Arc<Shared>| {
        loop {
            if let Some(ticket) = ticket.lock().take() {
                settled.done.store(1, Ordering::Relaxed);
                return ticket.done();
            }
            thread::yield_now();
        }
    });
    let config = Config { in_flight_max: 2, channel_capacity: 2, ..config() };
    let report = run(ModelSource::new(2, &work), config, &factory, Some(settle));
    assert_eq!((work.done.load(Ordering::Relaxed), report.unfinished), (2, 0));
}
