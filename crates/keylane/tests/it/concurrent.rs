//! Concurrent mode: whichever thread is free takes the next message; nothing waits for another one.

use std::time::Duration;

use keylane::{BatchOutcome, Event, HoldingState, Mode, OrderlyStatus, Outcome};
use keylane_testkit::recorder::RecordedSink;
use keylane_testkit::script::Script;

use crate::support::{Latch, Letters, Plan, Rig, eventually, offset, q};

const HOUR: Duration = Duration::from_secs(3_600);

fn rig(queues: u32) -> Rig {
    Rig::in_mode(Mode::Concurrent, Script::new(), queues)
}

#[test]
fn all_threads_work_on_one_key_of_one_queue() {
    let rig = rig(1);
    rig.produce_all(q(0), (0..8).map(|_| "K"));
    let latch = Latch::new();
    let listener = rig.passing(&latch, |_| true);
    let consumer = rig.builder().shards(8).batch_max(32).start(listener).unwrap();
    latch.wait_for_arrivals(8);
    latch.open();
    rig.wait_for_commit(q(0), 8);
    rig.stop(&consumer);
}

#[test]
fn each_message_is_delivered_once() {
    let rig = rig(3);
    (0..3).for_each(|index| _ = rig.produce_all(q(index), (0..2_000).map(|_| "K")));
    let builder = rig.builder().shards(8).channel_capacity(4).in_flight_max(100);
    let consumer = builder.start(rig.done()).unwrap();
    (0..3).for_each(|index| rig.wait_for_commit(q(index), 2_000));
    rig.stop(&consumer);
    for index in 0..3 {
        let mut offsets = rig.offsets(q(index));
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq(0..2_000), "queue {index}");
    }
}

#[test]
fn a_retry_holds_back_its_message_alone_and_the_commit() {
    let rig = rig(2);
    rig.produce_all(q(0), (0..10).map(|_| "K"));
    let listener = rig.each(|message, _| match (message.queue() == q(0), message.offset().get()) {
        (true, 3) => Ok(Outcome::RetryAfter(HOUR)),
        _ => Ok(Outcome::Done),
    });
    // One thread: what waits does not have it.
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    eventually("the others", || consumer.metrics().succeeded == 9);
    rig.wait_for_commit(q(0), 3);
    rig.commit_round(q(1), "K");
    assert_eq!(rig.script.committed(q(0)), Some(3), "no commit passes it");
    let [held] = &consumer.holding()[..] else { panic!("{:?}", consumer.holding()) };
    assert_eq!((held.queue, held.offset, held.span), (q(0), offset(3), 7));
    assert_eq!((held.state, held.attempts), (HoldingState::BackingOff, Some(1)));
    let report = rig.stop_early(&consumer);
    assert_eq!((report.unfinished, report.queues[0].finished_above), (1, 6));
    assert_eq!(rig.calls.len(), 11);
}

#[test]
fn a_message_that_fails_comes_again_and_the_commit_follows_it() {
    let rig = rig(1);
    rig.produce_all(q(0), (0..10).map(|_| "K"));
    let script = rig.script.clone();
    let listener = rig.each(move |message, context| {
        if message.offset().get() == 0 && context.attempt() < 4 {
            assert_eq!(script.committed(q(0)), Some(0));
            return Err("not yet".into());
        }
        Ok(Outcome::Done)
    });
    let consumer = rig.builder().start(listener).unwrap();
    rig.wait_for_commit(q(0), 10);
    rig.stop(&consumer);
    assert_eq!((consumer.metrics().failed, consumer.metrics().panicked), (3, 0));
    assert_eq!(rig.attempts(q(0), 0), 4);
    assert!((1..10).all(|offset| rig.attempts(q(0), offset) == 1));
    let zero = rig.calls.all().into_iter().filter(|seen| seen.offset == 0);
    assert!(zero.map(|seen| seen.attempt).eq(1..=4));
}

#[test]
fn in_a_batch_a_failure_takes_nothing_along() {
    let rig = rig(1);
    rig.produce_all(q(0), (0..100).map(|_| "K"));
    let listener = rig.batches(|batch| {
        let one = |index: usize| match batch[index].offset().get() % 10 {
            4 if batch.attempt(index) == 1 => Err("the first time".into()),
            _ => Ok(Outcome::Done),
        };
        Ok(BatchOutcome::Each((0..batch.len()).map(one).collect()))
    });
    let consumer = rig.builder().batch_max(16).start(listener).unwrap();
    rig.wait_for_commit(q(0), 100);
    rig.stop(&consumer);
    for offset in 0..100 {
        let expected = if offset % 10 == 4 { 2 } else { 1 };
        assert_eq!(rig.attempts(q(0), offset), expected, "offset {offset}");
    }
}

#[test]
fn a_call_that_hangs_holds_back_the_commit_and_nothing_else() {
    let rig = rig(1);
    rig.produce_all(q(0), (0..500).map(|_| "K"));
    let latch = Latch::new();
    let listener = rig.passing(&latch, |message| message.offset().get() == 10);
    let consumer = rig.builder().shards(2).batch_max(32).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("the others", || consumer.metrics().succeeded == 499);
    rig.wait_for_commit(q(0), 10);
    let [held] = &consumer.holding()[..] else { panic!("{:?}", consumer.holding()) };
    assert_eq!((held.offset, held.state), (offset(10), HoldingState::Running));
    latch.open();
    rig.wait_for_commit(q(0), 500);
    rig.stop(&consumer);
    assert_eq!(rig.calls.len(), 500);
}

#[test]
fn a_dead_letter_is_finished_once_the_sink_has_it_and_holds_back_nothing_but_the_commit() {
    let rig = rig(1);
    rig.produce_all(q(0), (0..10).map(|_| "K"));
    let letters = Letters::planned([Plan::Keep]);
    let listener = rig.each(|message, _| match message.offset().get() {
        0 => Ok(Outcome::DeadLetter("not for us".into())),
        _ => Ok(Outcome::Done),
    });
    let sink = RecordedSink::new(letters.clone(), &rig.recorder);
    let consumer = rig.builder().dead_letters(sink).start(listener).unwrap();
    letters.sent.wait_for_len(1);
    eventually("the others", || consumer.metrics().succeeded == 9);
    let [held] = &consumer.holding()[..] else { panic!("{:?}", consumer.holding()) };
    assert_eq!((held.offset, held.state), (offset(0), HoldingState::DeadLettering));
    assert_eq!(rig.script.committed(q(0)), Some(0));
    letters.kept().into_iter().for_each(keylane::Ack::done);
    rig.wait_for_commit(q(0), 10);
    rig.stop(&consumer);
    let letter = rig.events.wait_for("it", |event| matches!(event, Event::DeadLettered { .. }));
    let why = "dead letter after 0 attempts: given up by the listener: not for us";
    assert!(letter.to_string().ends_with(why), "{letter}");
}

#[test]
fn an_orderly_listener_has_no_order_to_commit_in_and_is_rejected() {
    let rig = rig(1);
    let listener = rig.orderly(|_, _| OrderlyStatus::Success);
    let error = rig.builder().start(listener).unwrap_err();
    assert!(error.is_config(), "{error}");
    assert!(error.to_string().contains("Concurrent with an orderly listener"), "{error}");
}
