//! **What does the whole engine cost on a Kafka topic, beside the barest loop over librdkafka?**
//!
//! The same topic, of 100-byte messages with keys, in one and in eight partitions, read to its end:
//!
//! - *bare*: librdkafka's batched read on one queue, on one thread; each message is looked at and
//!   given back at once. No keys, no order, no commits, nothing to keep;
//! - *keylane*: source, router, 16 shards, tracker, commits, with a listener that does nothing;
//! - *no headers*: the same, with a source that leaves headers unread, as the bare loop does.
//!
//! All have the same settings of librdkafka, read the partitions without a group's protocol, and are
//! timed from their first message to their last. Interleaved, medians, as a ratio. Every run checks
//! that all messages came, each once; keylane's, that the broker has the commits.
//!
//! `KEYLANE_KAFKA=host:port` names the broker. Arguments: `[messages] [repetitions]`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![deny(unsafe_code)]

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use benches::{cpu_time, median};
use keylane::{Consumer, Handled, Listener, Message, Outcome, listen};
use keylane_kafka::{KafkaProducer, KafkaSource, Record};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, TopicPartitionList};

const KEYS: u64 = 10_000;
const BYTES: usize = 100;
const ANSWER: Duration = Duration::from_secs(30);
/// Nothing takes longer: a run that does is broken.
const PATIENCE: Duration = Duration::from_secs(120);
/// The settings of librdkafka that the source changes: both sides get them.
const SETTINGS: [(&str, &str); 3] = [
    ("fetch.queue.backoff.ms", "10"),
    ("fetch.wait.max.ms", "100"),
    ("queued.max.messages.kbytes", "16384"),
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let servers = std::env::var("KEYLANE_KAFKA").map_err(
        |_| "this needs a broker: KEYLANE_KAFKA=host:port (cargo xtask brokers up kafka)",
    )?;
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let messages = numbers.next().unwrap_or(2_000_000);
    let repetitions = numbers.next().unwrap_or(7);
    println!("{messages} messages of {BYTES} bytes, medians of {repetitions} interleaved runs");
    println!("partitions | reader     |   M/s | CPU ns a message | of bare (each round)");
    for partitions in [1, 8] {
        let topic = Topic::filled(&servers, partitions, messages)?;
        let mut sides = ["bare", "keylane", "no headers"].map(|name| (name, Runs::default()));
        for _ in 0..repetitions {
            sides[0].1.add(messages, || topic.bare())?;
            sides[1].1.add(messages, || topic.keylane(true))?;
            sides[2].1.add(messages, || topic.keylane(false))?;
        }
        let bare = sides[0].1.rates.clone();
        for (name, mut runs) in sides {
            let each =
                runs.rates.iter().zip(&bare).map(|(rate, bare)| format!("{:.2}", rate / bare));
            let each = each.collect::<Vec<_>>().join(" ");
            let (rate, cpu) = (median(&mut runs.rates), median(&mut runs.cpu));
            let share = rate / median(&mut bare.clone()) * 100.0;
            println!(
                "{partitions:10} | {name:10} | {rate:5.2} | {cpu:16.0} | {share:3.0}% ({each})"
            );
        }
    }
    Ok(())
}

/// What the runs of one side came to: million messages a second, CPU nanoseconds a message.
#[derive(Default)]
struct Runs {
    rates: Vec<f64>,
    cpu: Vec<f64>,
}

impl Runs {
    fn add(&mut self, messages: u64, run: impl FnOnce() -> Result<Duration>) -> Result<()> {
        let before = cpu_time().unwrap_or_default();
        let took = run()?.as_secs_f64();
        let cpu = cpu_time().unwrap_or_default().saturating_sub(before).as_secs_f64();
        let rate = messages as f64 / took / 1e6;
        self.rates.push(rate);
        self.cpu.push(cpu / messages as f64 * 1e9);
        Ok(())
    }
}

struct Topic {
    servers: String,
    name: String,
    partitions: u32,
    messages: u64,
}

impl Topic {
    /// The topic with these messages; written where it is not there yet.
    fn filled(servers: &str, partitions: u32, messages: u64) -> Result<Self> {
        let name = format!("keylane-bench-{partitions}-{messages}");
        let topic = Self { servers: servers.to_owned(), name, partitions, messages };
        let there = topic.ends().map_or(0, |ends| ends.iter().sum());
        if there == messages {
            return Ok(topic);
        }
        if there != 0 {
            return Err(format!("topic {} has {there} messages: delete it", topic.name).into());
        }
        let admin: AdminClient<DefaultClientContext> = topic.config().create()?;
        let count = i32::try_from(partitions)?;
        let new = NewTopic::new(&topic.name, count, TopicReplication::Fixed(1));
        // Refused where it is there and empty, which is as good.
        let _ = block_on(admin.create_topics(&[new], &AdminOptions::new()))?;
        let producer = KafkaProducer::builder(servers).set("linger.ms", "50").build()?;
        for n in 0..messages {
            let key = format!("key-{}", n.wrapping_mul(7_919) % KEYS);
            let record =
                Record::to(&topic.name).partition(u32::try_from(n % u64::from(partitions))?);
            producer.send(record.key(key.as_bytes()).payload(&[b'x'; BYTES]))?;
        }
        producer.flush(PATIENCE)?;
        Ok(topic)
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers);
        SETTINGS.iter().for_each(|(name, value)| _ = config.set(*name, *value));
        config
    }

    fn ends(&self) -> Result<Vec<u64>> {
        let reader: BaseConsumer = self.config().create()?;
        let end = |index: u32| {
            let (_, end) = reader.fetch_watermarks(&self.name, i32::try_from(index)?, ANSWER)?;
            Ok(u64::try_from(end)?)
        };
        (0..self.partitions).map(end).collect()
    }

    fn bare(&self) -> Result<Duration> {
        let mut config = self.config();
        config.set("group.id", "bare").set("enable.auto.commit", "false");
        let consumer: BaseConsumer = config.create()?;
        bare::read(&consumer, &self.name, self.partitions, self.messages)
    }

    fn keylane(&self, headers: bool) -> Result<Duration> {
        let group = format!("bench-{}-{:?}", std::process::id(), Instant::now());
        let group: String = group.chars().filter(char::is_ascii_alphanumeric).collect();
        let partitions = (0..self.partitions).map(|index| (&self.name, index));
        let source = SETTINGS
            .iter()
            .fold(KafkaSource::builder(&self.servers, &group), |builder, (name, value)| {
                builder.set(*name, *value)
            })
            .assign(partitions)
            .headers(headers)
            .build()?;
        let seen: Arc<Vec<Seen>> = Arc::new((0..SHARDS).map(|_| Seen::default()).collect());
        let counting = Arc::clone(&seen);
        let consumer = Consumer::builder(source)
            .shards(SHARDS)
            // As many a pull as the other side reads at a time, and room for some pulls.
            .fetch_max(BATCH)
            .in_flight_max(16 * BATCH)
            .start(listen::per_shard(move |shard| Nothing(Arc::clone(&counting), shard)))?;
        let total = || seen.iter().map(|seen| seen.0.load(Ordering::Relaxed)).sum::<u64>();
        let deadline = Instant::now() + PATIENCE;
        let wait = |until: u64, nap: Duration| {
            while total() < until {
                assert!(Instant::now() < deadline, "{} of {}", total(), self.messages);
                std::thread::sleep(nap);
            }
            Instant::now()
        };
        let start = wait(1, Duration::from_micros(100));
        let took = wait(self.messages, Duration::from_millis(1)) - start;
        let report = consumer.stop(ANSWER)?;
        assert_eq!((report.unfinished, report.all_committed()), (0, true), "{report}");
        let metrics = consumer.metrics();
        // Every queue at its end and none delivered again: each message came once.
        assert_eq!((metrics.succeeded, total()), (self.messages, self.messages));
        self.check_commits(&group)?;
        Ok(took)
    }

    /// The broker's own word.
    fn check_commits(&self, group: &str) -> Result<()> {
        let reader: BaseConsumer = self.config().set("group.id", group).create()?;
        let mut asked = TopicPartitionList::new();
        for index in 0..self.partitions {
            asked.add_partition(&self.name, i32::try_from(index)?);
        }
        let committed = reader.committed_offsets(asked, ANSWER)?;
        let stored: i64 = committed.elements().iter().filter_map(|one| one.offset().to_raw()).sum();
        assert_eq!(u64::try_from(stored)?, self.messages, "{committed:?}");
        Ok(())
    }
}

const SHARDS: usize = 16;
/// Messages that one read brings at most, on both sides.
const BATCH: usize = 4_096;

/// How many messages a shard has seen. A cache line each.
#[derive(Default)]
#[repr(align(128))]
struct Seen(AtomicU64);

/// Does nothing, and is counted.
struct Nothing(Arc<Vec<Seen>>, usize);

impl Listener for Nothing {
    fn on_message(&mut self, _: &Message, _: &mut keylane::Context<'_>) -> Handled {
        let seen = &self.0[self.1].0;
        // Nobody else writes it.
        seen.store(seen.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(Outcome::Done)
    }
}

/// The loop that somebody would write who wants nothing but speed.
#[expect(unsafe_code, reason = "no safe wrapper has the batched read")]
mod bare {
    use std::ffi::CString;
    use std::hint::black_box;
    use std::ptr;
    use std::time::{Duration, Instant};

    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::{Offset, TopicPartitionList};
    use rdkafka_sys as sys;

    use super::BATCH;

    /// The call waits so long for a batch to be full.
    const WAIT_MS: i32 = 5;

    pub(super) fn read(
        consumer: &BaseConsumer,
        topic: &str,
        partitions: u32,
        messages: u64,
    ) -> super::Result<Duration> {
        let rk = consumer.client().native_ptr();
        // SAFETY: the client is alive; gives a queue that is given back below.
        let queue = unsafe { sys::rd_kafka_queue_new(rk) };
        let name = CString::new(topic)?;
        let mut all = TopicPartitionList::new();
        for index in 0..i32::try_from(partitions)? {
            all.add_partition_offset(topic, index, Offset::Beginning)?;
            // SAFETY: client and name are alive; gives a reference that is given back below.
            let partition = unsafe { sys::rd_kafka_queue_get_partition(rk, name.as_ptr(), index) };
            assert!(!partition.is_null(), "{topic}/{index} has no queue");
            // SAFETY: both queues are alive.
            unsafe { sys::rd_kafka_queue_forward(partition, queue) };
            // SAFETY: our reference, given back once.
            unsafe { sys::rd_kafka_queue_destroy(partition) };
        }
        consumer.assign(&all)?;
        drop(all);
        let took = drain(queue, messages);
        consumer.unassign()?;
        // SAFETY: ours, given back once, and before the client.
        unsafe { sys::rd_kafka_queue_destroy(queue) };
        Ok(took)
    }

    /// From the first message to the last; every offset has to come once.
    fn drain(queue: *mut sys::rd_kafka_queue_t, messages: u64) -> Duration {
        let mut batch = vec![ptr::null_mut(); BATCH];
        let (mut start, mut seen, mut offsets) = (None, 0, 0_u64);
        let deadline = Instant::now() + super::PATIENCE;
        while seen < messages {
            assert!(Instant::now() < deadline, "{seen} of {messages}");
            let at = batch.as_mut_ptr();
            // SAFETY: the queue is alive, `at` has room for a batch, and nobody else reads.
            let read = unsafe { sys::rd_kafka_consume_batch_queue(queue, WAIT_MS, at, BATCH) };
            let read = usize::try_from(read).unwrap_or(0);
            if read > 0 {
                start.get_or_insert_with(Instant::now);
            }
            for message in &batch[..read] {
                // SAFETY: one of the messages that were just read.
                let fields = unsafe { &**message };
                assert!(fields.len == super::BYTES, "an error among the messages");
                offsets = offsets.wrapping_add(fields.offset.cast_unsigned());
                black_box(fields.payload);
                // SAFETY: ours, given back once.
                unsafe { sys::rd_kafka_message_destroy(*message) };
            }
            seen += read as u64;
        }
        black_box(offsets);
        assert_eq!(seen, messages);
        start.map_or(Duration::ZERO, |start| start.elapsed())
    }
}

/// Waits for a future of the admin client's, which completes it on a thread of its own.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
