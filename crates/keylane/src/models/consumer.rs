//! A whole consumer: the source thread with its coordinator, and one shard's thread, as
//! `threads.rs` starts them.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::counts::now;
use super::source::{ModelSource, Work};
use crate::config::{Config, Mode};
use crate::listener::{Factory, IntoListener, listen};
use crate::outcome::Outcome;
use crate::pipeline::{Parts, Pool, ShardCell, Shared, needs_pool, run_source, run_task};
use crate::report::StopReport;
use crate::sync::Ordering;

/// As little of everything as there can be.
pub(super) fn config() -> Config {
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

/// A listener that says what it does, and asks for a stop in its `last` message.
fn listener(work: &Arc<Work>, last: Option<u64>) -> Factory {
    let work = Arc::clone(work);
    let handle = move |message: &keylane_source::Message, context: &mut crate::Context<'_>| {
        work.is_running.store(true, Ordering::SeqCst);
        work.done.store(message.offset().get() + 1, Ordering::Relaxed);
        if last == Some(message.offset().get()) {
            context.request_stop();
        }
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
    let (submit, submitted) = crossbeam_channel::unbounded::<Arc<ShardCell>>();
    let pool = needs_pool(config.mode).then(|| Pool::Steps(submit));
    let has_pool = pool.is_some();
    let parts = Parts::new(&Arc::new(config), waker, false, factory, pool);
    let Parts { shared, coordinator, workers, .. } = parts;
    assert!(to_source.set(Arc::clone(&shared)).is_ok(), "set once");
    let workers = workers.into_iter().map(|worker| thread::spawn(move || worker.run()));
    let mut threads: Vec<_> = workers.collect();
    if has_pool {
        threads.push(thread::spawn(move || run_tasks(&submitted)));
    }
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
    let mut source = ModelSource::new(2, &work);
    source.stops = false;
    // Nothing but budget and the stop wakes the source thread.
    let config = Config { commit_count: None, ..config() };
    let report = run(source, config, &listener(&work, Some(1)), None);
    assert_eq!((work.done.load(Ordering::Relaxed), report.unfinished), (2, 0));
    assert!(report.all_committed(), "{report}");
}

/// The same in queue-locked mode: one queue, one thread of the pool.
pub(super) fn pool() {
    let work = Arc::<Work>::default();
    let config = Config { mode: Mode::QueueLocked, ..config() };
    let report = run(ModelSource::new(2, &work), config, &listener(&work, None), None);
    assert_eq!((work.done.load(Ordering::Relaxed), report.unfinished), (2, 0));
    assert!(report.all_committed(), "{report}");
}

/// A thread of the pool, until the one shard has ended. The channel is a real one: what is seen
/// through are the locks and flags that decide whether anything is submitted.
fn run_tasks(submitted: &crossbeam_channel::Receiver<Arc<ShardCell>>) {
    loop {
        match submitted.try_recv() {
            Ok(cell) => {
                run_task(&cell);
                if cell.has_exited() {
                    return;
                }
            }
            Err(_) => thread::yield_now(),
        }
    }
}

/// A message that is on its way to the shard when the stop is asked for.
pub(super) fn stop() {
    let work = Arc::<Work>::default();
    let mut source = ModelSource::new(1, &work);
    source.stops = false;
    let stop = Box::new(|shared: Arc<Shared>| shared.request_stop("the model asks"));
    let report = run(source, config(), &listener(&work, None), Some(stop));
    let done = work.done.load(Ordering::Relaxed);
    // It was never pulled, or was handled: no deadline has come.
    assert_eq!(report.unfinished, 0, "{report}");
    let committed = report.queues.first().and_then(|queue| queue.committed);
    assert_eq!(committed.map_or(0, |watermark| watermark.get()), done, "{report}");
}
