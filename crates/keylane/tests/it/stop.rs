//! G8: a consumer stops in order, within its deadline, whatever hangs.

use keylane::source::{Message, SourceError};
use keylane::{BatchOutcome, Consumer, Context, Event, Handled, Listener, Outcome, listen};
use keylane_testkit::script::Call;

use crate::support::{
    Events, Latch, Log, MS, Rig, SECOND, by_number, eventually, offset, q, spawn, threads_named,
    timed,
};

/// What a deadline of `stop` may be overrun by, on a busy machine.
const SLACK: std::time::Duration = SECOND;

/// A listener that never returns from `stuck` (until the latch opens), and is done with the rest.
fn hangs(rig: &Rig, stuck: u64) -> (Latch, impl keylane::IntoListener + use<>) {
    let latch = Latch::new();
    let listener = rig.passing(&latch, move |message| message.offset().get() == stuck);
    (latch, listener)
}

fn place(rig: &Rig, which: impl Fn(&Call) -> bool) -> usize {
    rig.script.history().iter().rposition(which).expect("the call was made")
}

#[test]
fn scenario_16_a_stop_waits_for_the_batches_and_commits_what_they_did() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..128).map(|n| (n % 4).to_string()));
    let latch = Latch::new();
    let listener = rig.batches({
        let latch = latch.clone();
        move |_| {
            latch.pass();
            Ok(BatchOutcome::Done)
        }
    });
    let builder = rig.builder().shards(4).batch_max(32).hasher(by_number);
    let consumer = builder.commit_interval(3_600 * SECOND).start(listener).unwrap();
    latch.wait_for_arrivals(4);
    let stopping = spawn("stop", {
        let (rig, events) = (rig.clone(), rig.events.clone());
        move || {
            let report = rig.stop(&consumer);
            (report, rig.calls.len(), events.len())
        }
    });
    rig.events.wait_for("the stop", |event| matches!(event, Event::Stopping { .. }));
    assert!(!rig.script.look(|state| state.is_closed()), "batches are running");
    latch.open();
    let (report, calls, events) = stopping.join().unwrap();

    assert_eq!((report.unfinished, report.abandoned.len()), (0, 0));
    assert!(report.took < 5 * SECOND, "{:?}: it waited for its deadline", report.took);
    assert_eq!(report.queues[0].committed.map(|mark| mark.get()), Some(128));
    assert_eq!(rig.script.commits(q(0)), [128], "one commit, after the workers have ended");
    let pause = place(&rig, |call| matches!(call, Call::Pause(_)));
    let commit = place(&rig, |call| matches!(call, Call::Commit(_)));
    let close = place(&rig, |call| matches!(call, Call::Close { .. }));
    assert!(pause < commit && commit < close, "{:?}", rig.script.history());
    assert_eq!((rig.calls.len(), rig.events.len()), (calls, events), "nothing after the end");

    rig.script.assign(q(0));
    let again = rig.again();
    let second = again.builder().start(again.done()).unwrap();
    again.commit_round(q(0), "K");
    assert_eq!(again.offsets(q(0)), [128], "nothing that was finished comes again");
    again.stop(&second);
}

#[test]
fn scenario_17_a_stop_does_not_wait_for_room_in_a_full_channel() {
    let rig = Rig::with_queues(2);
    (0..2).for_each(|index| _ = rig.produce_all(q(index), (0..20).map(|_| "0")));
    let (latch, listener) = hangs(&rig, 0);
    let builder = rig.builder().shards(2).channel_capacity(1).batch_max(1).hasher(by_number);
    let consumer = builder.thread_name("full17").start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("the router has overflow", || consumer.metrics().overflow > 0);
    let (stopped, took) = timed(|| consumer.stop(500 * MS));
    assert!(took < 500 * MS + SLACK, "{took:?}");
    let error = stopped.unwrap_err();
    assert!(error.is_deadline());
    let [abandoned] = &error.report().unwrap().abandoned[..] else { panic!("{error}") };
    assert_eq!((abandoned.offset, abandoned.shard), (offset(0), 0));
    assert_eq!(error.report().unwrap().unfinished, 40);
    for queue in [q(0), q(1)] {
        assert_eq!(rig.script.committed(queue), Some(0));
    }
    eventually("all but the one in the listener end", || threads_named("full17") == 1);
    latch.open();
    eventually("it ends when the listener returns", || threads_named("full17") == 0);
    assert_eq!(rig.calls.len(), 1);
}

#[test]
fn scenario_17_an_idle_consumer_stops_at_once() {
    let rig = Rig::with_queues(2);
    let consumer = rig.builder().shards(2).thread_name("idle17").start(rig.done()).unwrap();
    rig.commit_round(q(0), "0");
    let (_, took) = timed(|| rig.stop(&consumer));
    assert!(took < SLACK, "{took:?}: not after ten seconds");
    eventually("all threads end", || threads_named("idle17") == 0);
}

/// A listener whose own end takes longer than everything else's.
struct SlowToEnd {
    events: Events,
    ended: Log<()>,
}

impl Listener for SlowToEnd {
    fn on_message(&mut self, _: &Message, _: &mut Context<'_>) -> Handled {
        Ok(Outcome::Done)
    }
}

impl Drop for SlowToEnd {
    fn drop(&mut self) {
        self.events.wait_for("the end", |event| matches!(event, Event::Stopped { .. }));
        std::thread::park_timeout(20 * MS); // Its own work.
        self.ended.push(());
    }
}

#[test]
fn a_stop_returns_when_all_threads_have_ended() {
    let rig = Rig::with_queues(1);
    let ended = Log::default();
    let make = {
        let (events, ended) = (rig.events.clone(), ended.clone());
        move |_| SlowToEnd { events: events.clone(), ended: ended.clone() }
    };
    let consumer = rig.builder().shards(3).start(listen::per_shard(make)).unwrap();
    let offset = rig.produce(q(0), "K");
    rig.wait_for_commit(q(0), offset + 1);
    consumer.stop(10 * SECOND).unwrap();
    assert_eq!(ended.len(), 3);
}

/// Offset 57 is the only message of thread 3, and its call never returns.
fn scenario_18(rig: &Rig) -> (Latch, Consumer) {
    rig.produce_all(q(0), (0..100).map(|n| if n == 57 { 3 } else { n % 3 }.to_string()));
    let (latch, listener) = hangs(rig, 57);
    let builder = rig.builder().shards(4).hasher(by_number).commit_interval(3_600 * SECOND);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("the others are done", || consumer.metrics().succeeded == 99);
    (latch, consumer)
}

#[test]
fn scenario_18_a_call_that_never_returns_is_named_and_left_behind() {
    let rig = Rig::with_queues(1);
    let (latch, consumer) = scenario_18(&rig);
    let (stopped, took) = timed(|| consumer.stop(SECOND));
    assert!(took < SECOND + SLACK, "{took:?}");
    let error = stopped.unwrap_err();
    assert!(error.is_deadline());
    let report = error.report().unwrap();
    let [abandoned] = &report.abandoned[..] else { panic!("{error}") };
    assert_eq!((abandoned.queue, abandoned.offset, abandoned.shard), (q(0), offset(57), 3));
    let named = "the call for it/0 offset 57, key \"3\", on shard 3 has been running for ";
    assert!(error.to_string().contains(named), "{error}");
    assert_eq!((report.unfinished, report.queues[0].finished_above), (1, 42));
    assert_eq!(rig.script.commits(q(0)), [57]);
    assert!(rig.script.look(|state| state.is_closed()));

    rig.script.assign(q(0));
    let again = rig.crash();
    let second = again.builder().start(again.done()).unwrap();
    again.wait_for_commit(q(0), 100);
    let mut delivered = again.offsets(q(0));
    delivered.sort_unstable();
    assert!(delivered.into_iter().eq(57..100));
    latch.open();
    again.stop(&second);
}

#[test]
fn scenario_18_the_source_is_closed_even_if_the_last_commit_fails() {
    let rig = Rig::with_queues(1);
    rig.script.fail_commits(10_000, &SourceError::retryable("not the coordinator"));
    let (latch, consumer) = scenario_18(&rig);
    let (stopped, took) = timed(|| consumer.stop(500 * MS));
    assert!(took < 500 * MS + SLACK, "{took:?}");
    let error = stopped.unwrap_err();
    let report = error.report().unwrap();
    assert_eq!(report.queues[0].commit_error.as_deref(), Some("not the coordinator"));
    assert_eq!(report.queues[0].watermark.map(|mark| mark.get()), Some(57));
    assert_eq!(report.queues[0].committed.map(|mark| mark.get()), Some(0));
    assert_eq!(report.abandoned.len(), 1);
    assert!(rig.script.look(|state| state.is_closed()));
    latch.open();
}

#[test]
fn commits_that_fail_at_the_end_are_an_error() {
    let rig = Rig::with_queues(1);
    rig.script.fail_commits(10_000, &SourceError::retryable("not the coordinator"));
    rig.produce(q(0), "K");
    let consumer = rig.builder().start(rig.done()).unwrap();
    eventually("it is done", || consumer.metrics().succeeded == 1);
    let error = consumer.stop(200 * MS).unwrap_err();
    assert!(!error.is_deadline() && !error.is_source() && !error.is_config());
    assert!(error.to_string().starts_with("the final commit failed; stopped in "), "{error}");
    assert!(error.to_string().ends_with("; commit it/0: not the coordinator"), "{error}");
}

#[test]
fn commits_that_are_never_answered_are_an_error() {
    let rig = Rig::with_queues(1);
    rig.script.hold_commits();
    rig.produce(q(0), "K");
    let consumer = rig.builder().stop_timeout(300 * MS).start(rig.done()).unwrap();
    eventually("it is done", || consumer.metrics().succeeded == 1);
    // The close uses all of its time: `stop` would give up on a source's thread that is starved
    // beside it, `wait` does not.
    let (stopped, took) = timed(|| {
        consumer.stopper().stop();
        consumer.wait()
    });
    assert!(took < 300 * MS + SLACK, "{took:?}");
    let report = stopped.unwrap_err().report().unwrap().clone();
    let why = report.queues[0].commit_error.as_deref();
    assert_eq!(why, Some("commit: not answered before the source was closed"));
    let close = report.close_error.as_deref();
    assert_eq!(close, Some("close: 1 commits unanswered, the first one it/0 at 1"));
}

#[test]
fn a_commit_that_is_answered_while_the_source_is_closed_counts() {
    let rig = Rig::with_queues(1);
    rig.script.delay_commits(1_000_000);
    rig.produce(q(0), "K");
    let consumer = rig.builder().start(rig.done()).unwrap();
    eventually("it is done", || consumer.metrics().succeeded == 1);
    // No poll answers it, the close does.
    let report = consumer.stop(200 * MS).unwrap();
    assert_eq!(report.queues[0].committed.map(|mark| mark.get()), Some(1));
    rig.recorder.verdict().assert_clean();
}

#[test]
fn a_source_that_fails_its_close_is_reported_and_all_was_committed() {
    let rig = Rig::with_queues(1);
    rig.script.fail_close(SourceError::retryable("leave group: connection reset"));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.commit_round(q(0), "K");
    let report = rig.stop(&consumer);
    assert_eq!(report.close_error.as_deref(), Some("leave group: connection reset"));
    let shown = report.to_string();
    assert!(shown.ends_with("; close the source: leave group: connection reset"), "{shown}");
}

#[test]
fn lanes_that_wait_to_retry_are_not_waited_for() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["A", "A", "B"]);
    let listener = rig.each(|message, _| match message.key() {
        Some(b"A") => Ok(Outcome::RetryAfter(3_600 * SECOND)),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().start(listener).unwrap();
    eventually("both keys were tried", || rig.calls.len() == 2);
    let (report, took) = timed(|| rig.stop_early(&consumer));
    assert!(took < SLACK, "{took:?}: nothing to wait for");
    assert_eq!((report.unfinished, report.queues[0].finished_above), (2, 1));
    assert_eq!(rig.script.committed(q(0)), Some(0));
}

#[test]
fn what_fails_while_the_consumer_stops_is_not_tried_again() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["A", "A"]);
    let latch = Latch::new();
    let listener = rig.each({
        let latch = latch.clone();
        move |_, context| {
            latch.pass();
            assert!(context.is_cancelled());
            Err("too late".into())
        }
    });
    let consumer = rig.builder().batch_max(1).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    consumer.stopper().stop();
    rig.events.wait_for("the stop", |event| matches!(event, Event::Stopping { .. }));
    latch.open();
    let report = consumer.wait().unwrap();
    assert_eq!((report.unfinished, rig.calls.len()), (2, 1));
    rig.recorder.verdict_so_far().assert_clean();
}

#[test]
fn what_waits_in_the_channels_is_handled_and_what_waits_before_them_is_not() {
    let rig = Rig::with_queues(1);
    let (latch, listener) = hangs(&rig, 0);
    rig.produce_all(q(0), (0..100).map(|_| "K"));
    let builder = rig.builder().shards(1).channel_capacity(4).batch_max(1).in_flight_max(20);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("the channel is full", || consumer.metrics().shards[0].waiting >= 4);
    let waiting = consumer.metrics().shards[0].waiting;
    consumer.stopper().stop();
    rig.events.wait_for("the stop", |event| matches!(event, Event::Stopping { .. }));
    latch.open();
    let report = consumer.wait().unwrap();
    assert_eq!(rig.script.committed(q(0)), Some(waiting + 1));
    assert_eq!(rig.calls.len() as u64, waiting + 1);
    assert_eq!(report.unfinished, 100 - (waiting + 1));
    rig.recorder.verdict_so_far().assert_clean();
}

#[test]
fn the_end_is_the_last_event() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.commit_round(q(0), "K");
    rig.stop(&consumer);
    let events = rig.events.all();
    let [.., Event::Stopping { reason }, Event::Stopped { summary }] = &events[..] else {
        panic!("{events:#?}")
    };
    assert_eq!(reason, "stop was called");
    assert!(summary.starts_with("stopped in ") && summary.contains(", 0 unfinished"), "{summary}");
    let seen: Log<Event> = rig.events.clone();
    assert_eq!(seen.count(|event| matches!(event, Event::Stopped { .. })), 1);
}
