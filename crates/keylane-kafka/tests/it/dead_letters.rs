//! Dead letters to a topic, and the producer's choice of partition.

use std::sync::Arc;
use std::time::Duration;

use keylane_kafka::{KafkaDeadLetters, KafkaProducer, KafkaSource, Record};
use keylane_source::{
    Ack, DeadLetter, DeadLetterReason, DeadLetterSink, Headers, Message, Offset, QueueId,
};
use parking_lot::{Condvar, Mutex};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::cluster::Cluster;
use crate::member::Member;

/// Where an Ack's result can be waited for.
#[derive(Default)]
struct Answer {
    result: Mutex<Option<Result<(), String>>>,
    told: Condvar,
}

impl Answer {
    fn ack(self: &Arc<Self>) -> Ack {
        let answer = Arc::clone(self);
        Ack::new(move |result| {
            *answer.result.lock() = Some(result.map_err(|error| error.to_string()));
            answer.told.notify_all();
        })
    }

    fn wait(&self) -> Result<(), String> {
        let mut result = self.result.lock();
        while result.is_none() {
            let waited = self.told.wait_for(&mut result, Duration::from_secs(30));
            assert!(!waited.timed_out(), "the letter was never answered");
        }
        result.clone().unwrap()
    }
}

fn letter() -> DeadLetter {
    let headers: Headers = [("trace", Some("4f"))].into_iter().collect();
    let message = Message::new(QueueId::new("orders", 3), Offset::new(41).unwrap())
        .with_key("account-9")
        .with_payload("withdraw 5")
        .with_headers(headers)
        .with_timestamp_ms(1_700_000_000_000);
    DeadLetter::new(message, 4, DeadLetterReason::AttemptsExhausted("no such account".into()))
}

#[test]
fn a_dead_letter_is_the_message_and_where_it_came_from() {
    let cluster = Cluster::new(1);
    let mut sink = KafkaDeadLetters::new(cluster.producer(), "t");
    let answer = Arc::new(Answer::default());
    sink.send(letter(), answer.ack());
    answer.wait().unwrap();
    sink.close();

    let mut member = Member::joined(cluster.source(), 1);
    member.until("the letter is there", |m| m.count() == 1);
    let message = &member.messages.values().next().unwrap()[0];
    assert_eq!(message.key(), Some(&b"account-9"[..]));
    assert_eq!(message.payload(), Some(&b"withdraw 5"[..]));
    assert_eq!(message.timestamp_ms(), Some(1_700_000_000_000));
    let headers: Vec<_> = message
        .headers()
        .iter()
        .map(|(name, value)| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            format!("{}={}", text(name), text(value.unwrap()))
        })
        .collect();
    assert_eq!(
        headers,
        [
            "trace=4f",
            "keylane-origin-topic=orders",
            "keylane-origin-partition=3",
            "keylane-origin-offset=41",
            "keylane-attempts=4",
            "keylane-reason=attempts exhausted, last error: no such account",
        ]
    );
    member.close().unwrap();
}

#[test]
fn a_letter_that_is_not_stored_is_answered_so() {
    let cluster = Cluster::new(1);
    let producer = KafkaProducer::builder(cluster.servers())
        .set("enable.idempotence", "false")
        .build()
        .unwrap();
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.fail(RDKafkaApiKey::Produce, &[refused]);
    let mut sink = KafkaDeadLetters::new(producer, "t");
    let answer = Arc::new(Answer::default());
    sink.send(letter(), answer.ack());
    let error = answer.wait().unwrap_err();
    assert!(error.starts_with("store a message in t/0: "), "{error}");
    let again = Arc::new(Answer::default());
    sink.send(letter(), again.ack());
    again.wait().unwrap();
}

#[test]
fn letters_under_way_are_answered_when_the_sink_goes() {
    let cluster = Cluster::new(1);
    cluster.mock().broker_down(1).unwrap();
    let mut sink =
        KafkaDeadLetters::new(cluster.producer(), "t").close_timeout(Duration::from_millis(100));
    let answer = Arc::new(Answer::default());
    sink.send(letter(), answer.ack());
    sink.close();
    drop(sink);
    assert!(answer.wait().is_err());
}

/// Java's murmur2 (seed 0x9747b28c), written down once more: what the broker's other clients use.
fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let length = u32::try_from(key.len()).unwrap();
    let mut hash = 0x9747_b28c ^ length;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M);
    }
    for (index, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * index);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[test]
fn a_key_goes_to_the_partition_that_java_picks() {
    // Values of Kafka's own test of Utils.murmur2.
    assert_eq!(murmur2(b"21").cast_signed(), -973_932_308);
    assert_eq!(murmur2(b"foobar").cast_signed(), -790_332_482);
    assert_eq!(murmur2(b"a-little-bit-long-string").cast_signed(), -985_981_536);

    let cluster = Cluster::new(7);
    let producer = cluster.producer();
    let keys: Vec<_> = (0..200).map(|n| format!("key-{n}")).chain([String::new()]).collect();
    for key in &keys {
        producer.send(Record::to("t").key(key.as_bytes())).unwrap();
    }
    producer.flush(Duration::from_secs(10)).unwrap();
    let mut member = Member::joined(cluster.source(), 7);
    member.until("all are there", |m| m.count() == keys.len());
    let mut seen = 0;
    for message in member.messages.values().flatten() {
        let expected = (murmur2(message.key().unwrap()) & 0x7fff_ffff) % 7;
        assert_eq!(message.queue().index(), expected, "{:?}", message.key());
        seen += 1;
    }
    assert_eq!(seen, keys.len());
    member.close().unwrap();
}

#[test]
fn a_producer_that_cannot_work_is_rejected() {
    let text =
        |builder: keylane_kafka::KafkaProducerBuilder| builder.build().unwrap_err().to_string();
    let builder = || KafkaProducer::builder("127.0.0.1:1");
    assert_eq!(
        text(builder().set("transactional.id", "x")),
        "transactional.id cannot be set: this producer has no transactions"
    );
    assert!(text(builder().set("no.such.thing", "1")).contains("no.such.thing"));
    assert!(text(KafkaProducer::builder("")).contains("list of servers is empty"));
    assert!(KafkaSource::builder("", "g").subscribe(["t"]).build().is_err());
}
