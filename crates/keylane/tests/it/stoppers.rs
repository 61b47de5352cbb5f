//! Who may ask for a stop: anybody, at any time, more than once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keylane::{
    Batch, BatchHandled, BatchListener, BatchOutcome, Consumer, Context, Event, Handled, Health,
    IntoListener, Listener, Message, Outcome, listen,
};

use crate::support::{Latch, Log, MS, Rig, SECOND, eventually, q, spawn, threads_named, timed};

const SLACK: Duration = SECOND;

/// Filled with the consumer once it has started.
type Handle = Arc<OnceLock<Consumer>>;

/// A stop from inside: what it said.
fn stop_inside(handle: &Handle, said: &Log<(bool, String)>) {
    for result in [handle.wait().stop(5 * SECOND), handle.wait().wait()] {
        let error = result.expect_err("it cannot be waited for here");
        said.push((error.is_inside_listener(), error.to_string()));
    }
}

struct Stops {
    handle: Handle,
    said: Log<(bool, String)>,
}

impl Listener for Stops {
    fn on_message(&mut self, _: &Message, _: &mut Context<'_>) -> Handled {
        stop_inside(&self.handle, &self.said);
        Ok(Outcome::Done)
    }
}

impl BatchListener for Stops {
    fn on_batch(&mut self, _: &Batch<'_>) -> BatchHandled {
        stop_inside(&self.handle, &self.said);
        Ok(BatchOutcome::Done)
    }
}

/// Starts with a listener that `make` makes, and expects that it can stop its own consumer.
fn stops_itself<L: IntoListener>(make: impl FnOnce(Handle, Log<(bool, String)>) -> L) {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "K");
    let (handle, said) = (Handle::default(), Log::default());
    let listener = make(Arc::clone(&handle), said.clone());
    handle.set(rig.builder().start(listener).unwrap()).unwrap();
    let consumer = handle.wait();
    let (report, took) = timed(|| consumer.wait().unwrap());
    assert!(took < 5 * SECOND, "{took:?}: it waited for itself");
    assert_eq!(report.queues[0].committed.map(|mark| mark.get()), Some(1));
    let said = said.all();
    assert_eq!(said.len(), 2);
    assert!(said.iter().all(|(inside, _)| *inside), "{said:?}");
    let text = "the stop was asked for; a listener, observer or sink cannot wait for it, since it \
                waits for them";
    assert_eq!(said[0].1, text);
}

#[test]
fn a_closure_per_message_can_stop_its_consumer() {
    stops_itself(|handle, said| {
        listen::each(move |_, _| {
            stop_inside(&handle, &said);
            Ok(Outcome::Done)
        })
    });
}

#[test]
fn a_closure_per_batch_can_stop_its_consumer() {
    stops_itself(|handle, said| {
        listen::batches(move |_| {
            stop_inside(&handle, &said);
            Ok(BatchOutcome::Done)
        })
    });
}

#[test]
fn an_instance_per_shard_can_stop_its_consumer() {
    stops_itself(|handle, said| {
        listen::per_shard(move |_| Stops { handle: Arc::clone(&handle), said: said.clone() })
    });
}

#[test]
fn an_instance_for_batches_can_stop_its_consumer() {
    stops_itself(|handle, said| {
        listen::per_shard_batches(move |_| Stops {
            handle: Arc::clone(&handle),
            said: said.clone(),
        })
    });
}

#[test]
fn contexts_and_batches_can_ask_for_a_stop() {
    let ask: [fn(&Rig) -> Consumer; 2] = [
        |rig| {
            let listener = rig.each(|_, context| {
                context.request_stop();
                Ok(Outcome::Done)
            });
            rig.builder().start(listener).unwrap()
        },
        |rig| {
            let listener = rig.batches(|batch| {
                batch.request_stop();
                Ok(BatchOutcome::Done)
            });
            rig.builder().start(listener).unwrap()
        },
    ];
    for start in ask {
        let rig = Rig::with_queues(1);
        rig.produce(q(0), "K");
        let consumer = start(&rig);
        consumer.wait().unwrap();
        rig.recorder.verdict().assert_clean();
        let event = rig.events.wait_for("it", |event| matches!(event, Event::Stopping { .. }));
        assert_eq!(event.to_string(), "stopping: a listener asked for it");
    }
}

#[test]
fn the_outcome_stop_leaves_its_message_and_lets_no_call_begin() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["A", "A", "B", "B", "A"]);
    let listener = rig.each(|message, _| match message.offset().get() {
        1 => Ok(Outcome::Stop("the books do not balance".into())),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    let error = consumer.wait().unwrap_err();
    assert!(error.is_stopped_by_listener());
    let expected =
        "stopped by the listener: it/0 offset 1, key \"A\": the books do not balance; stopped in ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(rig.offsets(q(0)), [0, 1]);
    assert_eq!(rig.script.committed(q(0)), Some(1));
    assert_eq!(error.report().unwrap().unfinished, 4);
    rig.recorder.verdict_so_far().assert_clean();
    // Asked again, it says the same.
    assert!(consumer.stop(SECOND).unwrap_err().is_stopped_by_listener());
    assert_eq!(consumer.health(), Health::Stopped);
}

#[test]
fn a_stopper_works_from_another_thread_and_outlives_its_consumer() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().start(rig.done()).unwrap();
    let stopper = consumer.stopper();
    let waiting = spawn("wait", move || consumer.wait());
    rig.commit_round(q(0), "K");
    assert!(!waiting.is_finished());
    let again = stopper.clone();
    spawn("ctrl-c", move || stopper.stop()).join().unwrap();
    let report = waiting.join().unwrap().unwrap();
    assert_eq!(report.queues[0].committed.map(|mark| mark.get()), Some(1));
    again.stop();
}

#[test]
fn a_stop_may_be_asked_for_twice() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.commit_round(q(0), "K");
    let first = rig.stop(&consumer);
    let (second, took) = timed(|| consumer.stop(SECOND).unwrap());
    assert!(took < SLACK);
    assert_eq!(first.to_string(), second.to_string());
    assert_eq!(consumer.wait().unwrap().to_string(), first.to_string());
}

#[test]
fn stops_from_many_threads_have_one_result() {
    let rig = Rig::with_queues(1);
    let consumer = Arc::new(rig.builder().start(rig.done()).unwrap());
    rig.commit_round(q(0), "K");
    let stops = (0..8).map(|_| {
        let consumer = Arc::clone(&consumer);
        spawn("stop", move || consumer.stop(5 * SECOND).unwrap().to_string())
    });
    let said: Vec<_> = stops.collect::<Vec<_>>().into_iter().map(|s| s.join().unwrap()).collect();
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
}

/// A consumer whose one call hangs until the latch opens.
fn hanging(rig: &Rig) -> (Latch, Consumer) {
    rig.produce(q(0), "K");
    let latch = Latch::new();
    let listener = rig.passing(&latch, |_| true);
    let consumer = rig.builder().stop_timeout(3_600 * SECOND).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    (latch, consumer)
}

#[test]
fn a_later_stop_may_be_more_urgent() {
    let rig = Rig::with_queues(1);
    let (latch, consumer) = hanging(&rig);
    consumer.stopper().stop();
    rig.events.wait_for("the stop", |event| matches!(event, Event::Stopping { .. }));
    let (stopped, took) = timed(|| consumer.stop(200 * MS));
    assert!(stopped.is_err_and(|error| error.is_deadline()));
    assert!(took < 200 * MS + SLACK, "{took:?}");
    latch.open();
}

#[test]
fn a_later_stop_has_the_time_that_it_asks_for() {
    let rig = Rig::with_queues(1);
    let (latch, consumer) = hanging(&rig);
    consumer.stopper().stop();
    rig.events.wait_for("the stop", |event| matches!(event, Event::Stopping { .. }));
    // The first one has been under way for longer than the second one allows.
    let polls = rig.script.look(|state| state.polls());
    rig.script.wait_for("some time", |state| state.polls() > polls + 30);
    let stopping = spawn("stop", move || consumer.stop(500 * MS));
    let polls = rig.script.look(|state| state.polls());
    rig.script.wait_for("the second stop", |state| state.polls() > polls + 3);
    latch.open();
    stopping.join().unwrap().expect("the call returned in time");
    rig.recorder.verdict().assert_clean();
}

#[test]
fn a_stop_without_any_time_returns_at_once() {
    let rig = Rig::with_queues(1);
    let (latch, consumer) = hanging(&rig);
    let (stopped, took) = timed(|| consumer.stop(Duration::ZERO));
    assert!(stopped.is_err_and(|error| error.is_deadline()));
    assert!(took < SLACK, "{took:?}");
    latch.open();
}

#[test]
fn a_stop_with_all_the_time_in_the_world_ends_when_all_is_done() {
    let rig = Rig::with_queues(1);
    let (latch, consumer) = hanging(&rig);
    let stopping = spawn("stop", move || consumer.stop(Duration::MAX));
    rig.events.wait_for("the stop", |event| matches!(event, Event::Stopping { .. }));
    latch.open();
    stopping.join().expect("no panic").expect("an orderly stop");
    rig.recorder.verdict().assert_clean();
}

#[test]
fn a_consumer_that_is_dropped_stops_by_itself_and_nobody_waits() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().thread_name("dropped").start(rig.done()).unwrap();
    rig.produce(q(0), "K");
    eventually("it is done", || consumer.metrics().succeeded == 1);
    let ((), took) = timed(|| drop(consumer));
    assert!(took < SLACK, "{took:?}");
    rig.script.wait_for("the close", |state| state.is_closed());
    assert_eq!(rig.script.committed(q(0)), Some(1));
    eventually("all threads end", || threads_named("dropped") == 0);
    rig.recorder.verdict().assert_clean();
}

#[test]
fn a_drop_does_not_wait_for_a_call_that_hangs() {
    let rig = Rig::with_queues(1);
    let (latch, consumer) = hanging(&rig);
    let ((), took) = timed(|| drop(consumer));
    assert!(took < SLACK, "{took:?}");
    latch.open();
    rig.script.wait_for("the close", |state| state.is_closed());
}

#[test]
fn a_paused_consumer_begins_no_call_until_it_is_resumed() {
    let rig = Rig::with_queues(2);
    let consumer = rig.builder().shards(2).start(rig.done()).unwrap();
    rig.commit_round(q(0), "K");
    consumer.pause();
    consumer.pause();
    rig.produce_all(q(0), (0..10).map(|n| n.to_string()));
    eventually("they are pulled", || consumer.metrics().admitted == 11);
    let polls = rig.script.look(|state| state.polls());
    rig.script.wait_for("polling goes on", |state| state.polls() > polls + 2);
    assert_eq!(rig.calls.len(), 1);
    consumer.resume();
    rig.wait_for_commit(q(0), 11);
    consumer.resume();
    rig.stop(&consumer);
}

#[test]
fn what_runs_when_it_is_paused_is_committed_and_the_rest_of_its_call_waits() {
    let rig = Rig::with_queues(1);
    let latch = Latch::new();
    let listener = rig.passing(&latch, |_| true);
    rig.produce_all(q(0), (0..8).map(|_| "K"));
    let consumer = rig.builder().shards(1).batch_max(8).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    consumer.pause();
    latch.open();
    rig.wait_for_commit(q(0), 1);
    assert_eq!(rig.offsets(q(0)), [0]);
    consumer.resume();
    rig.wait_for_commit(q(0), 8);
    rig.stop(&consumer);
}

#[test]
fn a_paused_consumer_can_be_stopped() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().start(rig.done()).unwrap();
    consumer.pause();
    rig.produce_all(q(0), (0..10).map(|_| "K"));
    eventually("they are pulled", || consumer.metrics().admitted == 10);
    let (_, took) = timed(|| rig.stop_early(&consumer));
    assert!(took < SLACK, "{took:?}");
    consumer.resume();
}
