//! G3 and G4: what is committed, and when.

use std::collections::HashMap;
use std::sync::Arc;

use keylane::source::{Message, SourceError};
use keylane::{Event, Health, Outcome};
use keylane_testkit::script::{Call, CommitAnswer};

use crate::support::{
    Latch, MS, Rig, SECOND, by_number, eventually, offset, position, q, watermark,
};

/// A rig whose message at each of these offsets (the key says so too) waits for a latch of its own.
fn latched(
    rig: &Rig,
    offsets: &[u64],
) -> (Arc<HashMap<u64, Latch>>, impl keylane::IntoListener + use<>) {
    let latches: Arc<HashMap<_, _>> =
        Arc::new(offsets.iter().map(|&offset| (offset, Latch::new())).collect());
    let listener = rig.each({
        let latches = Arc::clone(&latches);
        move |message, _| {
            if message.queue() == q(0) {
                latches[&message.offset().get()].pass();
            }
            Ok(Outcome::Done)
        }
    });
    (latches, listener)
}

#[test]
fn scenario_04_a_commit_never_passes_a_running_message() {
    let rig = Rig::with_queues(0);
    rig.script.start_at(q(0), position(28));
    rig.script.store(q(0), watermark(28));
    rig.script.store(q(1), watermark(0));
    (0..2).for_each(|index| rig.script.assign(q(index)));
    rig.produce_all(q(0), (28..38).map(|n| n.to_string()));
    let (latches, listener) = latched(&rig, &(28..38).collect::<Vec<_>>());
    let builder =
        rig.builder().shards(11).hasher(|key| by_number(key).checked_sub(28).unwrap_or(10));
    let consumer = builder.start(listener).unwrap();
    rig.calls.wait_for_len(10);
    let finish = |done: u64, offset: u64| {
        latches[&offset].open();
        eventually("the call ends", || consumer.metrics().succeeded == done);
    };
    (1..).zip([37, 34, 36, 35]).for_each(|(done, offset)| finish(done, offset));
    rig.commit_round(q(1), "barrier");
    (6..).zip([33, 32, 31, 30, 29]).for_each(|(done, offset)| finish(done, offset));
    rig.commit_round(q(1), "barrier");
    assert!(rig.script.commits(q(0)).is_empty(), "{:?}", rig.script.commits(q(0)));

    latches[&28].open();
    rig.wait_for_commit(q(0), 38);
    assert_eq!(rig.script.commits(q(0)), [38]);
    rig.stop(&consumer);
}

#[test]
fn scenario_04_a_crash_before_the_slowest_is_done_loses_nothing() {
    let rig = Rig::with_queues(0);
    rig.script.start_at(q(0), position(28));
    rig.script.store(q(0), watermark(28));
    rig.script.assign(q(0));
    rig.produce_all(q(0), (28..38).map(|n| n.to_string()));
    let (latches, listener) = latched(&rig, &(28..38).collect::<Vec<_>>());
    let first = rig.builder().shards(10).hasher(by_number).start(listener).unwrap();
    rig.calls.wait_for_len(10);
    (29..38).for_each(|offset| latches[&offset].open());
    eventually("nine calls end", || first.metrics().succeeded == 9);

    let again = rig.crash();
    let second = again.builder().shards(10).hasher(by_number).start(again.done()).unwrap();
    again.wait_for_commit(q(0), 38);
    let mut delivered = again.offsets(q(0));
    delivered.sort_unstable();
    assert!(delivered.into_iter().eq(28..38));
    latches[&28].open();
    again.stop(&second);
    assert!(first.wait().is_err_and(|error| error.is_source()), "another has taken its place");
}

#[test]
fn scenario_05_a_commit_passes_holes_and_the_markers_behind_the_last_message() {
    let rig = Rig::with_queues(2);
    let of_lane = |n: u64| Message::new(q(0), offset(n)).with_key((n / 2).to_string());
    rig.script.append(q(0), [0, 2, 4, 6].map(of_lane));
    rig.script.hole(q(0), 1);
    let (latches, listener) = latched(&rig, &[0, 2, 4, 6, 9]);
    let builder = rig.builder().shards(5).hasher(|key| by_number(key).min(4));
    let consumer = builder.start(listener).unwrap();
    rig.calls.wait_for_len(4);
    let finish = |done: u64, offset: u64, committed: u64| {
        latches[&offset].open();
        eventually("the call ends", || consumer.metrics().succeeded == done);
        rig.wait_for_commit(q(0), committed);
        rig.commit_round(q(1), "4");
        assert_eq!(rig.script.committed(q(0)), Some(committed));
    };
    finish(1, 0, 2);
    finish(3, 2, 4);
    finish(5, 6, 4);
    finish(7, 4, 8);
    let metrics = consumer.metrics();
    assert_eq!((metrics.in_flight, metrics.queues[0].paused), (0, false));

    // A fetch without messages, and a position that has moved.
    rig.script.hole(q(0), 1);
    rig.wait_for_commit(q(0), 9);
    assert_eq!(consumer.metrics().queues[0].lag, Some(0));

    // The same while a message is running: it holds.
    rig.script.append(q(0), [Message::new(q(0), offset(9)).with_key("3")]);
    rig.calls.wait_until("9 is running", |calls| calls.iter().any(|seen| seen.offset == 9));
    rig.script.hole(q(0), 5);
    rig.script.wait_for("the fetch", |state| state.position(q(0)) == Some(position(15)));
    rig.commit_round(q(1), "4");
    assert_eq!(rig.script.committed(q(0)), Some(9));
    latches[&9].open();
    rig.wait_for_commit(q(0), 15);
    rig.stop(&consumer);
}

#[test]
fn scenario_06_the_last_message_before_silence_is_committed_once_and_not_repeated() {
    let rig = Rig::with_queues(0);
    rig.script.start_at(q(0), position(100));
    rig.script.store(q(0), watermark(100));
    rig.script.store(q(1), watermark(0));
    (0..2).for_each(|index| rig.script.assign(q(index)));
    rig.produce(q(0), "K");
    let consumer = rig.builder().commit_interval(20 * MS).start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 101);
    (0..5).for_each(|_| rig.commit_round(q(1), "barrier"));
    assert_eq!(rig.script.commits(q(0)), [101]);

    let again = rig.crash();
    let second = again.builder().start(again.done()).unwrap();
    again.produce(q(0), "K");
    again.wait_for_commit(q(0), 102);
    assert_eq!(again.offsets(q(0)), [101]);
    again.stop(&second);
    drop(consumer);
}

#[test]
fn one_commit_a_queue_is_under_way_and_the_newest_follows() {
    let rig = Rig::with_queues(2);
    rig.script.hold_commits();
    rig.produce(q(0), "K");
    let consumer = rig.builder().start(rig.done()).unwrap();
    let unanswered = |queue, n| {
        rig.script.wait_for("a commit", |state| {
            state
                .unanswered()
                .iter()
                .any(|commit| commit.queue == queue && commit.watermark.get() == n)
        });
    };
    unanswered(q(0), 1);
    rig.produce_all(q(0), ["K", "K"]);
    eventually("all are done", || consumer.metrics().succeeded == 3);
    rig.produce(q(1), "barrier");
    unanswered(q(1), 1);
    assert_eq!(rig.script.commits(q(0)), [1], "a second one, although the first is under way");

    assert_eq!(rig.script.let_commits_go(), 2);
    rig.wait_for_commit(q(0), 3);
    assert_eq!(rig.script.commits(q(0)), [1, 3]);
    rig.stop(&consumer);
}

#[test]
fn answers_may_be_late_and_in_another_order() {
    let rig = Rig::with_queues(3);
    (0..3).for_each(|index| _ = rig.produce(q(index), "K"));
    rig.script.hold_commits();
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.wait_for("three commits", |state| state.unanswered().len() == 3);
    let mut commits = rig.script.look(|state| state.unanswered());
    commits.sort_by_key(|commit| std::cmp::Reverse(commit.queue));
    for commit in &commits {
        assert!(rig.script.answer_commit(commit.tag, &CommitAnswer::Stored));
        rig.wait_for_commit(commit.queue, 1);
    }
    // Answered with the third poll from now on: later, but nothing else changes.
    rig.script.let_commits_go();
    rig.script.delay_commits(3);
    rig.produce_all(q(0), ["K", "K"]);
    rig.wait_for_commit(q(0), 3);
    rig.stop(&consumer);
}

#[test]
fn a_failed_commit_is_repeated_without_new_messages_and_degrades_health() {
    let rig = Rig::with_queues(1);
    rig.script.hold_commits();
    rig.produce(q(0), "K");
    let consumer = rig.builder().start(rig.done()).unwrap();
    for failures in 1..=3 {
        rig.script.wait_for("a commit", |state| state.unanswered().len() == 1);
        let commit = rig.script.look(|state| state.unanswered().remove(0));
        assert_eq!(commit.watermark, watermark(1));
        let refused = CommitAnswer::Failed(SourceError::retryable("the coordinator has moved"));
        assert!(rig.script.answer_commit(commit.tag, &refused));
        let event = rig.events.wait_for(
            "the failure",
            |event| matches!(event, Event::CommitFailed { failures: n, .. } if *n == failures),
        );
        let expected = format!("it/0: commit 1: the coordinator has moved (failure {failures})");
        assert_eq!(event.to_string(), expected);
    }
    let reason = "it/0: commits have failed 3 times: the coordinator has moved".to_owned();
    assert_eq!(consumer.health(), Health::Degraded(vec![reason]));
    assert_eq!(consumer.metrics().commit_failures, 3);

    rig.script.wait_for("a commit", |state| state.unanswered().len() == 1);
    rig.script.let_commits_go();
    let event =
        rig.events.wait_for("the recovery", |event| matches!(event, Event::CommitRecovered { .. }));
    assert_eq!(event.to_string(), "it/0: commits work again, 1 is stored");
    assert_eq!(consumer.health(), Health::Healthy);
    assert_eq!(rig.script.commits(q(0)), [1, 1, 1, 1]);
    rig.stop(&consumer);
}

#[test]
fn a_commit_that_was_stored_although_its_answer_failed_is_sent_again() {
    let rig = Rig::with_queues(1);
    let lost = SourceError::retryable("the connection broke");
    rig.script.answer_next_commits([CommitAnswer::StoredButFailed(lost)]);
    rig.produce(q(0), "K");
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.events.wait_for("the recovery", |event| matches!(event, Event::CommitRecovered { .. }));
    assert_eq!(rig.script.commits(q(0)), [1, 1]);
    rig.stop(&consumer);
}

#[test]
fn a_count_commits_without_waiting_for_the_interval() {
    let rig = Rig::with_queues(2);
    let builder = rig.builder().commit_interval(3_600 * SECOND).commit_count(10);
    let consumer = builder.start(rig.done()).unwrap();
    rig.produce_all(q(0), (0..9).map(|_| "K"));
    eventually("nine are done", || consumer.metrics().succeeded == 9);
    rig.produce_all(q(1), (0..10).map(|_| "L"));
    rig.wait_for_commit(q(1), 10);
    assert!(rig.script.commits(q(0)).is_empty(), "nine are fewer than ten");
    rig.produce(q(0), "K");
    rig.wait_for_commit(q(0), 10);
    assert_eq!(rig.script.commits(q(0)), [10]);
    rig.stop(&consumer);
}

#[test]
fn only_what_has_changed_is_committed() {
    let rig = Rig::with_queues(50);
    (0..50).for_each(|index| _ = rig.produce(q(index), "K"));
    let consumer = rig.builder().start(rig.done()).unwrap();
    (0..50).for_each(|index| rig.wait_for_commit(q(index), 1));
    (0..5).for_each(|_| rig.commit_round(q(7), "K"));
    rig.stop(&consumer);
    let commits = rig.script.history();
    let of_others = commits
        .iter()
        .filter(|call| matches!(call, Call::Commit(commit) if commit.queue != q(7)))
        .count();
    assert_eq!(of_others, 49, "a queue that stands still was committed again");
}
