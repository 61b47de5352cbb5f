//! What every mode promises (G3 to G10), in the two that are not the default.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keylane::{Consumer, Event, Health, Holding, HoldingState, Mode, Outcome};
use keylane_testkit::recorder::RecordedSink;
use keylane_testkit::script::Script;

use crate::support::{
    Latch, Letters, MS, Rig, SECOND, eventually, offset, panics, q, threads_named, timed,
};

/// What a deadline of `stop` may be overrun by, on a busy machine.
const SLACK: Duration = SECOND;

fn rig(mode: Mode, queues: u32) -> Rig {
    Rig::in_mode(mode, Script::new(), queues)
}

/// A listener whose call for this offset of queue 0 comes to the latch; it finishes everything.
fn stops_at(rig: &Rig, stuck: u64) -> (Latch, impl keylane::IntoListener + use<>) {
    let latch = Latch::new();
    let listener = rig.passing(&latch, move |message| {
        (message.queue(), message.offset()) == (q(0), offset(stuck))
    });
    (latch, listener)
}

/// The one message that holds a watermark back.
fn held(consumer: &Consumer) -> Holding {
    let [held] = &consumer.holding()[..] else { panic!("{:?}", consumer.holding()) };
    held.clone()
}

/// A test for each mode.
macro_rules! in_both_modes {
    ($($name:ident($mode:ident) $body:block)*) => {
        mod queue_locked {
            use super::*;
            $(#[test] fn $name() { let $mode = Mode::QueueLocked; $body })*
        }
        mod concurrent {
            use super::*;
            $(#[test] fn $name() { let $mode = Mode::Concurrent; $body })*
        }
    };
}

in_both_modes! {
    calls_fail_and_panic_and_everything_is_delivered_in_order_and_committed_at_the_stop(mode) {
        let rig = rig(mode, 4);
        for index in 0..4 {
            rig.produce_all(q(index), (0..1_000).map(|n| format!("key-{}", n * 31 % 57)));
        }
        let fault = |queue: u32, offset: u64| (offset * 7 + u64::from(queue)) % 41;
        let listener = rig.each(move |message, context| {
            let fault = fault(message.queue().index(), message.offset().get());
            match (fault, context.attempt()) {
                (0, 1) => panics("once"),
                (1, 1 | 2) => Err("twice".into()),
                (2, 1) => Ok(Outcome::RetryAfter(Duration::ZERO)),
                _ => Ok(Outcome::Done),
            }
        });
        let builder = rig.builder().batch_max(16).channel_capacity(20).fetch_max(64);
        let builder = builder.in_flight_max(300).commit_interval(3_600 * SECOND);
        let consumer = builder.start(listener).unwrap();
        eventually("all are done", || consumer.metrics().succeeded == 4_000);
        rig.stop(&consumer);
        for index in 0..4 {
            assert_eq!(rig.script.commits(q(index)), [1_000], "one commit, at the stop");
        }
        let all = (0..4).flat_map(|queue| (0..1_000).map(move |offset| fault(queue, offset)));
        let count = |which: u64| all.clone().filter(|fault| *fault == which).count() as u64;
        let metrics = consumer.metrics();
        assert_eq!(metrics.panicked, count(0));
        assert_eq!(metrics.failed, count(0) + 2 * count(1) + count(2));
        assert_eq!(rig.calls.len() as u64, 4_000 + metrics.failed);
        assert_eq!((metrics.in_flight, metrics.in_flight_bytes, metrics.lanes_held), (0, 0, 0));
    }

    a_second_life_begins_where_the_first_one_had_committed(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), (0..100).map(|n| n.to_string()));
        let consumer = rig.builder().start(rig.done()).unwrap();
        rig.wait_for_commit(q(0), 100);
        rig.stop(&consumer);
        rig.script.assign(q(0));
        let again = rig.again();
        again.produce_all(q(0), (0..50).map(|n| n.to_string()));
        let second = again.builder().start(again.done()).unwrap();
        again.wait_for_commit(q(0), 150);
        again.stop(&second);
        let mut offsets = again.offsets(q(0));
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq(100..150), "each of them once, and nothing from before");
    }

    a_call_that_hangs_is_named_and_left_behind_at_the_deadline(mode) {
        let rig = rig(mode, 2);
        rig.produce(q(0), "K");
        rig.produce_all(q(1), (0..20).map(|_| "K"));
        let (latch, listener) = stops_at(&rig, 0);
        let name = format!("hang-{mode:?}").to_lowercase()[..9].to_owned();
        let builder = rig.builder().shards(2).batch_max(1).thread_name(name.clone());
        let consumer = builder.start(listener).unwrap();
        latch.wait_for_arrivals(1);
        rig.wait_for_commit(q(1), 20);
        let (stopped, took) = timed(|| consumer.stop(500 * MS));
        assert!(took < 500 * MS + SLACK, "{took:?}");
        let error = stopped.unwrap_err();
        assert!(error.is_deadline(), "{error}");
        let report = error.report().unwrap();
        let [abandoned] = &report.abandoned[..] else { panic!("{error}") };
        assert_eq!((abandoned.queue, abandoned.offset), (q(0), offset(0)));
        assert_eq!(report.unfinished, 1);
        assert!(error.to_string().contains("the call for it/0 offset 0, key \"K\""), "{error}");
        assert_eq!(rig.script.committed(q(0)), Some(0));
        assert!(rig.script.look(|state| state.is_closed()));
        if mode == Mode::Concurrent {
            // Those of the pool end together.
            eventually("the other threads end", || threads_named(&name) == 1);
        }
        latch.open();
        eventually("it ends when the listener returns", || threads_named(&name) == 0);
        assert_eq!(rig.script.committed(q(0)), Some(0), "what comes too late is not committed");
        rig.recorder.verdict_so_far().assert_clean();
    }

    all_threads_end_with_the_stop(mode) {
        let rig = rig(mode, 2);
        let name = format!("ends-{mode:?}").to_lowercase()[..9].to_owned();
        let builder = rig.builder().shards(3).thread_name(name.clone());
        let consumer = builder.dead_letters(Letters::default()).start(rig.done()).unwrap();
        (0..2).for_each(|index| rig.commit_round(q(index), "K"));
        assert!(threads_named(&name) >= 5, "three, the source's and the sink's");
        rig.stop(&consumer);
        // Joined, as its system sees it a moment later; and the consumer is still there.
        eventually("all threads end", || threads_named(&name) == 0);
        assert_eq!(consumer.metrics().succeeded, 2);
    }

    a_listener_stops_its_own_consumer_and_waits_for_nothing(mode) {
        let rig = rig(mode, 1);
        rig.produce(q(0), "K");
        let handle = Arc::<OnceLock<Consumer>>::default();
        let listener = rig.each({
            let handle = Arc::clone(&handle);
            move |_, _| {
                let error = handle.wait().stop(5 * SECOND).expect_err("it cannot wait here");
                assert!(error.is_inside_listener(), "{error}");
                Ok(Outcome::Done)
            }
        });
        handle.set(rig.builder().start(listener).unwrap()).unwrap();
        let (report, took) = timed(|| handle.wait().wait().unwrap());
        assert!(took < 5 * SECOND, "{took:?}: it waited for itself");
        assert_eq!((report.unfinished, rig.script.committed(q(0))), (0, Some(1)));
        assert_eq!(rig.attempts(q(0), 0), 1);
        rig.recorder.verdict().assert_clean();
    }

    a_context_can_ask_for_the_stop(mode) {
        let rig = rig(mode, 1);
        rig.produce(q(0), "K");
        let listener = rig.each(|_, context| {
            context.request_stop();
            Ok(Outcome::Done)
        });
        let consumer = rig.builder().start(listener).unwrap();
        let report = consumer.wait().unwrap();
        assert_eq!((report.unfinished, rig.script.committed(q(0))), (0, Some(1)));
    }

    an_outcome_can_stop_the_consumer_and_its_message_stays_unfinished(mode) {
        let rig = rig(mode, 1);
        rig.produce(q(0), "K");
        let listener = rig.each(|_, _| Ok(Outcome::Stop("enough".into())));
        let consumer = rig.builder().start(listener).unwrap();
        let error = consumer.wait().unwrap_err();
        assert!(error.is_stopped_by_listener(), "{error}");
        assert!(error.to_string().contains("it/0 offset 0, key \"K\": enough"), "{error}");
        assert_eq!(error.report().unwrap().unfinished, 1);
        assert_eq!(rig.script.committed(q(0)), Some(0));
    }

    a_listener_that_always_panics_gives_its_message_up_and_goes_on(mode) {
        let rig = rig(mode, 1);
        rig.produce_all(q(0), (0..20).map(|n| n.to_string()));
        let listener = rig.each(|message, _| match message.offset().get() {
            7 => panics("seven is unlucky"),
            _ => Ok(Outcome::Done),
        });
        let letters = Letters::default();
        let policy = keylane::FailurePolicy::default().backoff(MS, MS).attempts_max(3);
        let sink = RecordedSink::new(letters.clone(), &rig.recorder);
        let builder = rig.builder().failure(policy).dead_letters(sink);
        let consumer = builder.start(listener).unwrap();
        rig.wait_for_commit(q(0), 20);
        let metrics = consumer.metrics();
        assert_eq!((metrics.succeeded, metrics.dead_lettered, metrics.panicked), (19, 1, 3));
        rig.stop(&consumer);
        let reason = "attempts exhausted, last error: seven is unlucky".to_owned();
        assert_eq!(letters.sent.all(), [(7, 3, reason)]);
        assert_eq!(rig.attempts(q(0), 7), 3);
    }

    a_revoke_waits_for_the_call_that_runs_and_commits_it(mode) {
        let rig = rig(mode, 2);
        rig.produce_all(q(0), ["K", "K", "K"]);
        let (latch, listener) = stops_at(&rig, 0);
        let consumer = rig.builder().shards(1).batch_max(1).start(listener).unwrap();
        latch.wait_for_arrivals(1);
        rig.script.begin_revoke(q(0));
        rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
        let polls = rig.script.look(|state| state.polls());
        rig.script.wait_for("polling goes on", |state| state.polls() > polls + 2);
        assert!(rig.script.look(|state| state.is_assigned(q(0))), "its call still runs");
        latch.open();
        rig.script.wait_for("the release", |state| state.is_released(q(0)));
        assert_eq!(rig.script.commits(q(0)), [1]);
        assert_eq!(rig.offsets(q(0)), [0], "nothing of it begins any more");
        rig.commit_round(q(1), "other");
        rig.script.assign(q(0));
        rig.wait_for_commit(q(0), 3);
        rig.stop(&consumer);
        assert_eq!(rig.offsets(q(0)), [0, 1, 2]);
    }

    a_call_that_overruns_the_revoke_is_named_and_counts_no_more(mode) {
        let rig = rig(mode, 2);
        rig.produce(q(0), "K");
        let (latch, listener) = stops_at(&rig, 0);
        let builder = rig.builder().shards(2).batch_max(1).revoke_timeout(50 * MS);
        let consumer = builder.start(listener).unwrap();
        latch.wait_for_arrivals(1);
        rig.script.begin_revoke(q(0));
        rig.script.wait_for("the release", |state| state.is_released(q(0)));
        let is_overrun = |event: &Event| matches!(event, Event::RevokeTimedOut { .. });
        let overrun = rig.events.wait_for("the overrun", is_overrun).to_string();
        let expected = "it/0: given back while the call for offset 0, key \"K\", still runs on";
        assert!(overrun.starts_with(expected), "{overrun}");
        rig.commit_round(q(1), "other");
        latch.open();
        eventually("the late end", || consumer.metrics().stale_completions == 1);
        assert!(rig.script.commits(q(0)).is_empty(), "it is somebody else's by now");
        rig.script.assign(q(0));
        rig.wait_for_commit(q(0), 1);
        rig.stop(&consumer);
        assert_eq!(rig.offsets(q(0)), [0, 0]);
    }

    queues_come_and_go_under_load_and_every_guarantee_is_kept(mode) {
        let rig = rig(mode, 3);
        for index in 0..3 {
            rig.produce_all(q(index), (0..2_000).map(|n| format!("key-{}", n % 23)));
        }
        let builder = rig.builder().shards(3).batch_max(8).channel_capacity(16).in_flight_max(200);
        let consumer = builder.start(rig.done()).unwrap();
        for round in 0..12 {
            let (calls, queue) = (rig.calls.len(), q(round % 3));
            rig.calls.wait_until("progress", |seen| seen.len() > calls || seen.len() >= 6_000);
            rig.script.begin_revoke(queue);
            rig.script.wait_for("the release", |state| state.is_released(queue));
            rig.script.assign(queue);
        }
        (0..3).for_each(|index| rig.wait_for_commit(q(index), 2_000));
        rig.stop(&consumer);
        assert_eq!(rig.recorder.verdict().delivered, 6_000);
        if mode == Mode::QueueLocked {
            // Without order, what was done behind a message that had to wait comes again with it.
            assert_eq!(rig.calls.len(), 6_000, "a revoke that waits costs no delivery");
        }
    }

    nothing_begins_while_the_consumer_is_paused(mode) {
        let rig = rig(mode, 2);
        let (latch, listener) = stops_at(&rig, 0);
        let consumer = rig.builder().start(listener).unwrap();
        rig.produce(q(0), "K");
        latch.wait_for_arrivals(1);
        consumer.pause();
        rig.produce_all(q(1), ["K", "L"]);
        eventually("they are pulled", || consumer.metrics().admitted == 3);
        latch.open();
        rig.wait_for_commit(q(0), 1);
        assert_eq!(rig.offsets(q(1)), [0; 0], "paused");
        assert_eq!(held(&consumer).state, HoldingState::Waiting);
        consumer.resume();
        rig.wait_for_commit(q(1), 2);
        rig.stop(&consumer);
        assert_eq!(rig.calls.len(), 3);
    }

    a_paused_consumer_stops_and_leaves_what_waits(mode) {
        let rig = rig(mode, 1);
        let consumer = rig.builder().start(rig.done()).unwrap();
        rig.commit_round(q(0), "K");
        consumer.pause();
        rig.produce(q(0), "K");
        eventually("it is pulled", || consumer.metrics().admitted == 2);
        let (report, took) = timed(|| consumer.stop(10 * SECOND).unwrap());
        assert!(took < 5 * SECOND, "{took:?}: it waited for its deadline");
        assert_eq!(report.unfinished + rig.calls.len() as u64, 2);
        let committed = rig.script.committed(q(0));
        assert_eq!(committed, Some(rig.calls.len() as u64));
        assert_eq!(consumer.health(), Health::Stopped);
    }

    a_ticket_finishes_its_message_from_another_thread(mode) {
        let rig = rig(mode, 1);
        let (sender, tickets) = std::sync::mpsc::channel();
        let listener = rig.each(move |message, context| {
            let (ticket, deferred) = context.defer();
            sender.send((message.offset().get(), ticket))?;
            Ok(deferred)
        });
        let consumer = rig.builder().start(listener).unwrap();
        for offset in 0..3 {
            rig.produce(q(0), "K");
            let (got, ticket) = tickets.recv().unwrap();
            assert_eq!(got, offset);
            assert_eq!(held(&consumer).state, HoldingState::Running);
            rig.finish(q(0), offset, ticket);
            rig.wait_for_commit(q(0), offset + 1);
        }
        rig.stop(&consumer);
    }
}
