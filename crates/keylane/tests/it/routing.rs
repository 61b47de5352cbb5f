//! From message to lane to thread; and input of all kinds.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use keylane::source::{Message, Offset};
use keylane::{Event, Exhausted, FailurePolicy, NoKey, Outcome};
use keylane_testkit::guarantee::{self, Lane, Scope};
use keylane_testkit::recorder::Recorder;
use keylane_testkit::script::Script;

use crate::support::{Log, MS, Rig, SECOND, offset, position, q, watermark};

/// Appends messages that `make` makes of empty ones.
fn append(rig: &Rig, messages: u64, make: impl Fn(u64, Message) -> Message) {
    let all = (0..messages).map(|n| make(n, Message::new(q(0), offset(n))));
    rig.script.append(q(0), all.collect::<Vec<_>>());
    rig.recorder.produced_range(q(0), offset(0), position(messages));
}

fn rig(scope: Scope) -> Rig {
    let rig = Rig::with(Script::new(), Recorder::new(scope));
    rig.script.store(q(0), watermark(0));
    rig.script.assign(q(0));
    rig
}

/// 95 % without a key, the rest alternately with an empty one and "a"; payloads absent, empty, full.
fn scenario_33(policy: NoKey, scope: Scope) -> Vec<(Option<Bytes>, usize)> {
    let rig = rig(scope);
    append(&rig, 10_000, |n, message| {
        let message = match n % 40 {
            0 => message.with_key(""),
            20 => message.with_key("a"),
            _ => message,
        };
        match n % 3 {
            0 => message,
            1 => message.with_payload(""),
            _ => message.with_payload("0123456789"),
        }
    });
    let listener = rig.each(|message, _| {
        let expected = [None, Some(&b""[..]), Some(&b"0123456789"[..])];
        let payload = expected[(message.offset().get() % 3) as usize];
        if message.payload() == payload { Ok(Outcome::Done) } else { Err("mixed up".into()) }
    });
    let consumer = rig.builder().shards(8).no_key(policy).start(listener).unwrap();
    rig.wait_for_commit(q(0), 10_000);
    assert_eq!(consumer.metrics().failed, 0);
    rig.stop(&consumer);
    rig.calls.all().into_iter().map(|seen| (seen.key, seen.shard)).collect()
}

#[test]
fn scenario_33_without_a_key_and_with_an_empty_one_are_one_lane_by_default() {
    let calls = scenario_33(NoKey::OneLane, Scope::key());
    let lane = calls.iter().filter(|(key, _)| key.as_ref().is_none_or(|key| key.is_empty()));
    assert_eq!(lane.map(|(_, shard)| shard).collect::<HashSet<_>>().len(), 1);
}

#[test]
fn scenario_33_spread_messages_reach_all_threads_and_an_empty_key_stays_a_lane() {
    let calls = scenario_33(NoKey::Spread, Scope::Key(guarantee::NoKey::Spread));
    let mut shards = HashMap::<_, usize>::new();
    calls.iter().filter(|(key, _)| key.is_none()).for_each(|(_, shard)| {
        *shards.entry(shard).or_default() += 1;
    });
    let busy = shards.values().filter(|&&n| n > 9_500 / 20).count();
    assert!(busy >= 6, "{shards:?}");
    let empty = calls.iter().filter(|(key, _)| key.as_ref().is_some_and(|key| key.is_empty()));
    assert_eq!(empty.map(|(_, shard)| shard).collect::<HashSet<_>>().len(), 1);
}

#[test]
fn scenario_33_by_queue_each_queue_has_a_lane() {
    let calls = scenario_33(NoKey::ByQueue, Scope::Key(guarantee::NoKey::ByQueue));
    let lane = calls.iter().filter(|(key, _)| key.is_none());
    assert_eq!(lane.map(|(_, shard)| shard).collect::<HashSet<_>>().len(), 1);
}

#[test]
fn scenario_34_binary_keys_stay_what_they_are() {
    let rig = rig(Scope::key());
    append(&rig, 20_000, |n, message| {
        message.with_key((n % 10_000).to_be_bytes().to_vec()).with_payload((n / 10_000).to_string())
    });
    let listener = rig.each(|message, context| {
        let produced = (message.offset().get() % 10_000).to_be_bytes();
        if message.key() != Some(&produced[..]) {
            return Ok(Outcome::Stop("another key".into()));
        }
        if produced[7] == 0x84 && produced[6] == 0 && context.attempt() == 1 {
            return Err("forced".into());
        }
        Ok(Outcome::Done)
    });
    let consumer = rig.builder().shards(8).start(listener).unwrap();
    rig.wait_for_commit(q(0), 20_000);
    rig.stop(&consumer);
    let keys: HashMap<_, _> =
        rig.calls.all().into_iter().map(|seen| (seen.key, seen.shard)).collect();
    assert_eq!(keys.len(), 10_000);
    let mut shards = [0; 8];
    keys.values().for_each(|&shard| shards[shard] += 1);
    assert!(shards.iter().all(|keys| (1_000..=1_500).contains(keys)), "{shards:?}");
    let event = rig.events.wait_for("it", |event| matches!(event, Event::Failed { .. }));
    let shown = "key \"\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x84\"";
    assert!(event.to_string().contains(shown), "{event}");
}

#[test]
fn scenario_35_every_hash_has_a_shard() {
    let hashes = [i32::MIN as u64, -1_i64 as u64, i64::MIN as u64, u64::MAX, 0];
    let rig = rig(Scope::key());
    append(&rig, 50, |n, message| message.with_key(vec![(n % 5) as u8]));
    let builder = rig.builder().shards(7).hasher(move |key| hashes[usize::from(key[0])]);
    let consumer = builder.start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 50);
    rig.stop(&consumer);
    for seen in rig.calls.all() {
        let hash = hashes[(seen.offset % 5) as usize];
        assert_eq!(seen.shard as u64, hash % 7, "{hash:x}");
    }
}

#[test]
fn scenario_35_keys_whose_java_hash_is_the_smallest_integer() {
    let java = |key: &[u8]| {
        let add = |hash: i32, byte: &u8| hash.wrapping_mul(31).wrapping_add(i32::from(*byte));
        key.iter().fold(0, add)
    };
    let keys = ["polygenelubricants", "GydZG_", "DESIGNING WORKHOUSES"];
    assert!(keys.iter().all(|key| java(key.as_bytes()) == i32::MIN));
    let rig = rig(Scope::key());
    append(&rig, 3, |n, message| message.with_key(keys[usize::try_from(n).unwrap()]));
    let builder = rig.builder().shards(7).hasher(move |key| java(key).rem_euclid(7) as u64);
    let consumer = builder.start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 3);
    rig.stop(&consumer);
    assert!(rig.calls.all().iter().all(|seen| seen.shard == 5));
}

#[test]
fn a_routing_function_decides_the_lane() {
    let lane = |message: &Message| match message.key() {
        Some(key) => Lane::key(key[..1].to_vec()),
        None => Lane::key("__nokey"),
    };
    let rig = rig(Scope::Routed(std::sync::Arc::new(lane)));
    append(&rig, 300, |n, message| match n % 10 {
        0 => message,
        _ => message.with_key(format!("{}-{n}", n % 3)),
    });
    let builder = rig.builder().shards(3).batch_max(4);
    let builder =
        builder.route_by(|message| Ok(message.key().map(|key| Bytes::copy_from_slice(&key[..1]))));
    let listener = rig.each(|message, context| {
        let fails = message.offset().get() % 7 == 0 && context.attempt() == 1;
        if fails { Ok(Outcome::Retry) } else { Ok(Outcome::Done) }
    });
    let consumer = builder.start(listener).unwrap();
    rig.wait_for_commit(q(0), 300);
    rig.stop(&consumer);
    let lanes: HashSet<_> =
        rig.calls.all().into_iter().filter_map(|seen| Some((seen.key?[0], seen.shard))).collect();
    assert_eq!(lanes.len(), 3, "one shard a lane: {lanes:?}");
}

#[test]
fn a_routing_function_that_fails_is_a_failed_attempt_in_its_turn() {
    let rig = rig(Scope::key());
    append(&rig, 6, |n, message| match n {
        0 | 4 => message,
        _ => message.with_key(n.to_string()),
    });
    let policy = FailurePolicy::default().backoff(MS, MS).attempts_max(2).then(Exhausted::Skip);
    let asked = Log::default();
    let builder = rig.builder().shards(2).failure(policy).route_by({
        let asked = asked.clone();
        move |message| {
            asked.push(message.offset().get());
            match message.offset().get() {
                2 => Err("no account in it".into()),
                3 => std::panic::resume_unwind(Box::new("nor here")),
                _ => Ok(message.key_bytes().cloned()),
            }
        }
    });
    let consumer = builder.start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 6);
    consumer.stop(SECOND).unwrap();
    let mut called = rig.offsets(q(0));
    called.sort_unstable();
    assert_eq!(called, [0, 1, 4, 5]);
    assert_eq!(asked.all(), [0, 1, 2, 3, 4, 5], "its answer would be the same again");
    let errors = rig.events.all().into_iter().filter_map(|event| match event {
        Event::Failed { offset, attempts, error, .. } => Some((offset.get(), attempts, error)),
        _ => None,
    });
    let (failed, panicked) = (
        "the routing function failed: no account in it".to_owned(),
        "the routing function panicked: nor here".to_owned(),
    );
    let expected =
        [(2, 1, failed.clone()), (2, 2, failed), (3, 1, panicked.clone()), (3, 2, panicked)];
    assert_eq!(errors.collect::<Vec<_>>(), expected);
}

#[test]
fn offsets_may_stand_anywhere_up_to_the_last_one() {
    let rig = rig(Scope::key());
    let end = 1_u64 << 63;
    let offsets = [7, 1_000_000_000_007, end - 2, end - 1];
    let make = |n| Message::new(q(0), offset(n)).with_key("K");
    rig.script.append(q(0), offsets.map(make));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.wait_for("the last commit", |state| state.committed(q(0)) == Some(watermark(end)));
    assert_eq!(Offset::MAX.get(), end - 1);
    assert_eq!(rig.offsets(q(0)), offsets);
    assert_eq!(consumer.metrics().queues[0].lag, Some(0));
    rig.stop(&consumer);
}
