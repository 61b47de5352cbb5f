//! Failed attempts: again, and in the end something else.

use keylane::source::Message;
use keylane::{BatchOutcome, Event, Exhausted, FailurePolicy, Health, HoldingState, Outcome};

use crate::support::{Latch, MS, Rig, SECOND, by_number, eventually, offset, position, q};

/// Three attempts, then this.
fn three(then: Exhausted) -> FailurePolicy {
    FailurePolicy::default().backoff(MS, MS).attempts_max(3).then(then)
}

fn scenario_20(retries: u32) {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..6).map(|_| "K"));
    let script = rig.script.clone();
    let listener = rig.each(move |message, context| {
        if message.offset().get() == 0 && context.attempt() <= retries {
            assert_eq!(script.committed(q(0)), Some(0));
            return Ok(Outcome::RetryAfter(std::time::Duration::ZERO));
        }
        Ok(Outcome::Done)
    });
    let consumer = rig.builder().in_flight_max(8).start(listener).unwrap();
    rig.wait_for_commit(q(0), 6);
    let metrics = consumer.metrics();
    assert_eq!((metrics.in_flight, metrics.in_flight_bytes, metrics.lanes_held), (0, 0, 0));
    assert_eq!(metrics.failed, u64::from(retries));
    // Nothing is throttled afterwards.
    rig.produce_all(q(0), (0..100).map(|_| "K"));
    rig.wait_for_commit(q(0), 106);
    rig.stop(&consumer);
    let mut expected = vec![0; retries as usize + 1];
    expected.extend(1..106);
    assert_eq!(rig.offsets(q(0)), expected);
    let attempts: Vec<_> = rig.calls.all().iter().map(|seen| seen.attempt).collect();
    assert!(attempts[..=retries as usize].iter().copied().eq(1..=retries + 1));
    assert!(attempts[retries as usize + 1..].iter().all(|&attempt| attempt == 1));
}

#[test]
fn scenario_20_a_retried_message_comes_before_the_later_ones_of_its_key() {
    scenario_20(1);
}

#[test]
fn scenario_20_and_so_it_does_after_eleven_hundred_retries() {
    scenario_20(1_100);
}

#[test]
fn a_key_that_waits_to_retry_is_seen_in_health_and_in_what_holds() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["0", "0", "1"]);
    let listener = rig.each(|message, _| match message.key() {
        Some(b"0") => Err("the account is locked".into()),
        _ => Ok(Outcome::Done),
    });
    let policy = FailurePolicy::default().backoff(3_600 * SECOND, 3_600 * SECOND);
    let builder = rig.builder().shards(2).hasher(by_number).failure(policy);
    let consumer = builder.start(listener).unwrap();
    let failed = rig.events.wait_for("the failure", |event| matches!(event, Event::Failed { .. }));
    let expected =
        "it/0: offset 0, key \"0\", shard 0: attempt 1 failed: the account is locked; again in ";
    assert!(failed.to_string().starts_with(expected), "{failed}");
    eventually("the other key", || consumer.metrics().succeeded == 1);
    let reason =
        "shard 0: 1 lanes wait to be tried again: it/0 offset 0, key \"0\", failed 1 times";
    assert_eq!(consumer.health(), Health::Degraded(vec![reason.to_owned()]));
    let [holding] = &consumer.holding()[..] else { panic!("{:?}", consumer.holding()) };
    assert_eq!((holding.queue, holding.offset, holding.shard), (q(0), offset(0), Some(0)));
    assert_eq!((holding.state, holding.attempts), (HoldingState::BackingOff, Some(1)));
    assert_eq!(holding.last_error.as_deref(), Some("the account is locked"));
    assert_eq!(
        (holding.key.as_ref().and_then(|key| key.bytes()), holding.span),
        (Some(&b"0"[..]), 3)
    );
    let report = rig.stop_early(&consumer);
    assert_eq!((report.unfinished, report.queues[0].finished_above), (2, 1));
}

#[test]
fn exhausted_attempts_may_skip() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "K"]);
    let listener = rig.each(|message, _| match message.offset().get() {
        0 => Err("never".into()),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().failure(three(Exhausted::Skip)).start(listener).unwrap();
    rig.wait_for_commit(q(0), 2);
    let skipped = rig.events.wait_for("the skip", |event| matches!(event, Event::Skipped { .. }));
    let expected = "it/0: offset 0, key \"K\": skipped after 3 attempts: \
                    attempts exhausted, last error: never";
    assert_eq!(skipped.to_string(), expected);
    let metrics = consumer.metrics();
    assert_eq!((metrics.failed, metrics.skipped, metrics.succeeded), (3, 1, 1));
    consumer.stop(SECOND).unwrap();
    assert_eq!(rig.offsets(q(0)), [0, 0, 0, 1]);
}

#[test]
fn exhausted_attempts_may_stop_the_consumer() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "L", "K"]);
    let listener = rig.each(|message, _| match message.offset().get() {
        0 => Err("never".into()),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().failure(three(Exhausted::Stop)).start(listener).unwrap();
    let error = consumer.wait().unwrap_err();
    assert!(error.is_stopped_by_listener());
    let expected = "stopped by the listener: it/0 offset 0, key \"K\": \
                    attempts exhausted, last error: never; ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(rig.script.committed(q(0)), Some(0));
    rig.recorder.verdict_so_far().assert_clean();
    assert_eq!(rig.attempts(q(0), 0), 3);
    assert_eq!(rig.attempts(q(0), 2), 0);
}

#[test]
fn attempts_in_earlier_processes_count_where_the_source_reports_them() {
    let rig = Rig::with_queues(1);
    let tried = Message::new(q(0), offset(0)).with_key("K").with_attempts(2);
    rig.recorder.produced(q(0), offset(0));
    rig.script.append(q(0), [tried]);
    let listener = rig.each(|_, _| Err("never".into()));
    let consumer = rig.builder().failure(three(Exhausted::Skip)).start(listener).unwrap();
    rig.wait_for_commit(q(0), 1);
    consumer.stop(SECOND).unwrap();
    let attempts: Vec<_> = rig.calls.all().iter().map(|seen| seen.attempt).collect();
    assert_eq!(attempts, [3], "the third one is the last");
}

#[test]
fn the_listener_may_give_up_by_itself() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "K"]);
    let listener = rig.each(|message, _| match message.offset().get() {
        0 => Ok(Outcome::Skip("not for us".into())),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().start(listener).unwrap();
    rig.wait_for_commit(q(0), 2);
    let skipped = rig.events.wait_for("the skip", |event| matches!(event, Event::Skipped { .. }));
    assert_eq!(
        skipped.to_string(),
        "it/0: offset 0, key \"K\": skipped after 0 attempts: not for us"
    );
    rig.stop(&consumer);
}

#[test]
fn a_batch_that_fails_without_saying_where_costs_no_attempts() {
    let rig = Rig::with_queues(1);
    let gate = Latch::new();
    rig.produce_all(q(0), ["A", "B", "A", "C"]);
    let listener = rig.batches({
        let gate = gate.clone();
        move |batch| {
            gate.pass();
            match batch.len() {
                1 if batch[0].offset().get() == 1 && batch.attempt(0) < 3 => Err("B is bad".into()),
                1 => Ok(BatchOutcome::Done),
                _ => Err("something is bad".into()),
            }
        }
    });
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    gate.wait_for_arrivals(1);
    gate.open();
    rig.wait_for_commit(q(0), 4);
    rig.stop(&consumer);
    assert_eq!(rig.batches.all()[..1], [4]);
    assert!(rig.batches.all()[1..].iter().all(|&len| len == 1));
    let calls: Vec<_> = rig.calls.all().iter().map(|seen| (seen.offset, seen.attempt)).collect();
    assert_eq!(calls[..4], [(0, 1), (1, 1), (2, 1), (3, 1)]);
    let mut again = calls[4..].to_vec();
    assert_eq!(again[..2], [(0, 1), (1, 1)], "one by one, in order, with no attempt counted");
    again.sort_unstable();
    assert_eq!(again, [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]);
    let event = rig.events.wait_for("it", |event| matches!(event, Event::BatchFailed { .. }));
    let expected = "shard 0: a batch of 4 failed without saying where: something is bad; \
                    its messages come again one by one";
    assert_eq!(event.to_string(), expected);
}

#[test]
fn an_answer_that_does_not_fit_the_batch_is_a_failure_of_the_call() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..4).map(|_| "K"));
    let listener = rig.batches(|batch| match batch.len() {
        4 => Ok(BatchOutcome::DoneThrough(4)),
        1 if batch.attempt(0) == 1 => Ok(BatchOutcome::Each(Vec::new())),
        1 if batch.attempt(0) == 2 => {
            Ok(BatchOutcome::FailedAt { index: 7, error: "far away".into() })
        }
        _ => Ok(BatchOutcome::Done),
    });
    let consumer = rig.builder().shards(1).batch_max(4).start(listener).unwrap();
    rig.wait_for_commit(q(0), 4);
    rig.stop(&consumer);
    let errors: Vec<_> = rig.events.all().iter().map(ToString::to_string).collect();
    for expected in [
        "the listener named index 4 of a batch of 4 messages",
        "the listener gave 0 answers for 1 messages",
        "the listener named index 7 of a batch of 1 messages",
    ] {
        assert!(errors.iter().any(|error| error.contains(expected)), "{expected}: {errors:#?}");
    }
}

#[test]
fn a_delay_beyond_all_measure_is_a_delay() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["A", "B"]);
    let listener = rig.each(|message, _| match message.key() {
        Some(b"A") => Ok(Outcome::RetryAfter(std::time::Duration::MAX)),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    eventually("the other key", || consumer.metrics().succeeded == 1);
    eventually("the first one waits", || consumer.metrics().lanes_held == 1);
    rig.stop_early(&consumer);
    assert_eq!(rig.script.look(|state| state.end(q(0))), position(2));
}
