//! What a [`Source`](keylane_source::Source) must do, as tests: the trait's exact documentation.
//!
//! An adaptor implements [`Fixture`], which makes topics, produces, and starts sources, and gets
//! every rule as a test of its own:
//!
//! ```
//! # mod adaptor {
//! use keylane_source::{Message, Offset, QueueId, Watermark};
//! use keylane_testkit::conformance::{Capabilities, Fixture, Record};
//! use keylane_testkit::script::{Script, ScriptedSource};
//! use keylane_testkit::source_conformance;
//!
//! struct MyBroker {
//!     script: Script, // a real one talks to its broker
//!     queues: Vec<QueueId>,
//! }
//!
//! impl Fixture for MyBroker {
//!     type Source = ScriptedSource;
//!
//!     fn new(queues: u32) -> Self {
//!         let queues: Vec<_> = (0..queues).map(|index| QueueId::new("orders", index)).collect();
//!         let script = Script::new();
//!         queues.iter().for_each(|queue| script.assign(*queue));
//!         Self { script, queues }
//!     }
//!     fn capabilities() -> Capabilities {
//!         Capabilities::none("this broker has none of the optional things")
//!     }
//!     fn queues(&self) -> Vec<QueueId> {
//!         self.queues.clone()
//!     }
//!     fn produce(&mut self, queue: QueueId, record: Record) -> Offset {
//!         self.script.produce_with(queue, |message| record.write_to(message))
//!     }
//!     fn source(&mut self) -> ScriptedSource {
//!         self.script.source()
//!     }
//!     fn stored(&mut self, queue: QueueId) -> Option<Watermark> {
//!         self.script.look(|state| state.committed(queue))
//!     }
//! }
//!
//! # #[cfg(any())]
//! #[cfg(test)]
//! mod conformance {
//!     source_conformance!(super::MyBroker);
//! }
//! # pub fn run() { keylane_testkit::conformance::rules::nothing_before_a_seek::<MyBroker>() }
//! # }
//! # adaptor::run();
//! ```
//!
//! Rules never assert a time. What must come is awaited for [`Fixture::patience`], and fails the
//! test if it does not; what must not come is listened for in [`Fixture::listening`] polls.
//!
//! Things that not every broker has are [`Capability`] values. A rule that needs one is skipped
//! where the fixture says that there is none, and prints the reason that the fixture gives.

mod assignment;
mod commits;
mod contents;
mod driver;
mod fixture;
mod locks;
mod reading;
mod taking;
#[cfg(test)]
mod tests;
mod waking;

pub use fixture::{Capabilities, Capability, Fixture, Record};

/// The rules, one function each. Each makes its own fixture, and panics where the rule is broken.
pub mod rules {
    pub use super::assignment::*;
    pub use super::commits::*;
    pub use super::contents::*;
    pub use super::locks::*;
    pub use super::reading::*;
    pub use super::taking::*;
    pub use super::waking::*;
}

/// Makes a test of every rule, for one [`Fixture`](crate::conformance::Fixture).
///
/// Attributes in front of the fixture are put on each test: `source_conformance!(#[cfg(unix)]
/// MyFixture)`.
#[macro_export]
macro_rules! source_conformance {
    ($(#[$attribute:meta])* $fixture:ty) => {
        $crate::for_each_source_rule!($crate::source_conformance_test, $(#[$attribute])* $fixture);
    };
}

/// One test of [`source_conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! source_conformance_test {
    ($rule:ident, $(#[$attribute:meta])* $fixture:ty) => {
        $(#[$attribute])*
        #[test]
        fn $rule() {
            $crate::conformance::rules::$rule::<$fixture>();
        }
    };
}

/// Calls a macro with each rule's name and whatever else is given.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_source_rule {
    ($with:path, $($rest:tt)*) => {
        $crate::for_each_source_rule!(@each $with, {$($rest)*}
            // Assignment.
            nothing_before_a_seek
            a_group_without_an_offset_is_told_so
            a_committed_offset_is_told_with_its_metadata
            a_look_up_is_answered
            a_failed_look_up_is_neither_none_nor_an_offset
            // Reading.
            everything_comes_in_ascending_order
            a_seek_may_go_anywhere
            a_seek_by_time_finds_the_first_message_that_is_not_older
            a_seek_drops_what_was_fetched_ahead
            a_seek_outside_the_queue_is_a_reset
            a_fetch_keeps_to_its_limits
            a_message_larger_than_the_limit_comes_all_the_same
            a_pause_brings_nothing_and_loses_nothing
            a_pause_is_one_queues_and_may_be_repeated
            a_position_passes_holes_without_a_message
            the_end_is_told_and_never_too_high
            what_is_trimmed_is_out_of_range
            what_is_given_back_does_not_come_again
            // Contents.
            keys_and_payloads_come_as_they_were_sent
            binary_keys_come_as_they_were_sent
            an_empty_key_is_not_a_missing_one
            a_missing_payload_is_not_an_empty_one
            headers_come_in_order
            timestamps_come_as_they_were_sent
            // Commits.
            a_commit_is_stored_and_its_result_names_it
            a_later_commit_wins_and_reading_goes_on
            a_commit_survives_a_crash
            a_commit_of_the_start_is_a_commit
            a_failed_commit_says_so_and_stores_nothing
            close_answers_every_commit_and_leaves_the_group
            close_returns_though_the_broker_is_silent
            // Queues that are taken away, or change.
            a_revoke_waits_for_the_release
            after_a_release_nothing_of_the_queue_comes
            after_a_loss_nothing_of_the_queue_comes_and_nothing_is_stored
            a_moved_offset_is_a_reset
            // Waiting.
            a_wake_is_never_lost
            a_wake_ends_a_long_wait
            a_new_message_ends_a_long_wait
            a_poll_without_a_wait_never_waits
            a_wait_ends_by_itself
            // Locks.
            locks_are_there_exactly_where_the_fixture_says_so
            a_lock_is_acquired_and_prolonged_for_each_queue
            a_lock_that_somebody_else_has_is_refused
            a_released_lock_is_free
            a_lock_taken_away_is_told
        );
    };
    (@each $with:path, $rest:tt $($rule:ident)*) => {
        $($crate::for_each_source_rule!(@one $with, $rule, $rest);)*
    };
    (@one $with:path, $rule:ident, {$($rest:tt)*}) => {
        $with!($rule, $($rest)*);
    };
}
