//! A listener in RocketMQ's shape, in both ordered modes: the lane is the key, or the queue.
//!
//! Each status with auto-commit on and off, step by step, is tested beside the shard; here are
//! threads, commits and the recorder's checkers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keylane::OrderlyStatus::{Commit, Rollback, Success, SuspendCurrentQueueAMoment as Suspend};
use keylane::{
    Consumer, Event, FailurePolicy, HeldBy, HoldingState, Message, Mode, OrderlyContext,
    OrderlyListener, OrderlyStatus, listen,
};
use keylane_testkit::recorder::RecordedSink;
use keylane_testkit::script::{LockAnswer, Script};

use crate::support::{Latch, Letters, Log, MS, Rig, SECOND, eventually, offset, panics, q, timed};

/// What a deadline of `stop` may be overrun by, on a busy machine.
const SLACK: Duration = SECOND;

fn rig(mode: Mode, queues: u32) -> Rig {
    Rig::in_mode(mode, Script::new(), queues)
}

fn first(messages: &[Message]) -> u64 {
    messages[0].offset().get()
}

/// Offsets of queue 0 in the order of their calls, with the attempt that each was.
fn story(rig: &Rig) -> Vec<(u64, u32)> {
    let calls = rig.calls.all();
    let of_queue = calls.iter().filter(|seen| seen.queue == q(0));
    of_queue.map(|seen| (seen.offset, seen.attempt)).collect()
}

/// A test for each mode.
macro_rules! in_both_modes {
    ($($name:ident($mode:ident) $body:block)*) => {
        mod key_sharded {
            use super::*;
            $(#[test] fn $name() { let $mode = Mode::KeySharded; $body })*
        }
        mod queue_locked {
            use super::*;
            $(#[test] fn $name() { let $mode = Mode::QueueLocked; $body })*
        }
    };
}

in_both_modes! {
    all_statuses_mixed_and_everything_is_delivered_in_order_and_committed(mode) {
        let rig = rig(mode, 3);
        for index in 0..3 {
            rig.produce_all(q(index), (0..600).map(|n| format!("key-{}", n * 31 % 17)));
        }
        let calls = AtomicUsize::new(0);
        let listener = rig.orderly(move |messages, context| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            context.set_auto_commit(!call.is_multiple_of(3));
            match call {
                _ if call % 19 == 7 => panics("now and then"),
                _ if call % 13 == 5 => Suspend,
                _ if call % 17 == 3 => Rollback,
                // The last message of each lane is one of these.
                _ if call % 5 == 2 || messages.iter().any(|m| m.offset().get() >= 583) => Commit,
                _ => Success,
            }
        });
        let builder = rig.builder().batch_max(4).commit_interval(3_600 * SECOND);
        let consumer = builder.start(listener).unwrap();
        eventually("all are committed by the listener", || {
            let metrics = consumer.metrics();
            metrics.succeeded == 1_800 && metrics.in_flight == 0
        });
        rig.stop(&consumer);
        for index in 0..3 {
            assert_eq!(rig.script.commits(q(index)), [600], "one commit, at the stop");
        }
        let metrics = consumer.metrics();
        assert!(metrics.panicked > 0 && metrics.failed > metrics.panicked, "{metrics:?}");
        assert_eq!(metrics.lanes_held, 0);
    }

    success_without_auto_commit_is_committed_by_a_later_commit(mode) {
        let rig = rig(mode, 2);
        rig.produce_all(q(0), ["K", "K", "K"]);
        let listener = rig.orderly(|messages, context| {
            context.set_auto_commit(context.queue() != q(0));
            if first(messages) == 3 { Commit } else { Success }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        eventually("three are kept", || rig.calls.len() == 3);
        rig.commit_round(q(1), "L");
        assert!(rig.script.commits(q(0)).is_empty(), "nothing was committed");
        assert_eq!(consumer.metrics().in_flight, 3, "they keep their budget");
        let [held] = &consumer.holding()[..] else { panic!("{:?}", consumer.holding()) };
        assert_eq!((held.offset, held.state), (offset(0), HoldingState::Uncommitted));
        rig.produce(q(0), "K");
        rig.wait_for_commit(q(0), 4);
        rig.stop(&consumer);
        assert_eq!(rig.script.commits(q(0)), [4]);
        assert_eq!(story(&rig), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    }

    what_was_kept_at_the_stop_comes_again_in_the_next_life(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), ["K", "K", "K"]);
        let listener = rig.orderly(|messages, context| {
            context.set_auto_commit(false);
            if first(messages) == 0 { Commit } else { Success }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        eventually("two are kept", || rig.calls.len() == 3);
        rig.wait_for_commit(q(0), 1);
        let report = rig.stop_early(&consumer);
        assert_eq!((report.unfinished, rig.script.committed(q(0))), (2, Some(1)));
        rig.script.assign(q(0));
        let again = rig.again();
        let second = again.builder().start(again.orderly(|_, _| Success)).unwrap();
        again.wait_for_commit(q(0), 3);
        again.stop(&second);
        assert_eq!(story(&again), [(1, 1), (2, 1)]);
    }

    rollback_gives_back_all_that_was_kept_and_counts_no_attempt(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), ["K", "K", "K"]);
        let rolled_back = AtomicUsize::new(0);
        let listener = rig.orderly(move |messages, context| {
            context.set_auto_commit(false);
            match first(messages) {
                2 if rolled_back.fetch_add(1, Ordering::Relaxed) < 2 => Rollback,
                2 => Commit,
                _ => Success,
            }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        rig.wait_for_commit(q(0), 3);
        rig.stop(&consumer);
        let once = [(0, 1), (1, 1), (2, 1)];
        assert_eq!(story(&rig), [once, once, once].concat());
        assert_eq!(rig.script.commits(q(0)), [3]);
        assert_eq!((consumer.metrics().succeeded, consumer.metrics().failed), (3, 0));
    }

    rollback_with_auto_commit_on_gives_the_batch_back(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), ["K", "K"]);
        let calls = AtomicUsize::new(0);
        let listener = rig.orderly(move |_, _| {
            if calls.fetch_add(1, Ordering::Relaxed) == 0 { Rollback } else { Success }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        rig.wait_for_commit(q(0), 2);
        rig.stop(&consumer);
        assert_eq!(story(&rig), [(0, 1), (0, 1), (1, 1)]);
    }

    suspend_gives_back_its_batch_alone_and_counts(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), ["K", "K", "K"]);
        let listener = rig.orderly(|messages, context| {
            context.set_auto_commit(false);
            match (first(messages), context.attempt()) {
                (1, 1 | 2) => Suspend,
                (2, _) => Commit,
                _ => Success,
            }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        rig.wait_for_commit(q(0), 3);
        rig.stop(&consumer);
        assert_eq!(story(&rig), [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]);
        assert_eq!((consumer.metrics().succeeded, consumer.metrics().failed), (3, 2));
    }

    a_suspended_lane_holds_back_its_key_or_its_queue_and_nothing_else(mode) {
        let rig = rig(mode, 2);
        rig.produce_all(q(0), ["A", "A", "B"]);
        let listener = rig.orderly(|messages, context| {
            // Held to the longest time there is, half a minute: it is over after the test.
            context.set_suspend_current_queue_time(3_600 * SECOND);
            let is_a = (messages[0].queue(), messages[0].key()) == (q(0), Some(b"A"));
            if is_a { Suspend } else { Success }
        });
        let consumer = rig.builder().shards(1).batch_max(1).start(listener).unwrap();
        rig.events.wait_for("the suspend", |event| matches!(event, Event::Failed { .. }));
        rig.commit_round(q(1), "A");
        if mode == Mode::KeySharded {
            eventually("the other key", || rig.attempts(q(0), 2) == 1);
        }
        let failed = rig.events.wait_for("it", |event| matches!(event, Event::Failed { .. }));
        let failed = failed.to_string();
        let why = "attempt 1 failed: the listener suspended its lane; again in 30s";
        assert!(failed.starts_with("it/0: offset 0, key \"A\""), "{failed}");
        assert!(failed.ends_with(why), "{failed}");
        let (report, took) = timed(|| rig.stop_early(&consumer));
        assert!(took < 5 * SECOND, "{took:?}: what is suspended is not waited for");
        let expected = if mode == Mode::KeySharded { vec![0, 2] } else { vec![0] };
        assert_eq!(rig.offsets(q(0)), expected);
        assert_eq!(report.unfinished, 4 - expected.len() as u64);
        assert_eq!(rig.script.committed(q(0)), Some(0));
    }

    a_panic_is_a_suspend(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), ["K", "K"]);
        let listener = rig.orderly(|messages, context| match (first(messages), context.attempt()) {
            (0, 1 | 2) => panics("not yet"),
            _ => Success,
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        rig.wait_for_commit(q(0), 2);
        rig.stop(&consumer);
        assert_eq!(story(&rig), [(0, 1), (0, 2), (0, 3), (1, 1)]);
        assert_eq!((consumer.metrics().panicked, consumer.metrics().failed), (2, 2));
        let failed = rig.events.wait_for("it", |event| matches!(event, Event::Failed { .. }));
        let why = "attempt 1 panicked: not yet; again in 10ms";
        assert!(failed.to_string().ends_with(why), "{failed}");
    }

    past_the_limit_a_message_is_a_dead_letter_and_its_lane_goes_on(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), ["K", "K", "K"]);
        let listener = rig.orderly(|messages, _| match first(messages) {
            1 => Suspend,
            _ => Success,
        });
        let letters = Letters::default();
        let policy = FailurePolicy::default().backoff(MS, MS).attempts_max(3);
        let sink = RecordedSink::new(letters.clone(), &rig.recorder);
        let builder = rig.builder().batch_max(1).failure(policy).dead_letters(sink);
        let consumer = builder.start(listener).unwrap();
        rig.wait_for_commit(q(0), 3);
        rig.stop(&consumer);
        assert_eq!(story(&rig), [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]);
        let reason = "attempts exhausted, last error: the listener suspended its lane".to_owned();
        assert_eq!(letters.sent.all(), [(1, 3, reason)]);
    }

    success_for_ever_without_auto_commit_is_a_trap_and_an_event_names_it(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), (0..50).map(|_| "K"));
        let listener = rig.orderly(|_, context| {
            context.set_auto_commit(false);
            Success
        });
        let builder = rig.builder().batch_max(1).in_flight_max(10);
        let consumer = builder.start(listener).unwrap();
        let is_trap =
            |event: &Event| matches!(event, Event::Held { by: HeldBy::Uncommitted, .. });
        let trap = rig.events.wait_for("the event", is_trap).to_string();
        let expected = "it/0: its budget is full of messages that nobody commits, behind offset 0";
        assert!(trap.starts_with(expected), "{trap}");
        let report = rig.stop_early(&consumer);
        assert!(rig.offsets(q(0)).into_iter().eq(0..10), "as many as the budget has room for");
        assert_eq!((report.unfinished, rig.script.committed(q(0))), (50, Some(0)));
    }

    a_call_that_hangs_is_named_and_left_behind_at_the_deadline(mode) {
        let rig = rig(mode, 2);
        rig.produce_all(q(0), ["A", "A"]);
        let latch = Latch::new();
        let listener = rig.orderly({
            let latch = latch.clone();
            move |messages, _| {
                if (messages[0].queue(), first(messages)) == (q(0), 1) {
                    latch.pass();
                }
                Success
            }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        latch.wait_for_arrivals(1);
        let (stopped, took) = timed(|| consumer.stop(500 * MS));
        assert!(took < 500 * MS + SLACK, "{took:?}");
        let error = stopped.unwrap_err();
        assert!(error.is_deadline(), "{error}");
        let report = error.report().unwrap();
        let [abandoned] = &report.abandoned[..] else { panic!("{error}") };
        assert_eq!((abandoned.queue, abandoned.offset), (q(0), offset(1)));
        assert_eq!((report.unfinished, rig.script.committed(q(0))), (1, Some(1)));
        latch.open();
        rig.recorder.verdict_so_far().assert_clean();
    }

    a_listener_stops_its_own_consumer_and_waits_for_nothing(mode) {
        let rig = rig(mode, 1);
        rig.produce(q(0), "K");
        let handle = Arc::<OnceLock<Consumer>>::default();
        let listener = rig.orderly({
            let handle = Arc::clone(&handle);
            move |_, _| {
                let error = handle.wait().stop(5 * SECOND).expect_err("it cannot wait here");
                assert!(error.is_inside_listener(), "{error}");
                Success
            }
        });
        handle.set(rig.builder().start(listener).unwrap()).unwrap();
        let (report, took) = timed(|| handle.wait().wait().unwrap());
        assert!(took < 5 * SECOND, "{took:?}: it waited for itself");
        assert_eq!((report.unfinished, rig.script.committed(q(0))), (0, Some(1)));
        rig.recorder.verdict().assert_clean();
    }

    what_was_kept_comes_again_after_a_revoke_in_the_middle_of_a_call(mode) {
        let rig = rig(mode, 2);
        rig.produce_all(q(0), ["K", "K", "K"]);
        let latch = Latch::new();
        let listener = rig.orderly({
            let latch = latch.clone();
            move |messages, context| {
                context.set_auto_commit(context.queue() != q(0));
                match (messages[0].queue() == q(0), first(messages)) {
                    (true, 1) => latch.pass(),
                    (true, 2) => return Commit,
                    _ => {}
                }
                Success
            }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        latch.wait_for_arrivals(1);
        rig.script.begin_revoke(q(0));
        rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
        assert!(rig.script.look(|state| state.is_assigned(q(0))), "its call still runs");
        latch.open();
        rig.script.wait_for("the release", |state| state.is_released(q(0)));
        rig.commit_round(q(1), "K");
        assert_eq!(rig.offsets(q(0)), [0, 1]);
        assert!(rig.script.commits(q(0)).is_empty(), "the listener has committed nothing");
        rig.script.assign(q(0));
        rig.wait_for_commit(q(0), 3);
        rig.stop(&consumer);
        assert_eq!(story(&rig), [(0, 1), (1, 1), (0, 1), (1, 1), (2, 1)]);
    }

    a_commit_in_a_call_that_the_revoke_waits_for_still_counts(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), ["K", "K", "K"]);
        let latch = Latch::new();
        let listener = rig.orderly({
            let latch = latch.clone();
            move |messages, context| {
                context.set_auto_commit(false);
                match first(messages) {
                    0 => Success,
                    1 => {
                        latch.pass();
                        Commit
                    }
                    _ => Commit,
                }
            }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        latch.wait_for_arrivals(1);
        rig.script.begin_revoke(q(0));
        rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
        latch.open();
        rig.script.wait_for("the release", |state| state.is_released(q(0)));
        assert_eq!((rig.script.commits(q(0)), rig.offsets(q(0))), (vec![2], vec![0, 1]));
        rig.script.assign(q(0));
        rig.wait_for_commit(q(0), 3);
        rig.stop(&consumer);
        assert_eq!(story(&rig), [(0, 1), (1, 1), (2, 1)]);
    }

    what_a_batch_says_counts_no_more_once_the_lock_of_its_queue_is_lost(mode) {
        let rig = Rig::in_mode(mode, Script::new().with_locks(30 * SECOND), 2);
        rig.produce_all(q(0), ["K", "K", "K", "K"]);
        let latch = Latch::new();
        let listener = rig.orderly({
            let latch = latch.clone();
            move |messages, _| {
                if messages[0].queue() == q(0) {
                    latch.pass();
                }
                Commit
            }
        });
        let consumer = rig.builder().batch_max(4).start(listener).unwrap();
        latch.wait_for_arrivals(1);
        let batch = rig.calls.len();
        rig.script.answer_locks(q(0), LockAnswer::Refuse);
        rig.script.lose_lock(q(0));
        rig.events.wait_for("the loss", |event| matches!(event, Event::LockLost { .. }));
        latch.open();
        eventually("the late end", || consumer.metrics().stale_completions == batch as u64);
        rig.commit_round(q(1), "L");
        assert!(rig.offsets(q(0)).into_iter().eq(0..batch as u64), "nothing begins without it");
        assert!(rig.script.commits(q(0)).is_empty(), "nothing is committed without it");
        rig.script.answer_locks(q(0), LockAnswer::Grant);
        rig.wait_for_commit(q(0), 4);
        assert!(rig.offsets(q(0)).into_iter().eq((0..batch as u64).chain(0..4)));
        consumer.stop(10 * SECOND).unwrap();
        let verdict = rig.recorder.verdict();
        assert_eq!((verdict.lost, verdict.overlap_violations, verdict.committed), (0, 0, true));
    }

    what_was_kept_is_dropped_with_the_lock_and_comes_again(mode) {
        let rig = Rig::in_mode(mode, Script::new().with_locks(30 * SECOND), 2);
        rig.produce_all(q(0), ["K", "K"]);
        let listener = rig.orderly(|messages, context| {
            context.set_auto_commit(context.queue() != q(0));
            if first(messages) == 2 { Commit } else { Success }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        eventually("both are kept", || rig.offsets(q(0)).len() == 2);
        rig.script.answer_locks(q(0), LockAnswer::Refuse);
        rig.script.lose_lock(q(0));
        rig.events.wait_for("the loss", |event| matches!(event, Event::LockLost { .. }));
        rig.commit_round(q(1), "L");
        assert_eq!(consumer.metrics().in_flight, 0, "their budget is free again");
        rig.produce(q(0), "K");
        rig.script.answer_locks(q(0), LockAnswer::Grant);
        rig.wait_for_commit(q(0), 3);
        assert_eq!(story(&rig), [(0, 1), (1, 1), (0, 1), (1, 1), (2, 1)]);
        assert_eq!(rig.script.commits(q(0)), [3]);
        consumer.stop(10 * SECOND).unwrap();
    }

    nothing_begins_while_the_consumer_is_paused(mode) {
        let rig = rig(mode, 1);
        let latch = Latch::new();
        let listener = rig.orderly({
            let latch = latch.clone();
            move |messages, _| {
                if first(messages) == 0 {
                    latch.pass();
                }
                Success
            }
        });
        let consumer = rig.builder().batch_max(1).start(listener).unwrap();
        rig.produce_all(q(0), ["K", "K"]);
        latch.wait_for_arrivals(1);
        consumer.pause();
        latch.open();
        rig.wait_for_commit(q(0), 1);
        assert_eq!(rig.offsets(q(0)), [0]);
        consumer.resume();
        rig.wait_for_commit(q(0), 2);
        rig.stop(&consumer);
    }
}

/// Counts its messages without a lock, and says how many they were.
struct Counts {
    seen: Vec<u64>,
    ended: Log<Vec<u64>>,
}

impl OrderlyListener for Counts {
    fn consume(&mut self, messages: &[Message], _: &mut OrderlyContext) -> OrderlyStatus {
        self.seen.extend(messages.iter().map(|message| message.offset().get()));
        Success
    }
    fn on_stop(&mut self) {
        self.ended.push(std::mem::take(&mut self.seen));
    }
}

#[test]
fn in_queue_locked_mode_an_instance_sees_one_queue_whole_and_in_order() {
    let rig = rig(Mode::QueueLocked, 3);
    (0..3).for_each(|index| _ = rig.produce_all(q(index), (0..100).map(|n| n.to_string())));
    let ended = Log::default();
    let listener = listen::per_shard_orderly({
        let ended = ended.clone();
        move |_| Counts { seen: Vec::new(), ended: ended.clone() }
    });
    let consumer = rig.builder().shards(2).start(listener).unwrap();
    (0..3).for_each(|index| rig.wait_for_commit(q(index), 100));
    consumer.stop(10 * SECOND).unwrap();
    let whole: Vec<u64> = (0..100).collect();
    assert_eq!(ended.all(), [whole.clone(), whole.clone(), whole]);
}

#[test]
fn in_key_sharded_mode_a_call_gets_messages_of_one_key_and_keys_run_at_the_same_time() {
    let rig = rig(Mode::KeySharded, 1);
    rig.produce_all(q(0), (0..40).map(|n| (n % 4).to_string()));
    let latch = Latch::new();
    let listener = rig.orderly({
        let latch = latch.clone();
        move |messages, _| {
            assert!(messages.iter().all(|message| message.key() == messages[0].key()));
            latch.pass();
            Success
        }
    });
    let builder = rig.builder().shards(4).hasher(crate::support::by_number);
    let consumer = builder.start(listener).unwrap();
    // One queue, four calls at a time.
    latch.wait_for_arrivals(4);
    latch.open();
    rig.wait_for_commit(q(0), 40);
    rig.stop(&consumer);
}
