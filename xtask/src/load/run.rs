//! One run: write, consume in one mode until everything is committed, put together what came of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use keylane_source::Watermark;
use keylane_testkit::guarantee::{Scope, Verdict};
use keylane_testkit::recorder::Recorder;
use keylane_testkit::workload::Work;
use parking_lot::Mutex;

use super::balances::{Balances, LARGEST};
use super::consume::{self, Consuming};
use super::listener::{Shared, Tally};
use super::plan::{Plan, RunPlan, name};
use super::progress::Phase;
use super::result::{Counted, Flights, QueueResult, RunResult};
use super::stage::{Producing, Stage, Stored};
use super::timeline::Timeline;
use super::workload::Workload;
use super::{ceiling, usage};
use crate::flags::Mode;
use crate::outcome::Ended;

/// Runs one mode over its messages.
pub(super) fn run(plan: &Plan, run: RunPlan) -> Ended<RunResult> {
    let workload = Workload::new(plan, run)?;
    let queues = workload.queues.len();
    let mut stage = Stage::open(plan, run, &workload)?;
    // What a poll brought beyond the budget waits in the stash of its queue.
    let stashed_max = consume::FETCH * stage.fetches_of_a_queue() * queues;
    let fetched_max = u64::from(plan.in_flight) + stashed_max as u64;
    let recorder = Recorder::with_in_flight_limit(scope(run.mode), fetched_max);
    let produced = Arc::new(Timeline::new(queues));
    let alongside = plan.rate.is_some() && stage.produces_alongside();
    let written_in = match alongside {
        true => None,
        false => Some(write(plan, &workload, &mut stage, &recorder, &produced)?),
    };
    let before = stage.stored()?;
    // Without order the balances are whatever they are.
    let right = match run.mode {
        Mode::Concurrent => None,
        Mode::KeySharded | Mode::QueueLocked => Right::new(&workload, &before)?,
    };
    let shared = Arc::new(Shared {
        work: plan.work,
        faults: plan.faults,
        recorder: recorder.clone(),
        produced,
        pulled: Arc::new(Timeline::new(queues)),
        base: right.as_ref().map(|right| right.base.clone()),
        break_on_purpose: plan.break_on_purpose,
        broken: false.into(),
        slots: Mutex::default(),
    });
    let threads = threads(plan, run.mode, queues);
    let ceiling_before = ceiling::measure(threads, plan.work);
    usage::reset_peak();
    let cpu_before = usage::cpu_seconds();
    let consuming = Consuming { plan, run, workload: &workload, stage: &stage, shared: &shared };
    let mut consumed = consuming.until_done(&before)?;
    let (cpu_after, peak_bytes) = (usage::cpu_seconds(), usage::peak_bytes());
    let tallies = shared.tallies();
    let last_done = tallies.iter().filter_map(|tally| tally.last_done).max();
    let (tally, balances) = count(plan, tallies, &mut consumed.trouble);
    let verdict = recorder.verdict();
    // The machine may have had something else to do: the better of the two is nearer to the truth.
    let ceiling = ceiling::measure(threads, plan.work)
        .zip(ceiling_before)
        .map(|(after, before)| after.max(before));
    Ok(RunResult {
        mode: run.mode,
        source: name(plan.source),
        shards: plan.shards,
        in_flight_limit: plan.in_flight.into(),
        work: shown(plan.work),
        seed: plan.seed,
        queues: queue_results(&workload, &before, &stage.stored()?, &verdict),
        keys: workload.keys,
        keyless: workload.keyless,
        messages: workload.messages,
        finished_before: before.iter().map(finished).sum(),
        elapsed: last_done.map_or(Duration::ZERO, |last| last.duration_since(consumed.start)),
        written_in,
        verdict,
        metrics: consumed.metrics,
        tally,
        cpu_seconds: cpu_before.zip(cpu_after).map(|(before, after)| after - before),
        peak_bytes,
        ceiling,
        threads,
        flights: right.map(|right| right.compare(&workload, balances)),
        samples: consumed.samples,
        trouble: consumed.trouble,
    })
}

/// In which scope the mode promises order and exclusion.
fn scope(mode: Mode) -> Scope {
    match mode {
        Mode::KeySharded => Scope::key(),
        Mode::QueueLocked => Scope::Queue,
        Mode::Concurrent => Scope::Free,
    }
}

/// How many calls can run at the same time.
fn threads(plan: &Plan, mode: Mode, queues: usize) -> u32 {
    match mode {
        Mode::QueueLocked => plan.shards.min(u32::try_from(queues).unwrap_or(u32::MAX)),
        Mode::KeySharded | Mode::Concurrent => plan.shards,
    }
}

fn shown(work: Work) -> String {
    match work {
        Work::None => "none".to_owned(),
        Work::Sleep(duration) => format!("sleep:{duration:?}"),
        Work::Spin(duration) => format!("spin:{duration:?}"),
    }
}

/// Writes everything, before anything is consumed.
fn write(
    plan: &Plan,
    workload: &Workload,
    stage: &mut Stage,
    recorder: &Recorder,
    produced: &Timeline,
) -> Ended<Duration> {
    let phase =
        Phase::begin(plan.shown, format!("writing into {}", name(plan.source)), workload.messages);
    let start = Instant::now();
    stage.produce(&Producing {
        workload,
        recorder,
        produced,
        pace: None,
        written: &|messages| phase.at(messages),
    })?;
    phase.end(workload.messages, start.elapsed());
    Ok(start.elapsed())
}

/// What earlier runs have finished of a queue.
fn finished(stored: &Stored) -> u64 {
    stored.committed.map_or(0, Watermark::get)
}

fn queue_results(
    workload: &Workload,
    before: &[Stored],
    after: &[Stored],
    verdict: &Verdict,
) -> Vec<QueueResult> {
    let result = |(index, (before, after)): (usize, (&Stored, &Stored))| {
        let judged = verdict.queues.iter().find(|judged| judged.queue == after.queue);
        QueueResult {
            name: workload.queue_name(index),
            finished_before: finished(before),
            delivered: judged.map_or(0, |judged| judged.delivered),
            committed: finished(after),
            end: after.end,
        }
    };
    before.iter().zip(after).enumerate().map(result).collect()
}

/// Adds up what the shards have counted.
fn count(plan: &Plan, tallies: Vec<Tally>, trouble: &mut Vec<String>) -> (Counted, Balances) {
    let mut balances = Balances::default();
    let empty = Tally::new(None);
    let mut counted = Counted {
        per_shard: Vec::with_capacity(tallies.len()),
        failures: 0,
        panics: 0,
        hand_off: empty.hand_off,
        in_engine: empty.in_engine,
        end_to_end: plan.rate.map(|_| empty.end_to_end),
    };
    for tally in tallies {
        counted.per_shard.push(tally.handled);
        counted.failures += tally.failures;
        counted.panics += tally.panics;
        add(&mut counted.hand_off, &tally.hand_off);
        add(&mut counted.in_engine, &tally.in_engine);
        if let Some(end_to_end) = &mut counted.end_to_end {
            add(end_to_end, &tally.end_to_end);
        }
        trouble.extend(tally.unreadable);
        if let Some(shard) = tally.balances {
            balances.merge(shard);
        }
    }
    (counted, balances)
}

fn add(all: &mut Histogram<u64>, one: &Histogram<u64>) {
    // They have the same bounds: nothing can be wrong.
    let _ = all.add(one);
}

/// The balances as they have to come out.
struct Right {
    /// Where this run begins: what the earlier ones have finished, in order.
    base: Balances,
    /// Where it has to end.
    whole: Balances,
}

impl Right {
    /// Reads them straight from the file; `None` where the messages are no flights.
    fn new(workload: &Workload, before: &[Stored]) -> Ended<Option<Self>> {
        let finished: Vec<u64> = before.iter().map(finished).collect();
        let Some(base) = workload.balances(&finished)? else { return Ok(None) };
        let everything = vec![u64::MAX; before.len()];
        let Some(whole) = workload.balances(&everything)? else { return Ok(None) };
        Ok(Some(Self { base, whole }))
    }

    fn compare(self, workload: &Workload, consumed: Balances) -> Flights {
        let mut got = self.base;
        got.merge(consumed);
        let (queue, key) = LARGEST;
        let queue = workload.queues.iter().position(|name| name == queue.as_bytes());
        let queue = queue.and_then(|index| u32::try_from(index).ok());
        Flights {
            got: got.totals(),
            right: self.whole.totals(),
            largest_is: queue.and_then(|queue| got.of(queue, key.as_bytes())),
        }
    }
}
