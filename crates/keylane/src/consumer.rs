//! The handle of a running consumer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use keylane_source::{DeadLetterSink, Source};
use parking_lot::Mutex;

use crate::builder::ConsumerBuilder;
use crate::config::Config;
use crate::error::Error;
use crate::listener::Factory;
use crate::metrics::Metrics;
use crate::pipeline::{Coordinator, Crew, Shared, Threads, is_waited_for};
use crate::report::{Health, Holding, StopReport};

/// What a stop may take beyond its deadline before its caller gives up on the source.
const GRACE: Duration = Duration::from_millis(500);

/// A running consumer: threads that pull messages, call a listener and commit.
///
/// All methods may be called from any thread. Dropping it asks for a stop (with the option
/// `stop_timeout` as deadline) and does not wait: to know how it ended, call [`stop`](Self::stop) or
/// [`wait`](Self::wait).
pub struct Consumer {
    shared: Arc<Shared>,
    coordinator: Arc<Mutex<Coordinator>>,
    crew: Crew,
}

impl Consumer {
    /// Begins to describe a consumer of `source`.
    ///
    /// ```
    /// use keylane::{listen, Consumer, Outcome};
    /// use keylane_testkit::script::Script;
    /// # use keylane_source::{Committed, QueueId};
    /// # use std::time::Duration;
    ///
    /// # let script = Script::new();
    /// # let source = script.source();
    /// let consumer = Consumer::builder(source)
    ///     .shards(8)
    ///     .start(listen::each(|message, _context| {
    ///         println!("{message:?}");
    ///         Ok(Outcome::Done)
    ///     }))?;
    /// // …
    /// consumer.stop(Duration::from_secs(10))?;
    /// # Ok::<(), keylane::Error>(())
    /// ```
    pub fn builder<S: Source + 'static>(source: S) -> ConsumerBuilder<S> {
        ConsumerBuilder::new(source)
    }

    pub(crate) fn start(
        source: Box<dyn Source>,
        config: Config,
        sink: Option<Box<dyn DeadLetterSink>>,
        factory: Factory,
    ) -> Result<Self, Error> {
        let Threads { shared, coordinator, crew } = Threads::start(source, config, sink, &factory)?;
        Ok(Self { shared, coordinator, crew })
    }

    /// Where everything stands, in numbers.
    pub fn metrics(&self) -> Metrics {
        self.coordinator.lock().metrics(self.shared.clock.now())
    }

    /// What holds the watermarks back: for each queue with unfinished messages, the first of them.
    /// Works also while listeners do not return.
    pub fn holding(&self) -> Vec<Holding> {
        let now = self.shared.clock.now();
        self.coordinator.lock().holding(now)
    }

    /// Whether everything moves.
    pub fn health(&self) -> Health {
        if self.shared.has_ended() {
            return Health::Stopped;
        }
        self.coordinator.lock().health(self.shared.clock.now())
    }

    /// No new listener call begins until [`resume`](Self::resume); calls under way go on, as do
    /// polling, group membership and commits. Of a call for several messages whose listener takes
    /// one at a time, the rest waits. Idempotent, and waits for nothing.
    ///
    /// A call is under way from the moment at which its shard has chosen its messages: one that is
    /// on its way to the listener as this returns still enters it.
    /// [`ShardMetrics::running`](crate::ShardMetrics::running) shows all of them. Once no shard is
    /// running and no ticket is open, nothing of the listener runs until `resume`:
    ///
    /// ```
    /// # use keylane::{listen, Consumer, Outcome};
    /// # use keylane_testkit::script::Script;
    /// # use std::time::Duration;
    /// # let listener = listen::each(|_message, _context| Ok(Outcome::Done));
    /// # let consumer = Consumer::builder(Script::new().source()).shards(2).start(listener)?;
    /// consumer.pause();
    /// while consumer.metrics().shards.iter().any(|shard| shard.running) {
    ///     std::thread::sleep(Duration::from_millis(1));
    /// }
    /// // No call runs, and none begins.
    /// consumer.resume();
    /// # consumer.stop(Duration::from_secs(10))?;
    /// # Ok::<(), keylane::Error>(())
    /// ```
    pub fn pause(&self) {
        self.shared.gate.pause(true);
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self) {
        self.shared.gate.pause(false);
        self.coordinator.lock().shards().iter().for_each(|cell| cell.nudge());
    }

    /// Waits until the consumer has stopped by itself: because a [`Stopper`] or a listener asked for
    /// it, or because the source failed for good.
    ///
    /// # Errors
    ///
    /// As [`stop`](Self::stop), and [`Error::is_source`] when the source failed,
    /// [`Error::is_stopped_by_listener`] when a listener answered
    /// [`Outcome::Stop`](crate::Outcome::Stop).
    pub fn wait(&self) -> Result<StopReport, Error> {
        if is_waited_for() {
            return Err(Error::inside_listener());
        }
        match self.shared.wait(None) {
            Some(result) => self.after_threads(result, GRACE),
            None => unreachable!("it waits until there is one"),
        }
    }

    /// Stops: pulls no more, handles what is in the shards' channels, commits, closes the source, and
    /// returns within `deadline` plus half a second, whatever listeners and broker do.
    ///
    /// All threads of the consumer have ended by then, unless something is left behind in one of
    /// them: a listener call (in queue-locked mode the whole pool then ends with it), a ticket's, a
    /// source that does not return, or a dead-letter sink that takes longer to close.
    ///
    /// May be called twice, and at the same time: the earlier deadline holds, each call gets the same
    /// result. From inside a listener it is a request: it returns at once, with
    /// [`Error::is_inside_listener`].
    ///
    /// # Errors
    ///
    /// [`Error::is_deadline`] when listener calls were still running at the deadline; their messages
    /// are in the [report](Error::report), and their threads are left behind. Also when the final
    /// commit failed, or when the consumer had stopped before with an error.
    pub fn stop(&self, deadline: Duration) -> Result<StopReport, Error> {
        self.shared.request_stop_within("stop was called", deadline);
        if is_waited_for() {
            return Err(Error::inside_listener());
        }
        let patience = deadline.saturating_add(GRACE);
        let began = self.shared.clock.now();
        match self.shared.wait(Some(patience)) {
            Some(result) => {
                let waited = self.shared.clock.now().saturating_duration_since(began);
                self.after_threads(result, patience.saturating_sub(waited))
            }
            None => Err(Error::no_answer(patience)),
        }
    }

    /// Gives the result once no thread is left, or after this long. Where a call was left behind,
    /// its thread is not waited for.
    fn after_threads(
        &self,
        result: Result<StopReport, Error>,
        most: Duration,
    ) -> Result<StopReport, Error> {
        let report = result.as_ref().map_or_else(Error::report, Some);
        if report.is_some_and(|report| report.abandoned.is_empty()) {
            self.crew.wait(most);
        }
        result
    }

    /// Something that can ask for a stop from anywhere: a signal handler's thread, a listener.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if !self.shared.has_ended() {
            self.shared.request_stop("the consumer was dropped");
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

/// Asks a [`Consumer`] to stop. Cheap to clone; does not keep the consumer alive as such.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Asks for a stop, with the option `stop_timeout` as deadline, and returns at once.
    pub fn stop(&self) {
        self.0.request_stop("a stopper was used");
    }
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopper")
    }
}
