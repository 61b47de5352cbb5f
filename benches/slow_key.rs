//! **Whom does a slow key hold up?**
//!
//! Every second message of queue 0 has one key, and takes 10 ms; all others take 1 ms. 16 shards, 4
//! queues, at most 1,024 messages of a queue in flight. Which queue meets the slow key's shard is
//! laid down by the choice of keys:
//!
//! - queue 0 has the slow key;
//! - queues 1 and 2 have no key of that shard: they must not notice;
//! - queue 3 has keys of all shards, a sixteenth of its messages on the slow one.
//!
//! Compared with the same in a topic without the slow key, where queue 0 has the keys that queue 3
//! has. Since the queues contend for the same threads, one that is held up leaves its part to the
//! others; so beside each queue's rate stands that of the 15 other shards together, which can hardly
//! rise: they are busy without the slow key, too.
//!
//! Interleaved, medians, as ratios, in a window that begins when the slow shard's queues have filled
//! their budgets. Every run checks that a shard saw each queue's offsets ascend and only keys of its
//! own, and that all was delivered and committed.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use benches::median;
use bytes::Bytes;
use keylane::{Consumer, Context, Handled, Listener, Message, Metrics, Outcome, listen};
use keylane_testkit::memory::MemoryTopic;

const SHARDS: usize = 16;
const QUEUES: usize = 4;
const BUDGET: usize = 1_024;
const WORK: Duration = Duration::from_millis(1);
const SLOW_WORK: Duration = Duration::from_millis(10);
const SLOW: &[u8] = b"slow";
/// Of each shard.
const KEYS: usize = 40;

fn main() {
    // `cargo test` runs benchmarks once, to see that they work.
    let once = !std::env::args().any(|argument| argument == "--bench");
    let millis = Duration::from_millis;
    let (plan, repetitions) = if once {
        (Plan { messages: 4_000, warm: millis(50), window: millis(100) }, 1)
    } else {
        (Plan { messages: 70_000, warm: millis(4_000), window: millis(2_000) }, 7)
    };
    println!(
        "windows of {:?} after {:?}, medians of {repetitions} interleaved runs; messages a second",
        plan.window, plan.warm
    );
    let (mut without, mut with, mut last) = (Vec::new(), Vec::new(), None);
    for _ in 0..repetitions {
        without.push(run(plan, false).rates);
        let run = run(plan, true);
        with.push(run.rates);
        last = Some(run);
    }
    println!("                                | without  with the slow key |  ratio  target");
    let rows = [
        ("queue 0, every second is slow", ""),
        ("queue 1, does not meet its shard", "95 %"),
        ("queue 2, does not meet its shard", "95 %"),
        ("queue 3, a sixteenth meets it", ""),
        ("the 15 other shards", ""),
        ("the slow key's shard", ""),
    ];
    for (row, (name, target)) in rows.into_iter().enumerate() {
        let of = |runs: &[[f64; QUEUES + 2]]| runs.iter().map(|run| run[row]).collect::<Vec<_>>();
        let (base, slow) = (of(&without), of(&with));
        let mut ratios: Vec<f64> = base.iter().zip(&slow).map(|(base, slow)| slow / base).collect();
        println!(
            "{name:32}| {:7.0} {:18.0} | {:5.0} % {target:>7}",
            median(&mut base.clone()),
            median(&mut slow.clone()),
            median(&mut ratios) * 100.0
        );
    }
    if let Some(run) = last {
        run.explain();
    }
}

fn hash(key: &[u8]) -> u64 {
    ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(key)
}

fn shard_of(key: &[u8]) -> usize {
    usize::try_from(hash(key) % SHARDS as u64).unwrap_or_default()
}

/// As many keys for each of these shards, the shards taking turns.
fn keys(shards: &[usize]) -> Vec<Bytes> {
    let mut of_shard = vec![Vec::new(); SHARDS];
    let mut numbers = 0_u32..;
    while shards.iter().any(|&shard| of_shard[shard].len() < KEYS) {
        let key = Bytes::from(format!("key-{}", numbers.next().unwrap_or_default()));
        of_shard[shard_of(&key)].push(key);
    }
    (0..KEYS)
        .flat_map(|nth| shards.iter().map(move |&shard| (nth, shard)))
        .map(|(nth, shard)| of_shard[shard][nth].clone())
        .collect()
}

fn topic(messages: u64, with_slow_key: bool) -> MemoryTopic {
    let slow_shard = shard_of(SLOW);
    let all: Vec<usize> = (0..SHARDS).collect();
    let others: Vec<usize> = all.iter().copied().filter(|&shard| shard != slow_shard).collect();
    let (all, others) = (keys(&all), keys(&others));
    MemoryTopic::generate_sized("slow-key", &[messages; QUEUES], move |queue, offset| {
        let place = usize::try_from(offset.get()).unwrap_or_default();
        let of = |keys: &[Bytes]| keys[place % keys.len()].clone();
        let key = match queue.index() {
            0 if with_slow_key && place.is_multiple_of(2) => Bytes::from_static(SLOW),
            // All shards, although every second one is the slow key's.
            0 if with_slow_key => all[place / 2 % all.len()].clone(),
            1 | 2 => of(&others),
            _ => of(&all),
        };
        Message::new(queue, offset).with_key(key)
    })
}

#[derive(Clone, Copy)]
struct Plan {
    /// In each queue: more than are handled until the window is over.
    messages: u64,
    warm: Duration,
    window: Duration,
}

struct Handling {
    shard: usize,
    /// The next offset of each queue.
    next: [u64; QUEUES],
    done: Arc<Done>,
}

#[derive(Default)]
struct Done {
    of_queue: [AtomicU64; QUEUES],
    of_shard: [AtomicU64; SHARDS],
    /// The window has passed: what is left is checked, and not waited for.
    over: AtomicBool,
}

impl Done {
    /// By queue; then of the other shards, and of the slow key's.
    fn counts(&self) -> [u64; QUEUES + 2] {
        let [first, second, third, fourth] =
            self.of_queue.each_ref().map(|count| count.load(Ordering::Relaxed));
        let slow = self.of_shard[shard_of(SLOW)].load(Ordering::Relaxed);
        let all: u64 = self.of_shard.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        [first, second, third, fourth, all.saturating_sub(slow), slow]
    }
}

impl Listener for Handling {
    fn on_message(&mut self, message: &Message, _context: &mut Context<'_>) -> Handled {
        let (key, queue) = (message.key().unwrap_or_default(), message.queue().index() as usize);
        if !self.done.over.load(Ordering::Relaxed) {
            thread::sleep(if key == SLOW { SLOW_WORK } else { WORK });
        }
        let next = &mut self.next[queue];
        assert!(message.offset().get() >= *next, "{message:?} came after offset {next}");
        *next = message.offset().get() + 1;
        assert_eq!(shard_of(key), self.shard, "{message:?} came to another shard");
        self.done.of_queue[queue].fetch_add(1, Ordering::Relaxed);
        self.done.of_shard[self.shard].fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::Done)
    }
}

/// What a run showed.
struct Run {
    rates: [f64; QUEUES + 2],
    /// At the end of the window.
    metrics: Metrics,
    holding: Vec<String>,
}

fn run(plan: Plan, with_slow_key: bool) -> Run {
    let topic = topic(plan.messages, with_slow_key);
    let done = Arc::new(Done::default());
    let consumer = Consumer::builder(topic.source())
        .shards(SHARDS)
        .queue_in_flight_max(BUDGET)
        .in_flight_max(2 * QUEUES * BUDGET)
        .commit_interval(Duration::from_millis(100))
        .hasher(hash)
        .start(listen::per_shard({
            let done = Arc::clone(&done);
            move |shard| Handling { shard, next: [0; QUEUES], done: Arc::clone(&done) }
        }))
        .expect("the options are right");
    thread::sleep(plan.warm);
    let (before, began) = (done.counts(), Instant::now());
    thread::sleep(plan.window);
    let (after, took) = (done.counts(), began.elapsed().as_secs_f64());
    let (metrics, holding) = (consumer.metrics(), consumer.holding());
    assert!(
        metrics.queues.iter().all(|queue| queue.lag.is_none_or(|lag| lag > queue.in_flight)),
        "a queue ran dry before the window was over"
    );
    done.over.store(true, Ordering::Relaxed);
    while !topic.is_committed() {
        thread::park_timeout(WORK);
    }
    let report = consumer.stop(Duration::from_secs(10)).expect("it stops");
    assert_eq!((report.unfinished, report.all_committed()), (0, true));
    assert_eq!(done.counts()[..QUEUES], [plan.messages; QUEUES]);
    let mut rates = [0.0; QUEUES + 2];
    for (rate, (before, after)) in rates.iter_mut().zip(before.into_iter().zip(after)) {
        *rate = (after - before) as f64 / took;
    }
    Run { rates, metrics, holding: holding.iter().map(ToString::to_string).collect() }
}

impl Run {
    /// Why the queues that meet the slow shard fall as far as they do.
    fn explain(&self) {
        let slow = shard_of(SLOW);
        let shard = &self.metrics.shards[slow];
        println!("at the end of the last window:");
        println!(
            "  shard {slow} has the slow key: {} messages wait in or behind its channel, {} in front of it",
            shard.waiting, shard.overflow
        );
        for queue in &self.metrics.queues {
            let (name, in_flight) = (queue.queue, queue.in_flight);
            println!("  {name}: {in_flight} of {BUDGET} in flight, paused: {}", queue.paused);
        }
        for holding in &self.holding {
            println!("  {holding}");
        }
        println!(
            "  a queue gets on as fast as what it has on that shard: queue 0 twice its slow key's rate, \
             queue 3 sixteen times what the shard does of it ({:.0} a second of the shard's {:.0})",
            self.rates[3] / SHARDS as f64,
            self.rates[QUEUES + 1]
        );
    }
}
