//! Messages in a topic of a Kafka broker, made for this run: one partition for each queue.

use std::thread;
use std::time::{Duration, Instant};

use keylane_kafka::{KafkaProducer, KafkaSource, Record};
use keylane_source::{Offset, QueueId, Source, Watermark};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::broker::{address, produced_at, unique_name};
use super::{Producing, Stored, Writer};
use crate::brokers::create_kafka_topic;
use crate::flags::Broker;
use crate::load::workload::Workload;
use crate::outcome::{Ended, Failure};

const VARIABLE: &str = "KEYLANE_KAFKA";
const ANSWER: Duration = Duration::from_secs(30);

/// A topic, and the group of the same name.
pub(in crate::load) struct KafkaStage {
    servers: String,
    name: String,
    partitions: u32,
    /// Looks up offsets; it reads nothing and is in no group.
    lookup: BaseConsumer,
}

struct KafkaWriter {
    producer: KafkaProducer,
    topic: String,
    ends: Vec<u64>,
}

fn failed<E: std::fmt::Display>(doing: &str) -> impl Fn(E) -> Failure {
    move |error| Failure::other(format!("Kafka: {doing}"), error)
}

impl KafkaStage {
    pub(super) fn open(workload: &Workload) -> Ended<Self> {
        let servers = address(Broker::Kafka, VARIABLE)?;
        let name = unique_name();
        let partitions = u32::try_from(workload.queues.len()).unwrap_or(u32::MAX);
        create_kafka_topic(&servers, &name, partitions).map_err(failed("make room"))?;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &servers).set("group.id", &name);
        let lookup = config.create().map_err(failed("connect"))?;
        Ok(Self { servers, name, partitions, lookup })
    }

    pub(super) fn writer(&self) -> Ended<Box<dyn Writer>> {
        let producer = KafkaProducer::builder(&self.servers).build();
        let producer = producer.map_err(failed("create a producer"))?;
        let ends = vec![0; self.partitions as usize];
        Ok(Box::new(KafkaWriter { producer, topic: self.name.clone(), ends }))
    }

    pub(super) fn source(&self) -> Ended<Box<dyn Source>> {
        let builder = KafkaSource::builder(&self.servers, &self.name).subscribe([&self.name]);
        Ok(Box::new(builder.build().map_err(failed("join the group"))?))
    }

    pub(super) fn stored(&self) -> Ended<Vec<Stored>> {
        let mut asked = TopicPartitionList::new();
        let index = |partition: u32| i32::try_from(partition).unwrap_or(i32::MAX);
        for partition in 0..self.partitions {
            asked.add_partition(&self.name, index(partition));
        }
        let committed = self.lookup.committed_offsets(asked, ANSWER);
        let committed = committed.map_err(failed("look up the group's offsets"))?;
        let stored = |partition: u32| {
            let ends = self.lookup.fetch_watermarks(&self.name, index(partition), ANSWER);
            let (_, end) = ends.map_err(failed("look up an end"))?;
            let found = committed.find_partition(&self.name, index(partition));
            let committed = found.and_then(|found| match found.offset() {
                KafkaOffset::Offset(offset) => Watermark::from_i64(offset),
                _ => None,
            });
            let queue = QueueId::new(&self.name, partition);
            Ok(Stored { queue, committed, end: u64::try_from(end).unwrap_or(0) })
        };
        (0..self.partitions).map(stored).collect()
    }
}

impl Writer for KafkaWriter {
    /// The producer batches by itself. The topic is this run's own and its only producer stores
    /// nothing twice, so a message's offset is known before it is sent.
    fn write(mut self: Box<Self>, producing: &Producing<'_>, _there: Vec<u64>) -> Ended {
        let mut written = 0;
        producing.workload.each(|item| {
            if let Some(pace) = producing.pace {
                let wait = pace.due(written).saturating_duration_since(Instant::now());
                if !wait.is_zero() {
                    thread::sleep(wait);
                }
            }
            let queue = QueueId::new(&self.topic, item.queue);
            let end = &mut self.ends[item.queue as usize];
            let offset = Offset::new(*end).unwrap_or(Offset::MAX);
            *end += 1;
            producing.recorder.produced(queue, offset);
            if producing.pace.is_some() || offset == Offset::ZERO {
                producing.produced.note(queue, offset, produced_at(producing.pace, written));
            }
            let record = Record::to(&self.topic).partition(item.queue).payload(&item.payload);
            let record = match &item.key {
                Some(key) => record.key(key),
                None => record,
            };
            self.producer.send(record).map_err(failed("send"))?;
            written += 1;
            if written.is_multiple_of(1_024) {
                (producing.written)(written);
            }
            Ok(())
        })?;
        self.producer.flush(ANSWER).map_err(failed("send"))?;
        (producing.written)(written);
        Ok(())
    }
}
