//! What only a broker can show: transactions, compaction, retention, new partitions, the rules of
//! groups. `KEYLANE_KAFKA=host:port` names one; without it every test says that it is skipped.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keylane_kafka::{KafkaProducer, KafkaSource, KafkaSourceBuilder, Record};
use keylane_source::{Committed, EndOffset, QueueId, ResetCause, SeekTo, Source};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::fetch::COOPERATIVE;
use crate::member::{Member, both_until, commit, position};

const LONG: Duration = Duration::from_secs(60);
/// Tells topics apart that are made in one moment.
static TOPICS: AtomicU32 = AtomicU32::new(0);
const RANGE: (&str, &str) = ("partition.assignment.strategy", "range");

/// A broker, and a topic of this test's own.
pub(crate) struct Broker {
    pub(crate) servers: String,
    pub(crate) topic: String,
    pub(crate) admin: AdminClient<DefaultClientContext>,
}

impl Broker {
    /// None, and a line that says so, where no broker is named.
    pub(crate) fn with_topic(
        test: &str,
        partitions: i32,
        settings: &[(&str, &str)],
    ) -> Option<Self> {
        let Ok(servers) = std::env::var("KEYLANE_KAFKA") else {
            println!("skipped: {test} needs a broker, KEYLANE_KAFKA=host:port");
            return None;
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let nth = TOPICS.fetch_add(1, Ordering::Relaxed);
        let topic = format!("{test}-{now}-{nth}");
        let admin = ClientConfig::new().set("bootstrap.servers", &servers).create().unwrap();
        let broker = Self { servers, topic, admin };
        broker.create(&broker.topic, partitions, settings);
        Some(broker)
    }

    fn create(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
        let made = block_on(self.admin.create_topics(&[new], &AdminOptions::new())).unwrap();
        made.into_iter().for_each(|one| drop(one.unwrap()));
    }

    /// A source of the test's topic, in a group of the same name.
    pub(crate) fn source(&self) -> KafkaSourceBuilder {
        KafkaSource::builder(&self.servers, &self.topic)
            .subscribe([&self.topic])
            .set("session.timeout.ms", "3000")
            .set("heartbeat.interval.ms", "200")
            .set("fetch.wait.max.ms", "50")
    }

    fn queue(&self, index: u32) -> QueueId {
        QueueId::new(&self.topic, index)
    }

    pub(crate) fn producer(&self) -> KafkaProducer {
        KafkaProducer::builder(&self.servers).build().unwrap()
    }

    /// Removes every message below this offset.
    pub(crate) fn delete_before(&self, partition: u32, offset: i64) {
        let mut before = TopicPartitionList::new();
        let index = i32::try_from(partition).unwrap();
        before.add_partition_offset(&self.topic, index, Offset::Offset(offset)).unwrap();
        block_on(self.admin.delete_records(&before, &AdminOptions::new())).unwrap();
    }

    /// Writes a message in a transaction that is aborted: two offsets without a message.
    pub(crate) fn abort_one(&self, partition: u32) {
        let producer = self.transactional();
        producer.begin_transaction().unwrap();
        let index = i32::try_from(partition).unwrap();
        let record = BaseRecord::<(), _>::to(&self.topic).partition(index).payload("aborted");
        producer.send(record).unwrap();
        producer.flush(LONG).unwrap();
        producer.abort_transaction(LONG).unwrap();
    }

    pub(crate) fn transactional(&self) -> BaseProducer {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &self.servers)
            .set("transactional.id", &self.topic)
            .create()
            .unwrap();
        producer.init_transactions(LONG).unwrap();
        producer
    }

    fn fill(&self, partition: u32, payloads: std::ops::Range<u64>) {
        let producer = self.producer();
        for n in payloads {
            let payload = n.to_string();
            let record = Record::to(&self.topic).partition(partition).payload(payload.as_bytes());
            producer.send(record).unwrap();
        }
        producer.flush(LONG).unwrap();
    }
}

/// Waits for a future of the admin client's, whose own thread completes it.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
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

#[test]
fn aborted_messages_are_left_out_and_markers_never_pin_the_commit() {
    let Some(broker) = Broker::with_topic("transactions", 1, &[]) else { return };
    let producer = broker.transactional();
    for (first, commits) in [(0, true), (5, false), (10, true), (15, false)] {
        producer.begin_transaction().unwrap();
        for n in first..first + 5 {
            let payload = n.to_string();
            producer.send(BaseRecord::<(), _>::to(&broker.topic).payload(&payload)).unwrap();
        }
        producer.flush(LONG).unwrap();
        if commits {
            producer.commit_transaction(LONG).unwrap();
        } else {
            producer.abort_transaction(LONG).unwrap();
        }
    }
    // Four times five messages and a marker: offsets 0..24, the last six are no messages to us.
    let queue = broker.queue(0);
    let mut member = Member::joined(broker.source(), 1);
    member.until("the end is reached", |m| m.positions.get(&queue) == Some(&position(24)));
    assert_eq!(member.offsets(queue), [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]);
    assert_eq!(member.ends[&queue], EndOffset::At(position(24)));
    member.commit(commit(queue, 24, "")).unwrap();
    member.close().unwrap();

    let mut next = Member::joined(broker.source(), 1);
    next.until("the end is told", |m| m.positions.contains_key(&queue));
    assert_eq!((next.count(), next.positions[&queue]), (0, position(24)));
    next.close().unwrap();

    // Read uncommitted, everything is a message but the markers.
    let builder = broker.source().set("isolation.level", "read_uncommitted");
    let mut other = Member::new(builder);
    other.starts = false;
    other.until("it is assigned", |m| m.owned.len() == 1);
    other.source.seek(queue, SeekTo::Earliest);
    other.until("the end is reached", |m| m.positions.get(&queue) == Some(&position(24)));
    assert_eq!(other.count(), 20);
    other.close().unwrap();
}

#[test]
fn holes_of_compaction_are_passed() {
    let compacted = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("delete.retention.ms", "0"),
        ("min.compaction.lag.ms", "0"),
    ];
    let Some(broker) = Broker::with_topic("compaction", 1, &compacted) else { return };
    let producer = broker.producer();
    let send = |key: &str, payload: &str| {
        producer
            .send(Record::to(&broker.topic).key(key.as_bytes()).payload(payload.as_bytes()))
            .unwrap();
        producer.flush(LONG).unwrap();
    };
    for n in 0..20 {
        send(&format!("k{}", n % 2), &n.to_string());
    }
    let queue = broker.queue(0);
    // Segments are rolled when something is appended, and cleaned some time later.
    let start = Instant::now();
    let mut end = 20;
    loop {
        send("roll", "");
        end += 1;
        let mut member = Member::new(broker.source());
        member.until("the end is reached", |m| m.positions.get(&queue) == Some(&position(end)));
        let offsets = member.offsets(queue);
        member.close().unwrap();
        if offsets.iter().filter(|offset| **offset < 20).count() == 2 {
            assert_eq!(offsets[..2], [18, 19]);
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "never compacted: {offsets:?}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn a_queue_starts_at_a_timestamp() {
    let Some(broker) = Broker::with_topic("timestamps", 1, &[]) else { return };
    let producer = broker.producer();
    let base: i64 = 1_700_000_000_000;
    for n in 0..10 {
        producer.send(Record::to(&broker.topic).timestamp_ms(base + n * 1_000)).unwrap();
    }
    producer.flush(LONG).unwrap();
    let queue = broker.queue(0);
    let mut member = Member::new(broker.source());
    member.starts = false;
    member.until("it is assigned", |m| m.owned.len() == 1);
    member.source.seek(queue, SeekTo::TimestampMs(base + 6_500));
    member.until("it is read", |m| m.count() == 3);
    assert_eq!(member.offsets(queue), [7, 8, 9]);
    member.positions.clear();
    member.source.seek(queue, SeekTo::TimestampMs(base + 3_600_000));
    member.until("the end is told", |m| m.positions.contains_key(&queue));
    assert_eq!((member.count(), member.positions[&queue]), (3, position(10)));
    member.close().unwrap();
}

#[test]
fn offsets_that_an_operator_has_reset_are_where_the_next_start_begins() {
    let Some(broker) = Broker::with_topic("reset", 1, &[]) else { return };
    broker.fill(0, 0..10);
    let queue = broker.queue(0);
    let mut member = Member::joined(broker.source(), 1);
    member.until("it is read", |m| m.count() == 10);
    member.commit(commit(queue, 10, "")).unwrap();
    member.close().unwrap();
    // As the admin tool does it: the group is empty, an outsider stores an offset.
    let operator: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &broker.servers)
        .set("group.id", &broker.topic)
        .create()
        .unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&broker.topic, 0, Offset::Offset(4)).unwrap();
    operator.commit(&offsets, CommitMode::Sync).unwrap();
    let mut next = Member::joined(broker.source(), 1);
    next.until("it is read again", |m| m.count() == 6);
    assert_eq!(next.offsets(queue), [4, 5, 6, 7, 8, 9]);
    next.close().unwrap();
}

#[test]
fn messages_deleted_by_retention_are_a_reset() {
    for settings in [RANGE, COOPERATIVE] {
        let Some(broker) = Broker::with_topic("retention", 2, &[]) else { return };
        broker.fill(0, 0..10);
        broker.delete_before(0, 6);
        let queue = broker.queue(0);
        let mut member = Member::new(broker.source().set(settings.0, settings.1));
        member.starts = false;
        member.until("it is assigned", |m| m.owned.len() == 2);
        member.source.seek(queue, SeekTo::Position(position(2)));
        member.until("the reset is told", |m| !m.resets.is_empty());
        let ResetCause::OutOfRange { asked, begin, end } = &member.resets[0].1 else {
            panic!("{:?}", member.resets);
        };
        assert_eq!((*asked, *begin, *end), (position(2), position(6), position(10)));
        member.source.seek(queue, SeekTo::Earliest);
        member.until("the rest is read", |m| m.count() == 4);
        assert_eq!(member.offsets(queue), [6, 7, 8, 9]);
        member.close().unwrap();
    }
}

#[test]
fn partitions_that_are_added_are_assigned_and_disturb_nothing() {
    let Some(broker) = Broker::with_topic("added", 1, &[]) else { return };
    broker.fill(0, 0..10);
    let builder = broker
        .source()
        .set(COOPERATIVE.0, COOPERATIVE.1)
        .set("topic.metadata.refresh.interval.ms", "300");
    let mut member = Member::joined(builder, 1);
    member.until("it is read", |m| m.count() == 10);
    let more = NewPartitions::new(&broker.topic, 3);
    block_on(broker.admin.create_partitions(&[more], &AdminOptions::new())).unwrap();
    member.until("they are assigned", |m| m.owned.len() == 3);
    assert!(matches!(member.owned[&broker.queue(2)], Committed::None));
    for index in 0..3 {
        broker.fill(index, 0..5);
    }
    member.until("all is read", |m| m.count() == 25);
    assert_eq!(member.offsets(broker.queue(0)), (0..15).collect::<Vec<_>>());
    assert!(member.revoking.is_empty() && member.lost.is_empty());
    member.close().unwrap();
}

#[test]
fn a_pattern_takes_every_topic_that_matches_also_one_that_is_made_later() {
    for settings in [RANGE, COOPERATIVE, ("group.protocol", "consumer")] {
        let Some(broker) = Broker::with_topic("pattern", 2, &[]) else { return };
        // The topic itself, and whatever has one more part.
        let pattern = format!("^{}(-more)?$", broker.topic);
        let mut member = Member::joined(
            KafkaSource::builder(&broker.servers, &broker.topic)
                .subscribe_pattern(pattern)
                .set(settings.0, settings.1)
                .set("topic.metadata.refresh.interval.ms", "300"),
            2,
        );
        for (name, partitions) in [("more", 1), ("moreover", 1)] {
            broker.create(&format!("{}-{name}", broker.topic), partitions, &[]);
        }
        let later = QueueId::new(&format!("{}-more", broker.topic), 0);
        member.until("the later topic is assigned", |m| m.owned.contains_key(&later));
        member.until("and those before", |m| m.owned.len() == 3);
        let producer = broker.producer();
        for name in ["", "-more", "-moreover"] {
            let topic = format!("{}{name}", broker.topic);
            producer.send(Record::to(&topic).partition(0).payload(b"x")).unwrap();
        }
        producer.flush(LONG).unwrap();
        member.until("both are read", |m| m.count() == 2);
        assert_eq!(member.offsets(later), [0]);
        assert_eq!(member.offsets(broker.queue(0)), [0]);
        member.close().unwrap();
    }
}

#[test]
fn what_finished_is_committed_in_the_revoke_of_every_protocol() {
    let new = ("group.protocol", "consumer");
    for settings in [RANGE, COOPERATIVE, new] {
        let Some(broker) = Broker::with_topic("revoke", 2, &[]) else { return };
        for index in 0..2 {
            broker.fill(index, 0..10);
        }
        let source = || {
            if settings == new {
                // Its limits are the broker's.
                return KafkaSource::builder(&broker.servers, &broker.topic)
                    .subscribe([&broker.topic])
                    .set(new.0, new.1);
            }
            broker.source().set(settings.0, settings.1)
        };
        let mut a = Member::joined(source(), 2);
        a.until("all is read", |m| m.count() == 20);
        a.releases = false;
        let mut b = Member::new(source());
        both_until(&mut a, &mut b, "the revoke begins", |a, _| !a.revoking.is_empty());
        for queue in a.revoking.clone() {
            a.commit(commit(queue, 10, "")).unwrap();
            a.release(queue);
        }
        a.releases = true;
        both_until(&mut a, &mut b, "split", |a, b| a.owned.len() == 1 && b.owned.len() == 1);
        for committed in b.owned.values() {
            let Committed::At { watermark, .. } = committed else { panic!("{committed:?}") };
            assert_eq!(watermark.get(), 10);
        }
        assert!(a.lost.is_empty());
        for index in 0..2 {
            broker.fill(index, 10..12);
        }
        both_until(&mut a, &mut b, "both go on", |a, b| a.count() + b.count() == 24);
        a.close().unwrap();
        b.close().unwrap();
    }
}

#[test]
fn a_static_member_that_restarts_disturbs_nobody() {
    let Some(broker) = Broker::with_topic("static", 2, &[]) else { return };
    let source = |id: &str| {
        broker
            .source()
            .set(RANGE.0, RANGE.1)
            .set("group.instance.id", id)
            .set("session.timeout.ms", "10000")
    };
    let mut a = Member::joined(source("a"), 2);
    let mut b = Member::new(source("b"));
    both_until(&mut a, &mut b, "split", |a, b| a.owned.len() == 1 && b.owned.len() == 1);
    let theirs: Vec<_> = b.owned.keys().copied().collect();
    b.close().unwrap();
    let revoked = a.revoking.len();
    let mut b = Member::new(source("b"));
    both_until(&mut a, &mut b, "it is back", |_, b| b.owned.len() == 1);
    assert_eq!(b.owned.keys().copied().collect::<Vec<_>>(), theirs);
    assert_eq!(a.revoking.len(), revoked, "the other was disturbed");
    a.close().unwrap();
    b.close().unwrap();
}
