//! Consumes messages in order per key, with parallelism that grows with threads and not with
//! queues.
//!
//! A queue is what a broker calls a MessageQueue (RocketMQ) or a partition (Kafka). A client that
//! keeps order by locking a queue handles one message a queue at a time. Here every key belongs to
//! one of N *shards*, each with a thread of its own: a key's messages are handled one after the
//! other, different keys at the same time, and an offset is committed once everything below it is
//! finished.
//!
//! ```text
//! source ─► puller ─► router ─► N channels ─► N shards ─► listener
//!              ▲         │ registers offsets        │ done / failed
//!              │ budget  ▼                          ▼
//!              └────── tracker ◄────────────────────┘ ─► committer ─► source
//! ```
//!
//! # Example
//!
//! ```
//! use std::error::Error;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! use keylane::{Consumer, Outcome, listen};
//! use keylane_log::{Log, Record};
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let folder = tempfile::tempdir()?;
//!     let log = Log::open(folder.path())?;
//!     log.create_topic("changes", 4)?;
//!     let producer = log.producer("changes")?;
//!     for n in 0..20 {
//!         let (account, change) = (format!("account-{}", n % 5), format!("change {}", n / 5));
//!         producer.send(&Record::new().with_key(&account).with_payload(&change))?;
//!     }
//!
//!     let left = AtomicU64::new(20);
//!     let consumer = Consumer::builder(log.source("changes", "billing")?).shards(8).start(
//!         listen::each(move |message, context| {
//!             let account = str::from_utf8(message.key().unwrap_or_default())?;
//!             let change = str::from_utf8(message.payload().unwrap_or_default())?;
//!             println!("shard {}: {account}, {change}", context.shard());
//!             if left.fetch_sub(1, Ordering::Relaxed) == 1 {
//!                 context.request_stop(); // A service would go on until it is told to stop.
//!             }
//!             Ok(Outcome::Done)
//!         }),
//!     )?;
//!     let report = consumer.wait()?;
//!     println!("{report}");
//!     assert!(report.all_committed() && report.unfinished == 0);
//!     Ok(())
//! }
//! ```
//!
//! [`Consumer::builder`] takes any [`Source`](source::Source): the embedded log (`keylane-log`),
//! Kafka (`keylane-kafka`), RocketMQ (`keylane-rocketmq`), or one of your own. [`ConsumerBuilder`]
//! has the options, [`listen`] turns closures and instances into listeners, [`Outcome`] and
//! [`BatchOutcome`] are what they answer, [`Consumer`] is the handle.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | [message](Message) | key, payload, queue, offset, timestamp, headers; cheap to clone, since its bytes are shared |
//! | [queue](QueueId) | an ordered log with [offsets](Offset): the unit of assignment, pulling and committing |
//! | routing key | what decides the shard: the message's key, `"__nokey"`, or what [`route_by`](ConsumerBuilder::route_by) returns |
//! | shard | the messages that wait for one thread, and the thread that calls the listener for them |
//! | lane | the messages of one (queue, routing key) inside a shard: what a retry holds back |
//! | [position](Position) | the next offset to read; it passes holes that hold no message |
//! | [watermark](Watermark) | the position below which everything is finished: what is committed |
//! | epoch | one tenure of a queue, from its assignment to the end of its revocation; what is finished for an older one is counted and ignored |
//! | budget | how many messages and bytes may be in flight: the only backpressure |
//! | span | how many registered messages lie between a queue's watermark and its newest one |
//! | commit | a watermark stored at the broker for the group |
//! | [dead letter](DeadLetter) | a message that was given up, on its way to a [sink](DeadLetterSink) |
//!
//! # What is guaranteed
//!
//! At least once, in order per key: in one queue a key's message is handed to the listener only
//! after every earlier one of that key is finished or given up (or before it in the same batch); in
//! one process two calls for one key never overlap; a commit never passes an unfinished message. A
//! key that waits to retry holds back itself alone, until its queue's budget or span is full.
//! [`Mode`] says what else there is: order per queue, or none. The whole list, with what weakens
//! each, is the repository's `docs/guarantees.md`.
//!
//! A listener's panic is a failed attempt. With `panic = "abort"` in the profile it ends the
//! process, and that promise is void.
#![forbid(unsafe_code)]

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod bug;
mod builder;
mod config;
mod consumer;
mod error;
mod listener;
mod metrics;
#[cfg(loom)]
#[doc(hidden)]
pub mod models;
mod observer;
mod outcome;
mod pipeline;
mod report;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
mod sync;
mod ticket;
mod time;

pub use builder::ConsumerBuilder;
pub use config::{Exhausted, FailurePolicy, Mode, NoKey, OutOfRange, StartFrom};
pub use consumer::{Consumer, Stopper};
pub use error::Error;
pub use listener::{
    Batch, BatchListener, Context, IntoListener, Listener, OrderlyContext, OrderlyListener,
    OrderlyStatus, listen,
};
pub use metrics::{Latency, Metrics, QueueMetrics, ShardMetrics};
pub use observer::{Event, HeldBy, Observer};
pub use outcome::{BatchHandled, BatchOutcome, BoxError, Deferred, Handled, Outcome};
pub use report::{Abandoned, Health, Holding, HoldingState, QueueReport, ShownKey, StopReport};
pub use ticket::Ticket;

pub use keylane_source as source;
pub use keylane_source::{
    Ack, DeadLetter, DeadLetterReason, DeadLetterSink, Headers, Message, Offset, Position, QueueId,
    Watermark,
};
