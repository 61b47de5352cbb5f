//! The boundary between [keylane]'s engine and a broker: what a message is, where a queue stands,
//! and the traits that an adaptor implements. No threads, no clock, no I/O of its own.
//!
//! An adaptor depends on this crate and not on the engine; the engine depends on it and on no
//! adaptor. The words:
//!
//! | word | meaning |
//! | --- | --- |
//! | queue | an ordered log with offsets (RocketMQ's MessageQueue, Kafka's partition): [`QueueId`] |
//! | offset | where a message stands in its queue: [`Offset`] |
//! | position | the next offset to read; it passes holes that hold no message: [`Position`] |
//! | watermark | the position below which everything is finished; what is committed: [`Watermark`] |
//!
//! # A source in one screen
//!
//! A [`Source`] is driven by one thread. It reports what happened as [`SourceEvent`]s, in order,
//! and is told what to do by method calls, none of which waits, except [`Source::poll`] (for at
//! most the time given) and [`Source::close`] (until its deadline).
//!
//! ```
//! use keylane_source::*;
//! use std::time::Duration;
//!
//! /// One queue of numbers, all there from the start; offsets are committed into a variable.
//! struct Numbers { queue: QueueId, assigned: bool, next: Option<Position>, stored: Option<Watermark>,
//!                  paused: bool, results: Vec<SourceEvent> }
//!
//! impl Source for Numbers {
//!     fn poll(&mut self, limits: FetchLimits, _wait: Duration, events: &mut Vec<SourceEvent>)
//!         -> Result<(), SourceError>
//!     {
//!         if !self.assigned {
//!             self.assigned = true;
//!             let committed = self.stored.map_or(Committed::None, Committed::at);
//!             events.push(SourceEvent::Assigned { queue: self.queue, committed });
//!         }
//!         events.append(&mut self.results);
//!         let Some(next) = self.next.filter(|_| !self.paused) else { return Ok(()) };
//!         let end = Position::new(100).unwrap();
//!         let stop = end.get().min(next.get() + limits.messages as u64);
//!         let messages = (next.get()..stop)
//!             .map(|n| Message::new(self.queue, Offset::new(n).unwrap()).with_payload(n.to_string()))
//!             .collect();
//!         let position = Position::new(stop).unwrap();
//!         self.next = Some(position);
//!         events.push(SourceEvent::Fetched(Fetch { queue: self.queue, messages, position,
//!                                                  end: EndOffset::At(end) }));
//!         Ok(())
//!     }
//!     fn seek(&mut self, _: QueueId, to: SeekTo) {
//!         self.next = Some(match to { SeekTo::Position(p) => p, _ => Position::ZERO });
//!     }
//!     fn pause(&mut self, _: QueueId) { self.paused = true }
//!     fn resume(&mut self, _: QueueId) { self.paused = false }
//!     fn commit(&mut self, commit: Commit) {
//!         self.stored = Some(commit.watermark);
//!         self.results.push(SourceEvent::CommitResult { commit, result: Ok(()) });
//!     }
//!     fn look_up_committed(&mut self, _: QueueId) {}
//!     fn release(&mut self, _: QueueId) {}
//!     fn waker(&self) -> SourceWaker { SourceWaker::noop() }
//!     fn close(&mut self, _timeout: Duration, _events: &mut Vec<SourceEvent>)
//!         -> Result<(), SourceError> { Ok(()) }
//! }
//! ```
//!
//! The conformance suite in `keylane-testkit` is the exact form of every rule stated here.
//!
//! [keylane]: https://docs.rs/keylane
#![forbid(unsafe_code)]

mod dead_letter;
mod emptied;
mod error;
mod event;
mod lock;
mod message;
mod position;
mod queue;
mod source;

pub use dead_letter::{Ack, DeadLetter, DeadLetterReason, DeadLetterSink};
pub use emptied::Emptied;
pub use error::SourceError;
pub use event::{Committed, EndOffset, Fetch, ResetCause, SourceEvent};
pub use lock::{LockReply, QueueLocks};
pub use message::{Headers, Message, MessageParts};
pub use position::{Offset, Position, Watermark};
pub use queue::QueueId;
pub use source::{Commit, CommitTag, FetchLimits, SeekTo, Source, SourceWaker};
