//! What tests of and with [keylane] are made of: for the engine's own tests, for adaptors' and for
//! yours. It depends on the boundary, [`keylane_source`], and not on the engine.
//!
//! | module | what | when |
//! | --- | --- | --- |
//! | [`script`] | a source that does what the test says, faults included | to test a consumer |
//! | [`recorder`] | notes of what happened, and a verdict | to know that all promises held |
//! | [`guarantee`] | the promises themselves, as objects that watch | to feed them in another way |
//! | [`tap`] | something between a source and the engine | to watch or change some of the calls |
//! | [`journal`] | one file for what several processes see | to judge a whole group |
//! | [`members`] | members of a group that are processes | to kill some of them |
//! | [`workload`] | keys, sizes, work and faults, the same for the same seed | to make load |
//! | [`memory`] | a fast source over messages in memory | to measure |
//! | [`conformance`] | what a source must do, as tests | to write an adaptor |
//!
//! # A test with it
//!
//! A consumer is given a scripted source and a listener that takes notes. The broker refuses a
//! commit, the process dies, another one goes on: is every message processed, in order?
//!
//! ```
//! use std::time::Duration;
//! use keylane_source::*;
//! use keylane_testkit::guarantee::{Outcome, Scope};
//! use keylane_testkit::recorder::{Recorded, Recorder};
//! use keylane_testkit::script::Script;
//!
//! # /// Consumes what is there, on this thread, and commits it.
//! # fn consume(mut source: impl Source, listener: impl Fn(&Message)) {
//! #     let limits = FetchLimits { messages: 100, bytes: 1 << 20 };
//! #     let mut events = Vec::new();
//! #     loop {
//! #         source.poll(limits, Duration::ZERO, &mut events).unwrap();
//! #         if events.is_empty() {
//! #             return;
//! #         }
//! #         for event in events.drain(..) {
//! #             match event {
//! #                 SourceEvent::Assigned { queue, committed } => source.seek(queue, match
//! committed {
//! #                     Committed::At { watermark, .. } => SeekTo::Position(watermark.into()),
//! #                     _ => SeekTo::Earliest,
//! #                 }),
//! #                 SourceEvent::Fetched(fetch) => {
//! #                     fetch.messages.iter().for_each(&listener);
//! #                     source.commit(Commit {
//! #                         queue: fetch.queue,
//! #                         watermark: fetch.position.into(),
//! #                         metadata: String::new(),
//! #                         tag: CommitTag(1),
//! #                     });
//! #                 }
//! #                 _ => {}
//! #             }
//! #         }
//! #     }
//! # }
//! let queue = QueueId::new("payments", 0);
//! let script = Script::new();
//! script.assign(queue);
//! for n in 0..10 {
//!     script.produce(queue, format!("account-{}", n % 3), "withdraw 5");
//! }
//! script.fail_commits(1, &SourceError::retryable("the coordinator is moving"));
//!
//! // `consume` stands for what is under test. With the engine:
//! //     Consumer::builder(Recorded::new(script.source(), &recorder)).start(listener)?
//! let recorder = Recorder::new(Scope::key());
//! let listener = |recorder: &Recorder, message: &Message| {
//!     let call = recorder.begin(message, 0, 1);
//!     // ... what the listener does; a panic or a drop of `call` counts as a failure
//!     call.settle(Outcome::Done);
//! };
//! consume(Recorded::new(script.source(), &recorder), |message| listener(&recorder, message));
//! assert_eq!(script.committed(queue), None);
//!
//! let successor = recorder.crash();
//! consume(Recorded::new(script.restart(), &successor), |message| listener(&successor, message));
//! assert_eq!(script.committed(queue), Some(10));
//!
//! let verdict = successor.verdict();
//! verdict.assert_clean(); // order, overlap, losses, commits: all of it
//! assert_eq!((verdict.delivered, verdict.duplicates), (10, 10)); // the crash explains them
//! ```
//!
//! No test needs to sleep: [`script::Script::wait_for`] waits until the consumer has done
//! something.
//!
//! [keylane]: https://docs.rs/keylane
#![forbid(unsafe_code)]

pub mod conformance;
pub mod guarantee;
pub mod journal;
pub mod members;
pub mod memory;
pub mod recorder;
pub mod script;
pub mod tap;
pub mod workload;
