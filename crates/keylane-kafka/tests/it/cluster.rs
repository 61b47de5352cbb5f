//! A mock cluster for one test.

use std::time::Duration;

use keylane_kafka::{KafkaProducer, KafkaSource, KafkaSourceBuilder, Record};
use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

/// A broker of librdkafka's mock, alive as long as the value. Groups do not wait for members.
pub(crate) struct Cluster {
    owner: BaseProducer,
}

impl Cluster {
    /// One broker with one topic `t` of this many partitions.
    pub(crate) fn new(partitions: i32) -> Self {
        let owner: BaseProducer =
            ClientConfig::new().set("test.mock.num.brokers", "1").create().unwrap();
        let cluster = Self { owner };
        // SAFETY: the client lives as long as the pointer is used, and has a mock cluster.
        let raw = unsafe {
            rdkafka_sys::rd_kafka_handle_mock_cluster(cluster.owner.client().native_ptr())
        };
        // SAFETY: the mock cluster of a client that is alive.
        unsafe { rdkafka_sys::rd_kafka_mock_group_initial_rebalance_delay_ms(raw, 0) };
        cluster.mock().create_topic("t", partitions, 1).unwrap();
        cluster
    }

    pub(crate) fn mock(&self) -> MockCluster<'_, DefaultProducerContext> {
        self.owner.client().mock_cluster().unwrap()
    }

    pub(crate) fn servers(&self) -> String {
        self.mock().bootstrap_servers()
    }

    /// The next requests of this kind are answered with these errors.
    pub(crate) fn fail(&self, requests: RDKafkaApiKey, errors: &[RDKafkaRespErr]) {
        self.mock().request_errors(requests, errors);
    }

    /// A source of topic `t` in group `g`, with short sessions so that a takeover takes seconds.
    pub(crate) fn source(&self) -> KafkaSourceBuilder {
        KafkaSource::builder(self.servers(), "g")
            .subscribe(["t"])
            .set("session.timeout.ms", "4000")
            .set("heartbeat.interval.ms", "100")
            .set("fetch.wait.max.ms", "20")
    }

    pub(crate) fn producer(&self) -> KafkaProducer {
        KafkaProducer::builder(self.servers()).build().unwrap()
    }

    /// Writes messages with the payloads `first..end` to a partition of `t`, and waits for them.
    pub(crate) fn fill(&self, partition: u32, payloads: std::ops::Range<u64>) {
        let producer = self.producer();
        for n in payloads {
            let payload = n.to_string();
            let record = Record::to("t").partition(partition).payload(payload.as_bytes());
            producer.send(record).unwrap();
        }
        producer.flush(Duration::from_secs(10)).unwrap();
    }
}
