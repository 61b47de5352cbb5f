//! A Kafka consumer group as a source of [keylane], with a dead-letter sink and a keyed producer
//! beside it, on librdkafka.
//!
//! [`KafkaSource`] is what the engine reads: queues are partitions, the group protocol (classic or
//! KIP-848, eager or cooperative) shares them out among the processes of a group, and watermarks
//! are committed as the group's offsets. [`KafkaDeadLetters`] writes what is given up to a topic.
//! [`KafkaProducer`] writes keyed messages, and picks the same partition for a key as the Java
//! client.
//!
//! ```no_run
//! use keylane_kafka::KafkaSource;
//!
//! let source = KafkaSource::builder("localhost:9092", "billing")
//!     .subscribe(["orders"])
//!     .set("client.rack", "a")      // any property of librdkafka, save the few that are ours
//!     .build()?;
//! # Ok::<(), keylane_kafka::Error>(())
//! ```
//!
//! # How messages travel
//!
//! Partition queues are forwarded into one application queue, which is read in batches; one call
//! per message costs three times as much. Small messages are copied out of librdkafka's fetch
//! buffer into a block of their own, large payloads are shared without a copy
//! (`docs/decisions/0004-kafka-read-path.md` has the figures).
//!
//! # Features
//!
//! * `tls`: `security.protocol` of `ssl` and `sasl_ssl`, and SCRAM. Needs OpenSSL's development
//!   files to build. Without it such a setting is rejected by a sentence that names the feature.
//! * `tls-vendored`: the same with an OpenSSL that is compiled along, which needs Perl and minutes.
//!
//! [keylane]: https://docs.rs/keylane
#![deny(unsafe_code)]

mod config;
mod dead_letter;
mod error;
#[doc(hidden)]
pub mod fuzz;
#[expect(unsafe_code, reason = "the batched read, forwarded queues and commit results need it")]
mod native;
mod producer;
mod properties;
mod signal;
mod source;

pub use config::KafkaSourceBuilder;
pub use dead_letter::KafkaDeadLetters;
pub use error::Error;
pub use producer::{KafkaProducer, KafkaProducerBuilder, Record};
pub use source::KafkaSource;
