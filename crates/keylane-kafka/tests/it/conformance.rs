//! The rules of every source, on the mock cluster, or on the broker that `KEYLANE_KAFKA` names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use keylane_kafka::{KafkaProducer, KafkaSource, KafkaSourceBuilder, Record};
use keylane_source::{Headers, Offset, Position, QueueId, Source, SourceEvent, Watermark};
use keylane_testkit::conformance::{self, Capabilities, Capability, Fixture};
use keylane_testkit::source_conformance;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, TopicPartitionList};

use crate::cluster::Cluster;
use crate::fetch::COOPERATIVE;
use crate::member::ALL;
use crate::real_broker::Broker;

const REFUSED: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;

enum Backend {
    Mock(Cluster),
    Real(Broker),
}

struct Kafka {
    backend: Backend,
    partitions: u32,
    producer: KafkaProducer,
    outsider: BaseConsumer,
    /// A second member of the group, with the thread that polls it.
    other: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Kafka {
    fn topic(&self) -> &str {
        match &self.backend {
            Backend::Mock(_) => "t",
            Backend::Real(broker) => &broker.topic,
        }
    }

    fn mock(&self) -> &Cluster {
        match &self.backend {
            Backend::Mock(cluster) => cluster,
            Backend::Real(_) => panic!("no fault can be injected into a real broker"),
        }
    }

    fn builder(&self) -> KafkaSourceBuilder {
        let builder = match &self.backend {
            Backend::Mock(cluster) => cluster.source(),
            Backend::Real(broker) => broker.source(),
        };
        builder.set(COOPERATIVE.0, COOPERATIVE.1)
    }

    fn end(&self, queue: QueueId) -> i64 {
        let index = i32::try_from(queue.index()).unwrap();
        self.outsider.fetch_watermarks(self.topic(), index, Self::patience()).unwrap().1
    }
}

impl Fixture for Kafka {
    type Source = KafkaSource;

    fn new(queues: u32) -> Self {
        let count = i32::try_from(queues).unwrap();
        let (backend, servers, group) = if std::env::var_os("KEYLANE_KAFKA").is_some() {
            let broker = Broker::with_topic("conformance", count, &[]).unwrap();
            let (servers, group) = (broker.servers.clone(), broker.topic.clone());
            (Backend::Real(broker), servers, group)
        } else {
            let cluster = Cluster::new(count);
            let servers = cluster.servers();
            (Backend::Mock(cluster), servers, "g".to_owned())
        };
        let producer = KafkaProducer::builder(&servers).set("linger.ms", "0").build().unwrap();
        let outsider = ClientConfig::new()
            .set("bootstrap.servers", &servers)
            .set("group.id", group)
            .create()
            .unwrap();
        Self { backend, partitions: queues, producer, outsider, other: None }
    }

    fn capabilities() -> Capabilities {
        let all = Capabilities::all()
            .without(Capability::Locks, "Kafka's groups own their partitions")
            .without(Capability::MoveOffset, "offsets of a group are moved while it is empty");
        let injected = "faults are injected into the mock cluster only";
        if std::env::var_os("KEYLANE_KAFKA").is_some() {
            return [
                Capability::FailCommits,
                Capability::FailLookUps,
                Capability::Silence,
                Capability::Lose,
            ]
            .into_iter()
            .fold(all, |all, one| all.without(one, injected));
        }
        let real = "the mock cluster cannot; run with KEYLANE_KAFKA";
        [Capability::SeekByTime, Capability::Holes, Capability::Trim]
            .into_iter()
            .fold(all, |all, one| all.without(one, real))
            .without(Capability::Revoke, "the mock refuses commits while its group rebalances")
    }

    fn queues(&self) -> Vec<QueueId> {
        (0..self.partitions).map(|index| QueueId::new(self.topic(), index)).collect()
    }

    fn produce(&mut self, queue: QueueId, record: conformance::Record) -> Offset {
        let headers: Headers = record.headers.into_iter().collect();
        let mut sent = Record::to(self.topic()).partition(queue.index()).headers(&headers);
        if let Some(key) = &record.key {
            sent = sent.key(key);
        }
        if let Some(payload) = &record.payload {
            sent = sent.payload(payload);
        }
        if let Some(timestamp_ms) = record.timestamp_ms {
            sent = sent.timestamp_ms(timestamp_ms);
        }
        self.producer.send(sent).unwrap();
        self.producer.flush(Self::patience()).unwrap();
        Offset::from_i64(self.end(queue) - 1).unwrap()
    }

    fn source(&mut self) -> KafkaSource {
        self.builder().build().unwrap()
    }

    fn stored(&mut self, queue: QueueId) -> Option<Watermark> {
        let mut asked = TopicPartitionList::new();
        asked.add_partition(self.topic(), i32::try_from(queue.index()).unwrap());
        let found = self.outsider.committed_offsets(asked, Self::patience()).unwrap();
        Watermark::from_i64(found.elements()[0].offset().to_raw().unwrap())
    }

    fn patience() -> Duration {
        Duration::from_secs(30)
    }

    fn listening() -> (u32, Duration) {
        (20, Duration::from_millis(25))
    }

    fn leave_hole(&mut self, queue: QueueId) -> Position {
        let Backend::Real(broker) = &self.backend else { panic!("no holes here") };
        broker.abort_one(queue.index());
        Position::from_i64(self.end(queue)).unwrap()
    }

    fn trim(&mut self, queue: QueueId, begin: Position) {
        let Backend::Real(broker) = &self.backend else { panic!("nothing is trimmed here") };
        broker.delete_before(queue.index(), begin.to_i64());
    }

    fn fail_next_look_up(&mut self, _: QueueId) {
        self.mock().fail(RDKafkaApiKey::OffsetFetch, &[REFUSED]);
    }

    fn fail_next_commit(&mut self, _: QueueId) {
        self.mock().fail(RDKafkaApiKey::OffsetCommit, &[REFUSED]);
    }

    fn fall_silent(&mut self) {
        self.mock().mock().broker_round_trip_time(-1, Duration::from_secs(3_600)).unwrap();
    }

    /// A second member joins, and gives back what it is asked for.
    fn revoke_one(&mut self) {
        let mut source = self.builder().build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let member = std::thread::spawn(move || {
            let mut events = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                _ = source.poll(ALL, Duration::from_millis(20), &mut events);
                for event in events.drain(..) {
                    if let SourceEvent::Revoking { queue } = event {
                        source.release(queue);
                    }
                }
            }
        });
        self.other = Some((stop, member));
    }

    /// The coordinator does not know the member any more, as after a session that ran out.
    fn lose_one(&mut self) {
        let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
        self.mock().fail(RDKafkaApiKey::Heartbeat, &[unknown]);
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        if let Some((stop, member)) = self.other.take() {
            stop.store(true, Ordering::Release);
            _ = member.join();
        }
    }
}

source_conformance!(Kafka);
