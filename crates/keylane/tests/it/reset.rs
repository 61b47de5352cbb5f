//! What was read is no longer the continuation of what comes; and where a queue starts.

use keylane::source::{Message, ResetCause, SeekTo};
use keylane::{Event, Health, OutOfRange, Outcome, StartFrom};
use keylane_testkit::guarantee::Scope;
use keylane_testkit::recorder::Recorder;
use keylane_testkit::script::{Call, Script};

use crate::support::{Latch, MS, Rig, eventually, offset, position, q, watermark};

fn seeks(rig: &Rig, index: u32) -> Vec<SeekTo> {
    let seek = |call: &Call| match call {
        Call::Seek { queue, to } if *queue == q(index) => Some(*to),
        _ => None,
    };
    rig.script.history().iter().filter_map(seek).collect()
}

/// A group that has committed 2,707,875, of a topic that was made anew and has 684 messages.
fn recreated() -> Rig {
    let rig = Rig::with_queues(1);
    rig.script.store(q(2), watermark(2_707_875));
    rig.produce_all(q(2), (0..684).map(|n| (n % 10).to_string()));
    rig.script.assign(q(2));
    rig
}

#[test]
fn scenario_28_out_of_range_starts_over_and_commits_what_is_lower() {
    let rig = recreated();
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.wait_for("the lower commit", |state| state.committed(q(2)) == Some(watermark(684)));
    rig.stop(&consumer);
    assert_eq!(rig.events.count(|event| matches!(event, Event::Reset { .. })), 1);
    assert_eq!(rig.offsets(q(2)).len(), 684);
    assert_eq!(
        seeks(&rig, 2),
        [SeekTo::Position(position(2_707_875)), SeekTo::Position(position(0))]
    );
    assert!(rig.script.commits(q(2)).is_sorted(), "one step back, and no other");

    rig.script.assign(q(2));
    let again = rig.again();
    let second = again.builder().start(again.done()).unwrap();
    again.produce(q(2), "K");
    again.wait_for_commit(q(2), 685);
    assert_eq!(again.offsets(q(2)), [684]);
    again.stop(&second);
}

#[test]
fn scenario_28_out_of_range_may_end_the_queue_and_leaves_the_others_alone() {
    let rig = recreated();
    let builder = rig.builder().out_of_range(OutOfRange::Fail);
    let consumer = builder.start(rig.done()).unwrap();
    let event = rig.events.wait_for("the end", |event| matches!(event, Event::QueueFailed { .. }));
    let why = "it/2: position 2707875 is out of range, the broker has 0 to 684";
    assert_eq!(event.to_string(), format!("it/2: ended: {why}"));
    (0..5).for_each(|_| rig.commit_round(q(0), "K"));
    assert_eq!(consumer.health(), Health::Degraded(vec![format!("it/2: ended: {why}")]));
    assert_eq!(seeks(&rig, 2).len(), 1, "it is asked for again and again");
    assert_eq!(rig.script.committed(q(2)), Some(2_707_875));
    assert!(rig.script.commits(q(2)).is_empty());
    consumer.stop(crate::support::SECOND).unwrap();
}

#[test]
fn a_queue_that_has_failed_may_be_taken_away_and_come_back() {
    let rig = recreated();
    let builder = rig.builder().out_of_range(OutOfRange::Fail);
    let consumer = builder.start(rig.done()).unwrap();
    rig.events.wait_for("the end", |event| matches!(event, Event::QueueFailed { .. }));
    rig.script.begin_revoke(q(2));
    rig.script.wait_for("the release", |state| state.is_released(q(2)));
    eventually("it is nobody's trouble any more", || consumer.health() == Health::Healthy);
    rig.script.store(q(2), watermark(680));
    rig.script.assign(q(2));
    rig.wait_for_commit(q(2), 684);
    let mut delivered = rig.offsets(q(2));
    delivered.sort_unstable();
    assert_eq!(delivered, [680, 681, 682, 683]);
    consumer.stop(crate::support::SECOND).unwrap();
}

#[test]
fn a_failed_queue_that_is_lost_is_nobodys_trouble_either() {
    let rig = recreated();
    let builder = rig.builder().out_of_range(OutOfRange::Fail);
    let consumer = builder.start(rig.done()).unwrap();
    rig.events.wait_for("the end", |event| matches!(event, Event::QueueFailed { .. }));
    rig.script.lose(q(2));
    eventually("it is nobody's trouble any more", || consumer.health() == Health::Healthy);
    consumer.stop(crate::support::SECOND).unwrap();
}

#[test]
fn out_of_range_may_go_on_at_the_end() {
    let rig = recreated();
    let builder = rig.builder().out_of_range(OutOfRange::Latest);
    let consumer = builder.start(rig.done()).unwrap();
    rig.events.wait_for("the reset", |event| matches!(event, Event::Reset { .. }));
    eventually("it stands at the end", || seeks(&rig, 2).len() == 2);
    assert_eq!(seeks(&rig, 2)[1], SeekTo::Position(position(684)));
    rig.produce(q(2), "K");
    rig.script.wait_for("the lower commit", |state| state.committed(q(2)) == Some(watermark(685)));
    assert_eq!(rig.offsets(q(2)), [684]);
    consumer.stop(crate::support::SECOND).unwrap();
}

#[test]
fn an_offset_that_is_moved_back_while_a_call_runs_makes_its_end_stale() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..10).map(|_| "K"));
    let latch = Latch::new();
    let listener = rig.each({
        let latch = latch.clone();
        move |message, context| {
            if message.offset().get() == 7 && context.epoch() == 1 {
                latch.pass();
            }
            Ok(Outcome::Done)
        }
    });
    let consumer = rig.builder().batch_max(1).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.wait_for_commit(q(0), 7);
    rig.script.reset(q(0), ResetCause::Moved { to: position(4) });
    let reset = rig.events.wait_for("the reset", |event| matches!(event, Event::Reset { .. }));
    assert!(reset.to_string().starts_with("it/0: reset: Moved"), "{reset}");
    eventually("the new epoch", || seeks(&rig, 0).len() == 2);
    assert_eq!(rig.attempts(q(0), 4), 1, "the key's old call has not returned");
    latch.open();
    rig.wait_for_commit(q(0), 10);
    rig.stop(&consumer);
    assert_eq!(rig.offsets(q(0)), [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9]);
    assert_eq!(rig.events.count(|event| matches!(event, Event::StaleCompletions { .. })), 1);
}

#[test]
fn an_offset_that_is_moved_forward_skips_without_a_commit_in_between() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..10).map(|_| "K"));
    let latch = Latch::new();
    let listener = rig.passing(&latch, |message| message.offset().get() == 0);
    let consumer = rig.builder().start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.reset(q(0), ResetCause::Moved { to: position(8) });
    eventually("the new epoch", || seeks(&rig, 0).len() == 2);
    latch.open();
    rig.wait_for_commit(q(0), 10);
    assert_eq!(rig.offsets(q(0)), [0, 8, 9]);
    assert_eq!(rig.script.commits(q(0)), [10]);
    consumer.stop(crate::support::SECOND).unwrap();
}

#[test]
fn a_topic_that_is_made_anew_starts_over() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..10).map(|_| "K"));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 10);
    rig.script.reset(q(0), ResetCause::Recreated { begin: offset(0) });
    rig.events.wait_for("the reset", |event| matches!(event, Event::Reset { .. }));
    rig.produce_all(q(0), (0..3).map(|_| "K"));
    rig.wait_for_commit(q(0), 3);
    rig.stop(&consumer);
    assert_eq!(rig.offsets(q(0)), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]);
}

#[test]
fn scenario_30_a_look_up_that_fails_is_not_the_answer_none() {
    let rig = Rig::new();
    rig.script.start_at(q(0), position(15_619));
    rig.script.store(q(0), watermark(15_619));
    rig.script.fail_look_ups(q(0), u32::MAX);
    rig.produce_all(q(0), ["K", "K"]);
    rig.produce_all(q(1), ["L", "L"]);
    (0..2).for_each(|index| rig.script.assign(q(index)));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.wait_for_commit(q(1), 2);
    for expected in 1..=3 {
        rig.events.wait_for("a failure", |event| {
            matches!(event, Event::LookUpFailed { queue, failures, .. }
                if *queue == q(0) && *failures == expected)
        });
    }
    let Health::Degraded(reasons) = consumer.health() else { panic!("{:?}", consumer.health()) };
    let reason = reasons.iter().find(|reason| reason.starts_with("it/0"));
    assert!(reason.is_some_and(|reason| reason.contains("could not be read")), "{reasons:?}");
    assert!(seeks(&rig, 0).is_empty() && rig.script.commits(q(0)).is_empty());
    assert_eq!(seeks(&rig, 1), [SeekTo::Earliest]);

    rig.script.fail_look_ups(q(0), 0);
    rig.wait_for_commit(q(0), 15_621);
    assert_eq!(seeks(&rig, 0), [SeekTo::Position(position(15_619))]);
    assert_eq!(rig.offsets(q(0)), [15_619, 15_620]);
    assert!(rig.script.commits(q(0)).iter().all(|&mark| mark > 15_619));
    assert_eq!(consumer.health(), Health::Healthy);
    rig.stop(&consumer);
}

#[test]
fn a_group_without_an_offset_starts_where_the_option_says() {
    for (start, expected) in [
        (StartFrom::Earliest, vec![0, 1, 2, 3, 4]),
        (StartFrom::Latest, vec![4]),
        (StartFrom::TimestampMs(2_000), vec![2, 3, 4]),
    ] {
        let recorder = Recorder::new(Scope::key());
        let rig = Rig::with(Script::new(), recorder);
        let stamped = |n: u64| {
            let at = i64::try_from(n).unwrap() * 1_000;
            Message::new(q(0), offset(n)).with_key("K").with_timestamp_ms(at)
        };
        rig.script.append(q(0), (0..4).map(stamped));
        rig.script.assign(q(0));
        let consumer = rig.builder().start_from(start).start(rig.done()).unwrap();
        rig.script.wait_for("the start", |state| state.position(q(0)).is_some());
        rig.script.append(q(0), [stamped(4)]);
        rig.wait_for_commit(q(0), 5);
        assert_eq!(rig.offsets(q(0)), expected, "{start:?}");
        let started = rig.events.wait_for("the start", |e| matches!(e, Event::Started { .. }));
        assert_eq!(started.to_string(), "it/0: starts as the option start_from says, epoch 1");
        rig.stop(&consumer);
    }
}

#[test]
fn a_reset_while_messages_wait_to_retry_drops_them() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["A", "A", "B"]);
    let listener = rig.each(move |_, context| match context.epoch() {
        1 => Ok(Outcome::RetryAfter(3_600 * crate::support::SECOND)),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().start(listener).unwrap();
    eventually("two lanes wait", || consumer.metrics().lanes_held == 2);
    rig.script.reset(q(0), ResetCause::Moved { to: position(1) });
    rig.wait_for_commit(q(0), 3);
    let metrics = consumer.metrics();
    assert_eq!((metrics.lanes_held, metrics.in_flight), (0, 0));
    assert_eq!(consumer.health(), Health::Healthy);
    consumer.stop(100 * MS).unwrap();
}
