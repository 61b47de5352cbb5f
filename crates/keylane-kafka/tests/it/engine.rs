//! A real broker, the engine and the test kit's checkers together: every promise is watched while
//! members, brokers and topics change under load. `KEYLANE_KAFKA=host:port` names the broker; without
//! it every test says that it is skipped.
//!
//! | file | what happens under load |
//! | --- | --- |
//! | `processes.rs` | members of a group join, leave and are killed, each a process |
//! | `restart.rs` | the broker is killed and comes back |
//! | `topics.rs` | partitions are added, offsets reset, transactions aborted, a topic is compacted |
//! | `volume.rs` | a million keyed messages; a listener slower than the poll limit |
//!
//! A run is over when the broker itself says that the group has committed every partition to its
//! end. Only then members stop, and the verdict has to be clean.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keylane::{Consumer, Outcome, listen};
use keylane_kafka::{KafkaProducer, KafkaSourceBuilder, Record};
use keylane_source::{Message, Offset, QueueId};
use keylane_testkit::guarantee::{self, Scope};
use keylane_testkit::recorder::{Recorded, Recorder};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, TopicPartitionList};

use crate::real_broker::Broker;

mod processes;
mod restart;
mod topics;
mod volume;

/// How long a run may take before it has failed.
const PATIENCE: Duration = Duration::from_secs(150);
/// How long a broker may take to answer.
const ANSWER: Duration = Duration::from_secs(60);
/// How often something is looked at.
const LOOK: Duration = Duration::from_millis(20);
const STOP: Duration = Duration::from_secs(20);

/// A topic of this run's own, and what is known of it.
struct Stage {
    broker: Broker,
    recorder: Recorder,
    /// Asks what the group has committed; it reads nothing and is no member.
    outsider: BaseConsumer,
}

impl Stage {
    fn new(test: &str, partitions: i32, settings: &[(&str, &str)]) -> Option<Self> {
        let broker = Broker::with_topic(test, partitions, settings)?;
        let outsider = ClientConfig::new()
            .set("bootstrap.servers", &broker.servers)
            .set("group.id", &broker.topic)
            .create()
            .unwrap();
        Some(Self { broker, recorder: Recorder::new(Scope::key()), outsider })
    }

    /// Of each partition: what the group has committed, and where it ends.
    fn progress(&self, partitions: u32) -> Vec<(Option<i64>, i64)> {
        let index = |partition: u32| i32::try_from(partition).unwrap();
        let mut asked = TopicPartitionList::new();
        for partition in 0..partitions {
            asked.add_partition(&self.broker.topic, index(partition));
        }
        let committed = self.outsider.committed_offsets(asked, ANSWER).unwrap();
        let of = |partition: u32| {
            let found = committed.find_partition(&self.broker.topic, index(partition)).unwrap();
            let end = self.outsider.fetch_watermarks(&self.broker.topic, index(partition), ANSWER);
            (found.offset().to_raw().filter(|offset| *offset >= 0), end.unwrap().1)
        };
        (0..partitions).map(of).collect()
    }

    /// Waits until the broker has a commit at the end of every partition.
    fn until_committed(&self, partitions: u32) {
        until("everything is committed", || {
            let progress = self.progress(partitions);
            let done = progress.iter().all(|(stored, end)| stored.unwrap_or(0) == *end);
            if done { Ok(()) } else { Err(format!("{progress:?}")) }
        });
    }

    /// Ends the run: every member stops in peace, and nothing was broken.
    fn verdict(self, members: Vec<Consumer>, delivered: u64) {
        for member in members {
            let report = member.stop(STOP).unwrap();
            assert!(report.all_committed() && report.unfinished == 0, "{report}");
        }
        let verdict = self.recorder.verdict();
        verdict.assert_clean();
        assert_eq!(verdict.delivered, delivered, "{verdict}");
    }
}

/// A member of the group whose listener takes this long for a message.
fn start(source: KafkaSourceBuilder, recorder: &Recorder, work: Duration) -> Consumer {
    let recorded = Recorded::new(source.build().unwrap(), recorder);
    let recorder = recorder.clone();
    let listener = listen::each(move |message: &Message, context| {
        let call = recorder.begin(message, context.shard(), context.attempt());
        std::thread::sleep(work);
        call.settle(guarantee::Outcome::Done);
        Ok(Outcome::Done)
    });
    let builder = Consumer::builder(recorded).shards(8);
    builder.commit_interval(Duration::from_millis(200)).start(listener).unwrap()
}

/// Writes keyed messages, each to a partition that its key decides, and says so to the recorder.
/// The topic has no other producer, so offsets are known before they are there.
struct Filler {
    producer: KafkaProducer,
    topic: String,
    recorder: Recorder,
    ends: Vec<u64>,
    keys: u64,
    sent: u64,
}

impl Filler {
    fn new(stage: &Stage, partitions: u32, keys: u64) -> Self {
        Self {
            producer: stage.broker.producer(),
            topic: stage.broker.topic.clone(),
            recorder: stage.recorder.clone(),
            ends: vec![0; partitions as usize],
            keys,
            sent: 0,
        }
    }

    /// The next message. Keys come in an order that is neither theirs nor the partitions'.
    fn send(&mut self) {
        let key = self.sent * 7_919 % self.keys;
        let partition = key % self.ends.len() as u64;
        let end = &mut self.ends[usize::try_from(partition).unwrap()];
        let partition = u32::try_from(partition).unwrap();
        self.recorder.produced(QueueId::new(&self.topic, partition), Offset::new(*end).unwrap());
        *end += 1;
        let (key, payload) = (format!("key-{key}"), format!("{:0100}", self.sent));
        let record = Record::to(&self.topic).partition(partition);
        let record = record.key(key.as_bytes()).payload(payload.as_bytes());
        // While the broker is away the producer's queue is full, sooner or later.
        until("the message is taken", || self.producer.send(record).map_err(|e| e.to_string()));
        self.sent += 1;
    }

    /// About a thousand messages a second, until `done`.
    fn send_until(&mut self, done: impl Fn() -> bool) {
        let (start, first) = (Instant::now(), self.sent);
        while !done() {
            while u128::from(self.sent - first) < start.elapsed().as_millis() {
                self.send();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.flush();
    }

    fn flush(&self) {
        self.producer.flush(PATIENCE).unwrap();
    }
}

/// Sends as long as `run` takes, also where it panics.
fn under_load<T>(filler: &mut Filler, run: impl FnOnce() -> T) -> T {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Ends(&over);
        let filling = scope.spawn(|| filler.send_until(|| over.load(Ordering::Acquire)));
        let done = run();
        drop(ends);
        filling.join().unwrap();
        done
    })
}

/// Looks until it has happened; fails with what was seen last.
#[track_caller]
fn until(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while let Err(seen) = look() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}; {seen}");
        std::thread::sleep(LOOK);
    }
}

/// Waits until this many queues are assigned to the member.
fn until_assigned(member: &Consumer, queues: usize) {
    until("queues are assigned", || {
        let assigned = member.metrics().queues.len();
        if assigned == queues { Ok(()) } else { Err(format!("{assigned} of {queues}")) }
    });
}
