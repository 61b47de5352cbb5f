//! Kafka: Confluent's Parallel Consumer in KEY order beside Keylane, both with so many threads, one
//! message a call, and otherwise what each has for defaults.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use keylane_kafka::{KafkaProducer, KafkaSource, Record};
use keylane_source::Source;
use keylane_testkit::workload::{Keys, Prng};

use super::{Arena, Entry, Setting, contest, unique_name};
use crate::brokers::create_kafka_topic;
use crate::flags::{Broker, Mode};
use crate::outcome::{Ended, Failure};

const JAVA: &str = "Confluent Parallel Consumer, KEY";
const OURS: &str = "Keylane, key-sharded";
const PARTITIONS: u32 = 8;
const KEYS: u32 = 1_000;
/// The top key of a thousand has 13 % of the messages.
const SKEW: f64 = 1.0;
const PAYLOAD: [u8; 100] = [b'x'; 100];
const FLUSH: Duration = Duration::from_secs(60);

pub(super) struct Kafka {
    servers: String,
    /// What was written already, by skew and messages.
    topics: HashMap<(bool, u64), String>,
}

fn failed<E: std::fmt::Display>(doing: &str) -> impl Fn(E) -> Failure {
    move |error| Failure::other(format!("Kafka: {doing}"), error)
}

/// The contest at this broker.
pub(super) fn open(servers: &str) -> Kafka {
    Kafka { servers: servers.to_owned(), topics: HashMap::new() }
}

/// A member of the group, as Keylane takes part.
pub(super) fn source(servers: &str, topic: &str, group: &str) -> Ended<Box<dyn Source>> {
    let source = KafkaSource::builder(servers, group).subscribe([topic]).build();
    Ok(Box::new(source.map_err(failed("join the group"))?))
}

impl Arena for Kafka {
    fn settings(&self, quick: bool) -> Vec<Setting> {
        let mut settings = Vec::new();
        for work in [Duration::ZERO, Duration::from_millis(1)] {
            for skew in [0.0, SKEW] {
                for threads in [16, 100] {
                    // Ten to thirty seconds of whoever is slower, and ten minutes for all rounds.
                    let messages = if work.is_zero() { 200_000 } else { 30_000 };
                    let messages = if quick { messages / 10 } else { messages };
                    let (queues, keys) = (PARTITIONS, KEYS);
                    settings.push(Setting { queues, keys, skew, threads, work, messages });
                }
            }
        }
        settings
    }

    fn topic(&mut self, setting: &Setting) -> Ended<String> {
        let written = (setting.skew > 0.0, setting.messages);
        if let Some(topic) = self.topics.get(&written) {
            return Ok(topic.clone());
        }
        let topic = unique_name("t");
        create_kafka_topic(&self.servers, &topic, setting.queues)
            .map_err(failed("create the topic"))?;
        self.write(&topic, setting)?;
        self.topics.insert(written, topic.clone());
        Ok(topic)
    }

    fn contestants(&self, _: &Setting) -> Vec<String> {
        vec![JAVA.to_owned(), OURS.to_owned()]
    }

    fn command(&self, contestant: &str, entry: &Entry<'_>, class_path: &str) -> Command {
        if contestant == OURS {
            return contest::keylane(Broker::Kafka, &self.servers, Mode::KeySharded, entry);
        }
        let Entry { setting, topic, group, within } = entry;
        let mut java = Command::new("java");
        java.args(["-cp", class_path, "peer.ParallelPeer", &self.servers, topic, group]);
        java.args([setting.messages.to_string(), setting.threads.to_string()]);
        java.args([setting.work.as_micros().to_string(), within.as_secs().to_string()]);
        java
    }
}

impl Kafka {
    /// A key's messages are in one partition, the one that Java's producer would choose too.
    fn write(&self, topic: &str, setting: &Setting) -> Ended {
        let producer = KafkaProducer::builder(&self.servers).set("linger.ms", "50").build();
        let producer = producer.map_err(failed("create a producer"))?;
        let keys = contest::keys(setting);
        let mut drawn = Prng::new(1);
        for _ in 0..setting.messages {
            let key = Keys::name(keys.pick(drawn.next_u64()));
            let record = Record::to(topic).key(&key).payload(&PAYLOAD);
            producer.send(record).map_err(failed("send"))?;
        }
        producer.flush(FLUSH).map_err(failed("send"))
    }
}
