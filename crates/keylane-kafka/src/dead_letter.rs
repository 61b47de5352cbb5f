//! Dead letters to a topic.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use keylane_source::{Ack, DeadLetter, DeadLetterSink, Headers};

use crate::producer::{KafkaProducer, Record};

/// Names of the headers that a dead letter carries beside its own.
const TOPIC: &str = "keylane-origin-topic";
const PARTITION: &str = "keylane-origin-partition";
const OFFSET: &str = "keylane-origin-offset";
const ATTEMPTS: &str = "keylane-attempts";
const REASON: &str = "keylane-reason";

/// Writes dead letters to a topic: key, payload, timestamp and headers unchanged, and beside them
/// the headers `keylane-origin-topic`, `keylane-origin-partition`, `keylane-origin-offset`,
/// `keylane-attempts` (all as text) and `keylane-reason`. Headers of these names that the message
/// has already (it was a dead letter before) stay in front of them.
///
/// A letter is acknowledged when the broker has stored it; the message settles only then.
pub struct KafkaDeadLetters {
    producer: KafkaProducer,
    topic: String,
    close_timeout: Duration,
}

impl KafkaDeadLetters {
    /// A sink that writes to `topic`.
    pub fn new(producer: KafkaProducer, topic: impl Into<String>) -> Self {
        Self { producer, topic: topic.into(), close_timeout: Duration::from_secs(5) }
    }

    /// How long the end waits for letters under way; the rest is reported as failed. Default 5 s.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }
}

impl DeadLetterSink for KafkaDeadLetters {
    fn send(&mut self, letter: DeadLetter, ack: Ack) {
        let headers = headers_of(&letter);
        let message = &letter.message;
        let mut record = Record::to(&self.topic).headers(&headers);
        if let Some(key) = message.key() {
            record = record.key(key);
        }
        if let Some(payload) = message.payload() {
            record = record.payload(payload);
        }
        if let Some(timestamp_ms) = message.timestamp_ms() {
            record = record.timestamp_ms(timestamp_ms);
        }
        self.producer.send_acked(record, ack);
    }

    fn close(&mut self) {
        if let Err(error) = self.producer.flush(self.close_timeout) {
            // Each letter's own Ack fails when the producer is dropped.
            log::warn!("close the dead-letter topic {}: {error}", self.topic);
        }
    }
}

fn headers_of(letter: &DeadLetter) -> Headers {
    let message = &letter.message;
    let queue = message.queue();
    let own = [
        (TOPIC, queue.topic().to_owned()),
        (PARTITION, queue.index().to_string()),
        (OFFSET, message.offset().to_string()),
        (ATTEMPTS, letter.attempts.to_string()),
        (REASON, letter.reason.to_string()),
    ];
    let own = own
        .into_iter()
        .map(|(name, value)| (Bytes::from_static(name.as_bytes()), Some(Bytes::from(value))));
    let kept = message
        .headers()
        .iter()
        .map(|(name, value)| (Bytes::copy_from_slice(name), value.map(Bytes::copy_from_slice)));
    kept.chain(own).collect()
}

impl fmt::Debug for KafkaDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaDeadLetters").field("topic", &self.topic).finish_non_exhaustive()
    }
}
