//! An embedded, durable, ordered log: [keylane]'s default source, no broker needed.
//!
//! A [`Log`] is a folder. It has topics, each with a fixed number of queues; a producer appends
//! records to queues, by key or by number; groups consume topics and commit how far they came. One
//! process owns a folder at a time; inside it any number of threads share the [`Log`].
//!
//! ```
//! use keylane_log::{Log, Record};
//! use keylane_source::{FetchLimits, SeekTo, Source, SourceEvent};
//! use std::time::Duration;
//!
//! let folder = tempfile::tempdir()?;
//! let log = Log::open(folder.path())?;
//! log.create_topic("orders", 4)?;
//!
//! let producer = log.producer("orders")?;
//! let mut batch = producer.batch();
//! for n in 0..1000 {
//!     batch.push(&Record::new().with_key(&format!("account-{}", n % 10)).with_payload("+5"))?;
//! }
//! producer.append(&mut batch)?; // acknowledged: all of them, or an error and none
//!
//! // What the engine does with a source, in short:
//! let mut source = log.source("orders", "billing")?;
//! let (mut seen, mut events) = (0, Vec::new());
//! while seen < 1000 {
//!     let limits = FetchLimits { messages: 256, bytes: 1 << 20 };
//!     source.poll(limits, Duration::from_secs(1), &mut events)?;
//!     for event in events.drain(..) {
//!         match event {
//!             SourceEvent::Assigned { queue, .. } => source.seek(queue, SeekTo::Earliest),
//!             SourceEvent::Fetched(fetch) => seen += fetch.messages.len(),
//!             _ => {}
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! * **Acknowledged is there.** When an append or a commit is acknowledged, it has been handed to
//!   the operating system: a `kill -9` at any instant loses nothing of it, under every [`Fsync`]
//!   policy. What a power failure may take depends on the policy, and is not tested.
//! * **Nothing is half there.** A batch is in the log whole, in all of its queues, or not at all. A
//!   batch that was under way when the process died may be either.
//! * **Offsets have no holes.** The first record of a queue has offset 0, the next one 1.
//! * **Committed is what was committed**: after a crash a group finds a value that it had handed
//!   over, the last acknowledged one or a later one.
//! * **Damage is an error**, [`Error::is_damaged`], that names file, topic, queue or offset: never
//!   an empty topic, never a short one, never other bytes. Every block of records has CRCs and says
//!   which offsets it holds; how far each queue had come is written down apart from the store.
//!   Missing files and a short store are noticed when the log is opened, changed bytes when they
//!   are read at the latest; [`Log::verify`] reads everything.
//!
//! What is *not* noticed: a folder that is put back whole to an earlier state, as from a backup; a
//! store that has lost its newest writes together with the same writes in the topic's end marks. On
//! systems without boot ids (other than Linux) a lost tail is noticed up to the last `fsync` only.
//! There is no repair: what is damaged is to be read up to the damage, and begun anew.
//!
//! Reading hands out slices of the blocks in memory: nothing is copied per record. A message keeps
//! its block alive (what one append brought, at most about 256 KiB and a record);
//! [`Message::detach`](keylane_source::Message::detach) ends that.
//!
//! # Limits
//!
//! A record has at most 64 MiB, a batch 256 MiB, a topic 65,536 queues. A group has one live
//! consumer a topic.
//!
//! [keylane]: https://docs.rs/keylane
#![forbid(unsafe_code)]

// Opening, and the handle.
mod log;
mod open;
mod options;
mod shared;

// The way of a record: in, and out.
mod block;
mod inbox;
mod partition;
mod producer;
mod reader;
mod record;
mod source;
mod topic;

// What lies on the disk.
mod manifest;
mod marks;
mod state;
mod store;

// Beside it.
mod background;
mod error;
mod groups;
mod inspect;
mod retention;

#[doc(hidden)]
pub use block::{fuzz_block, fuzz_records};
pub use error::Error;
pub use inspect::{GroupInfo, GroupQueueInfo, PowerLoss, QueueInfo, TopicInfo};
pub use log::Log;
pub use options::{Fsync, Options, Retention};
pub use producer::{Appended, Batch, Producer};
pub use record::Record;
pub use retention::Trimmed;
pub use source::LogSource;
