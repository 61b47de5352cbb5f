//! The recorder brings to the checkers what happened, from many threads and through the wrappers.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use keylane_source::*;

use super::*;
use crate::script::Script;

const LIMITS: FetchLimits = FetchLimits { messages: 100, bytes: 1 << 20 };

fn queue(index: u32) -> QueueId {
    QueueId::new("recorder", index)
}

fn message(queue_index: u32, offset: u64, key: &'static str) -> Message {
    Message::new(queue(queue_index), Offset::new(offset).unwrap()).with_key(key)
}

fn done(recorder: &Recorder, message: &Message) {
    recorder.begin(message, 0, 1).settle(Outcome::Done);
}

fn mark(watermark: u64) -> Watermark {
    Watermark::new(watermark).unwrap()
}

#[test]
fn calls_of_one_key_on_two_threads_and_queues_overlap() {
    let recorder = Recorder::new(Scope::key());
    let (begun, wait_for_begun) = mpsc::channel();
    let (end, wait_for_end) = mpsc::channel::<()>();
    let other = thread::spawn({
        let recorder = recorder.clone();
        move || {
            let call = recorder.begin(&message(0, 0, "a"), 1, 1);
            begun.send(()).unwrap();
            wait_for_end.recv().unwrap();
            call.settle(Outcome::Done);
        }
    });
    wait_for_begun.recv().unwrap();
    done(&recorder, &message(1, 0, "b"));
    assert_eq!(recorder.verdict_so_far().overlap_violations, 0);
    done(&recorder, &message(1, 1, "a"));
    end.send(()).unwrap();
    other.join().unwrap();
    done(&recorder, &message(1, 2, "a"));
    let verdict = recorder.verdict_so_far();
    assert_eq!((verdict.overlap_violations, verdict.delivered), (1, 4));
}

#[test]
fn sixteen_threads_lose_nothing() {
    const PER_THREAD: u64 = 2_000;
    let recorder = Recorder::new(Scope::key());
    thread::scope(|scope| {
        for index in 0..16_u32 {
            let recorder = &recorder;
            scope.spawn(move || {
                let key = format!("key-{index}");
                for n in 0..PER_THREAD {
                    // Four queues; in each, a thread's messages ascend.
                    let offset = Offset::new(n * 16 + u64::from(index)).unwrap();
                    let message = Message::new(queue(index % 4), offset).with_key(key.clone());
                    recorder.produced(message.queue(), offset);
                    done(recorder, &message);
                }
            });
        }
    });
    let verdict = recorder.verdict();
    assert_eq!((verdict.delivered, verdict.lost, verdict.duplicates), (16 * PER_THREAD, 0, 0));
    assert_eq!((verdict.order_violations, verdict.overlap_violations), (0, 0));
    assert!(!verdict.committed, "nobody has committed anything");
}

#[test]
fn a_batch_is_recorded_as_the_listener_said_it_and_failures_hold_their_lane() {
    let recorder = Recorder::new(Scope::key());
    let batch: Vec<_> = [(0, "a"), (1, "b"), (2, "a"), (3, "b")]
        .map(|(offset, key)| message(0, offset, key))
        .into();
    let call = recorder.begin_batch(&batch, 3);
    call.settle_each(&[Outcome::Failed, Outcome::Done, Outcome::Done, Outcome::Done]);
    assert_eq!(recorder.verdict_so_far().delivered, 2, "b's two; a's second does not count");
    recorder.begin_batch([&batch[0], &batch[2]], 3).settle(Outcome::Done);
    let verdict = recorder.verdict_so_far();
    assert_eq!((verdict.delivered, verdict.duplicates), (4, 0));
    assert_eq!(verdict.order_violations, 0, "{verdict}");
    // Had a's second been taken for done, its delivery would be a duplicate.
}

#[test]
fn outcomes_that_are_missing_and_calls_that_are_dropped_have_failed() {
    let recorder = Recorder::new(Scope::key());
    let batch = [message(0, 0, "a"), message(0, 1, "a")];
    recorder.begin_batch(&batch, 0).settle_each(&[Outcome::Done]);
    assert_eq!(recorder.verdict_so_far().delivered, 1);
    let panicked = std::panic::catch_unwind(|| {
        let _call = recorder.begin(&batch[1], 0, 2);
        std::panic::resume_unwind(Box::new("the listener panics"));
    });
    assert!(panicked.is_err());
    done(&recorder, &batch[1]);
    let verdict = recorder.verdict_so_far();
    assert_eq!((verdict.delivered, verdict.order_violations), (2, 0), "{verdict}");
    assert_eq!(verdict.overlap_violations, 0, "the call that panicked is over");
}

#[test]
fn scopes_decide_what_is_in_line() {
    let out_of_order = |scope: Scope, keys: [Option<&'static str>; 2]| {
        let recorder = Recorder::new(scope);
        let message = |offset, key: Option<&'static str>| {
            let message = Message::new(queue(0), Offset::new(offset).unwrap());
            key.into_iter().fold(message, |message, key| message.with_key(key))
        };
        done(&recorder, &message(1, keys[0]));
        done(&recorder, &message(0, keys[1]));
        recorder.verdict_so_far().order_violations
    };
    use crate::guarantee::NoKey;
    assert_eq!(out_of_order(Scope::key(), [Some("a"), Some("b")]), 0);
    assert_eq!(out_of_order(Scope::key(), [Some("a"), Some("a")]), 1);
    assert_eq!(out_of_order(Scope::key(), [None, None]), 1);
    assert_eq!(out_of_order(Scope::key(), [None, Some("")]), 1);
    assert_eq!(out_of_order(Scope::key(), [None, Some("__nokey")]), 1);
    assert_eq!(out_of_order(Scope::Key(NoKey::Spread), [None, None]), 0);
    assert_eq!(out_of_order(Scope::Key(NoKey::Spread), [Some(""), Some("")]), 1);
    assert_eq!(out_of_order(Scope::Key(NoKey::ByQueue), [None, None]), 1);
    assert_eq!(out_of_order(Scope::Key(NoKey::ByQueue), [None, Some("")]), 0);
    assert_eq!(out_of_order(Scope::Queue, [Some("a"), Some("b")]), 1);
    assert_eq!(out_of_order(Scope::Free, [Some("a"), Some("a")]), 0);
    assert_eq!(out_of_order(Scope::routed(|_| Lane::key("x")), [Some("a"), Some("b")]), 1);
}

/// A consumer of one message at a time, as simple as one can be.
fn consume(source: &mut Recorded<crate::script::ScriptedSource>, recorder: &Recorder) -> Position {
    let mut events = Vec::new();
    let mut position = Position::ZERO;
    loop {
        source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
        if events.is_empty() {
            return position;
        }
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, committed: Committed::At { watermark, .. } } => {
                    source.seek(queue, SeekTo::Position(watermark.into()));
                }
                SourceEvent::Assigned { queue, .. } => source.seek(queue, SeekTo::Earliest),
                SourceEvent::Fetched(fetch) => {
                    fetch.messages.iter().for_each(|message| done(recorder, message));
                    position = fetch.position;
                }
                _ => {}
            }
        }
    }
}

fn commit(watermark: u64) -> Commit {
    let tag = CommitTag(watermark);
    Commit { queue: queue(0), watermark: mark(watermark), metadata: String::new(), tag }
}

#[test]
fn a_wrapped_source_says_what_was_read_and_committed() {
    let script = Script::new();
    script.assign(queue(0));
    (0..5).for_each(|_| _ = script.produce(queue(0), "a", "p"));
    script.hole(queue(0), 2);
    let recorder = Recorder::new(Scope::key());
    let mut source = Recorded::new(script.source(), &recorder);
    assert_eq!(consume(&mut source, &recorder), Position::new(7).unwrap());
    let verdict = recorder.verdict();
    assert_eq!((verdict.committed, verdict.in_flight_max), (false, 5));
    assert_eq!(verdict.violations[0].happened, "stored is nothing, though the queue ends at 7");

    source.commit(commit(7));
    consume(&mut source, &recorder);
    let verdict = recorder.verdict();
    verdict.assert_clean();
    assert!(verdict.committed);
    let [only] = &verdict.queues[..] else { panic!("{verdict}") };
    assert_eq!((only.delivered, only.committed, only.end), (5, Some(mark(7)), 7));
}

#[test]
fn a_commit_behind_the_last_read_position_and_one_after_a_loss_are_seen() {
    let script = Script::new();
    script.assign(queue(0));
    script.produce(queue(0), "a", "p");
    let recorder = Recorder::new(Scope::key());
    let mut source = Recorded::new(script.source(), &recorder);
    consume(&mut source, &recorder);
    source.commit(commit(2));
    assert_eq!(recorder.verdict_so_far().commit_violations, 1);
    consume(&mut source, &recorder);
    script.lose(queue(0));
    consume(&mut source, &recorder);
    source.commit(commit(2));
    let verdict = recorder.verdict_so_far();
    assert_eq!(verdict.commit_violations, 2);
    assert_eq!(
        verdict.violations[0].to_string(),
        "commits: recorder/0 at 2: commit of epoch 1 after the queue was lost \
         (allowed: none once the epoch is over)"
    );
}

#[test]
fn after_a_crash_the_old_handle_is_not_heard_and_the_new_one_begins_at_the_commit() {
    let script = Script::new();
    script.assign(queue(0));
    (0..4).for_each(|_| _ = script.produce(queue(0), "a", "p"));
    let recorder = Recorder::new(Scope::key());
    let mut source = Recorded::new(script.source(), &recorder);
    consume(&mut source, &recorder);
    source.commit(commit(2));
    consume(&mut source, &recorder);

    let after = recorder.crash();
    done(&recorder, &message(0, 0, "a")); // a zombie's delivery
    let mut source = Recorded::new(script.restart(), &after);
    consume(&mut source, &after);
    source.commit(commit(4));
    consume(&mut source, &after);
    let verdict = after.verdict();
    verdict.assert_clean();
    assert_eq!((verdict.delivered, verdict.duplicates), (4, 2));
}

#[test]
fn an_offset_that_an_operator_has_moved_is_where_the_next_process_begins() {
    let script = Script::new();
    script.assign(queue(0));
    (0..4).for_each(|_| _ = script.produce(queue(0), "a", "p"));
    let recorder = Recorder::new(Scope::key());
    let mut source = Recorded::new(script.source(), &recorder);
    consume(&mut source, &recorder);
    source.commit(commit(4));
    consume(&mut source, &recorder);
    script.reset(queue(0), ResetCause::Moved { to: Position::new(2).unwrap() });
    consume(&mut source, &recorder);
    source.seek(queue(0), SeekTo::Position(Position::new(2).unwrap()));
    consume(&mut source, &recorder);
    let after = recorder.crash();
    let mut source = Recorded::new(script.restart(), &after);
    consume(&mut source, &after);
    source.commit(commit(4));
    consume(&mut source, &after);
    let verdict = after.verdict();
    verdict.assert_clean();
    assert_eq!((verdict.delivered, verdict.duplicates), (4, 4));
}

/// What is finished and not committed when a lock ends comes again, and a commit of before is late.
#[test]
fn an_epoch_ends_with_its_lock() {
    type Source = Recorded<crate::script::ScriptedSource>;
    let reread = |ends: fn(&Script, &mut Source), commits_late: bool| {
        let script = Script::new();
        script.assign(queue(0));
        (0..2).for_each(|_| _ = script.produce(queue(0), "a", "p"));
        let recorder = Recorder::new(Scope::key());
        let mut source = Recorded::new(script.source(), &recorder);
        consume(&mut source, &recorder);
        ends(&script, &mut source);
        consume(&mut source, &recorder);
        if commits_late {
            source.commit(commit(2));
        }
        source.seek(queue(0), SeekTo::Earliest);
        consume(&mut source, &recorder);
        let verdict = recorder.verdict_so_far();
        (verdict.duplicates, verdict.other_violations, verdict.commit_violations)
    };
    let lost = |script: &Script, _: &mut Source| {
        script.inject(SourceEvent::Lock { queue: queue(0), reply: LockReply::Lost });
    };
    let ran_out = |_: &Script, source: &mut Source| source.look_up_committed(queue(0));
    assert_eq!(reread(lost, false), (2, 0, 0));
    assert_eq!(reread(ran_out, false), (2, 0, 0));
    assert_eq!(reread(lost, true).2, 1);
    assert_eq!(reread(ran_out, true).2, 1);
    assert!(reread(|_, _| {}, false).1 > 0, "nothing explains that they come again");
}

#[test]
fn a_late_answer_belongs_to_the_epoch_that_asked() {
    let script = Script::new();
    script.assign(queue(0));
    (0..3).for_each(|_| _ = script.produce(queue(0), "a", "p"));
    let recorder = Recorder::new(Scope::key());
    let mut source = Recorded::new(script.source(), &recorder);
    consume(&mut source, &recorder);
    script.hold_commits();
    source.commit(commit(1));
    script.reset(queue(0), ResetCause::Moved { to: Position::ZERO });
    consume(&mut source, &recorder);
    source.seek(queue(0), SeekTo::Earliest);
    consume(&mut source, &recorder);
    source.commit(commit(2));
    assert!(script.answer_commit(CommitTag(1), &crate::script::CommitAnswer::Stored));
    consume(&mut source, &recorder);
    assert_eq!(recorder.verdict_so_far().commit_violations, 0);
    source.commit(commit(3));
    let verdict = recorder.verdict_so_far();
    assert_eq!(verdict.commit_violations, 1, "the second one is not answered: {verdict}");
}

#[test]
fn a_failed_look_up_taken_for_none_is_seen() {
    let script = Script::new();
    script.store(queue(0), mark(1));
    script.fail_look_ups(queue(0), 1);
    script.assign(queue(0));
    (0..2).for_each(|_| _ = script.produce(queue(0), "a", "p"));
    let recorder = Recorder::new(Scope::key());
    consume(&mut Recorded::new(script.source(), &recorder), &recorder);
    let verdict = recorder.verdict_so_far();
    assert_eq!(verdict.commit_violations, 1);
    assert_eq!(
        verdict.violations[0].happened,
        "the epoch begins elsewhere, though the look-up failed"
    );
}

#[test]
fn a_dead_letter_is_finished_once_its_sink_says_so() {
    struct Sink(mpsc::Sender<Ack>);
    impl DeadLetterSink for Sink {
        fn send(&mut self, _: DeadLetter, ack: Ack) {
            self.0.send(ack).unwrap();
        }
    }
    let recorder = Recorder::new(Scope::key());
    let (unanswered, acks) = mpsc::channel();
    let mut sink = RecordedSink::new(Sink(unanswered), &recorder);
    let letter = || {
        let reason = DeadLetterReason::Listener("no".into());
        DeadLetter::new(message(0, 0, "a"), 1, reason)
    };
    recorder.begin(&letter().message, 0, 1).settle(Outcome::Failed);
    let (answer, answers) = mpsc::channel();
    for _ in 0..2 {
        let answer = answer.clone();
        sink.send(letter(), Ack::new(move |result| answer.send(result.is_ok()).unwrap()));
    }
    acks.recv().unwrap().failed(SourceError::retryable("full"));
    assert!(!answers.recv().unwrap());
    assert_eq!(recorder.verdict().lost, 1);
    acks.recv().unwrap().done();
    assert!(answers.recv().unwrap());
    let verdict = recorder.verdict();
    assert_eq!((verdict.lost, verdict.delivered), (0, 0));
}

#[test]
fn held_messages_are_finished_later_or_given_back() {
    let recorder = Recorder::new(Scope::key());
    let messages = [message(0, 0, "a"), message(0, 1, "a"), message(0, 2, "a")];
    let hold = |message| recorder.begin(message, 0, 1).settle(Outcome::Held);
    messages.iter().for_each(hold);
    recorder.later(&messages[0]).settle(Outcome::Done);
    recorder.rewound(&messages[1..]);
    messages[1..].iter().for_each(|message| done(&recorder, message));
    let verdict = recorder.verdict();
    assert_eq!((verdict.order_violations, verdict.lost, verdict.other_violations), (0, 0, 0));
    assert_eq!((verdict.delivered, verdict.duplicates), (3, 2));
    done(&recorder, &messages[0]);
    let verdict = recorder.verdict();
    assert_eq!((verdict.order_violations, verdict.other_violations), (1, 1), "not given back");
}

#[test]
fn a_limit_on_what_is_in_flight_is_checked() {
    let script = Script::new();
    script.assign(queue(0));
    (0..3).for_each(|_| _ = script.produce(queue(0), "a", "p"));
    let recorder = Recorder::with_in_flight_limit(Scope::key(), 2);
    consume(&mut Recorded::new(script.source(), &recorder), &recorder);
    let verdict = recorder.verdict_so_far();
    assert_eq!((verdict.in_flight_max, verdict.other_violations), (3, 1));
}

#[test]
fn nothing_begins_after_a_wrapped_source_was_closed() {
    let script = Script::new();
    let recorder = Recorder::new(Scope::key());
    let mut source = Recorded::new(script.source(), &recorder);
    source.close(Duration::ZERO, &mut Vec::new()).unwrap();
    done(&recorder, &message(0, 0, "a"));
    let verdict = recorder.verdict_so_far();
    assert_eq!(verdict.other_violations, 1);
    assert_eq!(verdict.violations[0].happened, "a call began after the consumer had stopped");
}

#[test]
fn a_verdict_is_shown_whole() {
    let recorder = Recorder::new(Scope::key());
    done(&recorder, &message(0, 1, "a"));
    done(&recorder, &message(0, 0, "a"));
    let shown = recorder.verdict().to_string();
    for line in [
        "order violations               1",
        "  recorder/0: delivered 2, committed - of 2",
        "order: recorder/0 at 0, key \"a\": delivered after the lane had finished everything \
         below 2 (allowed: 2 or later: no event allows the step back)",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line:?} is not in:\n{shown}");
    }
}
