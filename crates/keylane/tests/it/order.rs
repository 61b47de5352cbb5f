//! G1 and G2: a key's messages come in order, and its calls never overlap.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keylane::{BatchOutcome, Outcome};

use crate::support::{Rig, by_number, q};

#[test]
fn scenario_01_keys_of_different_queues_are_different_lanes_on_one_shard() {
    let rig = Rig::with_queues(3);
    for index in 0..3 {
        rig.produce_all(q(index), (0..333).map(|offset| format!("key-{}", offset % 10)));
    }
    let builder = rig.builder().shards(4).channel_capacity(64).batch_max(32);
    let consumer = builder.start(rig.done()).unwrap();
    (0..3).for_each(|index| rig.wait_for_commit(q(index), 333));

    assert_eq!(consumer.metrics().in_flight, 0);
    rig.stop(&consumer);
    let calls = rig.calls.all();
    assert_eq!(calls.len(), 999);
    for index in 0..3 {
        assert_eq!(rig.script.committed(q(index)), Some(333));
        for key in 0..10 {
            let key = format!("key-{key}");
            let of_lane = calls.iter().filter(|seen| {
                seen.queue == q(index) && seen.key.as_deref() == Some(key.as_bytes())
            });
            let offsets: Vec<_> = of_lane.map(|seen| seen.offset).collect();
            assert!(offsets.is_sorted_by(|a, b| a < b), "{key}: {offsets:?}");
        }
    }
    for key in 0..10 {
        let key = format!("key-{key}");
        let of_key = calls.iter().filter(|seen| seen.key.as_deref() == Some(key.as_bytes()));
        let mut shards: Vec<_> = of_key.map(|seen| seen.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        assert_eq!(shards.len(), 1, "{key} was on {shards:?}");
    }
}

#[test]
fn scenario_02_a_failure_inside_a_batch_holds_back_its_key_alone() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..10).map(|offset| if offset % 2 == 0 { "A" } else { "B" }));
    let failing = rig.clone();
    let consumer = rig
        .builder()
        .shards(1)
        .batch_max(10)
        .start(rig.batches(move |batch| {
            let each = batch.iter().enumerate().map(|(index, message)| {
                if message.offset().get() == 2 && batch.attempt(index) < 3 {
                    let stored = failing.script.committed(q(0));
                    assert!(stored.unwrap_or(0) <= 2, "{stored:?} passes what has not succeeded");
                    return Err("not yet".into());
                }
                Ok(Outcome::Done)
            });
            Ok(BatchOutcome::Each(each.collect()))
        }))
        .unwrap();
    rig.wait_for_commit(q(0), 10);
    rig.stop(&consumer);

    for offset in [0, 1, 3, 5, 7, 9] {
        assert_eq!(rig.attempts(q(0), offset), 1, "offset {offset}");
    }
    assert_eq!(rig.attempts(q(0), 2), 3);
    let calls = rig.offsets(q(0));
    assert_eq!(calls[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "the first batch");
    // 4, 6 and 8 stood behind 2 in the batch: what was said of them does not count.
    assert_eq!(calls[10..], [2, 2, 4, 6, 8]);
    assert_eq!(rig.script.commits(q(0)).into_iter().filter(|&mark| mark > 2).count(), 1);
}

#[test]
fn scenario_03_one_key_is_on_one_thread_whichever_queue_it_comes_from() {
    let rig = Rig::with_queues(2);
    (0..2).for_each(|index| _ = rig.produce_all(q(index), (0..5_000).map(|_| "acct-7")));
    let inside = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let listener = rig.each({
        let most = Arc::clone(&most);
        move |message, _| {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            if message.offset().get().is_multiple_of(100) {
                std::thread::yield_now();
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        }
    });
    let consumer = rig.builder().shards(8).in_flight_max(100_000).start(listener).unwrap();
    (0..2).for_each(|index| rig.wait_for_commit(q(index), 5_000));
    rig.stop(&consumer);

    assert_eq!(most.load(Ordering::SeqCst), 1);
    let threads: HashSet<_> = rig.calls.all().into_iter().map(|seen| seen.thread).collect();
    assert_eq!(threads.len(), 1, "{threads:?}");
}

#[test]
fn scenario_03_a_fixed_hash_places_keys_the_same_in_each_life() {
    let places = || {
        let rig = Rig::with_queues(1);
        rig.produce_all(q(0), (0..1_000).map(|key| key.to_string()));
        let builder =
            rig.builder().shards(8).hasher(|key| by_number(key).wrapping_mul(0x9E37_79B9));
        let consumer = builder.start(rig.done()).unwrap();
        rig.wait_for_commit(q(0), 1_000);
        rig.stop(&consumer);
        rig.calls.all().into_iter().map(|seen| (seen.offset, seen.shard)).collect::<HashMap<_, _>>()
    };
    let first = places();
    assert_eq!(first.values().collect::<HashSet<_>>().len(), 8);
    assert_eq!(places(), first);
}

#[test]
fn messages_of_one_key_stand_in_one_batch_in_order() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..64).map(|_| "K"));
    let consumer = rig
        .builder()
        .shards(1)
        .batch_max(64)
        .start(rig.batches(|_| Ok(BatchOutcome::Done)))
        .unwrap();
    rig.wait_for_commit(q(0), 64);
    rig.stop(&consumer);
    assert_eq!(rig.batches.all(), [64]);
    assert!(rig.offsets(q(0)).into_iter().eq(0..64));
}

#[test]
fn many_keys_fail_at_random_and_each_keeps_its_order() {
    let rig = Rig::with_queues(4);
    for index in 0..4 {
        rig.produce_all(q(index), (0..2_000).map(|n| format!("key-{}", n * 31 % 57)));
    }
    let calls = AtomicUsize::new(0);
    let listener = rig.batches(move |batch| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let index = call * 7 % batch.len();
        match call % 5 {
            0 => Ok(BatchOutcome::DoneThrough(index)),
            1 => Ok(BatchOutcome::FailedAt { index, error: "some other time".into() }),
            2 if call.is_multiple_of(3) => Err("nobody knows where".into()),
            3 => {
                let one = |i: usize| {
                    if (i + call).is_multiple_of(7) {
                        Ok(Outcome::Retry)
                    } else {
                        Ok(Outcome::Done)
                    }
                };
                Ok(BatchOutcome::Each((0..batch.len()).map(one).collect()))
            }
            _ => Ok(BatchOutcome::Done),
        }
    });
    let builder = rig.builder().shards(3).batch_max(16).channel_capacity(20).fetch_max(64);
    let consumer = builder.in_flight_max(300).start(listener).unwrap();
    (0..4).for_each(|index| rig.wait_for_commit(q(index), 2_000));
    let metrics = consumer.metrics();
    assert_eq!((metrics.in_flight, metrics.in_flight_bytes, metrics.lanes_held), (0, 0, 0));
    rig.stop(&consumer);
    assert_eq!(rig.recorder.verdict().delivered, 8_000);
}
