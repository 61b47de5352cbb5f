//! The shard by itself: what is called when, and what is finished, in exact values.

use bytes::Bytes;
use keylane_source::{DeadLetterReason, Message, Offset, Position, SourceError};

use super::*;
use crate::config::Exhausted;
use crate::observer::Event;
use crate::outcome::{BatchOutcome, Outcome};
use crate::pipeline::chunk::{Collected, Route, Tag};
use crate::pipeline::tenure::{Phase, Tenure};
use crate::pipeline::tracker::Tracker;

pub(super) const MS: Duration = Duration::from_millis(1);

/// A shard, the queues that feed it, and a clock of its own.
pub(super) struct Rig {
    pub(super) shard: Shard,
    queues: Vec<(Arc<Tenure>, Tracker)>,
    pub(super) now: Instant,
    pub(super) call: Arc<Call>,
    pub(super) verdicts: Verdicts,
    out: Effects,
}

pub(super) fn policy() -> FailurePolicy {
    FailurePolicy::default().backoff(100 * MS, 1_000 * MS).jitter(0.0)
}

impl Rig {
    pub(super) fn new(batch_max: usize) -> Self {
        Self::with(batch_max, policy())
    }

    fn with(batch_max: usize, failure: FailurePolicy) -> Self {
        let (index, seed, linger) = (0, 1, Duration::ZERO);
        let (has_sink, hide_keys, one_lane) = (true, false, false);
        Self {
            shard: Shard::new(ShardSettings {
                index,
                batch_max,
                per_message: false,
                linger,
                failure,
                has_sink,
                hide_keys,
                one_lane,
                seed,
            }),
            queues: (0..2).map(|queue| Self::tenure(queue, u64::from(queue) + 1)).collect(),
            now: crate::time::Clock.now(),
            call: Arc::default(),
            verdicts: Verdicts::default(),
            out: Effects::default(),
        }
    }

    /// For a listener that gets messages of one lane only.
    pub(super) fn orderly(batch_max: usize, failure: FailurePolicy) -> Self {
        let mut rig = Self::with(batch_max, failure);
        rig.shard.settings.one_lane = true;
        rig
    }

    fn tenure(queue: u32, epoch: u64) -> (Arc<Tenure>, Tracker) {
        let tenure = Tenure::new(QueueId::new("shard", queue), epoch, queue as usize, None);
        (Arc::new(tenure), Tracker::new(Position::ZERO))
    }

    /// Offers messages of these keys, at the next offsets of the queue.
    pub(super) fn offer(&mut self, queue: usize, keys: &[&str]) {
        self.offer_routed(queue, keys, Route::Key);
    }

    pub(super) fn offer_routed(&mut self, queue: usize, keys: &[&str], route: Route) {
        let (tenure, tracker) = &mut self.queues[queue];
        let mut chunk = Collected::default();
        for key in keys {
            let offset = Offset::new(tracker.position().get()).unwrap();
            let message =
                Message::new(tenure.queue, offset).with_key(Bytes::copy_from_slice(key.as_bytes()));
            let bit = tracker.register(offset, 0, self.now);
            let tag = Tag::new(route, bit, None);
            chunk.push(message, tag, tenure, tracker.page());
        }
        self.shard.offer(chunk.take(self.now).unwrap());
    }

    /// Begins the next call; its messages as (queue, offset).
    pub(super) fn next(&mut self) -> Vec<(u32, u64)> {
        match self.shard.next_call(self.now, &mut self.call, &mut self.out) {
            Next::Call => {
                let place = |m: &Message| (m.queue().index(), m.offset().get());
                self.call.messages.iter().map(place).collect()
            }
            Next::Wait(_) => Vec::new(),
        }
    }

    /// As [`next`](Self::next), of queue 0 alone.
    pub(super) fn next_offsets(&mut self) -> Vec<u64> {
        self.next().into_iter().map(|(_, offset)| offset).collect()
    }

    pub(super) fn settle(&mut self) {
        self.shard.settle(&mut self.call, &mut self.verdicts, self.now, &mut self.out);
    }

    /// Answers each admitted message as a listener per message would.
    pub(super) fn answer(&mut self, mut answer: impl FnMut(u64) -> Verdict) -> Vec<u64> {
        let mut seen = Vec::new();
        for index in 0..self.call.len() {
            if self.verdicts.admits(&self.call, index) {
                let offset = self.call.messages[index].offset().get();
                seen.push(offset);
                self.verdicts.decide(&self.call, index, answer(offset));
            }
        }
        self.settle();
        seen
    }

    fn answer_batch(&mut self, outcome: BatchOutcome) {
        self.verdicts.batch(&self.call, outcome);
        self.settle();
    }

    pub(super) fn watermark(&mut self, queue: usize) -> u64 {
        self.queues[queue].1.watermark().get()
    }

    pub(super) fn finished(&self, queue: usize) -> u64 {
        self.queues[queue].0.looked().0
    }

    fn ticket_done(&mut self, id: u64) {
        self.settle_ticket(id, Ok(Outcome::Done));
    }

    pub(super) fn settle_ticket(&mut self, id: u64, handled: Handled) {
        self.shard.settle_ticket(TicketId(id), handled, self.now, &mut self.out);
    }

    /// Ends the queue's tenure, as the source thread does.
    pub(super) fn end(&mut self, queue: usize, phase: Phase) {
        let tenure = &self.queues[queue].0;
        tenure.move_to(phase);
        self.shard.end_tenure(tenure.epoch, tenure.queue);
    }

    /// The queue comes back.
    pub(super) fn begin_again(&mut self, queue: usize, epoch: u64) {
        let index = self.queues[queue].0.queue.index();
        self.queues[queue] = Self::tenure(index, epoch);
    }
}

fn fail(_: u64) -> Verdict {
    Verdict::failed("no", None)
}

pub(super) fn done(_: u64) -> Verdict {
    Verdict::Done
}

#[test]
fn a_full_call_takes_nothing_of_the_next_queue() {
    let mut rig = Rig::new(2);
    rig.offer(0, &["a", "b"]);
    rig.offer(1, &["c"]);
    assert_eq!(rig.next(), [(0, 0), (0, 1)]);
    assert_eq!(rig.call.runs.len(), 1);
    assert!(rig.shard.busy_with(QueueId::new("shard", 1)).is_none());
}

#[test]
fn the_happy_path_finishes_and_holds_nothing() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["a", "b", "a"]);
    rig.offer(1, &["c"]);
    assert_eq!(rig.next(), [(0, 0), (0, 1), (0, 2), (1, 0)]);
    rig.answer(done);
    assert_eq!((rig.watermark(0), rig.watermark(1)), (3, 1));
    assert_eq!((rig.finished(0), rig.finished(1)), (3, 1));
    assert_eq!(rig.out.noted, [0, 1]);
    assert_eq!(rig.shard.lanes_held(), 0);
    assert!(rig.shard.is_drained());
}

#[test]
fn a_batch_is_a_maximum() {
    let mut rig = Rig::new(2);
    rig.offer(0, &["a", "b", "c"]);
    assert_eq!(rig.next_offsets(), [0, 1]);
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [2]);
}

#[test]
fn a_failure_holds_back_its_lane_alone() {
    // Scenario 2: A on even offsets, B on odd ones; offset 2 fails twice.
    let mut rig = Rig::new(10);
    rig.offer(0, &["A", "B", "A", "B", "A", "B", "A", "B", "A", "B"]);
    rig.next_offsets();
    let seen = rig.answer(|offset| if offset == 2 { fail(2) } else { Verdict::Done });
    assert_eq!(seen, [0, 1, 2, 3, 5, 7, 9], "4, 6 and 8 are not looked at");
    assert_eq!(rig.watermark(0), 2);
    assert_eq!(rig.next_offsets(), [0; 0]);
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [2], "what has failed goes without those behind it");
    rig.answer(fail);
    rig.now += 199 * MS;
    assert_eq!(rig.next_offsets(), [0; 0], "the second delay is twice the first");
    rig.now += MS;
    assert_eq!(rig.next_offsets(), [2]);
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [4, 6, 8]);
    rig.answer(done);
    assert_eq!(rig.watermark(0), 10);
    assert_eq!(rig.shard.lanes_held(), 0);
}

#[test]
fn what_arrives_while_a_lane_waits_goes_behind_it() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["a", "a"]);
    rig.next_offsets();
    rig.answer(fail);
    rig.offer(0, &["a", "b", "a"]);
    assert_eq!(rig.next_offsets(), [3]);
    rig.answer(done);
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [0]);
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [1, 2, 4]);
}

#[test]
fn what_a_call_gives_back_stands_before_what_waited() {
    let mut rig = Rig::new(3);
    rig.offer(0, &["a"]);
    rig.next_offsets();
    rig.answer(fail);
    rig.offer(0, &["a", "a", "a", "a", "a"]);
    rig.next_offsets();
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [0]);
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [1, 2, 3]);
    rig.answer(|offset| if offset == 2 { fail(2) } else { Verdict::Done });
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [2]);
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [3, 4, 5]);
}

#[test]
fn a_batch_that_fails_as_a_whole_comes_again_one_by_one_without_an_attempt() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["a", "b", "a"]);
    rig.next_offsets();
    rig.verdicts.failed_whole(&rig.call, "boom", false);
    rig.settle();
    rig.offer(0, &["b"]);
    for (offset, attempt) in [(0, 1), (1, 1), (2, 1)] {
        assert_eq!(rig.next_offsets(), [offset]);
        assert_eq!(rig.call.attempt(0), attempt);
        rig.verdicts.failed_whole(&rig.call, "boom", false);
        if offset == 1 {
            rig.settle(); // b fails alone, and that counts
        } else {
            rig.verdicts.clear();
            rig.answer(done);
        }
    }
    assert_eq!(rig.next_offsets(), [0; 0], "the second b waits for the first");
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [1]);
    assert_eq!(rig.call.attempt(0), 2);
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [3]);
    rig.answer(done);
    assert_eq!(rig.watermark(0), 4);
}

#[test]
fn batch_outcomes_say_what_is_finished() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["a", "b", "c", "a"]);
    rig.next_offsets();
    rig.answer_batch(BatchOutcome::DoneThrough(1));
    assert_eq!(rig.watermark(0), 2);
    assert_eq!(rig.next_offsets(), [2, 3], "the rest comes again at once");
    assert_eq!(rig.call.attempt(0), 1);
    rig.answer_batch(BatchOutcome::FailedAt { index: 0, error: "no".into() });
    assert_eq!(rig.next_offsets(), [3], "another key, not looked at");
    rig.answer_batch(BatchOutcome::Each(vec![Ok(Outcome::Done)]));
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [2]);
    assert_eq!(rig.call.attempt(0), 2);
}

#[test]
fn results_behind_a_failure_of_the_same_key_are_ignored() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["a", "b", "a", "b"]);
    rig.next_offsets();
    rig.answer_batch(BatchOutcome::Each(vec![
        Err("no".into()),
        Ok(Outcome::Done),
        Ok(Outcome::Done),
        Ok(Outcome::Done),
    ]));
    assert_eq!(rig.finished(0), 2, "both of b");
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [0]);
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [2]);
    assert_eq!(rig.call.attempt(0), 1, "its first answer cost no attempt");
}

#[test]
fn an_index_outside_the_batch_is_a_failure_of_the_call() {
    for outcome in [
        BatchOutcome::DoneThrough(2),
        BatchOutcome::FailedAt { index: 2, error: "no".into() },
        BatchOutcome::Each(vec![Ok(Outcome::Done)]),
    ] {
        let mut rig = Rig::new(10);
        rig.offer(0, &["a", "b"]);
        rig.next_offsets();
        rig.answer_batch(outcome);
        assert_eq!(rig.finished(0), 0);
        assert!(matches!(rig.out.events[..], [Event::BatchFailed { messages: 2, .. }]));
        assert_eq!(rig.next_offsets(), [0], "one by one");
    }
}

#[test]
fn exhausted_attempts_become_a_dead_letter_that_counts_once_it_is_acknowledged() {
    let mut rig = Rig::with(10, policy().attempts_max(2));
    rig.offer(0, &["a", "a"]);
    rig.next_offsets();
    rig.answer(fail);
    rig.now += 100 * MS;
    rig.next_offsets();
    rig.answer(fail);
    let (id, letter) = rig.out.letters.pop().expect("a letter");
    assert_eq!((letter.message.offset().get(), letter.attempts), (0, 2));
    assert!(matches!(letter.reason, DeadLetterReason::AttemptsExhausted(ref e) if &**e == "no"));
    assert_eq!((rig.watermark(0), rig.next_offsets()), (0, vec![]));

    // The sink fails: back-off, the same letter again, the lane still held.
    let error = SourceError::retryable("full");
    rig.shard.settle_letter(id, Err(error), rig.now, &mut rig.out);
    assert_eq!(rig.next_offsets(), [0; 0]);
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [0; 0]);
    let (again, _) = rig.out.letters.pop().expect("the letter again");
    assert_ne!(again, id);
    rig.shard.settle_letter(again, Ok(()), rig.now, &mut rig.out);
    assert_eq!(rig.watermark(0), 1);
    assert_eq!(rig.next_offsets(), [1]);
}

#[test]
fn skip_and_stop_as_the_end_of_attempts() {
    let mut rig = Rig::with(10, policy().attempts_max(1).then(Exhausted::Skip));
    rig.offer(0, &["a", "a"]);
    rig.next_offsets();
    rig.answer(|offset| if offset == 0 { fail(0) } else { Verdict::Done });
    assert_eq!(rig.watermark(0), 1);
    assert_eq!(rig.next_offsets(), [1]);

    let mut rig = Rig::with(10, policy().attempts_max(1).then(Exhausted::Stop));
    rig.offer(0, &["a", "a"]);
    rig.next_offsets();
    rig.answer(fail);
    assert_eq!(
        rig.out.stop.as_deref(),
        Some("shard/0 offset 0, key \"a\": attempts exhausted, last error: no")
    );
    rig.now += 10_000 * MS;
    assert_eq!((rig.watermark(0), rig.next_offsets()), (0, vec![]));
}

#[test]
fn an_open_ticket_closes_its_key_in_every_queue() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["k", "k", "x"]);
    rig.offer(1, &["k", "y"]);
    rig.next();
    let deferred =
        |offset| if offset == 0 { Verdict::Deferred(TicketId(7)) } else { Verdict::Done };
    // Offset 0 of queue 1 is of the same key: it is not looked at.
    assert_eq!(rig.answer(deferred), [0, 2, 1]);
    rig.offer(1, &["k"]);
    assert_eq!(rig.next(), []);
    assert!(!rig.shard.is_drained());
    assert!(rig.shard.busy_with(QueueId::new("shard", 0)).is_some());
    rig.ticket_done(7);
    assert_eq!(rig.watermark(0), 1);
    assert_eq!(rig.next(), [(1, 0), (1, 2), (0, 1)]);
    rig.answer(done);
    assert_eq!((rig.watermark(0), rig.watermark(1)), (3, 3));
    assert!(rig.shard.is_drained());
}

#[test]
fn a_ticket_may_be_settled_before_its_call_returns() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["k", "k"]);
    rig.next();
    rig.ticket_done(7);
    assert_eq!(rig.answer(|_| Verdict::Deferred(TicketId(7))), [0]);
    assert_eq!(rig.watermark(0), 1);
    assert_eq!(rig.next(), [(0, 1)]);
}

#[test]
fn a_ticket_that_was_not_promised_settles_nothing() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["k"]);
    rig.next();
    rig.ticket_done(7);
    rig.answer(fail);
    rig.ticket_done(8);
    assert_eq!((rig.watermark(0), rig.shard.stats().stale), (0, 2));
}

#[test]
fn a_failed_ticket_is_a_failed_attempt() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["k", "k"]);
    rig.next();
    rig.answer(|_| Verdict::Deferred(TicketId(7)));
    rig.shard.settle_ticket(TicketId(7), Err("no".into()), rig.now, &mut rig.out);
    assert_eq!(rig.next(), []);
    rig.now += 100 * MS;
    assert_eq!(rig.next(), [(0, 0)]);
    assert_eq!(rig.call.attempt(0), 2);
}

#[test]
fn a_tenure_that_ends_takes_its_messages_with_it() {
    let mut rig = Rig::new(1);
    rig.offer(0, &["a", "a", "b"]);
    rig.offer(1, &["c"]);
    rig.next();
    rig.answer(fail);
    assert_eq!(rig.next(), [(0, 2)]);
    let (tenure, _) = &rig.queues[0];
    tenure.move_to(Phase::Closing);
    rig.shard.end_tenure(1, tenure.queue);
    assert!(rig.shard.busy_with(QueueId::new("shard", 0)).is_some(), "the call is awaited");
    rig.answer(done);
    assert!(rig.shard.busy_with(QueueId::new("shard", 0)).is_none());
    assert_eq!(rig.finished(0), 1, "what runs still counts");
    rig.now += 10_000 * MS;
    assert_eq!(rig.next(), [(1, 0)], "the lane in back-off is gone");
    assert_eq!(rig.shard.next_revoked(), Some(rig.queues[0].0.queue));
}

#[test]
fn what_ends_after_the_fence_is_counted_and_nothing_else() {
    let mut rig = Rig::new(10);
    rig.offer(0, &["a", "b"]);
    rig.next();
    rig.queues[0].0.move_to(Phase::Fenced);
    rig.shard.end_tenure(1, rig.queues[0].0.queue);
    rig.answer(|offset| if offset == 0 { fail(0) } else { Verdict::Done });
    assert_eq!((rig.watermark(0), rig.finished(0), rig.shard.stats().stale), (0, 0, 1));
    assert_eq!(rig.shard.lanes_held(), 0);
}

#[test]
fn an_expired_lock_ends_the_tenure_for_good() {
    let mut rig = Rig::new(1);
    let tenure = Tenure::new(QueueId::new("shard", 0), 1, 0, Some(rig.now + 10 * MS));
    rig.queues[0].0 = Arc::new(tenure);
    rig.offer(0, &["a", "b"]);
    assert_eq!(rig.next(), [(0, 0)]);
    rig.answer(done);
    rig.now += 10 * MS;
    assert_eq!(rig.next(), []);
    rig.queues[0].0.renew(rig.now + 10 * MS);
    rig.offer(0, &["c"]);
    assert_eq!(rig.next(), [], "b was passed over: c must not be called before it");
}

#[test]
fn draining_handles_what_is_there_and_tries_nothing_again() {
    let mut rig = Rig::new(1);
    rig.offer(0, &["a", "a", "b", "a", "b"]);
    rig.next();
    rig.answer(fail);
    rig.shard.drain();
    let mut called = Vec::new();
    loop {
        rig.now += 10_000 * MS;
        let next = rig.next_offsets();
        if next.is_empty() {
            break;
        }
        called.extend(next);
        rig.answer(|offset| if offset == 2 { fail(2) } else { Verdict::Done });
    }
    assert_eq!(called, [2], "neither what follows a on its lane, nor what follows b");
    assert!(rig.shard.is_drained());
    assert_eq!(rig.watermark(0), 0);
}

#[test]
fn an_unroutable_message_fails_in_its_turn_without_a_call() {
    let mut rig = Rig::with(10, policy().attempts_max(2).then(Exhausted::Skip));
    rig.offer_routed(0, &["a"], Route::NoKey);
    rig.offer_routed(0, &["b"], Route::Unroutable);
    rig.offer_routed(0, &["c"], Route::NoKey);
    assert_eq!(rig.next_offsets(), [0]);
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [0; 0], "it has failed, and holds its lane");
    rig.now += 100 * MS;
    assert_eq!(rig.next_offsets(), [2], "it was given up");
    rig.answer(done);
    assert_eq!(rig.watermark(0), 3);
}

#[test]
fn a_call_of_slow_messages_gets_few_of_them() {
    let mut rig = Rig::new(32);
    rig.shard.settings.per_message = true;
    rig.shard.pace = 1;
    let call = |rig: &mut Rig, each: Duration| {
        rig.offer(0, &["a"; 40]);
        let messages = rig.next_offsets().len();
        rig.now += each * u32::try_from(messages).unwrap();
        rig.answer(done);
        messages
    };
    let us = Duration::from_micros(1);
    let fast = [1, 2, 4, 8, 16, 32, 32].map(|expected| (expected, call(&mut rig, us)));
    assert!(fast.iter().all(|(expected, got)| expected == got), "{fast:?}");
    let slow = [32, 16, 8, 4, 2, 1, 1].map(|expected| (expected, call(&mut rig, MS)));
    assert!(slow.iter().all(|(expected, got)| expected == got), "{slow:?}");
    let between = [1, 2, 4, 4].map(|expected| (expected, call(&mut rig, 125 * us)));
    assert!(between.iter().all(|(expected, got)| expected == got), "{between:?}");
}

#[test]
fn a_small_batch_lingers_and_a_full_one_does_not() {
    let mut rig = Rig::new(3);
    rig.shard.settings.linger = 200 * MS;
    rig.offer(0, &["a", "b"]);
    let wait = rig.shard.next_call(rig.now, &mut rig.call, &mut rig.out);
    assert_eq!(wait, Next::Wait(Some(rig.now + 200 * MS)));
    rig.now += 200 * MS;
    assert_eq!(rig.next_offsets(), [0, 1]);
    rig.answer(done);
    rig.offer(0, &["a", "b", "c", "d"]);
    assert_eq!(rig.next_offsets(), [2, 3, 4]);
}

#[test]
fn what_a_message_is_doing_can_be_seen() {
    use crate::report::HoldingState;
    let mut rig = Rig::new(1);
    rig.offer(0, &["a", "a", "b"]);
    let state = |rig: &Rig, offset| {
        let found = rig.shard.find(1, Offset::new(offset).unwrap());
        found.map(|held| (held.state, held.attempts, held.last_error))
    };
    assert_eq!(state(&rig, 0), None);
    rig.next();
    assert_eq!(state(&rig, 0), Some((HoldingState::Running, 1, None)));
    rig.answer(fail);
    rig.next();
    let no = Some("no".to_owned());
    assert_eq!(state(&rig, 0), Some((HoldingState::BackingOff, 1, no)));
    assert_eq!(state(&rig, 1), Some((HoldingState::BehindItsKey, 0, None)));
    assert_eq!(state(&rig, 2), Some((HoldingState::Running, 1, None)));
}
