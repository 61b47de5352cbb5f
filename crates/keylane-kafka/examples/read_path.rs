//! How fast messages come out of Kafka: rdkafka's poll, one message a call, looked at only or made
//! a message that can be kept, against the source's batched read, whose messages can be kept. All on
//! the same topic.
//!
//! ```text
//! cargo run --release -p keylane-kafka --example read_path -- \
//!     127.0.0.1:9092 [messages] [partitions] [bytes]
//! ```
//!
//! The topic `read-path-PARTITIONS-BYTES-MESSAGES` is filled first where it is not full already.
//! Three rounds, in turn; each reads everything from the beginning, in a group of its own.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use keylane_kafka::{KafkaProducer, KafkaSource, Record};
use keylane_source::{FetchLimits, SeekTo, Source, SourceEvent};
use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Job {
    servers: String,
    topic: String,
    messages: u64,
    partitions: u32,
    bytes: usize,
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let servers = args.next().ok_or("the servers are missing: host:port")?;
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    let (messages, partitions, bytes) = (number(2_000_000)?, number(8)?, number(100)?);
    let topic = format!("read-path-{partitions}-{bytes}-{messages}");
    let (partitions, bytes) = (u32::try_from(partitions)?, usize::try_from(bytes)?);
    let job = Job { servers, topic, messages, partitions, bytes };
    job.fill()?;
    println!("{} messages of {} bytes, {} partitions", messages, bytes, job.partitions);
    for round in 0..3 {
        job.measure("poll, looked at", round, |job, group| job.poll(group, false))?;
        job.measure("poll, kept", round, |job, group| job.poll(group, true))?;
        job.measure("batched source", round, Job::batched)?;
    }
    Ok(())
}

impl Job {
    fn fill(&self) -> Result<()> {
        let counter: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", &self.servers).create()?;
        let mut there = 0;
        for index in 0..self.partitions {
            let wait = Duration::from_secs(10);
            let ends = counter.fetch_watermarks(&self.topic, i32::try_from(index)?, wait);
            there += ends.map_or(0, |(begin, end)| (end - begin).cast_unsigned());
        }
        if there >= self.messages {
            return Ok(());
        }
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.servers).create()?;
        let new =
            NewTopic::new(&self.topic, i32::try_from(self.partitions)?, TopicReplication::Fixed(1));
        // Refused where it exists already, which is as good.
        let _ = block_on(admin.create_topics(&[new], &AdminOptions::new()))?;
        let producer = KafkaProducer::builder(&self.servers)
            .set("queue.buffering.max.messages", "1000000")
            .set("linger.ms", "50")
            .build()?;
        let payload = vec![b'x'; self.bytes];
        for n in there..self.messages {
            let (partition, key) = (n % u64::from(self.partitions), (n % 1_000).to_string());
            let record = Record::to(&self.topic).partition(u32::try_from(partition)?);
            producer.send(record.key(key.as_bytes()).payload(&payload))?;
        }
        producer.flush(Duration::from_secs(60))?;
        Ok(())
    }

    /// From the first message to the last: joining the group is not what is measured.
    fn measure(
        &self,
        name: &str,
        round: u32,
        read: fn(&Self, &str) -> Result<(Duration, Duration)>,
    ) -> Result<()> {
        let group = format!("{}-{name}-{round}-{}", self.topic, std::process::id());
        let (wall, cpu) = read(self, &group.replace([' ', ','], "-"))?;
        #[expect(clippy::cast_precision_loss, reason = "figures to look at")]
        let count = self.messages as f64;
        println!(
            "{name:>16}: {:.2} M messages/s, {:.0} ns of the reading thread a message",
            count / wall.as_secs_f64() / 1e6,
            cpu.as_secs_f64() * 1e9 / count
        );
        Ok(())
    }

    fn poll(&self, group: &str, keep: bool) -> Result<(Duration, Duration)> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.servers)
            .set("group.id", group)
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.commit", "false")
            .set("fetch.queue.backoff.ms", "10")
            .set("fetch.wait.max.ms", "100")
            .set("queued.max.messages.kbytes", "16384")
            .create()?;
        consumer.subscribe(&[&self.topic])?;
        let (mut count, mut bytes, mut start) = (0, 0, None);
        while count < self.messages {
            if let Some(message) = consumer.poll(Duration::from_millis(100)) {
                let message = message?;
                bytes += if keep {
                    message.detach().payload().map_or(0, <[u8]>::len)
                } else {
                    message.payload().map_or(0, <[u8]>::len)
                };
                count += 1;
                start.get_or_insert_with(now);
            }
        }
        assert!(bytes > 0);
        Ok(since(start.ok_or("no message")?))
    }

    fn batched(&self, group: &str) -> Result<(Duration, Duration)> {
        let mut source =
            KafkaSource::builder(&self.servers, group).subscribe([&self.topic]).build()?;
        let limits = FetchLimits { messages: 4_096, bytes: 1 << 22 };
        let (mut count, mut bytes, mut start, mut events) = (0, 0, None, Vec::new());
        while count < self.messages {
            source.poll(limits, Duration::from_millis(100), &mut events)?;
            for event in events.drain(..) {
                match event {
                    SourceEvent::Assigned { queue, .. } => source.seek(queue, SeekTo::Earliest),
                    SourceEvent::Fetched(fetch) if !fetch.messages.is_empty() => {
                        start.get_or_insert_with(now);
                        count += fetch.messages.len() as u64;
                        bytes += fetch.messages.iter().map(|m| m.size()).sum::<usize>();
                    }
                    _ => {}
                }
            }
        }
        assert!(bytes > 0);
        let taken = since(start.ok_or("no message")?);
        source.close(Duration::from_secs(5), &mut events)?;
        Ok(taken)
    }
}

/// Waits for a future of the admin client's, whose own thread completes it.
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

/// Wall time, and the CPU time of this thread.
fn now() -> (Instant, Duration) {
    (Instant::now(), cpu())
}

fn since((wall, used): (Instant, Duration)) -> (Duration, Duration) {
    (wall.elapsed(), cpu().saturating_sub(used))
}

/// What Linux says that this thread has used; zero elsewhere.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
