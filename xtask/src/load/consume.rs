//! The consumer of a run: started as a user would, watched until everything is committed, stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use keylane::{Consumer, ConsumerBuilder, Exhausted, FailurePolicy, Health, Metrics, listen};
use keylane_source::Source;
use keylane_testkit::recorder::Recorded;
use keylane_testkit::tap::Tap;

use super::listener::{BatchWorker, Shared, Worker};
use super::pace::Pace;
use super::plan::{Plan, RunPlan, engine_mode, name};
use super::progress::Phase;
use super::result::Sample;
use super::stage::{Producing, Stage, Stored, paced};
use super::tap::Pulls;
use super::workload::Workload;
use crate::flags::{Break, work_duration};
use crate::outcome::{Ended, Failure};

/// What one fetch of a queue brings at most.
pub(super) const FETCH: usize = 512;
/// How often it is looked how far the run is.
const LOOK: Duration = Duration::from_millis(20);
/// As many points as a plot has use for.
const SAMPLES_MAX: usize = 600;
/// Without any progress for so long (and ten times the work) the run is given up.
const STALLED: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// What takes part.
pub(super) struct Consuming<'a> {
    pub(super) plan: &'a Plan,
    pub(super) run: RunPlan,
    pub(super) workload: &'a Workload,
    pub(super) stage: &'a Stage,
    pub(super) shared: &'a Arc<Shared>,
}

/// What was seen.
pub(super) struct Consumed {
    pub(super) start: Instant,
    pub(super) metrics: Metrics,
    pub(super) samples: Vec<Sample>,
    /// What went wrong, in words.
    pub(super) trouble: Vec<String>,
}

impl Consuming<'_> {
    /// Consumes until every queue's watermark is at its end, or nothing moves any more.
    pub(super) fn until_done(&self, before: &[Stored]) -> Ended<Consumed> {
        let plan = self.plan;
        let source = self.stage.source()?;
        let start = Instant::now();
        let pace = plan.rate.map(|rate| Pace::new(start, rate));
        let writer = match pace {
            Some(_) => self.stage.writer()?,
            None => None,
        };
        let source = match (pace, &writer) {
            (Some(pace), None) => paced(source, pace, &self.shared.produced),
            _ => source,
        };
        let consumer = self.start(source)?;
        let is_written = AtomicBool::new(writer.is_none());
        thread::scope(|scope| {
            let writing = writer.map(|writer| {
                let is_written = &is_written;
                let produce = move || {
                    let written = writer.write(&self.producing(pace), vec![0; before.len()]);
                    is_written.store(true, Ordering::Release);
                    written
                };
                thread::Builder::new().name("producer".to_owned()).spawn_scoped(scope, produce)
            });
            let (samples, mut trouble) = self.watch(&consumer, start, before, &is_written)?;
            if let Err(error) = consumer.stop(STOP_WITHIN) {
                trouble.push(format!("the consumer did not stop well: {error}"));
            }
            if let Some(writing) = writing {
                let writing =
                    writing.map_err(|error| Failure::other("start the producer", error))?;
                let written = writing.join();
                written.map_err(|_| Failure::Other("the producer panicked".to_owned()))??;
            }
            Ok(Consumed { start, metrics: consumer.metrics(), samples, trouble })
        })
    }

    fn producing(&self, pace: Option<Pace>) -> Producing<'_> {
        let (recorder, produced) = (&self.shared.recorder, &*self.shared.produced);
        Producing { workload: self.workload, recorder, produced, pace, written: &|_| {} }
    }

    /// The engine as a user would start it, with a recorder and a tap on the source.
    fn start(&self, source: Box<dyn Source>) -> Ended<Consumer> {
        let plan = self.plan;
        let recorded = Recorded::new(source, &self.shared.recorder);
        let commits_too_much = plan.break_on_purpose == Some(Break::Commit);
        let pulls = Pulls { pulled: Arc::clone(&self.shared.pulled), commits_too_much };
        let failure = FailurePolicy::default()
            .backoff(Duration::from_millis(5), Duration::from_millis(100))
            .then(Exhausted::Stop);
        let builder: ConsumerBuilder<_> = Consumer::builder(pulls.on(recorded))
            .mode(engine_mode(self.run.mode))
            .shards(plan.shards as usize)
            .in_flight_max(plan.in_flight as usize)
            .fetch_max(FETCH)
            .failure(failure);
        let shared = Arc::clone(self.shared);
        let started =
            match plan.batch {
                None => builder.start(listen::per_shard(move |shard| Worker::new(&shared, shard))),
                Some(batch) => builder.batch_max(batch as usize).start(listen::per_shard_batches(
                    move |shard| BatchWorker(Worker::new(&shared, shard)),
                )),
            };
        started.map_err(|error| match error.is_config() {
            true => Failure::Usage(error.to_string()),
            false => Failure::other("start the consumer", error),
        })
    }

    /// Looks how far it is until it is done; gives points for a plot, and what went wrong.
    fn watch(
        &self,
        consumer: &Consumer,
        start: Instant,
        before: &[Stored],
        is_written: &AtomicBool,
    ) -> Ended<(Vec<Sample>, Vec<String>)> {
        let finished: u64 =
            before.iter().filter_map(|stored| stored.committed).map(|m| m.get()).sum();
        let owed = self.workload.messages.saturating_sub(finished);
        let mut phase =
            Phase::begin(self.plan.shown, format!("consuming {}", name(self.run.mode)), owed);
        let mut samples = Samples::default();
        let mut trouble = Vec::new();
        let mut moved = (Instant::now(), 0, 0);
        loop {
            let ends_are_final = is_written.load(Ordering::Acquire);
            let metrics = consumer.metrics();
            let done = metrics.succeeded;
            samples.add(start.elapsed(), done);
            let committed = metrics.queues.iter().filter_map(|queue| queue.committed);
            phase.at_with(done, committed.map(|mark| mark.get()).sum::<u64>().max(finished));
            let reached: u64 =
                metrics.queues.iter().filter_map(|queue| queue.watermark).map(|m| m.get()).sum();
            if ends_are_final && reached >= self.workload.messages {
                break;
            }
            if consumer.health() == Health::Stopped {
                trouble.push("the consumer stopped by itself".to_owned());
                break;
            }
            if (done, reached) != (moved.1, moved.2) {
                moved = (Instant::now(), done, reached);
            }
            if moved.0.elapsed() > self.patience() {
                trouble.push(format!("nothing has moved for {:.0?}", moved.0.elapsed()));
                trouble.extend(consumer.holding().iter().map(ToString::to_string));
                break;
            }
            thread::sleep(LOOK);
        }
        trouble.iter().for_each(|what| phase.note(what));
        phase.end(consumer.metrics().succeeded, start.elapsed());
        Ok((samples.points, trouble))
    }

    /// How long nothing may move before the run is given up.
    fn patience(&self) -> Duration {
        let call = work_duration(self.plan.work) * self.plan.batch.unwrap_or(1);
        let pause = self.plan.rate.map_or(0.0, |rate| 10.0 / rate);
        STALLED + call * 10 + Duration::from_secs_f64(pause)
    }
}

/// Points at even distances, which double when there are too many of them.
#[derive(Default)]
struct Samples {
    points: Vec<Sample>,
    /// Every so many looks.
    every: usize,
    looks: usize,
}

impl Samples {
    fn add(&mut self, at: Duration, done: u64) {
        self.looks += 1;
        if !(self.looks - 1).is_multiple_of(self.every.max(1)) {
            return;
        }
        self.points.push(Sample { at, done });
        if self.points.len() > SAMPLES_MAX {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every = self.every.max(1) * 2;
        }
    }
}
