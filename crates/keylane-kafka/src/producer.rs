//! A keyed producer: for dead letters, for filling topics, for examples.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{Ack, Headers, SourceError};
use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, Message as _};

use crate::Error;
use crate::config::check_servers;
use crate::properties::{Properties, check_no_nul};

/// Properties of a producer that are not the user's to set, and why.
pub(crate) const OWNED: &[(&str, &str)] = &[
    ("bootstrap.servers", "the servers are the argument of KafkaProducer::builder"),
    ("metadata.broker.list", "the servers are the argument of KafkaProducer::builder"),
    ("transactional.id", "this producer has no transactions"),
    ("log.queue", "librdkafka's log goes to the `log` crate"),
    ("statistics.interval.ms", "nobody reads librdkafka's statistics here"),
];

/// Properties that differ from librdkafka's defaults, unless the user sets them.
const DEFAULTS: &[(&str, &str)] = &[
    ("client.id", "keylane"),
    // A key's messages keep their order, and none is stored twice, when a request is tried again.
    ("enable.idempotence", "true"),
    // What Java's producer does: murmur2 of the key; no key, any partition.
    ("partitioner", "murmur2_random"),
    ("linger.ms", "5"),
];

/// How long a send waits for room in the producer's own queue.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

/// Builds a [`KafkaProducer`].
#[derive(Debug, Clone)]
pub struct KafkaProducerBuilder {
    servers: String,
    properties: Properties,
}

impl KafkaProducerBuilder {
    /// Sets a property of librdkafka. Different from its defaults: `enable.idempotence` `true`,
    /// `partitioner` `murmur2_random` (Java's choice of partition for a key).
    #[must_use]
    pub fn set(mut self, property: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.set(property.into(), value.into());
        self
    }

    /// Checks everything and creates the client.
    ///
    /// # Errors
    ///
    /// Names the property, its value and what is allowed.
    pub fn build(self) -> Result<KafkaProducer, Error> {
        let config = self.client_config()?;
        let failures = Arc::new(Mutex::new(Failures::default()));
        let context = Deliveries { failures: Arc::clone(&failures) };
        let inner = config.create_with_context(context).map_err(|error: KafkaError| {
            let error = Error::new(format!("create the Kafka producer: {error}"));
            self.properties.name_files(error)
        })?;
        Ok(KafkaProducer { inner, failures })
    }

    pub(crate) fn client_config(&self) -> Result<ClientConfig, Error> {
        check_servers(&self.servers)?;
        self.properties.check(OWNED)?;
        let mut config = self.properties.config(DEFAULTS, &[]);
        config.set("bootstrap.servers", &self.servers);
        Ok(config)
    }
}

/// Writes messages to topics; a key's messages go to one partition and keep their order.
///
/// The partition of a key is the one that Java's producer picks. Messages are sent in the
/// background, by a thread of the producer's own; [`flush`](Self::flush) waits for them. What is
/// not flushed when the producer is dropped is thrown away.
pub struct KafkaProducer {
    inner: ThreadedProducer<Deliveries>,
    failures: Arc<Mutex<Failures>>,
}

/// A message to be sent. Borrowed: [`KafkaProducer::send`] copies it.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    topic: &'a str,
    partition: Option<u32>,
    key: Option<&'a [u8]>,
    payload: Option<&'a [u8]>,
    headers: Option<&'a Headers>,
    timestamp_ms: Option<i64>,
}

impl<'a> Record<'a> {
    /// A message without key, payload (a tombstone) and headers.
    pub fn to(topic: &'a str) -> Self {
        let (partition, key, payload, headers, timestamp_ms) = (None, None, None, None, None);
        Self { topic, partition, key, payload, headers, timestamp_ms }
    }

    /// Sets the key, which decides the partition. An empty key is a key.
    #[must_use]
    pub fn key(mut self, key: &'a [u8]) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the payload. An empty payload is a payload.
    #[must_use]
    pub fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = Some(payload);
        self
    }

    /// Sets the headers. A name that is not UTF-8 is sent with replacement characters.
    #[must_use]
    pub fn headers(mut self, headers: &'a Headers) -> Self {
        self.headers = Some(headers);
        self
    }

    /// Sets the timestamp, in milliseconds since 1970 (UTC). Default: when it is sent.
    #[must_use]
    pub fn timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    /// Sets the partition. Default: the key's.
    #[must_use]
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }
}

impl KafkaProducer {
    /// A producer for the Kafka servers `host:port[,host:port...]`.
    pub fn builder(servers: impl Into<String>) -> KafkaProducerBuilder {
        KafkaProducerBuilder { servers: servers.into(), properties: Properties::default() }
    }

    /// Hands the message over. Waits while the producer's queue is full, for at most 30 s. What
    /// becomes of the message is told by [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// The message was not taken: retryable where the queue stayed full.
    pub fn send(&self, record: Record<'_>) -> Result<(), SourceError> {
        self.hand_over(record, Delivery::default()).map_err(|(error, _)| error)
    }

    /// As [`send`](Self::send); `ack` is told once the broker has stored the message, or will not.
    pub(crate) fn send_acked(&self, record: Record<'_>, ack: Ack) {
        let delivery = Delivery { ack: Mutex::new(Some(ack)) };
        if let Err((error, delivery)) = self.hand_over(record, delivery)
            && let Some(ack) = delivery.ack.into_inner()
        {
            ack.failed(error);
        }
    }

    /// Waits until everything that was sent is stored, or for at most `timeout`.
    ///
    /// # Errors
    ///
    /// Retryable: messages are still under way, or some (counted, the first one named) were refused
    /// since the last flush.
    pub fn flush(&self, timeout: Duration) -> Result<(), SourceError> {
        let flushed = self.inner.flush(timeout);
        let failures = std::mem::take(&mut *self.failures.lock());
        if let Some(first) = failures.first {
            let text = format!("{} messages were not stored, the first: {first}", failures.count);
            return Err(SourceError::retryable(text));
        }
        flushed.map_err(|error| {
            let open = self.inner.in_flight_count();
            SourceError::retryable(format!("flush: {open} messages are still under way"))
                .caused_by(error)
        })
    }

    fn hand_over(
        &self,
        record: Record<'_>,
        delivery: Delivery,
    ) -> Result<(), (SourceError, Box<Delivery>)> {
        let mut delivery = Box::new(delivery);
        let topic = record.topic;
        if check_no_nul("the topic", topic).is_err() || topic.is_empty() {
            return Err((SourceError::fatal(format!("send to {topic:?}: not a topic")), delivery));
        }
        let deadline = Instant::now() + ROOM_TIMEOUT;
        loop {
            match self.inner.send(raw_record(record, delivery)) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), refused))
                    if Instant::now() < deadline =>
                {
                    delivery = refused.delivery_opaque;
                    // The producer's thread makes room; polling here helps it along.
                    self.inner.poll(Duration::from_millis(10));
                }
                Err((error, refused)) => {
                    let text = format!("send to {topic}");
                    let error = SourceError::retryable(text).caused_by(error);
                    return Err((error, refused.delivery_opaque));
                }
            }
        }
    }
}

impl fmt::Debug for KafkaProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KafkaProducer")
    }
}

fn raw_record(
    record: Record<'_>,
    delivery: Box<Delivery>,
) -> BaseRecord<'_, [u8], [u8], Box<Delivery>> {
    let mut raw = BaseRecord::with_opaque_to(record.topic, delivery);
    raw.key = record.key;
    raw.payload = record.payload;
    raw.timestamp = record.timestamp_ms;
    raw.partition = record.partition.map(|index| i32::try_from(index).unwrap_or(i32::MAX));
    raw.headers = record.headers.filter(|headers| !headers.is_empty()).map(raw_headers);
    raw
}

fn raw_headers(headers: &Headers) -> OwnedHeaders {
    let all = OwnedHeaders::new_with_capacity(headers.len());
    headers.iter().fold(all, |all, (name, value)| {
        let key = &*String::from_utf8_lossy(name);
        all.insert(Header { key, value })
    })
}

/// Who waits for a message to be stored. The lock is never contended: librdkafka's wrapper wants
/// what travels with a message to be `Sync`, and an [`Ack`] is not.
#[derive(Default)]
struct Delivery {
    ack: Mutex<Option<Ack>>,
}

/// Messages that were not stored, since the last flush.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    first: Option<String>,
}

/// What the producer's thread does with results.
struct Deliveries {
    failures: Arc<Mutex<Failures>>,
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        let level = match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => log::Level::Error,
            RDKafkaLogLevel::Warning => log::Level::Warn,
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => log::Level::Info,
            RDKafkaLogLevel::Debug => log::Level::Debug,
        };
        log::log!(target: "librdkafka", level, "{facility}: {text}");
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Delivery>;

    fn delivery(&self, result: &DeliveryResult<'_>, delivery: Box<Delivery>) {
        let error = result.as_ref().err().map(|(error, message)| {
            let (topic, index) = (message.topic(), message.partition());
            SourceError::retryable(format!("store a message in {topic}/{index}"))
                .caused_by(error.clone())
        });
        match (delivery.ack.into_inner(), error) {
            (Some(ack), None) => ack.done(),
            (Some(ack), Some(error)) => ack.failed(error),
            (None, None) => {}
            (None, Some(error)) => {
                let mut failures = self.failures.lock();
                failures.count += 1;
                failures.first.get_or_insert_with(|| error.to_string());
            }
        }
    }
}
