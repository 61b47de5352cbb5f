//! Queue-locked mode: a queue is one line, and one call at a time; queues are free of each other.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use keylane::source::Message;
use keylane::{
    BatchOutcome, Context, Event, Handled, HoldingState, Listener, Mode, Outcome, QueueId, listen,
};
use keylane_testkit::script::{LockAnswer, Script};

use crate::support::{Latch, Log, MS, Rig, SECOND, eventually, offset, q};

const HOUR: Duration = Duration::from_secs(3_600);

fn rig(queues: u32) -> Rig {
    Rig::in_mode(Mode::QueueLocked, Script::new(), queues)
}

#[test]
fn as_many_calls_run_as_there_are_queues_however_many_threads() {
    let rig = rig(4);
    (0..4).for_each(|index| _ = rig.produce_all(q(index), (0..50).map(|n| n.to_string())));
    let latch = Latch::new();
    let listener = rig.passing(&latch, |_| true);
    let consumer = rig.builder().shards(16).start(listener).unwrap();
    latch.wait_for_arrivals(4);
    eventually("all are pulled", || consumer.metrics().admitted == 200);
    let running: HashSet<_> = rig.calls.all().iter().map(|seen| seen.queue).collect();
    assert_eq!((running.len(), rig.calls.len()), (4, 4), "one of each queue");
    latch.open();
    (0..4).for_each(|index| rig.wait_for_commit(q(index), 50));
    rig.stop(&consumer);
}

#[test]
fn a_queue_keeps_its_order_over_all_keys_and_many_queues_share_few_threads() {
    let rig = rig(50);
    (0..50).for_each(|index| _ = rig.produce_all(q(index), (0..100).map(|n| n.to_string())));
    let consumer = rig.builder().shards(3).thread_name("few-threads").start(rig.done()).unwrap();
    (0..50).for_each(|index| rig.wait_for_commit(q(index), 100));
    rig.stop(&consumer);
    for index in 0..50 {
        assert!(rig.offsets(q(index)).into_iter().eq(0..100), "queue {index}");
    }
    let threads: HashSet<_> = rig.calls.all().into_iter().map(|seen| seen.thread).collect();
    let pool = ["few-threads-pool-0", "few-threads-pool-1", "few-threads-pool-2"];
    assert!(threads.iter().all(|thread| pool.contains(&thread.as_str())), "{threads:?}");
}

#[test]
fn a_retry_holds_back_its_whole_queue_and_no_thread() {
    let rig = rig(2);
    rig.produce_all(q(0), ["A", "B", "C"]);
    let listener = rig.each(|message, _| match message.queue() == q(0) {
        true => Ok(Outcome::RetryAfter(HOUR)),
        false => Ok(Outcome::Done),
    });
    // One thread: if the queue that waits had it, the other one would never come.
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    rig.events.wait_for("the failure", |event| matches!(event, Event::Failed { .. }));
    rig.produce_all(q(1), (0..100).map(|n| n.to_string()));
    rig.wait_for_commit(q(1), 100);
    assert_eq!(rig.offsets(q(0)), [0], "other keys of its queue wait");
    let [held] = &consumer.holding()[..] else { panic!("{:?}", consumer.holding()) };
    assert_eq!((held.queue, held.offset, held.span), (q(0), offset(0), 3));
    assert_eq!((held.state, held.attempts), (HoldingState::BackingOff, Some(1)));
    let report = rig.stop_early(&consumer);
    assert_eq!((report.unfinished, report.queues[0].finished_above), (3, 0));
}

#[test]
fn a_message_that_fails_comes_again_before_everything_behind_it() {
    let rig = rig(1);
    rig.produce_all(q(0), ["A", "B", "C", "D"]);
    let listener = rig.each(|message, context| match message.offset().get() {
        1 if context.attempt() < 3 => Err("not yet".into()),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().start(listener).unwrap();
    rig.wait_for_commit(q(0), 4);
    rig.stop(&consumer);
    assert_eq!(rig.offsets(q(0)), [0, 1, 1, 1, 2, 3]);
    let attempts: Vec<_> = rig.calls.all().iter().map(|seen| seen.attempt).collect();
    assert_eq!(attempts, [1, 1, 2, 3, 1, 1]);
}

#[test]
fn a_batch_is_a_piece_of_one_queue_and_what_failed_holds_back_what_follows() {
    let rig = rig(2);
    (0..2).for_each(|index| _ = rig.produce_all(q(index), (0..200).map(|n| n.to_string())));
    let listener = rig.batches(|batch| {
        assert!(batch.iter().all(|message| message.queue() == batch[0].queue()));
        match (0..batch.len()).find(|&i| batch[i].offset().get() % 9 == 4 && batch.attempt(i) == 1)
        {
            Some(index) => Ok(BatchOutcome::FailedAt { index, error: "the first time".into() }),
            None => Ok(BatchOutcome::Done),
        }
    });
    let consumer = rig.builder().batch_max(8).start(listener).unwrap();
    (0..2).for_each(|index| rig.wait_for_commit(q(index), 200));
    rig.stop(&consumer);
    let failing = (0..200).filter(|n| n % 9 == 4).count() as u64;
    assert_eq!(consumer.metrics().failed, 2 * failing);
}

#[test]
fn a_call_that_hangs_has_one_thread_and_its_queue_alone() {
    let rig = rig(2);
    let latch = Latch::new();
    let listener = rig.passing(&latch, |message| message.queue() == q(0));
    let consumer = rig.builder().shards(2).start(listener).unwrap();
    // Each of these is a reason to look at the queue again: none may cost the second thread.
    for round in 1..=20 {
        rig.produce(q(0), "K");
        latch.wait_for_arrivals(1);
        eventually("it is pulled", || consumer.metrics().admitted == 2 * round - 1);
        rig.commit_round(q(1), "K");
    }
    assert_eq!(rig.offsets(q(0)), [0]);
    latch.open();
    rig.wait_for_commit(q(0), 20);
    rig.stop(&consumer);
}

#[test]
fn across_a_hand_over_inside_the_process_the_new_call_waits_for_the_old_one() {
    let rig = rig(2);
    rig.produce(q(0), "K");
    let latch = Latch::new();
    let listener = rig.passing(&latch, |message| message.queue() == q(0));
    let consumer = rig.builder().revoke_timeout(50 * MS).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.begin_revoke(q(0));
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    rig.script.assign(q(0));
    eventually("it is pulled again", || consumer.metrics().admitted == 2);
    rig.commit_round(q(1), "K");
    assert_eq!(rig.offsets(q(0)), [0], "the old call has not returned");
    latch.open();
    rig.wait_for_commit(q(0), 1);
    assert_eq!(consumer.metrics().stale_completions, 1);
    rig.stop(&consumer);
    assert_eq!(rig.offsets(q(0)), [0, 0]);
}

/// Counts what it has seen, without a lock, and says of which queues that was.
struct Counts {
    by_queue: HashMap<QueueId, u64>,
    revoked: Log<(Vec<QueueId>, QueueId)>,
    ended: Log<Vec<(QueueId, u64)>>,
}

impl Listener for Counts {
    fn on_message(&mut self, message: &Message, _: &mut Context<'_>) -> Handled {
        *self.by_queue.entry(message.queue()).or_default() += 1;
        Ok(Outcome::Done)
    }
    fn on_revoked(&mut self, queue: QueueId) {
        self.revoked.push((self.by_queue.keys().copied().collect(), queue));
    }
    fn on_stop(&mut self) {
        self.ended.push(self.by_queue.drain().collect());
    }
}

#[test]
fn there_is_an_instance_a_queue_and_it_is_told_of_its_revoke_and_of_the_stop() {
    let rig = rig(3);
    (0..3).for_each(|index| _ = rig.produce_all(q(index), (0..100).map(|n| n.to_string())));
    let (revoked, ended) = (Log::default(), Log::default());
    let listener = listen::per_shard({
        let (revoked, ended) = (revoked.clone(), ended.clone());
        move |_| Counts { by_queue: HashMap::new(), revoked: revoked.clone(), ended: ended.clone() }
    });
    let consumer = rig.builder().shards(2).start(listener).unwrap();
    (0..3).for_each(|index| rig.wait_for_commit(q(index), 100));
    rig.script.begin_revoke(q(1));
    rig.script.wait_for("the release", |state| state.is_released(q(1)));
    let its_own = (vec![q(1)], q(1));
    revoked.wait_for("the queue's own instance", |told| *told == its_own);
    consumer.stop(10 * SECOND).unwrap();
    let mut seen: Vec<_> = ended.all().into_iter().flatten().collect();
    seen.sort_by_key(|(queue, _)| queue.index());
    assert_eq!(ended.len(), 3, "an instance a queue");
    assert_eq!(seen, [(q(0), 100), (q(1), 100), (q(2), 100)]);
}

#[test]
fn nothing_more_of_a_call_is_handled_once_the_lock_of_its_queue_is_lost() {
    let script = Script::new().with_locks(30 * SECOND);
    let rig = Rig::in_mode(Mode::QueueLocked, script, 2);
    // Calls grow while messages are quick, so that the one with offset 40 has some behind it.
    rig.produce_all(q(0), (0..64).map(|n| n.to_string()));
    let latch = Latch::new();
    let listener =
        rig.passing(&latch, |message| (message.queue(), message.offset()) == (q(0), offset(40)));
    let consumer = rig.builder().start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.answer_locks(q(0), LockAnswer::Refuse);
    rig.script.lose_lock(q(0));
    let lost = rig.events.wait_for("the loss", |event| matches!(event, Event::LockLost { .. }));
    assert_eq!(lost.to_string(), "it/0: its lock is lost");
    let committed = rig.script.committed(q(0)).unwrap();
    latch.open();
    eventually("the late end", || consumer.metrics().stale_completions > 0);
    rig.commit_round(q(1), "K");
    assert!(rig.offsets(q(0)).into_iter().eq(0..=40), "nothing begins without the lock");
    assert_eq!(rig.script.committed(q(0)), Some(committed), "nothing is committed without it");
    rig.script.answer_locks(q(0), LockAnswer::Grant);
    rig.wait_for_commit(q(0), 64);
    assert!(rig.offsets(q(0)).into_iter().eq((0..=40).chain(committed..64)));
    consumer.stop(10 * SECOND).unwrap();
    let verdict = rig.recorder.verdict();
    assert_eq!((verdict.lost, verdict.overlap_violations, verdict.committed), (0, 0, true));
}

#[test]
fn what_a_batch_says_counts_no_more_once_the_lock_of_its_queue_is_lost() {
    let script = Script::new().with_locks(30 * SECOND);
    let rig = Rig::in_mode(Mode::QueueLocked, script, 2);
    rig.produce_all(q(0), ["A", "B", "C", "D", "E", "F"]);
    let latch = Latch::new();
    let listener = rig.batches({
        let latch = latch.clone();
        move |batch| {
            if batch[0].queue() == q(0) {
                latch.pass();
            }
            Ok(BatchOutcome::Done)
        }
    });
    let consumer = rig.builder().batch_max(4).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.answer_locks(q(0), LockAnswer::Refuse);
    rig.script.lose_lock(q(0));
    rig.events.wait_for("the loss", |event| matches!(event, Event::LockLost { .. }));
    latch.open();
    eventually("the late end", || consumer.metrics().stale_completions == 4);
    rig.commit_round(q(1), "K");
    assert_eq!(rig.offsets(q(0)), [0, 1, 2, 3], "nothing begins without the lock");
    assert!(rig.script.commits(q(0)).is_empty(), "nothing is committed without it");
    rig.script.answer_locks(q(0), LockAnswer::Grant);
    rig.wait_for_commit(q(0), 6);
    assert_eq!(rig.offsets(q(0)), [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]);
    consumer.stop(10 * SECOND).unwrap();
}

#[test]
fn a_queue_whose_lock_is_another_members_is_not_called_at_all() {
    let script = Script::new().with_locks(30 * SECOND);
    let rig = Rig::in_mode(Mode::QueueLocked, script, 0);
    rig.script.answer_locks(q(0), LockAnswer::Refuse);
    for queue in [q(0), q(1)] {
        rig.script.store(queue, crate::support::watermark(0));
        rig.script.assign(queue);
        rig.produce(queue, "K");
    }
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.events.wait_for("a refusal", |event| matches!(event, Event::LockRefused { .. }));
    rig.wait_for_commit(q(1), 1);
    assert_eq!(rig.offsets(q(0)), [0; 0]);
    rig.script.answer_locks(q(0), LockAnswer::Grant);
    rig.wait_for_commit(q(0), 1);
    rig.stop(&consumer);
    assert!((0..2).all(|index| !rig.script.look(|state| state.is_locked(q(index)))));
}
