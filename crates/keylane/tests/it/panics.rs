//! A panic of the user's code is a failed attempt, and nothing more.

use std::sync::{Arc, Mutex};

use keylane::{Event, FailurePolicy, Outcome};

use crate::support::{Letters, MS, Rig, SECOND, by_number, eventually, panics, q};

/// Its drop panics: nobody should drop it where that hurts.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panics("the payload's drop panicked");
        }
    }
}

/// Offset 7 panics in this way, always; three attempts, then a dead letter.
fn scenario_37(text: &str, panic: impl Fn() + Send + Sync + 'static) {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..1_000).map(|n| (n % 100).to_string()));
    let letters = Letters::default();
    let listener = rig.each(move |message, _| {
        if message.offset().get() == 7 {
            panic();
        }
        Ok(Outcome::Done)
    });
    let policy = FailurePolicy::default().backoff(MS, MS).attempts_max(3);
    let builder = rig.builder().shards(4).hasher(by_number).failure(policy);
    let sink = keylane_testkit::recorder::RecordedSink::new(letters.clone(), &rig.recorder);
    let consumer = builder.dead_letters(sink).start(listener).unwrap();
    rig.wait_for_commit(q(0), 1_000);
    let metrics = consumer.metrics();
    assert_eq!((metrics.succeeded, metrics.dead_lettered), (999, 1));
    assert_eq!((metrics.failed, metrics.panicked, metrics.in_flight), (3, 3, 0));
    rig.stop(&consumer);
    assert_eq!(rig.attempts(q(0), 7), 3);
    let reason = format!("attempts exhausted, last error: {text}");
    assert_eq!(letters.sent.all(), [(7, 3, reason)]);
    let failures = rig.events.all().into_iter().filter_map(|event| match event {
        Event::Failed { offset, error, panicked, .. } => Some((offset.get(), error, panicked)),
        _ => None,
    });
    let expected = vec![(7, text.to_owned(), true); 3];
    assert_eq!(failures.collect::<Vec<_>>(), expected);
}

#[test]
fn scenario_37_a_panic_with_a_text() {
    scenario_37("seven is unlucky", || panics("seven is unlucky"));
}

#[test]
fn scenario_37_a_panic_with_a_made_up_text() {
    scenario_37("7 is unlucky", || panics(format!("{} is unlucky", 7)));
}

#[test]
fn scenario_37_a_panic_with_another_payload() {
    scenario_37("(not a text)", || panics(7_u64));
}

#[test]
fn scenario_37_a_panic_whose_payload_panics_when_it_is_dropped() {
    scenario_37("(not a text)", || panics(Bomb));
}

#[test]
fn scenario_37_a_panic_that_goes_through_the_hook() {
    scenario_37("an index out of range", || panic!("an index out of range"));
}

#[test]
fn scenario_37_a_panic_while_a_lock_of_the_users_is_held() {
    let state = Arc::new(Mutex::new(0_u64));
    let poisoned = Arc::clone(&state);
    scenario_37("seven is unlucky", move || {
        let _guard = state.lock();
        panics("seven is unlucky");
    });
    assert!(poisoned.is_poisoned(), "the user's lock is the user's business");
}

#[test]
fn a_batch_that_panics_comes_again_one_by_one() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..8).map(|_| "K"));
    let listener = rig.batches(|batch| match batch.len() {
        1 => Ok(keylane::BatchOutcome::Done),
        _ => panics("too many at a time"),
    });
    let consumer = rig.builder().shards(1).batch_max(8).start(listener).unwrap();
    rig.wait_for_commit(q(0), 8);
    assert_eq!((consumer.metrics().panicked, consumer.metrics().failed), (1, 0));
    rig.stop(&consumer);
    assert_eq!(rig.batches.all(), [8, 1, 1, 1, 1, 1, 1, 1, 1]);
    let event = rig.events.wait_for("it", |event| matches!(event, Event::BatchFailed { .. }));
    assert!(event.to_string().contains("a batch of 8 panicked"), "{event}");
}

#[test]
fn a_routing_function_may_panic_with_anything() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["A", "B"]);
    let policy = FailurePolicy::default().backoff(MS, MS).attempts_max(2);
    let builder = rig.builder().failure(policy.then(keylane::Exhausted::Skip));
    let builder = builder.route_by(|message| match message.key() {
        Some(b"A") => panics(Bomb),
        key => Ok(key.map(bytes::Bytes::copy_from_slice)),
    });
    let consumer = builder.start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 2);
    consumer.stop(SECOND).unwrap();
    assert_eq!(rig.offsets(q(0)), [1], "what has no route is never handed to the listener");
    let event = rig.events.wait_for("it", |event| matches!(event, Event::Failed { .. }));
    assert!(event.to_string().contains("the routing function panicked: (not a text)"), "{event}");
}

#[test]
fn an_observer_may_panic_with_anything() {
    let rig = Rig::with_queues(1);
    let builder = rig.builder().observer(|_: &Event| panics(Bomb));
    let consumer = builder.start(rig.done()).unwrap();
    rig.commit_round(q(0), "K");
    rig.stop(&consumer);
}

#[test]
fn a_sink_may_panic_with_anything_and_gets_the_letter_again() {
    struct Panics(Letters, bool);
    impl keylane::DeadLetterSink for Panics {
        fn send(&mut self, letter: keylane::DeadLetter, ack: keylane::Ack) {
            if !std::mem::replace(&mut self.1, true) {
                panics(Bomb);
            }
            self.0.send(letter, ack);
        }
        fn close(&mut self) {
            panics(Bomb);
        }
    }
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "K");
    let letters = Letters::default();
    let listener = rig.each(|_, _| Ok(Outcome::DeadLetter("not for us".into())));
    let builder = rig.builder().dead_letters(Panics(letters.clone(), false));
    let consumer = builder.start(listener).unwrap();
    rig.wait_for_commit(q(0), 1);
    eventually("it is stored", || letters.stored.len() == 1);
    consumer.stop(SECOND).unwrap();
}
