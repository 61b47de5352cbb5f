//! The process that is killed: appends to the embedded log and consumes from it, both as fast as
//! the other allows, and writes the history.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use keylane::{
    BatchOutcome, Consumer, FailurePolicy, Health, Message, Mode, Outcome, StartFrom, listen,
};
use keylane_log::{Fsync, Log, Options, Record};
use keylane_testkit::tap::Tap;
use keylane_testkit::workload::{Fault, Faults, Prng, mix};

use super::history::{self, Line, Writer};
use super::tap::Historian;
use super::{FETCH, Folder, GROUP, IN_FLIGHT, QUEUES, TOPIC};
use crate::outcome::{Ended, Failure};

/// Keys, each in one queue: a few are hot.
const KEYS: u64 = 60;
/// The share of calls that fail, so that lanes are held while the process dies.
const FAIL_RATE: f64 = 0.03;
/// Records a batch, and bytes that fill a record: an append takes long enough to be hit.
const BATCH: u64 = 150;
const FILLER: u64 = 300;
/// How far the producer may be ahead of the watermarks.
const AHEAD: u64 = 3_000;
const COMMIT_EVERY: Duration = Duration::from_millis(10);
const COMMIT_COUNT: u64 = 50;
/// A worker lives for less: then something hangs.
const LIFE_MAX: Duration = Duration::from_secs(120);

/// For `crash` itself
#[derive(Debug, Args)]
pub(crate) struct WorkerFlags {
    /// The folder of the log and of the history
    #[arg(long)]
    pub(super) dir: std::path::PathBuf,
    #[arg(long)]
    pub(super) seed: u64,
    /// When to say so on standard output
    #[arg(long, value_enum)]
    pub(super) announce: Announced,
    /// At which one of its kind
    #[arg(long, default_value_t = 0)]
    pub(super) nth: u64,
    /// Commits what was read, finished or not
    #[arg(long)]
    pub(super) commit_too_early: bool,
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Announced {
    /// That the log is open.
    Open,
    /// That an append begins.
    Append,
    /// That a commit was handed to the log.
    Commit,
    /// Nothing: it appends nothing either, consumes what there is, and ends.
    End,
}

/// Says once that it is time.
struct Announcer {
    what: Announced,
    left: AtomicU64,
}

impl Announcer {
    /// One more of these.
    fn at(&self, what: Announced) {
        if what == self.what && self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            // Whoever reads this is about to kill; a reader that is gone needs nothing.
            drop(writeln!(std::io::stdout(), "now"));
        }
    }
}

/// The task.
pub(crate) fn run(flags: &WorkerFlags) -> Ended {
    thread::spawn(|| {
        thread::sleep(LIFE_MAX);
        crate::outcome::say("the worker lives too long");
        std::process::exit(3);
    });
    let folder = Folder::new(&flags.dir);
    let mut prng = Prng::new(flags.seed);
    let announcer = Arc::new(Announcer { what: flags.announce, left: AtomicU64::new(flags.nth) });
    let options = options(&mut prng);
    let opened = || -> Result<Log, keylane_log::Error> {
        let log = options.open(folder.log())?;
        log.ensure_topic(TOPIC, QUEUES)?;
        Ok(log)
    };
    let log = opened().map_err(|error| Failure::other("open the log", error))?;
    announcer.at(Announced::Open);
    let history = Writer::open(&folder.history());
    let history = Arc::new(history.map_err(|error| Failure::other("open the history", error))?);
    let consumer = consume(&log, &history, &announcer, flags, &mut prng)?;
    if flags.announce == Announced::End {
        return end(&log, &consumer);
    }
    produce(&log, &history, &announcer, &consumer, &mut prng)
}

/// Another policy each time: none of them may lose what was acknowledged to a kill.
fn options(prng: &mut Prng) -> Options {
    Options::new().fsync(match prng.below(3) {
        0 => Fsync::Never,
        1 => Fsync::Interval(Duration::from_millis(3)),
        _ => Fsync::EveryBatch,
    })
}

fn consume(
    log: &Log,
    history: &Arc<Writer>,
    announcer: &Arc<Announcer>,
    flags: &WorkerFlags,
    prng: &mut Prng,
) -> Ended<Consumer> {
    let source = log.source(TOPIC, GROUP);
    let source = source.map_err(|error| Failure::other("consume from the log", error))?;
    let announcer = Arc::clone(announcer);
    let committed = Box::new(move || announcer.at(Announced::Commit));
    let historian = Historian::new(Arc::clone(history), flags.commit_too_early, committed);
    let source = historian.on(source);
    let mode = prng.below(3);
    let builder = Consumer::builder(source)
        .mode(if mode == 0 { Mode::QueueLocked } else { Mode::KeySharded })
        .shards(4)
        .in_flight_max(IN_FLIGHT)
        .fetch_max(FETCH)
        .start_from(StartFrom::Earliest)
        .commit_interval(COMMIT_EVERY)
        .commit_count(COMMIT_COUNT)
        .failure(
            FailurePolicy::default().backoff(Duration::from_millis(1), Duration::from_millis(20)),
        );
    let handler = Arc::new(Handler {
        history: Arc::clone(history),
        faults: Faults { seed: flags.seed, fail_rate: FAIL_RATE, panic_rate: 0.0 },
        calls: AtomicU64::new(0),
    });
    let started = if mode == 1 {
        builder.batch_max(8).start(listen::batches(move |batch| {
            let attempt = |index| batch.attempt(index);
            Ok(match handler.handle(batch, batch.shard(), attempt) {
                None => BatchOutcome::Done,
                Some(index) => BatchOutcome::FailedAt { index, error: "planned".into() },
            })
        }))
    } else {
        builder.start(listen::each(move |message, context| {
            let attempt = |_| context.attempt();
            match handler.handle(std::slice::from_ref(message), context.shard(), attempt) {
                None => Ok(Outcome::Done),
                Some(_) => Err("planned".into()),
            }
        }))
    };
    started.map_err(|error| Failure::other("start the consumer", error))
}

/// What the listener does.
struct Handler {
    history: Arc<Writer>,
    faults: Faults,
    calls: AtomicU64,
}

impl Handler {
    /// Handles the messages of a call; gives the index of the one that failed.
    fn handle(
        &self,
        messages: &[Message],
        shard: usize,
        attempt: impl Fn(usize) -> u32,
    ) -> Option<usize> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let each = |(index, message): (usize, &Message)| history::Message {
            queue: message.queue().index(),
            offset: message.offset().get(),
            attempt: attempt(index),
            key: String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned(),
        };
        let named = messages.iter().enumerate().map(each).collect();
        self.history.write(&Line::Called { call, shard, messages: named });
        let failed = messages.iter().enumerate().position(|(index, message)| {
            let (queue, offset) = (message.queue(), message.offset());
            // Some work takes long enough that others go on meanwhile, and that a kill hits it.
            if mix(&[self.faults.seed, queue.index().into(), offset.get()]).is_multiple_of(5) {
                thread::sleep(Duration::from_micros(200));
            }
            self.faults.decide(queue, offset, attempt(index)) != Fault::None
        });
        self.history.write(&Line::Ended { call, done: failed.unwrap_or(messages.len()) });
        failed
    }
}

/// Appends until it is killed. A record says in which place it belongs.
fn produce(
    log: &Log,
    history: &Writer,
    announcer: &Announcer,
    consumer: &Consumer,
    prng: &mut Prng,
) -> Ended {
    let wrong = |error: keylane_log::Error| Failure::other("append to the log", error);
    let producer = log.producer(TOPIC).map_err(wrong)?;
    let mut next = ends(log)?;
    let mut batch = producer.batch();
    let filler = "x".repeat(usize::try_from(FILLER).unwrap_or(0));
    loop {
        while next.iter().sum::<u64>() > AHEAD + reached(consumer) {
            if consumer.health() == Health::Stopped {
                return Err(Failure::Broken(format!("the consumer ended: {:?}", consumer.wait())));
            }
            thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..=prng.below(BATCH) {
            let hot = if prng.chance(0.3) { 3 } else { KEYS };
            let key = format!("account-{}", prng.below(hot));
            let queue = producer.queue_of(&key).index();
            let place = &mut next[queue as usize];
            let length = usize::try_from(prng.below(FILLER)).unwrap_or(0);
            let payload = format!("{} {}", super::payload(queue, *place), &filler[..length]);
            *place += 1;
            batch.push(&Record::new().with_key(&key).with_payload(&payload)).map_err(wrong)?;
        }
        history.write(&Line::Appending);
        announcer.at(Announced::Append);
        for one in producer.append(&mut batch).map_err(wrong)? {
            let (queue, first) = (one.queue.index(), one.first.get());
            history.write(&Line::Appended { queue, first, end: first + one.count });
        }
    }
}

/// Consumes what is there, commits it, and stops.
fn end(log: &Log, consumer: &Consumer) -> Ended {
    let all: u64 = ends(log)?.iter().sum();
    let limit = Instant::now() + LIFE_MAX / 2;
    while reached(consumer) < all {
        if consumer.health() == Health::Stopped || Instant::now() >= limit {
            let holding: Vec<_> = consumer.holding().iter().map(ToString::to_string).collect();
            return Err(Failure::Broken(format!(
                "the last consumer came to {} of {all}: {}",
                reached(consumer),
                holding.join("; ")
            )));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let stopped = consumer.stop(Duration::from_secs(30));
    stopped.map(|_| ()).map_err(|error| Failure::Broken(format!("the last consumer: {error}")))
}

/// Where each queue ends.
fn ends(log: &Log) -> Ended<Vec<u64>> {
    let topic = log.topic(TOPIC).map_err(|error| Failure::other("look into the log", error))?;
    Ok(topic.queues.iter().map(|queue| queue.end.get()).collect())
}

/// How far all watermarks are, together.
fn reached(consumer: &Consumer) -> u64 {
    let queues = consumer.metrics().queues;
    queues.iter().filter_map(|queue| queue.watermark).map(|watermark| watermark.get()).sum()
}

/// What the log holds beneath `folder`, for the check at the end.
pub(super) fn open_to_check(folder: &Path) -> Ended<Log> {
    let opened = Options::new().existing_only(true).open(folder);
    opened.map_err(|error| Failure::Broken(format!("the log after the last round: {error}")))
}
