//! The only place that makes threads: one for the source, one per shard (or a pool), one for the
//! dead-letter sink where there is one. Each has a name, and ends by itself; a stop waits until all
//! have.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use keylane_source::{Ack, DeadLetterSink, Source, SourceWaker};
use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::cell::ShardCell;
use super::coordinator::{Coordinator, Step};
use super::mode::{ModeState, lay_out, needs_pool};
use super::pool::Pool;
use super::runner::mark_own_thread;
use super::shared::{GateState, Posted, Shared, panic_text};
use super::worker::{Ears, Worker};
use crate::config::Config;
use crate::error::Error;
use crate::listener::Factory;
use crate::report::StopReport;
use crate::time::Clock;

/// The running parts of a consumer.
pub(crate) struct Threads {
    pub(crate) shared: Arc<Shared>,
    pub(crate) coordinator: Arc<Mutex<Coordinator>>,
    pub(crate) crew: Crew,
}

/// The threads of a consumer, to wait for their end.
pub(crate) struct Crew {
    handles: Mutex<Vec<JoinHandle<()>>>,
    /// Each thread has its other end as long as it runs: a wait for that can have a limit.
    ended: Receiver<Never>,
}

/// What is never sent.
enum Never {}

/// Makes the threads of a [`Crew`].
struct Hiring {
    handles: Vec<JoinHandle<()>>,
    runs: Sender<Never>,
}

impl Threads {
    /// Starts everything, or nothing.
    pub(crate) fn start(
        source: Box<dyn Source>,
        config: Config,
        sink: Option<Box<dyn DeadLetterSink>>,
        factory: &Factory,
    ) -> Result<Self, Error> {
        let config = Arc::new(config);
        let (runs, ended) = bounded(0);
        let mut hiring = Hiring { handles: Vec::new(), runs };
        let threads = match needs_pool(config.mode) {
            true => Some(Arc::new(hiring.make_pool(&config)?)),
            false => None,
        };
        let pool = threads.as_ref().map(|threads| Pool::Threads(Arc::downgrade(threads)));
        let parts = Parts::new(&config, source.waker(), sink.is_some(), factory, pool);
        let Parts { shared, coordinator, workers, posted } = parts;
        let crew = Crew { handles: Mutex::default(), ended };
        let started = Self { shared, coordinator: Arc::new(Mutex::new(coordinator)), crew };
        let all =
            started.start_all(&mut hiring, source, &config, threads, sink.zip(posted), workers);
        *started.crew.handles.lock() = hiring.handles;
        if let Err(error) = all {
            // Those that were started find the gate closed, and end.
            started.shared.gate.move_to(GateState::Closed);
            started.shared.close_letters();
            started.coordinator.lock().shards().iter().for_each(|cell| cell.nudge());
            return Err(error);
        }
        Ok(started)
    }

    fn start_all(
        &self,
        hiring: &mut Hiring,
        source: Box<dyn Source>,
        config: &Config,
        pool: Option<Arc<ThreadPool>>,
        sink: Option<(Box<dyn DeadLetterSink>, Receiver<Posted>)>,
        workers: Vec<Worker>,
    ) -> Result<(), Error> {
        for worker in workers {
            let (cell, shared) = (Arc::clone(worker.cell()), Arc::clone(&self.shared));
            let name = format!("{}-shard-{}", config.thread_name, cell.index);
            hiring.spawn(name, Some(config.stack_size), move || {
                // A panic in here is our own fault, not a listener's: better stop than stall.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) {
                    let what = format!("shard {} panicked: {}", cell.index, panic_text(panic));
                    log::error!(target: "keylane", "{what}");
                    cell.exit();
                    shared.fail(&what);
                }
            })?;
        }
        if let Some((sink, posted)) = sink {
            let shared = Arc::clone(&self.shared);
            let name = format!("{}-dead-letters", config.thread_name);
            hiring.spawn(name, None, move || run_sink(sink, &posted, &shared))?;
        }
        let (coordinator, shared) = (Arc::clone(&self.coordinator), Arc::clone(&self.shared));
        hiring.spawn(format!("{}-source", config.thread_name), None, move || {
            mark_own_thread();
            shared.signals.set_source_thread(std::thread::current());
            let ran = catch_unwind(AssertUnwindSafe(|| run_source(source, &coordinator, &shared)));
            let result = ran.unwrap_or_else(|panic| {
                shared.gate.move_to(GateState::Closed);
                shared.close_letters();
                coordinator.lock().shards().iter().for_each(|cell| cell.nudge());
                let what = format!("the source's thread panicked: {}", panic_text(panic));
                log::error!(target: "keylane", "{what}");
                Err(Error::internal(what, StopReport::default()))
            });
            shared.timers.close();
            // Its threads end with the tasks that were submitted so far: there are no others.
            drop(pool);
            shared.end(result);
        })
    }
}

impl Crew {
    /// Waits until all threads have ended, for at most this long.
    pub(crate) fn wait(&self, most: Duration) {
        let mut handles = self.handles.lock();
        if matches!(self.ended.recv_timeout(most), Err(RecvTimeoutError::Disconnected)) {
            // They are on their way out; what a panic said was logged.
            handles.drain(..).for_each(|handle| drop(handle.join()));
        }
    }
}

impl Hiring {
    fn spawn(
        &mut self,
        name: String,
        stack_size: Option<usize>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        self.try_spawn(name.clone(), stack_size, run).map_err(|cause| Error::thread(name, cause))
    }

    fn try_spawn(
        &mut self,
        name: String,
        stack_size: Option<usize>,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let mut builder = Builder::new().name(name);
        if let Some(bytes) = stack_size {
            builder = builder.stack_size(bytes);
        }
        let runs = self.runs.clone();
        let handle = builder.spawn(move || {
            run();
            drop(runs);
        })?;
        self.handles.push(handle);
        Ok(())
    }

    /// The threads of queue-locked mode.
    fn make_pool(&mut self, config: &Config) -> Result<ThreadPool, Error> {
        let name = format!("{}-pool", config.thread_name);
        let pool = ThreadPoolBuilder::new().num_threads(config.shards).spawn_handler(|thread| {
            let name = format!("{name}-{}", thread.index());
            self.try_spawn(name, Some(config.stack_size), || thread.run())
        });
        pool.build().map_err(|error| Error::thread(name.clone(), std::io::Error::other(error)))
    }
}

/// Everything of a consumer but its threads.
pub(crate) struct Parts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) coordinator: Coordinator,
    /// One for each shard that has a thread of its own.
    pub(crate) workers: Vec<Worker>,
    /// What the dead-letter sink is to be given, where there is one.
    pub(crate) posted: Option<Receiver<Posted>>,
}

impl Parts {
    pub(crate) fn new(
        config: &Arc<Config>,
        waker: SourceWaker,
        has_sink: bool,
        factory: &Factory,
        pool: Option<Pool>,
    ) -> Self {
        let layout = lay_out(config, has_sink, factory);
        let mode = ModeState::new(config, pool, has_sink, factory);
        // As many letters as messages in flight at most: each holds its lane.
        let (letters, posted) = has_sink.then(unbounded).unzip();
        let (observer, stop_timeout) = (config.observer.clone(), config.stop_timeout);
        let shared = Arc::new(Shared::new(Clock, waker, letters, observer, stop_timeout));
        let worker = |(cell, ears): &(Arc<ShardCell>, Ears)| {
            Worker::new(Arc::clone(cell), Arc::clone(&shared), ears.clone(), factory.clone())
        };
        let workers = layout.threads.iter().map(worker).collect();
        let now = Clock.now();
        let coordinator =
            Coordinator::new(Arc::clone(config), Arc::clone(&shared), mode, layout, now);
        Self { shared, coordinator, workers, posted }
    }
}

/// Polls the source and lets the coordinator take its turn, until everything is over.
pub(crate) fn run_source(
    mut source: Box<dyn Source>,
    coordinator: &Mutex<Coordinator>,
    shared: &Shared,
) -> Result<StopReport, Error> {
    let clock = shared.clock;
    let mut events = Vec::new();
    let mut polled = Ok(());
    let limits = coordinator.lock().limits();
    let timeout = loop {
        let before = std::mem::replace(&mut polled, Ok(()));
        let mut locked = coordinator.lock();
        let step = locked.step(source.as_mut(), &mut events, before, clock.now());
        let crowded = locked.take_crowded();
        drop(locked);
        shared.report_noted();
        if crowded {
            // A shard's thread may be waiting for this very processor. While this thread brings more,
            // it would not get it until the whole budget waits in front of that shard.
            std::thread::yield_now();
        }
        match step {
            Step::Poll(wait) => polled = source.poll(limits, wait, &mut events),
            Step::BackOff(delay) => {
                std::thread::park_timeout(delay);
                polled = source.poll(limits, Duration::ZERO, &mut events);
            }
            Step::Close(timeout) => break timeout,
        }
    };
    let closed = source.close(timeout, &mut events);
    let mut last = coordinator.lock();
    last.take_last_answers(events, clock.now());
    let result = last.result(closed, clock.now());
    drop(last);
    shared.report_noted();
    result
}

/// Hands dead letters to the sink, one after the other.
fn run_sink(mut sink: Box<dyn DeadLetterSink>, posted: &Receiver<Posted>, shared: &Arc<Shared>) {
    mark_own_thread();
    while let Ok(letter) = posted.recv() {
        send_letter(sink.as_mut(), letter, shared);
    }
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| sink.close())) {
        // Before the log is asked whether it wants to know: the payload is not to be dropped here.
        let what = panic_text(panic);
        log::error!(target: "keylane", "closing the dead-letter sink panicked: {what}");
    }
}

pub(crate) fn send_letter(sink: &mut dyn DeadLetterSink, posted: Posted, shared: &Arc<Shared>) {
    let Posted { cell, id, letter } = posted;
    let shared = Arc::clone(shared);
    let ack = Ack::new(move |result| cell.settle_letter(&shared, id, result));
    // A panic drops the ack, and a dropped ack is a failure.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| sink.send(letter, ack))) {
        // Before the log is asked whether it wants to know: the payload is not to be dropped here.
        let what = panic_text(panic);
        log::error!(target: "keylane", "the dead-letter sink panicked: {what}");
    }
}
