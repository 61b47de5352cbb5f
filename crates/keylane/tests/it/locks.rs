//! Locks on queues, for sources that have them.

use std::time::Duration;

use keylane::source::SourceError;
use keylane::{Event, OutOfRange};
use keylane_testkit::guarantee::Scope;
use keylane_testkit::recorder::Recorder;
use keylane_testkit::script::{Call, LockAnswer, Script};

use crate::support::{Latch, MS, Rig, SECOND, eventually, q, watermark};

/// A rig with locks of this lease.
fn rig(lease: Duration) -> Rig {
    let rig = Rig::with(Script::new().with_locks(lease), Recorder::new(Scope::key()));
    rig.script.store(q(0), watermark(0));
    rig
}

/// The calls that matter here, in words.
fn story(rig: &Rig) -> Vec<&'static str> {
    let word = |call: &Call| match call {
        Call::AcquireLocks(_) => Some("acquire"),
        Call::ReleaseLocks(_) => Some("unlock"),
        Call::LookUp(_) => Some("look up"),
        Call::Seek { .. } => Some("seek"),
        Call::Commit(_) => Some("commit"),
        Call::Release(_) => Some("release"),
        Call::Close { .. } => Some("close"),
        _ => None,
    };
    rig.script.history().iter().filter_map(word).collect()
}

fn acquired(rig: &Rig) -> usize {
    story(rig).into_iter().filter(|&word| word == "acquire").count()
}

#[test]
fn what_was_committed_is_looked_up_only_once_the_lock_is_held() {
    let rig = rig(30 * SECOND);
    rig.script.assign(q(0));
    // The lock's last owner commits once more: what came with the assignment is out of date.
    rig.script.store(q(0), watermark(2));
    rig.produce_all(q(0), ["K", "K", "K"]);
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 3);
    assert_eq!(rig.offsets(q(0)), [2]);
    rig.stop(&consumer);
    assert_eq!(story(&rig), ["acquire", "look up", "seek", "commit", "unlock", "close"]);
    assert!(!rig.script.look(|state| state.is_locked(q(0))));
}

#[test]
fn a_lock_that_is_refused_is_asked_for_again_and_nothing_is_read_before() {
    let rig = rig(30 * SECOND);
    rig.script.answer_locks(q(0), LockAnswer::Refuse);
    rig.script.assign(q(0));
    rig.produce(q(0), "K");
    let consumer = rig.builder().start(rig.done()).unwrap();
    let refused =
        rig.events.wait_for("a refusal", |event| matches!(event, Event::LockRefused { .. }));
    assert_eq!(refused.to_string(), "it/0: locked by another");
    assert_eq!(story(&rig), ["acquire"]);
    rig.script.answer_locks(q(0), LockAnswer::Fail(SourceError::retryable("broker busy")));
    let failed = rig
        .events
        .wait_for("an error", |event| matches!(event, Event::LockRefused { error: Some(_), .. }));
    assert_eq!(failed.to_string(), "it/0: lock: broker busy");
    rig.script.answer_locks(q(0), LockAnswer::Grant);
    rig.wait_for_commit(q(0), 1);
    rig.stop(&consumer);
    let expected =
        ["acquire", "acquire", "acquire", "look up", "seek", "commit", "unlock", "close"];
    assert_eq!(story(&rig), expected);
}

#[test]
fn a_lock_that_is_not_answered_is_asked_for_again() {
    let rig = rig(600 * MS);
    rig.script.answer_locks(q(0), LockAnswer::Silence);
    rig.script.assign(q(0));
    rig.produce(q(0), "K");
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.wait_for("a request", |state| {
        state.history().iter().any(|call| matches!(call, Call::AcquireLocks(_)))
    });
    rig.script.answer_locks(q(0), LockAnswer::Grant);
    rig.wait_for_commit(q(0), 1);
    assert!(acquired(&rig) >= 2);
    rig.stop(&consumer);
}

#[test]
fn a_lock_is_renewed_as_long_as_the_queue_is_read() {
    let rig = rig(150 * MS);
    rig.script.assign(q(0));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.wait_for("five renewals", |state| {
        let acquires = |call: &&Call| matches!(call, Call::AcquireLocks(_));
        state.history().iter().filter(acquires).count() >= 6
    });
    rig.produce(q(0), "K");
    rig.wait_for_commit(q(0), 1);
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_lock_that_is_lost_while_a_call_runs_fences_the_queue_until_it_is_held_again() {
    let rig = rig(6 * SECOND);
    rig.script.assign(q(0));
    rig.produce_all(q(0), ["K", "K"]);
    let latch = Latch::new();
    let listener = rig.passing(&latch, |_| true);
    let consumer = rig.builder().batch_max(1).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.answer_locks(q(0), LockAnswer::Silence);
    rig.script.lose_lock(q(0));
    let lost = rig.events.wait_for("the loss", |event| matches!(event, Event::LockLost { .. }));
    assert_eq!(lost.to_string(), "it/0: its lock is lost");
    latch.open();
    eventually("the late end", || consumer.metrics().stale_completions == 1);
    assert_eq!(rig.offsets(q(0)), [0], "nothing begins without the lock");
    assert!(rig.script.commits(q(0)).is_empty(), "nothing is committed without the lock");
    rig.script.answer_locks(q(0), LockAnswer::Grant);
    rig.wait_for_commit(q(0), 2);
    assert_eq!(rig.offsets(q(0)), [0, 0, 1]);
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_lock_whose_renewal_is_not_answered_ends_by_itself() {
    let rig = rig(300 * MS);
    rig.script.assign(q(0));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.produce(q(0), "K");
    rig.wait_for_commit(q(0), 1);
    rig.script.answer_locks(q(0), LockAnswer::Silence);
    rig.events.wait_for("the end of the lease", |event| matches!(event, Event::LockLost { .. }));
    rig.produce(q(0), "K");
    eventually("the lock is asked for", || acquired(&rig) >= 3);
    assert_eq!(rig.offsets(q(0)), [0], "nothing begins without the lock");
    rig.script.answer_locks(q(0), LockAnswer::Grant);
    rig.wait_for_commit(q(0), 2);
    rig.stop(&consumer);
    assert_eq!(rig.offsets(q(0)), [0, 1]);
}

#[test]
fn a_lock_that_expired_at_the_broker_is_lost_at_its_renewal() {
    let rig = rig(200 * MS);
    rig.script.assign(q(0));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.produce(q(0), "K");
    rig.wait_for_commit(q(0), 1);
    rig.script.expire_lock(q(0));
    rig.script.answer_locks(q(0), LockAnswer::Refuse);
    rig.events.wait_for("the loss", |event| matches!(event, Event::LockLost { .. }));
    rig.script.answer_locks(q(0), LockAnswer::Grant);
    rig.produce(q(0), "K");
    rig.wait_for_commit(q(0), 2);
    rig.stop(&consumer);
}

#[test]
fn a_queue_without_its_lock_is_not_fetched_and_thrown_away() {
    let rig = rig(30 * SECOND);
    rig.script.assign(q(0));
    let consumer = rig.builder().fetch_max(10).start(rig.done()).unwrap();
    rig.produce(q(0), "K");
    rig.wait_for_commit(q(0), 1);
    rig.script.answer_locks(q(0), LockAnswer::Refuse);
    rig.script.lose_lock(q(0));
    rig.events.wait_for("the refusal", |event| matches!(event, Event::LockRefused { .. }));
    rig.produce_all(q(0), (0..1_000).map(|_| "K"));
    let polls = rig.script.look(|state| state.polls());
    rig.script.wait_for("some polls", |state| state.polls() > polls + 2);
    let read_to = rig.script.look(|state| state.position(q(0)));
    assert_eq!(read_to.map(|at| at.get()), Some(1), "read, and thrown away");
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_lock_is_released_only_after_the_last_commit_was_answered() {
    let rig = rig(30 * SECOND);
    rig.script.assign(q(0));
    rig.script.hold_commits();
    rig.produce(q(0), "K");
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.wait_for("the commit", |state| state.unanswered().len() == 1);
    rig.script.begin_revoke(q(0));
    rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
    let polls = rig.script.look(|state| state.polls());
    rig.script.wait_for("some polls", |state| state.polls() > polls + 2);
    assert!(rig.script.look(|state| state.is_locked(q(0)) && state.is_assigned(q(0))));
    rig.script.let_commits_go();
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    rig.stop(&consumer);
    let expected = ["acquire", "look up", "seek", "commit", "unlock", "release", "close"];
    assert_eq!(story(&rig), expected);
}

#[test]
fn a_lock_is_left_to_expire_when_the_last_commit_was_never_answered() {
    let rig = rig(30 * SECOND);
    rig.script.assign(q(0));
    rig.script.hold_commits();
    rig.produce(q(0), "K");
    let consumer = rig.builder().revoke_timeout(50 * MS).start(rig.done()).unwrap();
    rig.script.wait_for("the commit", |state| state.unanswered().len() == 1);
    rig.script.begin_revoke(q(0));
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    // Who gets the queue next would be overtaken by our commit, if it arrived after all.
    assert!(rig.script.look(|state| state.is_locked(q(0))));
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_lock_is_left_to_expire_when_a_call_overruns_the_revoke() {
    // Renewed after two thirds of it; the rest is for a busy machine.
    let rig = rig(3 * SECOND);
    rig.script.assign(q(0));
    rig.produce(q(0), "K");
    let latch = Latch::new();
    let listener = rig.passing(&latch, |_| true);
    let consumer = rig.builder().revoke_timeout(5 * SECOND / 2).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.begin_revoke(q(0));
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    let event =
        rig.events.wait_for("the overrun", |event| matches!(event, Event::RevokeTimedOut { .. }));
    let expected = "it/0: given back while the call for offset 0, key \"K\", still runs on shard ";
    assert!(event.to_string().starts_with(expected), "{event}");
    let requests = acquired(&rig);
    assert!(requests >= 2, "renewed as long as the call was waited for");
    assert!(!story(&rig).contains(&"unlock"), "{:?}", story(&rig));
    assert!(rig.script.look(|state| state.is_locked(q(0))));
    latch.open();
    eventually("the late end", || consumer.metrics().stale_completions == 1);
    consumer.stop(SECOND).unwrap();
    assert_eq!(acquired(&rig), requests, "a queue that was given back is locked no more");
}

#[test]
fn a_stop_leaves_the_lock_of_a_queue_whose_call_still_runs() {
    let rig = rig(30 * SECOND);
    rig.script.store(q(1), watermark(0));
    (0..2).for_each(|index| rig.script.assign(q(index)));
    (0..2).for_each(|index| _ = rig.produce(q(index), format!("{index}")));
    let latch = Latch::new();
    let listener = rig.passing(&latch, |message| message.queue() == q(0));
    let builder = rig.builder().shards(2).hasher(crate::support::by_number);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.wait_for_commit(q(1), 1);
    assert!(consumer.stop(100 * MS).is_err_and(|error| error.is_deadline()));
    let released = rig.script.history().into_iter().find_map(|call| match call {
        Call::ReleaseLocks(queues) => Some(queues),
        _ => None,
    });
    assert_eq!(released, Some(vec![q(1)]));
    latch.open();
}

#[test]
fn a_queue_that_ended_with_an_error_keeps_no_lock() {
    let rig = rig(SECOND);
    rig.script.store(q(0), watermark(500));
    rig.script.assign(q(0));
    rig.produce(q(0), "K");
    let builder = rig.builder().out_of_range(OutOfRange::Fail);
    let consumer = builder.start(rig.done()).unwrap();
    rig.events.wait_for("the end", |event| matches!(event, Event::QueueFailed { .. }));
    eventually("the lock is free", || !rig.script.look(|state| state.is_locked(q(0))));
    let requests = acquired(&rig);
    rig.script.begin_revoke(q(0));
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    let polls = rig.script.look(|state| state.polls());
    rig.script.wait_for("time for a renewal", |state| state.polls() > polls + 1);
    assert_eq!(acquired(&rig), requests);
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_queue_that_waits_for_its_lock_is_in_the_report() {
    let rig = rig(30 * SECOND);
    rig.script.store(q(0), watermark(0));
    rig.script.assign(q(0));
    rig.produce(q(0), "K");
    let consumer = rig.builder().commit_interval(3_600 * SECOND).start(rig.done()).unwrap();
    eventually("it is done", || consumer.metrics().succeeded == 1);
    rig.script.answer_locks(q(0), LockAnswer::Refuse);
    rig.script.lose_lock(q(0));
    rig.events.wait_for("the refusal", |event| matches!(event, Event::LockRefused { .. }));
    let report = consumer.stop(SECOND).unwrap();
    let waits = &report.queues[0];
    assert_eq!(waits.watermark.map(|mark| mark.get()), Some(1));
    assert_eq!(waits.committed.map(|mark| mark.get()), Some(0));
    // What it has finished is for the lock's next owner to do again, and no failure of this stop.
    assert_eq!((waits.commit_error.as_deref(), waits.unfinished), (None, 0));
    assert_eq!(waits.not_read.as_deref(), Some("it waited for its lock"));
}

#[test]
fn locks_may_be_left_unused() {
    let rig = rig(30 * SECOND);
    rig.script.answer_locks(q(0), LockAnswer::Refuse);
    rig.script.assign(q(0));
    rig.produce(q(0), "K");
    let consumer = rig.builder().queue_locks(false).start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 1);
    rig.stop(&consumer);
    assert_eq!(story(&rig), ["seek", "commit", "close"]);
}
