//! G5 and G6: what is in flight is bounded, and nothing waits for what it does not need.

use keylane::source::{EndOffset, Fetch, Message, SourceError};
use keylane::{BatchOutcome, Event, HeldBy, Outcome};

use crate::support::{Latch, MS, Rig, SECOND, by_number, eventually, offset, position, q};

/// A listener whose first call of queue 0 waits.
fn first_waits(rig: &Rig) -> (Latch, impl keylane::IntoListener + use<>) {
    let latch = Latch::new();
    let listener =
        rig.passing(&latch, |message| message.queue() == q(0) && message.offset().get() == 0);
    (latch, listener)
}

#[test]
fn scenario_11_a_message_larger_than_the_budget_is_admitted_alone() {
    let rig = Rig::with_queues(1);
    let sized = |n: u64| {
        let bytes = if n == 10 { 3 << 19 } else { 100 };
        Message::new(q(0), offset(n)).with_key(n.to_string()).with_payload(vec![0; bytes])
    };
    rig.recorder.produced_range(q(0), offset(0), position(20));
    rig.script.append(q(0), (0..20).map(sized));
    let builder = rig.builder().shards(2).in_flight_bytes_max(1 << 20);
    let consumer = builder.start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 20);
    let metrics = consumer.metrics();
    assert_eq!(metrics.in_flight_bytes_max, (3 << 19) + 2, "its own bytes, key included");
    assert_eq!((metrics.in_flight, metrics.in_flight_bytes), (0, 0));
    rig.stop(&consumer);
}

#[test]
fn a_message_larger_than_its_queues_share_goes_beside_others() {
    let rig = Rig::with_queues(2);
    let (latch, listener) = first_waits(&rig);
    rig.produce(q(0), "0");
    let builder = rig.builder().shards(2).hasher(by_number).in_flight_bytes_max(1_000);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    // Queue 0 has something in flight all the time. A queue's share is 250 and what is shared, 500.
    let large = Message::new(q(1), offset(0)).with_key("1").with_payload(vec![0; 900]);
    rig.recorder.produced(q(1), offset(0));
    rig.script.append(q(1), [large]);
    rig.wait_for_commit(q(1), 1);
    latch.open();
    rig.wait_for_commit(q(0), 1);
    assert_eq!(consumer.metrics().in_flight_bytes_max, 901 + 8);
    rig.stop(&consumer);
}

#[test]
fn a_message_that_waits_for_other_queues_is_named() {
    let rig = Rig::with_queues(2);
    let (latch, listener) = first_waits(&rig);
    rig.produce(q(0), "0");
    let builder = rig.builder().shards(2).hasher(by_number).in_flight_bytes_max(1_000);
    let consumer = builder.stall_after(20 * MS).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    let large = Message::new(q(1), offset(0)).with_key("1").with_payload(vec![0; 1_500]);
    rig.recorder.produced(q(1), offset(0));
    rig.script.append(q(1), [large]);
    let held = |event: &Event| matches!(event, Event::Held { by: HeldBy::Size, .. });
    let event = rig.events.wait_for("the event", held);
    assert_eq!(
        event.to_string(),
        "it/1: a message is larger than what others leave of the budget, at offset 0, key \"1\""
    );
    latch.open();
    rig.wait_for_commit(q(1), 1);
    assert_eq!(consumer.metrics().in_flight_bytes_max, 1_501, "it went alone");
    rig.stop(&consumer);
}

fn scenario_12(fetch_max: usize) {
    let rig = Rig::with_queues(0);
    rig.script.start_at(q(0), position(1));
    rig.script.store(q(0), crate::support::watermark(1));
    rig.script.assign(q(0));
    rig.produce_all(q(0), (1..31).map(|n| n.to_string()));
    let seen = rig.calls.clone();
    let listener = rig.each(move |message, context| {
        if message.offset().get() == 1 && context.attempt() < 4 {
            // The span is full before it is tried again.
            seen.wait_until("nine others", |calls| calls.iter().any(|call| call.offset == 10));
            return Ok(Outcome::Retry);
        }
        Ok(Outcome::Done)
    });
    let builder = rig.builder().shards(4).hasher(by_number).span_max(10).fetch_max(fetch_max);
    let consumer = builder.start(listener).unwrap();
    rig.wait_for_commit(q(0), 31);
    rig.stop(&consumer);
    let calls = rig.offsets(q(0));
    assert_eq!(calls.len(), 33);
    let last = calls.iter().rposition(|&offset| offset == 1).unwrap();
    assert_eq!(rig.attempts(q(0), 1), 4);
    assert!(calls[..last].iter().all(|&offset| offset <= 10), "{calls:?}");
}

#[test]
fn scenario_12_a_retry_does_not_wait_for_the_span_that_it_fills() {
    scenario_12(5);
}

#[test]
fn scenario_12_nor_when_the_fetch_does_not_divide_it() {
    scenario_12(3);
}

#[test]
fn scenario_13_a_full_budget_does_not_stop_the_polling() {
    let rig = Rig::with_queues(1);
    rig.script.ignore_pause(q(0), true);
    let (latch, listener) = first_waits(&rig);
    let builder = rig.builder().shards(1).channel_capacity(8).batch_max(8).in_flight_max(16);
    let consumer = builder.commit_interval(3_600 * SECOND).start(listener).unwrap();
    // It comes in spite of the pause, bit by bit.
    for _ in 0..10 {
        let end = rig.produce_all(q(0), (0..10).map(|n| n.to_string())).end;
        rig.script.wait_for("the fetch", |state| state.position(q(0)) == Some(position(end)));
    }
    latch.wait_for_arrivals(1);
    assert!(rig.script.look(|state| state.is_paused(q(0))));
    for _ in 0..2 {
        let polls = rig.script.look(|state| state.polls());
        let in_time = rig.script.wait_until(|state| state.polls() > polls, 3 * SECOND / 2);
        assert!(in_time, "a group with max.poll.interval.ms = 3000 would have thrown us out");
    }
    let late = SourceError::retryable("poll interval exceeded");
    rig.script.fail_queue(q(0), late);
    let event = rig.events.wait_for("trouble", |event| matches!(event, Event::QueueTrouble { .. }));
    assert_eq!(event.to_string(), "it/0: poll interval exceeded");
    let metrics = consumer.metrics();
    assert_eq!((metrics.in_flight, metrics.stashed), (16, 84));
    latch.open();
    eventually("all are done", || consumer.metrics().succeeded == 100);
    rig.stop(&consumer);
    assert!(rig.offsets(q(0)).into_iter().eq(0..100));
    assert_eq!(rig.script.committed(q(0)), Some(100));
    assert_eq!(metrics.in_flight_max, 16);
}

/// How fast the others are beside such a key is the benchmark `slow_key`'s question.
#[test]
fn scenario_14_a_stuck_key_stops_nobody_who_does_not_need_its_shard() {
    let rig = Rig::with_queues(5);
    let free = |n: u32| (n % 99 * 4 + n % 3 + 1).to_string();
    rig.produce_all(q(0), (0..1_000).map(|_| "0"));
    (1..4).for_each(|index| _ = rig.produce_all(q(index), (0..10_000).map(free)));
    // A quarter of them need the shard that is stuck.
    let mixed = |n: u32| if n.is_multiple_of(4) { (n % 99 * 4).to_string() } else { free(n) };
    rig.produce_all(q(4), (0..10_000).map(mixed));
    let (latch, listener) = first_waits(&rig);
    let builder = rig.builder().shards(4).channel_capacity(64).batch_max(16).hasher(by_number);
    let consumer = builder.start(listener).unwrap();

    latch.wait_for_arrivals(1);
    (1..4).for_each(|index| rig.wait_for_commit(q(index), 10_000));
    let holding = consumer.holding();
    let held = holding.iter().find(|held| held.queue == q(0)).expect("queue 0 is held back");
    assert_eq!((held.offset, held.shard), (offset(0), Some(0)));
    assert!(rig.script.committed(q(0)).is_none_or(|committed| committed == 0));
    assert!(rig.offsets(q(0)).len() <= 1, "nothing overtakes inside the key");

    latch.open();
    rig.wait_for_commit(q(0), 1_000);
    rig.wait_for_commit(q(4), 10_000);
    let metrics = consumer.metrics();
    rig.stop(&consumer);
    assert_eq!((metrics.succeeded, metrics.in_flight_max <= 10_000), (41_000, true));
    assert!(rig.offsets(q(0)).into_iter().eq(0..1_000));
}

#[test]
fn scenario_24_a_batch_that_cannot_fill_is_delivered_all_the_same() {
    let rig = Rig::with_queues(1);
    let builder = rig.builder().shards(1).channel_capacity(16).batch_max(64).linger(200 * MS);
    let consumer = builder.start(rig.batches(|_| Ok(BatchOutcome::Done))).unwrap();
    rig.produce_all(q(0), (0..20).map(|n| n.to_string()));
    rig.wait_for_commit(q(0), 20);
    rig.produce_all(q(0), (0..5).map(|n| n.to_string()));
    rig.script.wait_for("the fetch", |state| state.position(q(0)) == Some(position(25)));
    rig.stop(&consumer);
    assert_eq!(rig.offsets(q(0)).len(), 25);
    assert_eq!(rig.script.committed(q(0)), Some(25));
}

#[test]
fn a_linger_gathers_what_comes_one_by_one() {
    let rig = Rig::with_queues(1);
    let builder = rig.builder().shards(1).batch_max(5).linger(3_600 * SECOND);
    let consumer = builder.start(rig.batches(|_| Ok(BatchOutcome::Done))).unwrap();
    for n in 0..5 {
        rig.produce(q(0), n.to_string());
        rig.script.wait_for("the fetch", |state| state.position(q(0)) == Some(position(n + 1)));
    }
    rig.wait_for_commit(q(0), 5);
    assert_eq!(rig.batches.all(), [5]);
    // A stop does not wait for the hour.
    rig.produce(q(0), "5");
    eventually("it waits", || consumer.metrics().shards[0].waiting == 1);
    rig.stop(&consumer);
    assert_eq!(rig.batches.all(), [5, 1]);
}

#[test]
fn a_stuck_queue_leaves_the_others_their_share() {
    let rig = Rig::with_queues(2);
    let (latch, listener) = first_waits(&rig);
    rig.produce_all(q(0), (0..1_000).map(|_| "0"));
    let builder = rig.builder().shards(2).hasher(by_number).in_flight_max(100).fetch_max(100);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("its budget is full", || consumer.metrics().queues[0].paused);
    // A quarter of the budget is q1's, whatever q0 does; and nothing is fetched beside it.
    let metrics = consumer.metrics();
    assert_eq!((metrics.queues[0].in_flight, metrics.queues[0].stashed), (75, 25));
    rig.produce_all(q(1), (0..1_000).map(|_| "1"));
    rig.wait_for_commit(q(1), 1_000);
    latch.open();
    rig.wait_for_commit(q(0), 1_000);
    let metrics = consumer.metrics();
    assert!(metrics.in_flight_max <= 100, "{}", metrics.in_flight_max);
    assert_eq!((metrics.in_flight, metrics.stashed), (0, 0));
    assert!(metrics.queues.iter().all(|queue| !queue.paused));
    rig.stop(&consumer);
}

#[test]
fn a_queue_has_a_bound_of_its_own() {
    let rig = Rig::with_queues(2);
    let (latch, listener) = first_waits(&rig);
    rig.produce_all(q(0), (0..100).map(|_| "0"));
    let builder = rig.builder().shards(2).hasher(by_number).queue_in_flight_max(7);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("its bound is reached", || consumer.metrics().queues[0].paused);
    assert_eq!(consumer.metrics().queues[0].in_flight, 7);
    latch.open();
    rig.wait_for_commit(q(0), 100);
    assert_eq!(consumer.metrics().in_flight_max, 7);
    rig.stop(&consumer);
}

#[test]
fn each_queue_moves_however_many_there_are() {
    let rig = Rig::with_queues(40);
    (0..40).for_each(|index| _ = rig.produce_all(q(index), ["a", "b", "c"]));
    let consumer = rig.builder().in_flight_max(3).start(rig.done()).unwrap();
    (0..40).for_each(|index| rig.wait_for_commit(q(index), 3));
    assert!(consumer.metrics().in_flight_max <= 40, "one for each queue at most");
    rig.stop(&consumer);
}

#[test]
fn what_holds_a_full_queue_back_is_named() {
    for by in [HeldBy::Budget, HeldBy::Span] {
        let rig = Rig::with_queues(1);
        let (latch, listener) = first_waits(&rig);
        rig.produce_all(q(0), (0..50).map(|n| n.to_string()));
        let builder = rig.builder().shards(2).hasher(by_number).stall_after(20 * MS);
        let builder = match by {
            HeldBy::Span => builder.span_max(10),
            _ => builder.in_flight_max(10),
        };
        let consumer = builder.batch_max(1).start(listener).unwrap();
        let held = rig.events.wait_for("the event", |event| matches!(event, Event::Held { .. }));
        let what = if by == HeldBy::Span { "span" } else { "budget" };
        assert_eq!(
            held.to_string(),
            format!("it/0: its {what} is full, behind offset 0, key \"0\"")
        );
        latch.open();
        rig.wait_for_commit(q(0), 50);
        rig.stop(&consumer);
    }
}

#[test]
fn overlapping_and_repeated_fetches_are_recognised() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..10).map(|n| n.to_string()));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 10);
    rig.script.read_again_from(q(0), position(4));
    rig.produce_all(q(0), (10..12).map(|n| n.to_string()));
    rig.wait_for_commit(q(0), 12);
    rig.script.read_again_from(q(0), position(0));
    rig.commit_round(q(0), "K");
    // Behind the end of what was read, without any message: it does not go back.
    rig.script.inject_fetch(Fetch {
        queue: q(0),
        messages: Vec::new(),
        position: position(3),
        end: EndOffset::Unknown,
    });
    rig.commit_round(q(0), "K");
    let metrics = consumer.metrics();
    assert_eq!(metrics.admitted, 14);
    assert_eq!(metrics.pulled, metrics.admitted + metrics.repeated);
    assert!(metrics.repeated >= 6 + 12, "{}", metrics.repeated);
    rig.stop(&consumer);
    assert_eq!(rig.calls.len(), 14);
    assert!(rig.script.commits(q(0)).is_sorted());
}

#[test]
fn a_fetch_that_overlaps_what_is_still_stashed_is_recognised_too() {
    let rig = Rig::with_queues(1);
    let (latch, listener) = first_waits(&rig);
    rig.script.ignore_pause(q(0), true);
    rig.produce_all(q(0), (0..20).map(|_| "K"));
    let consumer = rig.builder().shards(1).in_flight_max(4).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("the stash", || consumer.metrics().stashed == 16);
    rig.script.read_again_from(q(0), position(2));
    eventually("the stash again", || consumer.metrics().stashed > 16);
    latch.open();
    rig.wait_for_commit(q(0), 20);
    rig.stop(&consumer);
    assert!(rig.offsets(q(0)).into_iter().eq(0..20));
}

#[test]
fn a_fetch_may_be_larger_than_asked_for() {
    let rig = Rig::with_queues(1);
    rig.script.ignore_limits(q(0), true);
    rig.produce_all(q(0), (0..5_000).map(|n| (n % 50).to_string()));
    let builder = rig.builder().fetch_max(1).in_flight_max(64).channel_capacity(4);
    let consumer = builder.start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 5_000);
    assert!(consumer.metrics().in_flight_max <= 64);
    rig.stop(&consumer);
}

#[test]
fn a_key_that_is_stuck_does_not_hold_back_other_keys_of_its_queue() {
    let rig = Rig::with_queues(1);
    let listener = rig.each(move |message, _| match message.key() {
        Some(b"0") => Ok(Outcome::RetryAfter(3_600 * SECOND)),
        _ => Ok(Outcome::Done),
    });
    rig.produce_all(q(0), (0..200).map(|n| (n % 4).to_string()));
    let consumer = rig.builder().shards(2).hasher(by_number).start(listener).unwrap();
    eventually("all other keys", || consumer.metrics().succeeded == 150);
    let metrics = consumer.metrics();
    assert_eq!((metrics.lanes_held, metrics.queues[0].span), (1, 200));
    rig.stop_early(&consumer);
    assert_eq!(rig.attempts(q(0), 0), 1);
    assert_eq!(rig.script.committed(q(0)), Some(0));
}

#[test]
fn one_key_that_fails_all_the_time_does_not_starve_its_shard() {
    // It is due again at once, each time, and a call has room for one message.
    let rig = Rig::with_queues(1);
    let listener = rig.each(move |message, _| match message.key() {
        Some(b"poison") => Ok(Outcome::RetryAfter(std::time::Duration::ZERO)),
        _ => Ok(Outcome::Done),
    });
    rig.produce_all(q(0), (0..100).map(|n| if n == 0 { "poison" } else { "fine" }));
    let consumer = rig.builder().shards(1).batch_max(1).start(listener).unwrap();
    eventually("the others", || consumer.metrics().succeeded == 99);
    rig.stop_early(&consumer);
}
