//! An Apache RocketMQ consumer group as a [`Source`](keylane_source::Source), for 4.9 and 5.x, over
//! the remoting protocol.
//!
//! | type | is |
//! | --- | --- |
//! | [`RocketMqSource`] | one member of a consumer group, set up by [`Config`] |
//! | [`RocketMqDeadLetters`] | the sink for messages that are given up: the group's `%DLQ%` topic |
//! | [`Client`] | topics, sending, offsets: what is not consuming |
//! | [`KeyFrom`] | which property of a message is its key |
//!
//! ```no_run
//! use keylane_rocketmq::{Config, RocketMqSource};
//! use keylane_source::{FetchLimits, SeekTo, Source, SourceEvent};
//! use std::time::Duration;
//!
//! let config = Config::new(["127.0.0.1:9876"], "billing").subscribe("orders", "*");
//! let mut source = RocketMqSource::new(config)?;
//! let (limits, mut events) = (FetchLimits { messages: 512, bytes: 1 << 20 }, Vec::new());
//! loop {
//!     source.poll(limits, Duration::from_secs(1), &mut events)?;
//!     for event in events.drain(..) {
//!         match event {
//!             SourceEvent::Assigned { queue, .. } => source.seek(queue, SeekTo::Earliest),
//!             SourceEvent::Fetched(fetch) => println!("{} messages", fetch.messages.len()),
//!             SourceEvent::Revoking { queue } => source.release(queue),
//!             other => println!("{other:?}"),
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! (An engine does that, and much more; `keylane` is one.)
//!
//! What is on the wire, as it was seen, stands in `docs/rocketmq-wire.md`; why this crate has a
//! client of its own, in `docs/decisions/0003-rocketmq-client.md`.
//!
//! # Not supported
//!
//! TLS, access control (ACL), filters in SQL, static topics, broadcasting, reading from slaves, and
//! the receipt-based (POP, gRPC) protocol of version 5. What can be asked for is refused by name.
#![forbid(unsafe_code)]

mod allocate;
mod client;
mod config;
mod dead_letter;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod key;
mod outgoing;
mod source;
mod wire;

pub use client::{Client, Route, Sent};
pub use config::Config;
pub use dead_letter::RocketMqDeadLetters;
pub use error::Error;
pub use key::KeyFrom;
pub use outgoing::{Outgoing, SendBack};
pub use source::RocketMqSource;
