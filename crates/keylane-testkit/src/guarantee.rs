//! The promises of an engine, each as an object that watches and objects.
//!
//! A [`Guarantee`] is told what happens, as [`Event`]s, and says what was broken. It has no threads
//! and no clock; a test, a load generator, a simulator and a replayed log of a killed process feed
//! the same one. [`Recorder`](crate::recorder::Recorder) feeds all of them from many threads;
//! [`Checkers`] is the same for one.
//!
//! | file | promise |
//! | --- | --- |
//! | [`order`] | G1: a lane's messages are delivered in order |
//! | [`exclusion`] | G2: two calls of a key never overlap |
//! | [`at_least_once`] | G3: nothing is lost |
//! | [`watermark`] | G3: no commit passes an unfinished message |
//! | [`commits`] | G4: commits ascend inside an epoch, the next one begins at one of them |
//! | [`progress`] | G4: the commit reaches the end |
//! | [`bounded`] | G5: what is in flight has a limit |
//! | [`shutdown`] | G8: nothing begins after the end |
//! | [`duplicates`] | a message comes again only for a reason |
//!
//! G6 and G7 (nothing waits for what it does not need) are about time, G9 and G10 about what is
//! said: events cannot show them.
//!
//! ```
//! use keylane_source::{Offset, QueueId};
//! use keylane_testkit::guarantee::*;
//!
//! let lane = Lane::key("account-9");
//! let delivery = |call, offset| Event::Delivered(Delivered {
//!     member: MemberId(0),
//!     call: CallId(call),
//!     queue: QueueId::new("orders", 0),
//!     epoch: Epoch(1),
//!     offset: Offset::new(offset).unwrap(),
//!     lane: &lane,
//!     shard: 0,
//!     attempt: 1,
//! });
//! let mut order = order::Order::default();
//! order.observe(&delivery(1, 7));
//! order.observe(&delivery(2, 8)); // although 7 is not finished
//! let findings = order.verify(Moment::Running);
//! assert_eq!(findings.count, 1);
//! assert_eq!(findings.violations[0].allowed, "7 first");
//! ```

pub mod at_least_once;
pub mod bounded;
mod checkers;
pub mod commits;
pub mod duplicates;
mod event;
pub mod exclusion;
#[cfg(test)]
mod history;
mod lane;
pub mod order;
pub mod progress;
pub mod shutdown;
mod tenure;
mod verdict;
mod violation;
pub mod watermark;

pub use checkers::Checkers;
pub(crate) use checkers::{KeyCheckers, QueueCheckers};
pub use event::{CallId, CommitStep, Delivered, Epoch, Event, Found, MemberId, Outcome, Settled};
pub use lane::{Lane, NO_KEY, NoKey, Scope};
pub(crate) use verdict::VerdictBuilder;
pub use verdict::{QueueVerdict, Verdict};
pub use violation::{Findings, KEPT_IN_WORDS, Violation};

/// One promise, watched.
pub trait Guarantee {
    /// Its name, as it stands in violations.
    fn name(&self) -> &'static str;

    /// Takes note of what happened. Never waits.
    fn observe(&mut self, event: &Event<'_>);

    /// What was broken so far; and, at the end of a drained run, what is missing.
    fn verify(&self, moment: Moment) -> Findings;
}

/// When a verdict is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// In the middle of a run, or after one that was cut off: what is not finished may yet be.
    Running,
    /// After a run that was to finish everything: what is not finished is lost, and every queue has
    /// to be committed to its end.
    Drained,
}
