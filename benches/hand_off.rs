//! **What does the whole engine cost beside a bare channel?**
//!
//! The same messages, from the same source, to the same number of threads that do nothing with
//! them, three ways:
//!
//! - *A*: the key is hashed and each message is sent by itself through a bounded crossbeam channel;
//!   nothing is tracked, nothing is committed;
//! - *B*: the same with one chunk a shard and pull;
//! - *keylane*: routed, tracked, batched, committed.
//!
//! Interleaved, medians, as ratios: a machine that is busy slows all three. Every run checks that
//! each shard saw every key's offsets ascend, and that all was delivered; keylane's, that all was
//! committed.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use benches::{cpu_time, median, topic};
use crossbeam_channel::{Receiver, Sender, bounded};
use keylane::{Consumer, Context, Handled, Listener, Message, Outcome, listen};
use keylane_source::{FetchLimits, Position, SeekTo, Source, SourceEvent};
use keylane_testkit::memory::MemoryTopic;

const PULL: usize = 256;
const CAPACITY: usize = 1_024;

fn main() {
    // `cargo test` runs benchmarks once, to see that they work.
    let once = !std::env::args().any(|argument| argument == "--bench");
    // `-- 8x1 16x4`: only these numbers of shards and queues.
    let only: Vec<String> =
        std::env::args().skip(1).filter(|only| !only.starts_with('-')).collect();
    let (messages, repetitions) = if once { (20_000, 1) } else { (4_000_000, 7) };
    println!("{messages} messages, pulls of {PULL}, medians of {repetitions} interleaved runs");
    println!(
        "   N  queues |     A    B  keylane  M/s | keylane/A  keylane/B | CPU ns a message: A    B  keylane  keylane/B"
    );
    let (mut over_a, mut over_b) = (Vec::new(), Vec::new());
    for queues in [1, 4] {
        for shards in [1, 2, 4, 8, 16, 32] {
            if !only.is_empty() && !only.contains(&format!("{shards}x{queues}")) {
                continue;
            }
            let [a, b, engine] = compare(shards, queues, messages, repetitions);
            let (by_a, by_b) = (engine.rate / a.rate, engine.rate / b.rate);
            println!(
                "{shards:4} {queues:7} | {:5.2} {:5.2}  {:6.2}      | {by_a:8.2}x {by_b:9.2}x | {:20.0} {:5.0} {:7.0} {:9.2}x",
                a.rate,
                b.rate,
                engine.rate,
                a.cpu,
                b.cpu,
                engine.cpu,
                engine.cpu / b.cpu
            );
            over_a.push(by_a);
            over_b.push(by_b);
        }
    }
    let least = over_a.iter().copied().fold(f64::INFINITY, f64::min);
    over_a.push(f64::INFINITY); // An even number of configurations: the upper middle one.
    over_b.push(f64::INFINITY);
    println!(
        "over all: {:.2}x A (least {least:.2}x), {:.2}x B",
        median(&mut over_a),
        median(&mut over_b)
    );
}

/// Million messages a second, CPU nanoseconds a message.
#[derive(Clone, Copy)]
struct Figure {
    rate: f64,
    cpu: f64,
}

fn compare(shards: usize, queues: u32, messages: u64, repetitions: usize) -> [Figure; 3] {
    let ways: [fn(usize, &MemoryTopic); 3] = [single_sends, chunks, keylane];
    let mut runs = [const { Vec::new() }; 3];
    for _ in 0..repetitions {
        for (way, runs) in ways.iter().zip(&mut runs) {
            let topic = topic(queues, messages);
            let (began, cpu) = (Instant::now(), cpu_time().unwrap_or_default());
            way(shards, &topic);
            let took = began.elapsed().as_secs_f64();
            let cpu = cpu_time().unwrap_or_default().saturating_sub(cpu).as_secs_f64();
            runs.push((messages as f64 / took / 1e6, cpu / messages as f64 * 1e9));
        }
    }
    runs.map(|runs| Figure {
        rate: median(&mut runs.iter().map(|run| run.0).collect::<Vec<_>>()),
        cpu: median(&mut runs.iter().map(|run| run.1).collect::<Vec<_>>()),
    })
}

/// What the threads of all three do with a message: next to nothing, and a check of its order.
struct Check {
    last: HashMap<(u32, u64), u64, ahash::RandomState>,
    seen: Arc<AtomicU64>,
    count: u64,
}

impl Check {
    fn new(seen: &Arc<AtomicU64>) -> Self {
        Self { last: HashMap::default(), seen: Arc::clone(seen), count: 0 }
    }

    fn see(&mut self, message: &Message) {
        self.count += 1;
        // Each key's order is sampled, so that the check does not become what is measured.
        if message.offset().get().is_multiple_of(16) {
            let key =
                message.key().map_or(0, |key| key.iter().fold(0, |n, &b| n * 31 + u64::from(b)));
            let offset = message.offset().get();
            let last = self.last.insert((message.queue().index(), key), offset);
            assert!(last.is_none_or(|last| last < offset), "{message:?} came after {last:?}");
        }
        black_box(message.payload());
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        self.seen.fetch_add(self.count, Ordering::Relaxed);
    }
}

impl Listener for Check {
    fn on_message(&mut self, message: &Message, _context: &mut Context<'_>) -> Handled {
        self.see(message);
        Ok(Outcome::Done)
    }
}

fn keylane(shards: usize, topic: &MemoryTopic) {
    let seen = Arc::new(AtomicU64::new(0));
    let consumer = Consumer::builder(topic.source())
        .shards(shards)
        .fetch_max(PULL)
        .channel_capacity(CAPACITY)
        // As many as A's channels hold, and at least the default.
        .in_flight_max((shards * CAPACITY).max(10_000))
        .commit_interval(Duration::from_millis(10))
        .start(listen::per_shard({
            let seen = Arc::clone(&seen);
            move |_| Check::new(&seen)
        }))
        .expect("the options are right");
    while !topic.is_committed() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    consumer.stop(Duration::from_secs(10)).expect("it stops");
    // Instances are dropped at the ends of their threads.
    while seen.load(Ordering::Relaxed) < topic.messages() {
        std::thread::yield_now();
    }
    assert_eq!(seen.load(Ordering::Relaxed), topic.messages());
}

fn single_sends(shards: usize, topic: &MemoryTopic) {
    bare(
        shards,
        topic,
        |senders: &[Sender<Message>], pulled, shard_of| {
            for message in pulled {
                let shard = shard_of(&message);
                senders[shard].send(message).expect("the thread lives");
            }
        },
        |check, message| check.see(&message),
    );
}

fn chunks(shards: usize, topic: &MemoryTopic) {
    bare(
        shards,
        topic,
        |senders: &[Sender<Vec<Message>>], pulled, shard_of| {
            let mut chunks = vec![Vec::new(); senders.len()];
            for message in pulled {
                chunks[shard_of(&message)].push(message);
            }
            for (chunk, sender) in chunks.into_iter().zip(senders) {
                if !chunk.is_empty() {
                    sender.send(chunk).expect("the thread lives");
                }
            }
        },
        |check, chunk| chunk.iter().for_each(|message| check.see(message)),
    );
}

/// Pulls, hands over, and counts.
fn bare<T: Send + 'static>(
    shards: usize,
    topic: &MemoryTopic,
    hand_over: impl Fn(&[Sender<T>], Vec<Message>, &dyn Fn(&Message) -> usize),
    see: impl Fn(&mut Check, T) + Copy + Send + 'static,
) {
    let (mut source, messages) = (topic.source(), topic.messages());
    let seen = Arc::new(AtomicU64::new(0));
    let (senders, threads): (Vec<_>, Vec<_>) = (0..shards)
        .map(|_| {
            let (sender, receiver): (Sender<T>, Receiver<T>) = bounded(CAPACITY);
            let mut check = Check::new(&seen);
            let drain = move || receiver.iter().for_each(|item| see(&mut check, item));
            let thread = std::thread::Builder::new().spawn(drain).expect("a thread");
            (sender, thread)
        })
        .unzip();
    let hasher = ahash::RandomState::new();
    let shard_of = |message: &Message| {
        let hash = hasher.hash_one(message.key().unwrap_or_default());
        usize::try_from(hash % shards as u64).unwrap_or_default()
    };
    let (mut events, mut left) = (Vec::new(), messages);
    let limits = FetchLimits { messages: PULL, bytes: usize::MAX };
    while left > 0 {
        source.poll(limits, Duration::from_secs(1), &mut events).expect("it is in memory");
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, .. } => {
                    source.seek(queue, SeekTo::Position(Position::ZERO));
                }
                SourceEvent::Fetched(fetch) => {
                    left -= fetch.messages.len() as u64;
                    hand_over(&senders, fetch.messages, &shard_of);
                }
                _ => {}
            }
        }
    }
    drop(senders);
    for thread in threads {
        thread.join().expect("no check failed");
    }
    assert_eq!(seen.load(Ordering::Relaxed), messages);
}
