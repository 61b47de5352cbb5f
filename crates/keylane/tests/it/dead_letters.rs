//! Messages that are given up: finished once the sink has them, and not before.

use keylane::{Event, Exhausted, FailurePolicy, Health, HoldingState, Outcome};
use keylane_testkit::recorder::RecordedSink;

use crate::support::{Letters, MS, Plan, Rig, SECOND, by_number, eventually, q};

/// A rig with a sink; keys "0" are dead letters, at once.
fn letters(plans: &[Plan]) -> (Rig, Letters, keylane::Consumer) {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["0", "0", "1"]);
    let letters = Letters::planned(plans.iter().copied());
    let sink = RecordedSink::new(letters.clone(), &rig.recorder);
    let listener = rig.each(|message, _| match (message.key(), message.offset().get()) {
        (Some(b"0"), 0) => Ok(Outcome::DeadLetter("not an amount".into())),
        _ => Ok(Outcome::Done),
    });
    let builder = rig.builder().shards(2).hasher(by_number).dead_letters(sink);
    let consumer = builder.start(listener).unwrap();
    (rig, letters, consumer)
}

#[test]
fn a_dead_letter_is_stored_with_its_reason_and_then_its_key_goes_on() {
    let (rig, letters, consumer) = letters(&[]);
    rig.wait_for_commit(q(0), 3);
    let metrics = consumer.metrics();
    assert_eq!((metrics.dead_lettered, metrics.succeeded, metrics.in_flight), (1, 2, 0));
    rig.stop(&consumer);
    let reason = "given up by the listener: not an amount".to_owned();
    assert_eq!(letters.sent.all(), [(0, 0, reason)]);
    let event = rig.events.wait_for("it", |event| matches!(event, Event::DeadLettered { .. }));
    assert!(
        event.to_string().starts_with("it/0: offset 0, key \"0\": dead letter after "),
        "{event}"
    );
    eventually("the sink is closed", || letters.closed.len() == 1);
}

#[test]
fn a_letter_that_is_not_stored_is_sent_again_and_holds_its_key() {
    for (plan, error) in [
        (Plan::Fail, "the topic for letters is full"),
        (Plan::Drop, "the dead-letter sink dropped the letter's Ack"),
        (Plan::Panic, "the dead-letter sink dropped the letter's Ack"),
    ] {
        let (rig, letters, consumer) = letters(&[plan, plan, Plan::Store]);
        rig.wait_for_commit(q(0), 3);
        rig.stop(&consumer);
        assert_eq!(letters.sent.len(), 3, "{plan:?}");
        let is_failure = |event: &Event| matches!(event, Event::DeadLetterFailed { .. });
        assert_eq!(rig.events.count(is_failure), 2);
        let event = rig.events.wait_for("it", is_failure);
        let expected = format!("it/0: offset 0, key \"0\": dead letter: {error}; again in ");
        assert!(event.to_string().starts_with(&expected), "{event}");
        assert_eq!(rig.attempts(q(0), 0), 1, "the listener is not asked again");
    }
}

#[test]
fn a_slow_sink_holds_back_one_key_and_no_shard() {
    let (rig, letters, consumer) = letters(&[Plan::Keep]);
    letters.sent.wait_for_len(1);
    rig.produce_all(q(0), (2..20).map(|n| n.to_string()));
    eventually("all other keys", || consumer.metrics().succeeded == 19);
    assert_eq!(rig.script.committed(q(0)), Some(0));
    let holding = consumer.holding();
    assert_eq!((holding[0].state, holding[0].offset.get()), (HoldingState::DeadLettering, 0));
    assert_eq!(rig.attempts(q(0), 1), 0, "it stands behind the letter");
    letters.kept().into_iter().for_each(keylane::Ack::done);
    rig.wait_for_commit(q(0), 21);
    rig.stop(&consumer);
}

#[test]
fn a_sink_that_is_away_is_seen_in_health() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "0");
    let letters = Letters::planned([Plan::Fail]);
    let listener = rig.each(|_, _| Ok(Outcome::DeadLetter("no".into())));
    let policy = FailurePolicy::default().backoff(3_600 * SECOND, 3_600 * SECOND);
    let builder = rig.builder().shards(1).failure(policy).dead_letters(letters.clone());
    let consumer = builder.start(listener).unwrap();
    rig.events.wait_for("it", |event| matches!(event, Event::DeadLetterFailed { .. }));
    let Health::Degraded(reasons) = consumer.health() else { panic!("{}", consumer.health()) };
    assert!(reasons[0].starts_with("shard 0: 1 lanes wait to be tried again"), "{reasons:?}");
    rig.stop_early(&consumer);
    assert_eq!(rig.script.committed(q(0)), Some(0));
}

#[test]
fn a_revoke_and_a_stop_wait_for_a_letter_under_way() {
    let (rig, letters, consumer) = letters(&[Plan::Keep]);
    letters.sent.wait_for_len(1);
    rig.script.begin_revoke(q(0));
    rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
    assert!(rig.script.look(|state| state.is_assigned(q(0))));
    letters.kept().into_iter().for_each(keylane::Ack::done);
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    assert!(rig.script.committed(q(0)) >= Some(1));
    rig.stop_early(&consumer);
}

#[test]
fn a_letter_that_is_never_answered_is_abandoned() {
    let (rig, letters, consumer) = letters(&[Plan::Keep]);
    letters.sent.wait_for_len(1);
    let error = consumer.stop(200 * MS).unwrap_err();
    assert!(error.is_deadline());
    let [abandoned] = &error.report().unwrap().abandoned[..] else { panic!("{error}") };
    assert_eq!(abandoned.offset.get(), 0);
    assert_eq!(rig.script.committed(q(0)), Some(0));
    letters.kept().into_iter().for_each(keylane::Ack::done);
    assert_eq!(rig.script.committed(q(0)), Some(0), "too late to count");
}

#[test]
fn exhausted_attempts_become_a_dead_letter() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "K"]);
    let letters = Letters::default();
    let listener = rig.each(|message, _| match message.offset().get() {
        0 => Err("never".into()),
        _ => Ok(Outcome::Done),
    });
    let policy = FailurePolicy::default().backoff(MS, MS).attempts_max(3);
    let builder = rig.builder().failure(policy.then(Exhausted::DeadLetter));
    let sink = RecordedSink::new(letters.clone(), &rig.recorder);
    let consumer = builder.dead_letters(sink).start(listener).unwrap();
    rig.wait_for_commit(q(0), 2);
    rig.stop(&consumer);
    let reason = "attempts exhausted, last error: never".to_owned();
    assert_eq!(letters.sent.all(), [(0, 3, reason)]);
    assert_eq!(rig.offsets(q(0)), [0, 0, 0, 1]);
}

#[test]
fn without_a_sink_a_dead_letter_is_a_failed_attempt() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "K");
    let listener = rig.each(|_, context| match context.attempt() {
        1 => Ok(Outcome::DeadLetter("not for us".into())),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().start(listener).unwrap();
    rig.wait_for_commit(q(0), 1);
    rig.stop(&consumer);
    let event = rig.events.wait_for("it", |event| matches!(event, Event::Failed { .. }));
    let why = "given up by the listener: not for us, but there is no dead-letter sink";
    assert!(event.to_string().contains(why), "{event}");
}
