//! Sources that are wrong are caught: every rule by at least one that breaks it, and with the words
//! that say what is wrong.

use std::panic;

use crate::conformance::rules;

mod source;

use source::{Broken, Bug, with_bug, with_starts_for_none};

/// Runs the rule on a source with this bug and expects it to fail, with these words.
#[track_caller]
fn caught(rule: fn(), bug: Bug, words: &str) {
    let payload = with_bug(bug, || panic::catch_unwind(rule).expect_err("the bug is not caught"));
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no text");
    assert!(text.contains(words), "{bug:?} was caught, but with other words:\n{text}");
}

#[test]
fn a_start_for_none_is_asked_for_where_the_broker_has_nothing_else() {
    with_starts_for_none(|| {
        with_bug(Bug::ZeroForNone, rules::a_group_without_an_offset_is_told_so::<Broken>);
        let words = "None instead of Some(Watermark(0))";
        caught(rules::a_group_without_an_offset_is_told_so::<Broken>, Bug::None, words);
        caught(rules::a_look_up_is_answered::<Broken>, Bug::None, words);
    });
}

macro_rules! every_rule_catches {
    ($($rule:ident { $($bug:ident: $words:literal,)+ })+) => {$(
        #[test]
        fn $rule() {
            with_bug(Bug::None, rules::$rule::<Broken>);
            $(caught(rules::$rule::<Broken>, Bug::$bug, $words);)+
        }
    )+};
}

every_rule_catches! {
    nothing_before_a_seek {
        ReadsUnasked: "nothing may be fetched before a seek",
        AssignsTwice: "was assigned twice",
    }
    a_group_without_an_offset_is_told_so {
        ZeroForNone: "instead of None",
    }
    a_committed_offset_is_told_with_its_metadata {
        ZeroForNone: "left: Watermark(0)",
        ForgetsMetadata: "held: 4",
        AssignsFailed: "instead of Watermark(2)",
    }
    a_look_up_is_answered {
        LooksUpNone: "None instead of Watermark(1)",
        NoLookUp: "in vain for the look-up's answer",
    }
    a_failed_look_up_is_neither_none_nor_an_offset {
        FailedIsNone: "None after a failed look-up",
    }
    everything_comes_in_ascending_order {
        Descends: "offsets do not ascend",
        LosesOne: "in vain for a fetch",
        PositionTooLow: "is not behind the last message",
    }
    a_seek_may_go_anywhere {
        SeeksOnce: "in vain for a fetch",
    }
    a_seek_by_time_finds_the_first_message_that_is_not_older {
        TimeIsEarliest: "at 1000000001000",
    }
    a_seek_drops_what_was_fetched_ahead {
        KeepsFetchedAhead: "left: Offset(",
    }
    a_seek_outside_the_queue_is_a_reset {
        ClampsSeeks: "in vain for the reset",
    }
    a_fetch_keeps_to_its_limits {
        IgnoresLimits: "a fetch of 20 messages, though the limit is 3",
    }
    a_message_larger_than_the_limit_comes_all_the_same {
        SkipsLarge: "in vain for a fetch",
    }
    a_pause_brings_nothing_and_loses_nothing {
        IgnoresPause: "the queue is paused",
        LosesAtResume: "left: [Offset(0), Offset(1), Offset(3), ",
    }
    a_pause_is_one_queues_and_may_be_repeated {
        CountsPauses: "in vain for a fetch",
        PausesAll: "in vain for a fetch",
        SeekResumes: "a seek does not end the pause",
    }
    a_position_passes_holes_without_a_message {
        StopsAtHoles: "in vain for a fetch",
    }
    the_end_is_told_and_never_too_high {
        EndTooHigh: "the end is told to be 8, though it is 7",
        EndUnknown: "in vain for the end",
    }
    what_is_trimmed_is_out_of_range {
        ClampsSeeks: "in vain for the reset",
    }
    what_is_given_back_does_not_come_again {
        KeepsWhatIsGivenBack: "offsets do not ascend: [Offset(0), Offset(1), Offset(2), Offset(0), ",
    }
    keys_and_payloads_come_as_they_were_sent {
        CutsAtZero: "payload of",
        SharesKey: "key of",
    }
    binary_keys_come_as_they_were_sent {
        KeysAreText: "left: [[0], [239",
    }
    an_empty_key_is_not_a_missing_one {
        EmptyKeyIsNone: "left: [None, None]",
    }
    a_missing_payload_is_not_an_empty_one {
        NoPayloadIsEmpty: "left: [Some([]), Some([])]",
    }
    headers_come_in_order {
        HeadersAreAMap: "left: [([",
    }
    timestamps_come_as_they_were_sent {
        NoTimestamps: "left: None",
    }
    a_commit_is_stored_and_its_result_names_it {
        NoTag: "in vain for the result",
        NoMetadataInResult: "names another commit",
        StoresNothing: "left: None",
    }
    a_later_commit_wins_and_reading_goes_on {
        FirstCommitWins: "left: Some(Watermark(1))",
        CommitSkips: "in vain for a fetch",
    }
    a_commit_survives_a_crash {
        StoresNothing: "left: None",
    }
    a_commit_of_the_start_is_a_commit {
        ZeroIsNoCommit: "left: None",
    }
    a_failed_commit_says_so_and_stores_nothing {
        FailedIsOk: "its result says Ok",
    }
    close_answers_every_commit_and_leaves_the_group {
        CloseForgets: "close brought no result",
    }
    close_returns_though_the_broker_is_silent {
        CloseHangs: "close within 100 ms: not over",
        CloseSaysNothing: "nothing says that the commit is open",
    }
    a_revoke_waits_for_the_release {
        ReleasesAtOnce: "the queue is not ours",
        LosesRevoked: "the queue must not go before it is released",
    }
    after_a_release_nothing_of_the_queue_comes {
        ReadsOnAfterTheEnd: "the queue was released",
    }
    after_a_loss_nothing_of_the_queue_comes_and_nothing_is_stored {
        ReadsOnAfterTheEnd: "the queue is lost",
        FailedIsOk: "a commit after the loss cannot succeed",
    }
    a_moved_offset_is_a_reset {
        HidesResets: "in vain for the reset",
        SeeksAfterReset: "nothing may be read before the next seek",
    }
    a_wake_is_never_lost {
        NoWaker: "polls with a wake before each: not over",
    }
    a_wake_ends_a_long_wait {
        NoWaker: "polls with a wake during each: not over",
    }
    a_new_message_ends_a_long_wait {
        SleepsThrough: "a new message does not end the wait",
    }
    a_poll_without_a_wait_never_waits {
        AlwaysWaits: "a thousand polls that do not wait: not over",
    }
    a_wait_ends_by_itself {
        WaitsForEver: "polls that wait for a moment: not over",
    }
    locks_are_there_exactly_where_the_fixture_says_so {
        NoLocks: "locks: None",
    }
    a_lock_is_acquired_and_prolonged_for_each_queue {
        LocksTheFirst: "in vain for an answer about the lock of",
        HeldWithoutAsking: "and the broker denies it",
    }
    a_lock_that_somebody_else_has_is_refused {
        AlwaysHeld: "[Held, Held]",
    }
    a_released_lock_is_free {
        KeepsLocks: "and the broker still holds it",
    }
    a_lock_taken_away_is_told {
        AlwaysHeld: "Held",
    }
}

/// A rule without a line above does not compile.
macro_rules! has_a_line {
    ($rule:ident,) => {
        const _: fn() = $rule;
    };
}

crate::for_each_source_rule!(has_a_line,);
