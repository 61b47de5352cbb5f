//! The scripted source does what its script says. That it keeps the rules of a source is tested by
//! the conformance suite.

use std::thread;
use std::time::Duration;

use keylane_source::*;

use super::*;

const LIMITS: FetchLimits = FetchLimits { messages: 2, bytes: 1 << 20 };
/// Longer than any test: a test that waits for its end hangs, and is seen to.
const LONG: Duration = Duration::from_secs(3_600);

fn queue() -> QueueId {
    QueueId::new("script", 0)
}

fn at(position: u64) -> Position {
    Position::new(position).unwrap()
}

fn mark(watermark: u64) -> Watermark {
    Watermark::new(watermark).unwrap()
}

fn poll(source: &mut ScriptedSource) -> Vec<SourceEvent> {
    let mut events = Vec::new();
    source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
    events
}

/// Each event in a few words.
fn told(source: &mut ScriptedSource) -> Vec<String> {
    poll(source).iter().map(in_words).collect()
}

fn in_words(event: &SourceEvent) -> String {
    match event {
        SourceEvent::Assigned { committed: Committed::At { watermark, metadata }, .. } => {
            format!("assigned at {watermark} {metadata:?}")
        }
        SourceEvent::Assigned { committed: Committed::None, .. } => "assigned new".to_owned(),
        SourceEvent::Assigned { .. } => "assigned, unknown".to_owned(),
        SourceEvent::LookedUp { committed: Committed::Failed(_), .. } => {
            "look-up failed".to_owned()
        }
        SourceEvent::LookedUp { .. } => "looked up".to_owned(),
        SourceEvent::Fetched(fetch) => {
            let offsets: Vec<_> = fetch.messages.iter().map(|m| m.offset().get()).collect();
            format!("fetched {offsets:?} to {}", fetch.position)
        }
        SourceEvent::End { end, .. } => format!("end {end:?}"),
        SourceEvent::Revoking { .. } => "revoking".to_owned(),
        SourceEvent::Lost { .. } => "lost".to_owned(),
        SourceEvent::Reset { cause, .. } => format!("reset {cause:?}"),
        SourceEvent::CommitResult { commit, result } => {
            format!("commit {} {}", commit.watermark, if result.is_ok() { "ok" } else { "failed" })
        }
        SourceEvent::Lock { reply, .. } => format!("lock {reply:?}"),
        other => format!("{other:?}"),
    }
}

/// A source whose queue is assigned and read from the start.
fn started(script: &Script) -> ScriptedSource {
    script.assign(queue());
    let mut source = script.source();
    poll(&mut source);
    source.seek(queue(), SeekTo::Earliest);
    source
}

fn commit(watermark: u64, tag: u64) -> Commit {
    let metadata = format!("tag {tag}");
    Commit { queue: queue(), watermark: mark(watermark), metadata, tag: CommitTag(tag) }
}

#[test]
fn messages_come_in_limits_and_holes_are_passed_without_a_message() {
    let script = Script::new();
    (0..3).for_each(|_| _ = script.produce(queue(), "k", "p"));
    script.hole(queue(), 4);
    let mut source = started(&script);
    assert_eq!(told(&mut source), ["fetched [0, 1] to 2"]);
    assert_eq!(told(&mut source), ["fetched [2] to 7"]);
    assert!(told(&mut source).is_empty());
    script.hole(queue(), 2);
    assert_eq!(told(&mut source), ["fetched [] to 9"]);
}

#[test]
fn what_is_appended_may_have_holes_and_the_end_may_be_withheld() {
    let script = Script::new();
    let message = |offset| Message::new(queue(), Offset::new(offset).unwrap());
    script.append(queue(), [message(3), message(9)]);
    script.report_end(queue(), Some(EndOffset::Unknown));
    let mut source = started(&script);
    let events = poll(&mut source);
    let [SourceEvent::Fetched(fetch)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((fetch.position, fetch.end), (at(10), EndOffset::Unknown));
    script.report_end(queue(), Some(EndOffset::At(at(40))));
    assert_eq!(told(&mut source), ["end At(Position(40))"]);
}

#[test]
fn a_restart_begins_at_what_was_stored_and_the_old_source_is_a_zombie() {
    let script = Script::new();
    script.produce(queue(), "k", "p");
    let mut first = started(&script);
    first.commit(commit(1, 7));
    let mut second = script.restart();
    first.commit(commit(0, 8));
    let error = first.poll(LIMITS, Duration::ZERO, &mut Vec::new()).unwrap_err();
    assert!(error.is_fatal());
    assert_eq!(told(&mut second), ["assigned at 1 \"tag 7\""]);
    assert_eq!(script.commits(queue()), [1]);
}

#[test]
fn commits_are_failed_held_reordered_and_delayed() {
    let script = Script::new();
    let mut source = started(&script);
    script.fail_commits(1, &SourceError::retryable("no"));
    source.commit(commit(1, 1));
    assert_eq!(told(&mut source)[0], "commit 1 failed");
    assert_eq!(script.committed(queue()), None);

    script.hold_commits();
    source.commit(commit(2, 2));
    source.commit(commit(3, 3));
    assert!(!poll(&mut source).iter().any(|e| matches!(e, SourceEvent::CommitResult { .. })));
    assert!(script.answer_commit(CommitTag(3), &CommitAnswer::Stored));
    assert!(!script.answer_commit(CommitTag(3), &CommitAnswer::Stored));
    let lost_reply = CommitAnswer::StoredButFailed(SourceError::retryable("timed out"));
    assert!(script.answer_commit(CommitTag(2), &lost_reply));
    assert_eq!(told(&mut source), ["commit 3 ok", "commit 2 failed"]);
    assert_eq!(script.committed(queue()), Some(2));

    assert_eq!(script.let_commits_go(), 0);
    script.delay_commits(2);
    source.commit(commit(4, 4));
    assert!(told(&mut source).is_empty());
    assert_eq!(told(&mut source), ["commit 4 ok"]);
}

#[test]
fn look_ups_fail_as_often_as_they_are_told_to() {
    let script = Script::new();
    script.store(queue(), mark(28));
    script.fail_look_ups(queue(), 2);
    script.assign(queue());
    let mut source = script.source();
    assert_eq!(told(&mut source), ["assigned, unknown"]);
    source.look_up_committed(queue());
    assert_eq!(told(&mut source), ["look-up failed"]);
    source.look_up_committed(queue());
    let events = poll(&mut source);
    let [SourceEvent::LookedUp { committed: Committed::At { watermark, .. }, .. }] = events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(watermark, mark(28));
}

#[test]
fn a_revoke_waits_for_its_release_and_a_loss_does_not() {
    let script = Script::new();
    let mut source = started(&script);
    script.produce(queue(), "k", "p");
    script.begin_revoke(queue());
    assert_eq!(told(&mut source)[0], "revoking");
    source.commit(commit(0, 1));
    assert!(told(&mut source).contains(&"commit 0 ok".to_owned()), "drained, then committed");
    assert!(script.look(|state| state.is_assigned(queue()) && !state.is_released(queue())));
    source.release(queue());
    assert!(script.look(|state| state.is_released(queue())));

    script.assign(queue());
    poll(&mut source);
    script.lose(queue());
    source.commit(commit(1, 2));
    assert_eq!(told(&mut source), ["lost", "commit 1 failed"]);
    assert_eq!(script.committed(queue()), Some(0));
}

#[test]
fn a_seek_out_of_range_and_a_reset_stop_the_reading_until_the_next_seek() {
    let script = Script::new();
    (0..4).for_each(|_| _ = script.produce(queue(), "k", "p"));
    let mut source = started(&script);
    script.trim(queue(), at(2));
    source.seek(queue(), SeekTo::Position(at(1)));
    let cause = "OutOfRange { asked: Position(1), begin: Position(2), end: Position(4) }";
    assert_eq!(told(&mut source), [format!("reset {cause}")]);
    source.seek(queue(), SeekTo::Earliest);
    assert_eq!(told(&mut source), ["fetched [2, 3] to 4"]);
    source.seek(queue(), SeekTo::Latest);
    assert_eq!(told(&mut source), ["end At(Position(4))"], "told again after a seek");
    script.reset(queue(), ResetCause::Moved { to: at(3) });
    assert_eq!(told(&mut source), ["reset Moved { to: Position(3) }"]);
    assert_eq!(script.committed(queue()), Some(3));
    assert_eq!(script.look(|state| state.position(queue())), None);
}

#[test]
fn fetches_misbehave_on_demand() {
    let script = Script::new();
    (0..3).for_each(|_| _ = script.produce(queue(), "k", "p"));
    let mut source = started(&script);
    source.pause(queue());
    script.ignore_pause(queue(), true);
    script.ignore_limits(queue(), true);
    assert_eq!(told(&mut source), ["fetched [0, 1, 2] to 3"]);
    script.read_again_from(queue(), at(1));
    script.ignore_pause(queue(), false);
    assert!(told(&mut source).is_empty());
    source.resume(queue());
    assert_eq!(told(&mut source), ["fetched [1, 2] to 3"]);
}

#[test]
fn polls_and_queues_fail_on_demand() {
    let script = Script::new();
    let mut source = started(&script);
    script.fail_polls(1, &SourceError::retryable("away"));
    let error = source.poll(LIMITS, Duration::ZERO, &mut Vec::new()).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.is_retryable()), ("away", true));
    script.fail_queue(queue(), SourceError::fatal("gone"));
    let events = told(&mut source);
    assert!(events[0].contains("QueueError") && events[0].contains("gone"), "{events:?}");
    assert!(!script.look(|state| state.is_assigned(queue())));
}

#[test]
fn locks_are_granted_refused_lost_expired_and_left_unanswered() {
    let script = Script::new().with_locks(Duration::from_secs(30));
    let mut source = started(&script);
    let mut acquire = |script: &Script| {
        source.locks().unwrap().acquire(&[queue()]);
        let held = script.look(|state| state.is_locked(queue()));
        (told(&mut source).iter().filter(|word| word.starts_with("lock")).cloned().collect(), held)
    };
    let words = |word: &str| vec![word.to_owned()];
    assert_eq!(acquire(&script), (words("lock Held"), true));
    script.answer_locks(queue(), LockAnswer::Silence);
    assert_eq!(acquire(&script), (vec![], true));
    script.answer_locks(queue(), LockAnswer::Refuse);
    assert_eq!(acquire(&script), (words("lock Lost"), false));
    assert_eq!(acquire(&script), (words("lock Refused"), false));
    script.answer_locks(queue(), LockAnswer::Grant);
    assert_eq!(acquire(&script), (words("lock Held"), true));
    script.expire_lock(queue());
    assert!(!script.look(|state| state.is_locked(queue())));
    script.lose_lock(queue());
    assert_eq!(told(&mut source), ["lock Lost"]);
    source.locks().unwrap().release(&[queue()]);
    assert_eq!(script.history().last(), Some(&Call::ReleaseLocks(vec![queue()])));
}

#[test]
fn close_waits_for_held_commits_and_names_those_that_stay_unanswered() {
    let script = Script::new();
    let mut source = started(&script);
    script.hold_commits();
    source.commit(commit(5, 1));
    let helper = thread::spawn({
        let script = script.clone();
        move || {
            script.wait_for("close", |state| {
                matches!(state.history().last(), Some(Call::Close { .. }))
            });
            script.let_commits_go();
        }
    });
    let mut events = Vec::new();
    source.close(LONG, &mut events).unwrap();
    helper.join().unwrap();
    assert_eq!(events.iter().map(in_words).collect::<Vec<_>>(), ["commit 5 ok"]);
    assert!(script.look(ScriptState::is_closed));

    script.assign(queue());
    let mut source = script.restart();
    script.hold_commits();
    source.commit(commit(6, 2));
    let mut events = Vec::new();
    let error = source.close(Duration::ZERO, &mut events).unwrap_err();
    assert_eq!(error.to_string(), "close: 1 commits unanswered, the first one script/0 at 6");
    assert!(events.iter().map(in_words).any(|word| word == "commit 6 failed"));
    assert_eq!(script.committed(queue()), Some(5));
}

#[test]
fn a_wake_ends_the_wait_under_way_or_the_next_one_and_only_one() {
    let script = Script::new();
    let mut source = script.source();
    let waker = source.waker();
    waker.wake();
    source.poll(LIMITS, LONG, &mut Vec::new()).unwrap(); // would hang if the wake were lost
    let poller = thread::spawn(move || {
        source.poll(LIMITS, LONG, &mut Vec::new()).unwrap();
        source
    });
    script.wait_for("the second poll", |state| state.polls() == 2);
    waker.wake();
    let mut source = poller.join().unwrap();
    let poller = thread::spawn(move || {
        let mut events = Vec::new();
        source.poll(LIMITS, LONG, &mut events).unwrap();
        events.len()
    });
    script.wait_for("the third poll", |state| state.polls() == 3);
    script.assign(queue());
    assert_eq!(poller.join().unwrap(), 1, "a used wake must not end this wait early");
}

#[test]
fn the_history_has_every_call_in_order() {
    let script = Script::new();
    script.assign(queue());
    let mut source = script.source();
    poll(&mut source);
    poll(&mut source);
    source.seek(queue(), SeekTo::Latest);
    source.pause(queue());
    source.resume(queue());
    source.look_up_committed(queue());
    source.commit(commit(0, 1));
    source.release(queue());
    drop(source);
    let expected = [
        Call::Poll { times: 2 },
        Call::Seek { queue: queue(), to: SeekTo::Latest },
        Call::Pause(queue()),
        Call::Resume(queue()),
        Call::LookUp(queue()),
        Call::Commit(commit(0, 1)),
        Call::Release(queue()),
        Call::Dropped,
    ];
    assert_eq!(script.history(), expected);
}
