//! **How much of what its threads could wait does a waiting listener get?**
//!
//! Each message takes 1 ms of sleep, in 4 queues with 10,000 keys, three ways:
//!
//! - *bare*: N threads that only sleep, each once for each of the messages that the hash gives it,
//!   all dealt out before the clock starts. Sleeps take longer than they should, the more so the more
//!   threads there are, and the fullest thread is the last: that is the ceiling, not N / 1 ms;
//! - *keylane*: key-sharded, with the same hash;
//! - *locked*: keylane with a queue at a time, as orderly consumers are today.
//!
//! keylane is measured in steady state: in a window that begins a second after the budget was filled
//! and ends while the source still has messages. From start to end, every figure flatters, since
//! threads with few messages work off what they have while the fullest one falls behind. Where the
//! state is not quite steady yet, the fullest thread's part in the window is smaller than what the
//! hash gives it. So the ratio of the fullest threads' rates stands beside that of all threads: it is
//! what the whole comes down to in the end.
//!
//! Interleaved, medians, as ratios. Every run checks that a shard saw each queue's offsets ascend and
//! only keys of its own; keylane's, that all was delivered and committed.
//!
//! `-- 64 256`: only these numbers of threads.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use benches::{median, topic};
use keylane::{Consumer, Context, Handled, Listener, Message, Mode, Outcome, listen};
use keylane_source::{FetchLimits, Position, SeekTo, Source, SourceEvent};

const QUEUES: u32 = 4;
const WORK: Duration = Duration::from_millis(1);
/// Messages that may be in flight, for each thread. Few, since a thread whose keys are few has to
/// have worked off its part of them before what is measured is a steady state.
const BUDGET: usize = 32;

fn main() {
    // `cargo test` runs benchmarks once, to see that they work.
    let once = !std::env::args().any(|argument| argument == "--bench");
    let only: Vec<usize> =
        std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let millis = Duration::from_millis;
    let (warm, window, repetitions) =
        if once { (millis(20), millis(50), 1) } else { (millis(1_000), millis(1_000), 7) };
    println!("windows of {window:?} after {warm:?}, medians of {repetitions} interleaved runs");
    println!(
        "   N | messages a second: bare  keylane  locked | keylane/bare: all  fullest  target | fullest/mean: dealt  seen | keylane/locked"
    );
    for (threads, target) in [(16, 95), (64, 95), (128, 95), (256, 85)] {
        if !only.is_empty() && !only.contains(&threads) {
            continue;
        }
        let mut runs = [const { Vec::new() }; 3];
        let (mut shares, mut of_fullest) = (Vec::new(), Vec::new());
        let (mut seen, mut dealt) = (Vec::new(), 0.0);
        for _ in 0..repetitions {
            let bare = bare(threads, window);
            let sharded = keylane(Mode::KeySharded, threads, warm, window);
            let locked = keylane(Mode::QueueLocked, threads, warm, window);
            dealt = bare.imbalance;
            seen.push(sharded.imbalance);
            let share = sharded.rate / bare.rate;
            shares.push(share);
            of_fullest.push(share * sharded.imbalance / bare.imbalance);
            for (runs, rate) in runs.iter_mut().zip([bare, sharded, locked]) {
                runs.push(rate.rate);
            }
        }
        let [bare, sharded, locked] = runs.map(|mut rates| median(&mut rates));
        println!(
            "{threads:4} | {bare:23.0} {sharded:8.0} {locked:7.0} | {:15.1} % {:6.1} % {target:5} % | {dealt:19.2} {:5.2} | {:13.1}x",
            median(&mut shares) * 100.0,
            median(&mut of_fullest) * 100.0,
            median(&mut seen),
            sharded / locked
        );
    }
}

/// The same for both sides, so that their threads have the same keys.
fn shard_of(key: &[u8], shards: usize) -> usize {
    usize::try_from(hash(key) % shards as u64).unwrap_or_default()
}

fn hash(key: &[u8]) -> u64 {
    ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(key)
}

/// What a thread may see: each queue's offsets in ascending order, and no key of another thread.
struct Check {
    /// Which of how many threads it is; `None` where keys have no thread of their own.
    shard: Option<(usize, usize)>,
    next: [u64; QUEUES as usize],
}

impl Check {
    fn see(&mut self, message: &Message) {
        let next = &mut self.next[message.queue().index() as usize];
        assert!(message.offset().get() >= *next, "{message:?} came after offset {next}");
        *next = message.offset().get() + 1;
        if let Some((shard, shards)) = self.shard {
            let meant_for = shard_of(message.key().unwrap_or_default(), shards);
            assert_eq!(meant_for, shard, "{message:?} came to another shard");
        }
    }
}

/// What a run reached.
struct Reached {
    rate: f64,
    /// Messages of the fullest thread over the mean: in a steady state, what the hash gives.
    imbalance: f64,
}

/// Threads that each have their messages already; as many in all as they could wait for in the window
/// if sleeps were exact and the hash even.
fn bare(threads: usize, window: Duration) -> Reached {
    let messages = in_time(threads, window).next_multiple_of(u64::from(QUEUES));
    let dealt = deal(threads, messages);
    let fullest = dealt.iter().map(Vec::len).max().unwrap_or_default();
    let start = Barrier::new(threads);
    let work = &|shard: usize, messages: Vec<Message>| {
        let mut check = Check { shard: Some((shard, threads)), next: [0; QUEUES as usize] };
        start.wait();
        let began = Instant::now();
        for message in &messages {
            thread::sleep(WORK);
            check.see(message);
        }
        (began, Instant::now())
    };
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let spawn = |(shard, messages)| scope.spawn(move || work(shard, messages));
        let threads: Vec<_> = dealt.into_iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no check failed")).collect()
    });
    let began = times.iter().map(|time| time.0).min();
    let ended = times.iter().map(|time| time.1).max();
    let took = ended.zip(began).map(|(ended, began)| ended - began).unwrap_or_default();
    Reached {
        rate: messages as f64 / took.as_secs_f64(),
        imbalance: fullest as f64 * threads as f64 / messages as f64,
    }
}

/// Reads a topic, and gives each thread what the hash gives it.
fn deal(threads: usize, messages: u64) -> Vec<Vec<Message>> {
    let mut source = topic(QUEUES, messages).source();
    let mut dealt = vec![Vec::new(); threads];
    let (mut events, mut left) = (Vec::new(), messages);
    while left > 0 {
        let limits = FetchLimits { messages: 512, bytes: usize::MAX };
        source.poll(limits, Duration::from_secs(1), &mut events).expect("it is in memory");
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, .. } => {
                    source.seek(queue, SeekTo::Position(Position::ZERO));
                }
                SourceEvent::Fetched(fetch) => {
                    left -= fetch.messages.len() as u64;
                    for message in fetch.messages {
                        let shard = shard_of(message.key().unwrap_or_default(), threads);
                        dealt[shard].push(message);
                    }
                }
                _ => {}
            }
        }
    }
    dealt
}

/// How many messages so many threads can wait for in this time.
fn in_time(threads: usize, time: Duration) -> u64 {
    threads as u64 * u64::try_from(time.as_micros() / WORK.as_micros()).unwrap_or_default()
}

struct Waiting {
    check: Check,
    shard: usize,
    /// By shard.
    done: Arc<[AtomicU64]>,
    /// The window has passed: what is left is checked, and not waited for.
    over: Arc<AtomicBool>,
}

impl Listener for Waiting {
    fn on_message(&mut self, message: &Message, _context: &mut Context<'_>) -> Handled {
        if !self.over.load(Ordering::Relaxed) {
            thread::sleep(WORK);
        }
        self.check.see(message);
        self.done[self.shard].fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::Done)
    }
}

/// Messages a second in the window.
fn keylane(mode: Mode, threads: usize, warm: Duration, window: Duration) -> Reached {
    let parallel = if mode == Mode::KeySharded { threads } else { QUEUES as usize };
    let budget = threads * BUDGET;
    // Twice as many as can be waited for: the machine may give the window more time than asked for.
    let messages = in_time(parallel, (warm + window) * 2) + 4 * budget as u64;
    let topic = topic(QUEUES, messages);
    let (done, over) = (counters(threads), Arc::new(AtomicBool::new(false)));
    let make = {
        let (done, over) = (Arc::clone(&done), Arc::clone(&over));
        move |shard| Waiting {
            check: Check {
                shard: (mode == Mode::KeySharded).then_some((shard, threads)),
                next: [0; QUEUES as usize],
            },
            shard,
            done: Arc::clone(&done),
            over: Arc::clone(&over),
        }
    };
    let consumer = Consumer::builder(topic.source())
        .mode(mode)
        .shards(threads)
        .in_flight_max(budget)
        .commit_interval(Duration::from_millis(100))
        .hasher(hash)
        .start(listen::per_shard(make))
        .expect("the options are right");
    while consumer.metrics().in_flight_max < budget as u64 {
        thread::sleep(WORK);
    }
    thread::sleep(warm);
    let (before, began) = (counts(&done), Instant::now());
    thread::sleep(window);
    let (after, took) = (counts(&done), began.elapsed().as_secs_f64());
    assert!(!topic.is_fetched(), "the source ran dry before the window was over");
    over.store(true, Ordering::Relaxed);
    while !topic.is_committed() {
        thread::park_timeout(WORK);
    }
    let report = consumer.stop(Duration::from_secs(10)).expect("it stops");
    assert_eq!((report.unfinished, report.all_committed()), (0, true));
    assert_eq!(counts(&done).iter().sum::<u64>(), topic.messages());
    let in_window: Vec<u64> =
        after.iter().zip(before).map(|(after, before)| after - before).collect();
    let (all, fullest) = (in_window.iter().sum::<u64>() as f64, in_window.iter().max());
    Reached {
        rate: all / took,
        imbalance: fullest.copied().unwrap_or_default() as f64 * threads as f64 / all,
    }
}

fn counters(shards: usize) -> Arc<[AtomicU64]> {
    std::iter::repeat_with(AtomicU64::default).take(shards).collect()
}

fn counts(done: &[AtomicU64]) -> Vec<u64> {
    done.iter().map(|count| count.load(Ordering::Relaxed)).collect()
}
