//! **Does a message cost more when there are more queues, more keys, more messages in flight?**
//!
//! One of the three is varied at a time; the listener does nothing. What is compared is CPU time a
//! message, with the cheapest configuration of the same row of figures, and not wall time. Beside it
//! stands a null loop: one thread that pulls the same messages and does to each what the listener
//! does. What the memory of a machine makes of a million keys shows there, too.
//!
//! - *queues*: 1 to 10,000, 10,000 keys, up to a million in flight;
//! - *keys*: 10 to 1,000,000, 4 queues; `-- 10000000` adds ten million;
//! - *in flight*: 10 to 1,000,000, 4 queues, 10,000 keys. The consumer is paused until so many are in
//!   flight, then the clock starts. With few of them, each is waited for by a thread that sleeps:
//!   so the context switches stand beside it.
//!
//! Then the memory of a message in flight: bytes that the engine has allocated with a million in
//! flight and with a thousand, divided by what lies between, less the message itself (its own bytes
//! belong to the source).
//!
//! `-- soak [millions]` consumes 100 million messages and prints the resident memory every tenth.
//! `-- queues`, `-- keys`, `-- flight`, `-- memory`: only that.
//!
//! Interleaved, medians, as ratios. Every run checks that a shard saw each queue's offsets ascend and
//! only keys of its own, that all was delivered, and committed.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::alloc::System;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use benches::{cpu_time, median};
use bytes::Bytes;
use keylane::{Consumer, ConsumerBuilder, Context, Handled, Listener, Message, Outcome, listen};
use keylane_source::{FetchLimits, Position, SeekTo, Source, SourceEvent};
use keylane_testkit::memory::{MemorySource, MemoryTopic};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SHARDS: usize = 4;
const PULL: usize = 256;
const MILLION: u64 = 1_000_000;
/// The interval of looks at whether a run is over: they cost, too, where there are many queues.
const LOOK: Duration = Duration::from_millis(20);

fn main() {
    // `cargo test` runs benchmarks once, to see that they work.
    let once = !std::env::args().any(|argument| argument == "--bench");
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    if asked("soak") {
        let millions = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(100);
        return soak(millions * MILLION);
    }
    let all = !["queues", "keys", "flight", "memory"].iter().any(|part| asked(part));
    let plan = Plan { once, repetitions: if once { 1 } else { 7 } };
    println!("{SHARDS} shards, pulls of {PULL}, medians of {} interleaved runs", plan.repetitions);
    let standard = Shape { queues: 4, keys: 10_000, in_flight: 1_000_000, fill: false };
    if all || asked("queues") {
        let counts = [1, 10, 100, 1_000, 10_000];
        plan.table("queues", &counts.map(|queues| (queues, Shape { queues, ..standard })));
    }
    if all || asked("keys") {
        let mut counts = vec![10, 100, 1_000, 10_000, 100_000, 1_000_000];
        counts.extend(asked("10000000").then_some(10_000_000));
        let shape = |keys| (keys, Shape { keys: keys as usize, ..standard });
        plan.table("keys", &counts.into_iter().map(shape).collect::<Vec<_>>());
    }
    if all || asked("flight") {
        let counts = [10, 100, 1_000, 10_000, 100_000, 1_000_000];
        let shape = |in_flight: u32| {
            (in_flight, Shape { in_flight: in_flight as usize, fill: true, ..standard })
        };
        plan.table("in flight", &counts.map(shape));
    }
    if all || asked("memory") {
        memory(if once { 20_000 } else { 1_000_000 });
    }
}

/// One configuration.
#[derive(Clone, Copy)]
struct Shape {
    queues: u32,
    keys: usize,
    in_flight: usize,
    /// Whether so many are in flight before the clock starts.
    fill: bool,
}

#[derive(Clone, Copy)]
struct Plan {
    once: bool,
    repetitions: usize,
}

/// CPU nanoseconds and context switches a message.
#[derive(Clone, Copy)]
struct Cost {
    cpu: f64,
    switches: f64,
}

impl Plan {
    fn table(self, what: &str, shapes: &[(u32, Shape)]) {
        println!();
        println!(
            "{what:>10} | CPU ns a message: null loop  keylane | keylane/cheapest  target 2.5x | null/cheapest | switches per 1,000"
        );
        let mut runs = vec![[const { Vec::new() }; 3]; shapes.len()];
        for _ in 0..self.repetitions {
            for ((_, shape), runs) in shapes.iter().zip(&mut runs) {
                let messages = self.messages(*shape);
                // It has nothing in flight, whatever the bound, and is quick: many messages.
                let null = null(*shape, self.messages(Shape { in_flight: usize::MAX, ..*shape }));
                let engine = keylane(*shape, messages);
                for (runs, value) in runs.iter_mut().zip([null, engine.cpu, engine.switches]) {
                    runs.push(value);
                }
            }
        }
        let figures: Vec<[f64; 3]> =
            runs.into_iter().map(|mut runs| runs.each_mut().map(|values| median(values))).collect();
        let cheapest = |at: usize| figures.iter().map(|f| f[at]).fold(f64::INFINITY, f64::min);
        for ((count, _), [null, engine, switches]) in shapes.iter().zip(&figures) {
            let ratio = engine / cheapest(1);
            let verdict = match ratio {
                ..=2.5 => "kept",
                _ if ratio.is_finite() => "missed",
                _ => "-", // So few messages that the clock has not moved.
            };
            println!(
                "{count:10} | {null:27.0} {engine:8.0} | {ratio:15.2}x {verdict:>12} | {:12.2}x | {:18.1}",
                null / cheapest(0),
                switches * 1_000.0
            );
        }
    }

    /// How many messages a run has: CPU time is known to a hundredth of a second.
    fn messages(self, shape: Shape) -> u64 {
        let queues = u64::from(shape.queues);
        let messages = match shape.in_flight {
            _ if self.once => 20_000,
            // Threads sleep and wake for nearly each of these.
            ..100 => 20_000,
            100..1_000 => 200_000,
            _ => 4 * MILLION,
        };
        messages / queues * queues
    }
}

fn hash(key: &[u8]) -> u64 {
    ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(key) >> 32
}

/// Messages with keys and payloads of a buffer that a pull's messages share, as a broker's answers
/// are; the buffers stand in memory already, one after the other.
fn topic(shape: Shape, messages: u64) -> MemoryTopic {
    const KEY: usize = "key-01234567".len();
    const PAYLOAD: usize = 100;
    // As many buffers for few keys as for some thousands, so that these do not differ in how many
    // threads count references to one buffer.
    let places = shape.keys.max(10_000).next_multiple_of(PULL);
    let buffers: Vec<Bytes> = (0..places)
        .step_by(PULL)
        .map(|first| {
            // A step that is prime to the numbers of keys.
            let number = |place: usize| place * 7_919 % shape.keys;
            let names = (first..first + PULL).map(|place| format!("key-{:08}", number(place)));
            names.collect::<String>().into()
        })
        .collect();
    let each = messages / u64::from(shape.queues);
    MemoryTopic::generate("scale", shape.queues, each, move |queue, offset| {
        let place = usize::try_from(offset.get()).unwrap_or_default();
        // Each queue begins elsewhere.
        let buffer = &buffers[(place / PULL + queue.index() as usize * 7) % buffers.len()];
        let at = place % PULL * KEY;
        Message::new(queue, offset)
            .with_key(buffer.slice(at..at + KEY))
            .with_payload(buffer.slice(0..PAYLOAD))
    })
}

/// What both sides do with a message: next to nothing, and a check of its order.
struct Check {
    shard: Option<usize>,
    /// The next offset of each queue.
    next: Vec<u64>,
    count: u64,
    seen: Arc<AtomicU64>,
}

impl Check {
    fn new(shard: Option<usize>, shape: Shape, seen: &Arc<AtomicU64>) -> Self {
        Self { shard, next: vec![0; shape.queues as usize], count: 0, seen: Arc::clone(seen) }
    }

    fn see(&mut self, message: &Message) {
        self.count += 1;
        let next = &mut self.next[message.queue().index() as usize];
        assert!(message.offset().get() >= *next, "{message:?} came after offset {next}");
        *next = message.offset().get() + 1;
        // Sampled, so that the check does not become what is measured.
        if let Some(shard) = self.shard.filter(|_| self.count.is_multiple_of(64)) {
            let hash = hash(message.key().unwrap_or_default());
            assert_eq!(hash % SHARDS as u64, shard as u64, "{message:?} came to another shard");
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

/// The options that all runs have.
fn options(topic: &MemoryTopic, shape: Shape) -> ConsumerBuilder<MemorySource> {
    Consumer::builder(topic.source())
        .shards(SHARDS)
        .fetch_max(PULL)
        .in_flight_max(shape.in_flight)
        .in_flight_bytes_max(1 << 30)
        .span_max(2 * MILLION)
        .commit_interval(Duration::from_millis(100))
        .hasher(hash)
}

fn keylane(shape: Shape, messages: u64) -> Cost {
    let topic = topic(shape, messages);
    let seen = Arc::new(AtomicU64::new(0));
    let mut cpu = cpu_time().unwrap_or_default();
    let consumer = options(&topic, shape)
        .start(listen::per_shard({
            let seen = Arc::clone(&seen);
            move |shard| Check::new(Some(shard), shape, &seen)
        }))
        .expect("the options are right");
    if shape.fill {
        consumer.pause();
        let full = (shape.in_flight as u64).min(messages);
        while consumer.metrics().in_flight_max < full {
            thread::sleep(Duration::from_millis(1));
        }
        consumer.resume();
    }
    while !topic.is_committed() {
        thread::park_timeout(LOOK);
    }
    let switches = switches();
    consumer.stop(Duration::from_secs(10)).expect("it stops");
    // Instances are dropped at the ends of their threads.
    while seen.load(Ordering::Relaxed) < messages {
        thread::yield_now();
    }
    cpu = cpu_time().unwrap_or_default().saturating_sub(cpu);
    assert_eq!(seen.load(Ordering::Relaxed), messages);
    Cost { cpu: cpu.as_nanos() as f64 / messages as f64, switches: switches / messages as f64 }
}

/// Context switches of the threads that live, the main thread's apart.
fn switches() -> f64 {
    let main = std::process::id().to_string();
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let of_task = |status: String| -> f64 {
        let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
        switches.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok()).sum()
    };
    tasks
        .flatten()
        .filter(|task| task.file_name().to_string_lossy() != main)
        .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
        .map(of_task)
        .sum()
}

/// CPU nanoseconds a message of a loop that only pulls.
fn null(shape: Shape, messages: u64) -> f64 {
    let mut source = topic(shape, messages).source();
    let seen = Arc::new(AtomicU64::new(0));
    let mut check = Check::new(None, shape, &seen);
    let cpu = cpu_time().unwrap_or_default();
    let mut events = Vec::new();
    let limits = FetchLimits { messages: PULL, bytes: usize::MAX };
    while check.count < messages {
        source.poll(limits, Duration::from_secs(1), &mut events).expect("it is in memory");
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, .. } => {
                    source.seek(queue, SeekTo::Position(Position::ZERO));
                }
                SourceEvent::Fetched(fetch) => {
                    fetch.messages.iter().for_each(|message| check.see(message));
                }
                _ => {}
            }
        }
    }
    let cpu = cpu_time().unwrap_or_default().saturating_sub(cpu);
    cpu.as_nanos() as f64 / messages as f64
}

/// Bytes that a message in flight costs beyond itself.
fn memory(many: usize) {
    const FEW: usize = 1_000;
    println!();
    println!(
        "    queues | bytes for a message in flight, beyond the {} of the message  target 64",
        size_of::<Message>()
    );
    for queues in [1, 4, 100] {
        let held = |in_flight| held(Shape { queues, keys: 10_000, in_flight, fill: true });
        let (few, many_held) = (held(FEW), held(FEW + many));
        let each = (many_held as f64 - few as f64) / many as f64 - size_of::<Message>() as f64;
        println!("{queues:10} | {each:10.1}");
    }
}

/// Bytes that a consumer has allocated while so many messages are in flight.
fn held(shape: Shape) -> usize {
    let messages = (2 * shape.in_flight as u64).next_multiple_of(u64::from(shape.queues));
    let topic = topic(shape, messages);
    let seen = Arc::new(AtomicU64::new(0));
    let before = allocated();
    let consumer = options(&topic, shape)
        .start(listen::per_shard({
            let seen = Arc::clone(&seen);
            move |shard| Check::new(Some(shard), shape, &seen)
        }))
        .expect("the options are right");
    consumer.pause();
    while consumer.metrics().in_flight < shape.in_flight as u64 {
        thread::sleep(Duration::from_millis(5));
    }
    let held = allocated() - before;
    consumer.resume();
    while !topic.is_committed() {
        thread::park_timeout(LOOK);
    }
    consumer.stop(Duration::from_secs(10)).expect("it stops");
    while seen.load(Ordering::Relaxed) < messages {
        thread::yield_now();
    }
    held
}

fn allocated() -> usize {
    let stats = ALLOCATED.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Resident memory while very many messages go through.
fn soak(messages: u64) {
    let shape = Shape { queues: 4, keys: 10_000, in_flight: 10_000, fill: false };
    let topic = topic(shape, messages);
    let seen = Arc::new(AtomicU64::new(0));
    let consumer = options(&topic, shape)
        .start(listen::per_shard({
            let seen = Arc::clone(&seen);
            move |shard| Check::new(Some(shard), shape, &seen)
        }))
        .expect("the options are right");
    println!("millions finished | resident MiB | allocated MiB");
    let mut next = 0;
    while !topic.is_committed() {
        let finished = consumer.metrics().succeeded;
        if finished >= next {
            print_memory(finished);
            next = (finished * 10 / messages + 1) * messages / 10;
        }
        thread::park_timeout(LOOK);
    }
    print_memory(consumer.metrics().succeeded);
    consumer.stop(Duration::from_secs(10)).expect("it stops");
    while seen.load(Ordering::Relaxed) < messages {
        thread::yield_now();
    }
}

fn print_memory(finished: u64) {
    const MIB: f64 = 1_048_576.0;
    let resident = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = resident.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    println!(
        "{:17.1} | {:12.1} | {:13.1}",
        finished as f64 / MILLION as f64,
        kib.unwrap_or_default() / 1_024.0,
        allocated() as f64 / MIB
    );
}
