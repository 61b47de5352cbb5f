//! **How long does a message take from its pull to the listener?**
//!
//! A source that has messages at a rate, as a broker has, and brings at each poll what has come by
//! then; each message carries the moment in which it was pulled. 4 queues, 4 threads that do nothing
//! with it, two ways:
//!
//! - *bare*: the key is hashed and each message is sent by itself through a bounded crossbeam
//!   channel; nothing is tracked, nothing is committed;
//! - *keylane*: routed, tracked, batched, committed.
//!
//! At low rates a message finds its thread asleep, and what is measured is how soon the system wakes
//! it. The last row is at half load: half of what the slower of the two moves when all messages are
//! there from the start.
//!
//! Interleaved, medians of the runs' percentiles. These figures are absolute, so they depend on what
//! else the machine does: the load average is printed with them. Every run checks that each thread saw
//! each queue's offsets ascend, and that all was delivered; keylane's, that all was committed.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use benches::median;
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use keylane::{Consumer, Context, Handled, Latency, Listener, Message, Outcome, listen};
use keylane_source::{FetchLimits, Position, QueueId, SeekTo, Source, SourceError, SourceEvent};
use keylane_testkit::memory::MemoryTopic;
use keylane_testkit::tap::Tap;

const QUEUES: u32 = 4;
const SHARDS: usize = 4;
const KEYS: usize = 40 * PULL;
const PULL: usize = 256;
const CAPACITY: usize = 1_024;

fn main() {
    // `cargo test` runs benchmarks once, to see that they work.
    let once = !std::env::args().any(|argument| argument == "--bench");
    let (seconds, full, repetitions) = if once { (0.02, 20_000, 1) } else { (1.0, 1_000_000, 7) };
    let clock = Instant::now();
    let half = {
        let mut full_speed = [Vec::new(), Vec::new()];
        for _ in 0..repetitions {
            for (rates, way) in full_speed.iter_mut().zip([bare, keylane]) {
                let began = Instant::now();
                way(clock, f64::INFINITY, full);
                rates.push(full as f64 / began.elapsed().as_secs_f64());
            }
        }
        let [bare, keylane] = full_speed.map(|mut rates| median(&mut rates));
        println!("at full speed: bare {:.2} M/s, keylane {:.2} M/s", bare / 1e6, keylane / 1e6);
        bare.min(keylane) / 2.0
    };
    println!("{SHARDS} threads, medians of {repetitions} interleaved runs, microseconds");
    println!(
        "   a second | bare: p50     p99   p99.9 | keylane: p50     p99   p99.9 | its own metrics: p50 p99 | load average"
    );
    for rate in [1_000.0, 10_000.0, 100_000.0, half] {
        let messages = whole(rate * seconds).max(100).next_multiple_of(u64::from(QUEUES));
        let (mut channel, mut engine, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..repetitions {
            channel.push(percentiles(bare(clock, rate, messages).0));
            let (took, metrics) = keylane(clock, rate, messages);
            engine.push(percentiles(took));
            own.extend(metrics);
        }
        let [c50, c99, c999] = medians(&channel);
        let [e50, e99, e999] = medians(&engine);
        let micros = |at: fn(&Latency) -> Duration| {
            median(&mut own.iter().map(|own| at(own).as_secs_f64() * 1e6).collect::<Vec<_>>())
        };
        println!(
            "{rate:11.0} | {c50:9.1} {c99:7.1} {c999:7.1} | {e50:12.1} {e99:7.1} {e999:7.1} | {:20.0} {:3.0} | {}",
            micros(|own| own.p50),
            micros(|own| own.p99),
            load()
        );
    }
    println!("targets, in the last row and on a machine without other load: p50 20, p99 200");
}

/// How many wanted to run, over the last one and five minutes: in this, the benchmark is itself.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// p50, p99 and p99.9, in microseconds.
fn percentiles(mut nanos: Vec<u64>) -> [f64; 3] {
    nanos.sort_unstable();
    [500, 990, 999].map(|per_mille| nanos[nanos.len() * per_mille / 1_000] as f64 / 1e3)
}

fn medians(runs: &[[f64; 3]]) -> [f64; 3] {
    [0, 1, 2].map(|at| median(&mut runs.iter().map(|run| run[at]).collect::<Vec<_>>()))
}

#[expect(clippy::cast_possible_truncation, reason = "a number of messages: of less than 53 bits")]
fn whole(messages: f64) -> u64 {
    messages as u64
}

/// Nanoseconds since the benchmark began.
fn nanos(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Messages that are stamped when they are read.
fn topic(clock: Instant, messages: u64) -> MemoryTopic {
    // As in what a broker answers: the messages of one fetch share a buffer.
    let keys: Vec<Bytes> = (0..KEYS)
        .step_by(PULL)
        .flat_map(|first| {
            let names: Vec<u8> = (first..first + PULL)
                .flat_map(|key| format!("key-{key:06}").into_bytes())
                .collect();
            let length = names.len() / PULL;
            let names = Bytes::from(names);
            (0..PULL).map(move |nth| names.slice(nth * length..(nth + 1) * length))
        })
        .collect();
    MemoryTopic::generate("latency", QUEUES, messages / u64::from(QUEUES), move |queue, offset| {
        let place = usize::try_from(offset.get()).unwrap_or_default() * QUEUES as usize
            + queue.index() as usize;
        Message::new(queue, offset)
            .with_key(keys[place % keys.len()].clone())
            // The field has room for them, and nobody else reads it here.
            .with_timestamp_ms(i64::try_from(nanos(clock)).unwrap_or(i64::MAX))
    })
}

/// What a thread does with a message: notes how long it took, and checks its order.
struct Note {
    clock: Instant,
    next: [u64; QUEUES as usize],
    took: Vec<u64>,
    all: Arc<Notes>,
}

#[derive(Default)]
struct Notes {
    took: Mutex<Vec<u64>>,
    /// Threads that have handed in theirs.
    ended: AtomicUsize,
}

impl Note {
    fn new(clock: Instant, all: &Arc<Notes>, messages: u64) -> Self {
        let room = usize::try_from(messages).unwrap_or_default();
        let all = Arc::clone(all);
        Self { clock, next: [0; QUEUES as usize], took: Vec::with_capacity(room), all }
    }

    fn see(&mut self, message: &Message) {
        let pulled = message.timestamp_ms().and_then(|at| u64::try_from(at).ok());
        self.took.push(nanos(self.clock) - pulled.expect("each message is stamped"));
        let next = &mut self.next[message.queue().index() as usize];
        assert!(message.offset().get() >= *next, "{message:?} came after offset {next}");
        *next = message.offset().get() + 1;
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        self.all.took.lock().expect("nobody panics").append(&mut self.took);
        self.all.ended.fetch_add(1, Ordering::Release);
    }
}

impl Listener for Note {
    fn on_message(&mut self, message: &Message, _context: &mut Context<'_>) -> Handled {
        self.see(message);
        Ok(Outcome::Done)
    }
}

type Took = (Vec<u64>, Option<Latency>);

fn keylane(clock: Instant, rate: f64, messages: u64) -> Took {
    let topic = topic(clock, messages);
    let notes = Arc::new(Notes::default());
    let consumer = Consumer::builder(Paced::at(rate).on(topic.source()))
        .shards(SHARDS)
        .fetch_max(PULL)
        .channel_capacity(CAPACITY)
        .commit_interval(Duration::from_millis(10))
        .start(listen::per_shard({
            let notes = Arc::clone(&notes);
            move |_| Note::new(clock, &notes, messages)
        }))
        .expect("the options are right");
    while !topic.is_committed() {
        thread::park_timeout(Duration::from_millis(5));
    }
    let latency = consumer.metrics().hand_off;
    let report = consumer.stop(Duration::from_secs(10)).expect("it stops");
    assert_eq!((report.unfinished, report.all_committed()), (0, true));
    // Instances are dropped at the ends of their threads.
    while notes.ended.load(Ordering::Acquire) < SHARDS {
        thread::yield_now();
    }
    (notes.all(messages), Some(latency))
}

fn bare(clock: Instant, rate: f64, messages: u64) -> Took {
    let mut source = Paced::at(rate).on(topic(clock, messages).source());
    let notes = Arc::new(Notes::default());
    let (senders, threads): (Vec<_>, Vec<_>) = (0..SHARDS)
        .map(|_| {
            let (sender, receiver): (Sender<Message>, Receiver<Message>) = bounded(CAPACITY);
            let mut note = Note::new(clock, &notes, messages);
            let drain = move || receiver.iter().for_each(|message| note.see(&message));
            (sender, thread::Builder::new().spawn(drain).expect("a thread"))
        })
        .unzip();
    let hasher = ahash::RandomState::new();
    let (mut events, mut left) = (Vec::new(), messages);
    while left > 0 {
        let limits = FetchLimits { messages: PULL, bytes: usize::MAX };
        source.poll(limits, Duration::from_secs(1), &mut events).expect("it is in memory");
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, .. } => {
                    source.seek(queue, SeekTo::Position(Position::ZERO));
                }
                SourceEvent::Fetched(fetch) => {
                    left -= fetch.messages.len() as u64;
                    for message in fetch.messages {
                        let hash = hasher.hash_one(message.key().unwrap_or_default());
                        let shard = usize::try_from(hash % SHARDS as u64).unwrap_or_default();
                        senders[shard].send(message).expect("the thread lives");
                    }
                }
                _ => {}
            }
        }
    }
    drop(senders);
    for thread in threads {
        thread.join().expect("no check failed");
    }
    (notes.all(messages), None)
}

impl Notes {
    fn all(&self, messages: u64) -> Vec<u64> {
        let took = std::mem::take(&mut *self.took.lock().expect("nobody panics"));
        assert_eq!(took.len() as u64, messages, "each message was delivered once");
        took
    }
}

/// Brings no more than has come by now.
struct Paced {
    rate: f64,
    /// Messages begin to come when the first queue is read.
    began: Option<Instant>,
    given: f64,
}

impl Paced {
    fn at(rate: f64) -> Self {
        Self { rate, began: None, given: 0.0 }
    }

    /// How many messages are there and were not given out.
    fn due(&self) -> f64 {
        let came = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64() * self.rate);
        came - self.given
    }
}

impl Tap for Paced {
    fn poll(
        &mut self,
        source: &mut dyn Source,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        if self.rate.is_infinite() || self.began.is_none() {
            return source.poll(limits, wait, events);
        }
        let due = self.due();
        if due < 1.0 {
            // Nothing wakes this: a commit or a stop waits for the next message, a millisecond at most.
            thread::sleep(wait.min(Duration::from_secs_f64((1.0 - due) / self.rate)));
        }
        let due = whole(self.due());
        if due == 0 {
            return Ok(());
        }
        // Each queue has its part; what is too much now is missing the next time.
        let part = usize::try_from(due / u64::from(QUEUES)).unwrap_or(usize::MAX);
        let messages = part.clamp(1, limits.messages);
        let before = events.len();
        // It waits only where there is nothing: behind the last message, or while queues are paused.
        source.poll(FetchLimits { messages, ..limits }, wait, events)?;
        for event in &events[before..] {
            if let SourceEvent::Fetched(fetch) = event {
                self.given += fetch.messages.len() as f64;
            }
        }
        Ok(())
    }

    fn seek(&mut self, source: &mut dyn Source, queue: QueueId, to: SeekTo) {
        self.began.get_or_insert_with(Instant::now);
        source.seek(queue, to);
    }
}
