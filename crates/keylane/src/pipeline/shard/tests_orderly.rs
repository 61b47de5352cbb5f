//! Each status of an orderly listener with auto-commit on and off, in both ordered modes: what is
//! finished, what comes again, when, and whether it counts. The lane is the queue in queue-locked
//! mode ([`Route::NoKeyOfQueue`]) and the key in key-sharded mode.

use super::tests::{MS, Rig, done, policy};
use super::*;
use crate::config::Exhausted;
use crate::listener::{OrderlyContext, OrderlyStatus, settle_orderly};
use crate::pipeline::chunk::Route;

use OrderlyStatus::{Commit, Rollback, Success, SuspendCurrentQueueAMoment as Suspend};

const SECOND: u32 = 1_000;

/// One lane of four messages, in calls of at most two.
fn rig(route: Route, failure: FailurePolicy) -> Rig {
    let mut rig = Rig::orderly(2, failure);
    rig.offer_routed(0, &["a", "a", "a", "a"], route);
    rig
}

/// Begins the next call, answers it, and gives its offsets with the attempt that it was for each.
fn call(rig: &mut Rig, status: OrderlyStatus, auto_commit: bool) -> Vec<(u64, u32)> {
    let offsets = rig.next_offsets();
    if offsets.is_empty() {
        return Vec::new();
    }
    let seen = offsets.iter().enumerate().map(|(index, &offset)| (offset, rig.call.attempt(index)));
    let seen = seen.collect();
    let context = OrderlyContext::for_test(QueueId::new("shard", 0), auto_commit);
    settle_orderly(&rig.call, status, &context, &mut rig.verdicts);
    rig.settle();
    seen
}

/// A test for each mode.
macro_rules! in_both_modes {
    ($($name:ident($route:ident) $body:block)*) => {
        mod queue_locked {
            use super::*;
            $(#[test] fn $name() { let $route = Route::NoKeyOfQueue; $body })*
        }
        mod key_sharded {
            use super::*;
            $(#[test] fn $name() { let $route = Route::Key; $body })*
        }
    };
}

in_both_modes! {
    success_with_auto_commit_finishes(route) {
        let mut rig = rig(route, policy());
        assert_eq!(call(&mut rig, Success, true), [(0, 1), (1, 1)]);
        assert_eq!(rig.watermark(0), 2);
        assert_eq!(call(&mut rig, Success, true), [(2, 1), (3, 1)]);
        assert_eq!((rig.watermark(0), rig.shard.lanes_held()), (4, 0));
    }

    commit_with_auto_commit_finishes(route) {
        let mut rig = rig(route, policy());
        assert_eq!(call(&mut rig, Commit, true), [(0, 1), (1, 1)]);
        assert_eq!(rig.watermark(0), 2);
    }

    rollback_with_auto_commit_gives_the_batch_back_uncounted(route) {
        let mut rig = rig(route, policy());
        call(&mut rig, Rollback, true);
        assert_eq!((rig.watermark(0), rig.finished(0)), (0, 0));
        rig.now += (SECOND - 1) * MS;
        assert_eq!(call(&mut rig, Success, true), []);
        rig.now += MS;
        assert_eq!(call(&mut rig, Success, true), [(0, 1), (1, 1)]);
        assert_eq!(call(&mut rig, Success, true), [(2, 1), (3, 1)]);
        assert_eq!(rig.watermark(0), 4);
    }

    suspend_with_auto_commit_gives_the_batch_back_counted(route) {
        let mut rig = rig(route, policy());
        call(&mut rig, Suspend, true);
        assert_eq!(rig.watermark(0), 0);
        rig.now += (SECOND - 1) * MS;
        assert_eq!(call(&mut rig, Success, true), []);
        rig.now += MS;
        // What has failed goes by itself first; the other one counts too.
        assert_eq!(call(&mut rig, Success, true), [(0, 2)]);
        assert_eq!(call(&mut rig, Success, true), [(1, 2)]);
        assert_eq!(call(&mut rig, Success, true), [(2, 1), (3, 1)]);
        assert_eq!(rig.watermark(0), 4);
    }

    a_panic_with_auto_commit_is_a_suspend(route) {
        let mut rig = rig(route, policy());
        rig.next_offsets();
        rig.verdicts.suspend(&rig.call, "boom", SECOND * MS, true);
        rig.settle();
        assert_eq!((rig.watermark(0), rig.shard.stats().panicked), (0, 1));
        rig.now += SECOND * MS;
        assert_eq!(call(&mut rig, Success, true), [(0, 2)]);
    }

    success_without_auto_commit_keeps(route) {
        let mut rig = rig(route, policy());
        assert_eq!(call(&mut rig, Success, false), [(0, 1), (1, 1)]);
        assert_eq!(call(&mut rig, Success, false), [(2, 1), (3, 1)]);
        assert_eq!((rig.watermark(0), rig.finished(0)), (0, 0), "the budget is still used");
        assert_eq!(call(&mut rig, Success, false), []);
    }

    commit_without_auto_commit_finishes_all_that_was_kept(route) {
        let mut rig = rig(route, policy());
        call(&mut rig, Success, false);
        assert_eq!(call(&mut rig, Commit, false), [(2, 1), (3, 1)]);
        assert_eq!((rig.watermark(0), rig.finished(0)), (4, 4));
        assert_eq!(rig.shard.lanes_held(), 0);
    }

    rollback_without_auto_commit_gives_back_all_that_was_kept_uncounted(route) {
        let mut rig = rig(route, policy());
        call(&mut rig, Success, false);
        call(&mut rig, Rollback, false);
        assert_eq!(call(&mut rig, Success, false), []);
        rig.now += SECOND * MS;
        assert_eq!(call(&mut rig, Success, false), [(0, 1), (1, 1)]);
        assert_eq!(call(&mut rig, Commit, false), [(2, 1), (3, 1)]);
        assert_eq!(rig.watermark(0), 4);
    }

    suspend_without_auto_commit_gives_back_the_batch_alone(route) {
        let mut rig = rig(route, policy());
        call(&mut rig, Success, false);
        assert_eq!(call(&mut rig, Suspend, false), [(2, 1), (3, 1)]);
        rig.now += SECOND * MS;
        assert_eq!(call(&mut rig, Success, false), [(2, 2)], "0 and 1 stay kept");
        assert_eq!(call(&mut rig, Commit, false), [(3, 2)]);
        assert_eq!((rig.watermark(0), rig.finished(0)), (4, 4));
    }

    what_was_given_up_beside_kept_messages_lets_the_rest_of_its_batch_go_on(route) {
        let mut rig = rig(route, policy().attempts_max(1).then(Exhausted::Skip));
        call(&mut rig, Success, false);
        assert_eq!(call(&mut rig, Suspend, false), [(2, 1), (3, 1)]);
        // Both have failed as often as they may: 2 is given up at once, 3 when its turn comes.
        assert_eq!((rig.finished(0), rig.shard.stats().skipped), (1, 1));
        assert_eq!(call(&mut rig, Success, false), []);
        assert_eq!((rig.finished(0), rig.shard.stats().skipped), (2, 2));
        assert_eq!(rig.watermark(0), 0, "0 and 1 are kept");
    }

    a_panic_without_auto_commit_leaves_what_was_kept(route) {
        let mut rig = rig(route, policy());
        call(&mut rig, Success, false);
        rig.next_offsets();
        rig.verdicts.suspend(&rig.call, "boom", SECOND * MS, true);
        rig.settle();
        rig.now += SECOND * MS;
        assert_eq!(call(&mut rig, Commit, false), [(2, 2)]);
        assert_eq!(rig.watermark(0), 3);
    }

    success_with_auto_commit_commits_what_was_kept_before(route) {
        let mut rig = rig(route, policy());
        call(&mut rig, Success, false);
        call(&mut rig, Success, true);
        assert_eq!((rig.watermark(0), rig.finished(0)), (4, 4));
    }

    past_the_limit_each_message_is_given_up_once_and_not_delivered_again(route) {
        let mut rig = rig(route, policy().attempts_max(2).then(Exhausted::Skip));
        assert_eq!(call(&mut rig, Suspend, true), [(0, 1), (1, 1)]);
        rig.now += SECOND * MS;
        assert_eq!(call(&mut rig, Suspend, true), [(0, 2)]);
        assert_eq!(rig.watermark(0), 1, "given up at its second failure");
        assert_eq!(call(&mut rig, Suspend, true), [(1, 2)]);
        assert_eq!(rig.watermark(0), 2);
        assert_eq!(call(&mut rig, Success, true), [(2, 1), (3, 1)]);
        assert_eq!((rig.watermark(0), rig.shard.stats().skipped), (4, 2));
    }
}

#[test]
fn a_suspended_key_leaves_other_keys_alone_and_a_suspended_queue_does_not() {
    for (route, next) in [(Route::Key, vec![(1, 1)]), (Route::NoKeyOfQueue, vec![])] {
        let mut rig = Rig::orderly(1, policy());
        rig.offer_routed(0, &["a", "b"], route);
        assert_eq!(call(&mut rig, Suspend, true), [(0, 1)]);
        assert_eq!(call(&mut rig, Success, true), next);
    }
}

#[test]
fn a_call_gets_messages_of_one_lane() {
    let mut rig = Rig::orderly(10, policy());
    rig.offer_routed(0, &["a", "a", "b", "a"], Route::Key);
    rig.offer_routed(1, &["a"], Route::Key);
    assert_eq!(rig.next(), [(0, 0), (0, 1)]);
    rig.settle();
    assert_eq!(rig.next(), [(0, 2)]);
    rig.settle();
    assert_eq!(rig.next(), [(0, 3)], "the same key of another queue is another lane");
    rig.settle();
    assert_eq!(rig.next(), [(1, 0)]);
}

#[test]
fn a_lane_that_commits_by_hand_keeps_until_it_does() {
    let mut rig = Rig::new(1);
    rig.offer(0, &["a", "a", "b", "a"]);
    rig.next_offsets();
    rig.answer(|_| Verdict::Keep);
    rig.next_offsets();
    rig.answer(|_| Verdict::Keep);
    rig.next_offsets();
    rig.answer(|_| Verdict::Keep);
    assert_eq!((rig.watermark(0), rig.finished(0)), (0, 0));
    assert_eq!(rig.next_offsets(), [3]);
    rig.answer(|_| Verdict::Commit);
    assert_eq!(rig.finished(0), 3, "all of a, and nothing of b");
    assert_eq!(rig.watermark(0), 2);
}

#[test]
fn a_rollback_gives_all_that_was_kept_back_in_order() {
    let mut rig = Rig::new(1);
    rig.offer(0, &["a", "a", "a", "b"]);
    rig.next_offsets();
    rig.answer(|_| Verdict::Keep);
    assert_eq!(rig.next_offsets(), [3], "nothing of the lane is at the front");
    rig.answer(done);
    assert_eq!(rig.next_offsets(), [1]);
    rig.answer(|_| Verdict::Rollback(50 * MS));
    assert_eq!(rig.next_offsets(), [0; 0], "the lane waits");
    rig.now += 50 * MS;
    let mut called = Vec::new();
    for _ in 0..3 {
        called.extend(rig.next_offsets());
        assert_eq!(rig.call.attempt(0), 1, "a rollback counts no attempt");
        rig.answer(done);
    }
    assert_eq!(called, [0, 1, 2]);
    assert_eq!(rig.watermark(0), 4);
}
