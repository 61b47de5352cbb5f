//! G9: what holds a watermark back can be asked for, and nothing stalls silently.

use keylane::source::EndOffset;
use keylane::{Event, Health, HoldingState, Outcome, ShownKey};

use crate::support::{
    Latch, MS, Rig, SECOND, by_number, eventually, offset, position, q, watermark,
};

/// A listener whose messages with the key "stuck" wait for the latch.
fn stuck(rig: &Rig) -> (Latch, impl keylane::IntoListener + use<>) {
    let latch = Latch::new();
    let listener = rig.passing(&latch, |message| message.key() == Some(b"stuck"));
    (latch, listener)
}

#[test]
fn scenario_25_lag_is_never_negative_and_absent_where_it_is_unknown() {
    let rig = Rig::with_queues(0);
    // q0: the end is older than what was committed since.
    rig.script.start_at(q(0), position(1_030));
    rig.script.store(q(0), watermark(1_030));
    rig.script.report_end(q(0), Some(EndOffset::At(position(1_000))));
    // q1: neither end nor commit is known. q2: empty, nothing committed.
    rig.script.report_end(q(1), Some(EndOffset::Unknown));
    rig.script.start_at(q(2), position(500));
    (0..3).for_each(|index| rig.script.assign(q(index)));
    let consumer = rig.builder().start(rig.done()).unwrap();
    let lag = |index: usize| consumer.metrics().queues.get(index)?.lag;
    let end = |index: usize| consumer.metrics().queues.get(index)?.end;
    eventually("q0's end", || end(0) == Some(position(1_000)));
    assert_eq!(lag(0), Some(0));
    rig.script.report_end(q(0), Some(EndOffset::At(position(1_040))));
    eventually("q0's new end", || lag(0) == Some(10));
    eventually("q2's end", || end(2) == Some(position(500)));
    assert_eq!((lag(1), end(1)), (None, None));
    // Of an empty queue that starts "at the first message" the source does not say where that is, so
    // there is no sample before the first message, rather than one that is made up.
    assert_eq!(lag(2), None);
    rig.produce(q(2), "K");
    rig.wait_for_commit(q(2), 501);
    eventually("q2's lag", || lag(2) == Some(0));
    consumer.stop(SECOND).unwrap();
}

#[test]
fn what_holds_a_watermark_back_is_named_with_all_that_is_known() {
    let rig = Rig::with_queues(2);
    rig.produce_all(q(0), ["1", "stuck", "1", "stuck"]);
    rig.produce_all(q(1), ["stuck"]);
    let (latch, listener) = stuck(&rig);
    let builder = rig.builder().shards(2).hasher(by_number).batch_max(1);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("the other key", || consumer.metrics().succeeded == 2);
    let holding = consumer.holding();
    assert_eq!(holding.len(), 2, "{holding:?}");
    let running = holding.iter().find(|holding| holding.state == HoldingState::Running).unwrap();
    assert_eq!(running.key.as_ref().and_then(ShownKey::bytes), Some(&b"stuck"[..]));
    assert_eq!((running.shard, running.attempts), (Some(0), Some(1)));
    let waiting = holding.iter().find(|holding| holding.state == HoldingState::Waiting).unwrap();
    assert_eq!((waiting.shard, waiting.key.is_some(), waiting.attempts), (Some(0), false, None));
    let q0 = holding.iter().find(|holding| holding.queue == q(0)).unwrap();
    assert_eq!((q0.offset, q0.span), (offset(1), 3));
    let shown = q0.to_string();
    assert!(shown.starts_with("it/0 is held at 1 on shard 0, "), "{shown}");
    assert!(shown.ends_with(", span 3"), "{shown}");
    latch.open();
    (0..2).for_each(|index| rig.wait_for_commit(q(index), [4, 1][index as usize]));
    eventually("nothing is held", || consumer.holding().is_empty());
    rig.stop(&consumer);
}

#[test]
fn a_call_that_does_not_return_is_an_event_and_a_state_of_health() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "stuck");
    let (latch, listener) = stuck(&rig);
    let builder = rig.builder().shards(1).stall_after(50 * MS);
    let consumer = builder.start(listener).unwrap();
    let event = rig.events.wait_for("the stall", |event| matches!(event, Event::Stalled { .. }));
    let expected = "it/0: the call for offset 0, key \"stuck\", on shard 0 has been running for ";
    assert!(event.to_string().starts_with(expected), "{event}");
    let reason = "the call for it/0 offset 0, key \"stuck\", on shard 0 does not return".to_owned();
    assert_eq!(consumer.health(), Health::Degraded(vec![reason]));
    latch.open();
    eventually("it is well again", || consumer.health() == Health::Healthy);
    let stalls = rig.events.count(|event| matches!(event, Event::Stalled { .. }));
    assert_eq!(stalls, 1, "once a call");
    rig.stop(&consumer);
}

#[test]
fn a_ticket_that_stays_open_is_an_event_too() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "K");
    let tickets = crate::support::Log::default();
    let kept = tickets.clone();
    let listener = rig.each(move |_, context| {
        let (ticket, deferred) = context.defer();
        kept.push(std::sync::Arc::new(parking_lot::Mutex::new(Some(ticket))));
        Ok(deferred)
    });
    let builder = rig.builder().shards(1).stall_after(50 * MS);
    let consumer = builder.start(listener).unwrap();
    let event = rig.events.wait_for("the stall", |event| matches!(event, Event::Stalled { .. }));
    assert!(event.to_string().contains("offset 0, key \"K\", on shard 0"), "{event}");
    let ticket = tickets.all()[0].lock().take().expect("the ticket");
    rig.finish(q(0), 0, ticket);
    rig.wait_for_commit(q(0), 1);
    rig.stop(&consumer);
}

#[test]
fn hidden_keys_appear_nowhere() {
    let rig = Rig::with_queues(1);
    let secret = "4000-1234-5678";
    rig.produce_all(q(0), [secret, "1", secret]);
    let listener = rig.each(|message, context| match (message.offset().get(), context.attempt()) {
        (0, 3) => Ok(Outcome::Skip("enough".into())),
        (0, _) => Err("no".into()),
        (2, _) => Ok(Outcome::Stop("the end".into())),
        _ => Ok(Outcome::Done),
    });
    let consumer = rig.builder().shards(1).hide_keys(true).start(listener).unwrap();
    let error = consumer.wait().unwrap_err();
    let mut said: Vec<String> = rig.events.all().iter().map(ToString::to_string).collect();
    said.extend(rig.events.all().iter().map(|event| format!("{event:?}")));
    said.push(error.to_string());
    assert!(said.iter().all(|text| !text.contains("4000")), "{said:#?}");
    assert!(said.iter().any(|text| text.contains("key (hidden)")), "{said:#?}");
}

#[test]
fn hidden_keys_are_hidden_in_health_holding_and_reports_too() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "stuck");
    let (latch, listener) = stuck(&rig);
    let builder = rig.builder().shards(1).hide_keys(true).stall_after(20 * MS);
    let consumer = builder.start(listener).unwrap();
    rig.events.wait_for("the stall", |event| matches!(event, Event::Stalled { .. }));
    let holding = consumer.holding().remove(0);
    assert_eq!(holding.key.as_ref().and_then(ShownKey::bytes), None);
    let health = consumer.health().to_string();
    let error = consumer.stop(50 * MS).unwrap_err().to_string();
    for said in [holding.to_string(), health, error] {
        assert!(said.contains("(hidden)") && !said.contains("stuck"), "{said}");
    }
    latch.open();
}

#[test]
fn metrics_count_every_step() {
    let rig = Rig::with_queues(2);
    rig.produce_all(q(0), (0..30).map(|n| (n % 3).to_string()));
    rig.produce_all(q(1), (0..10).map(|n| (n % 3).to_string()));
    let listener = rig.each(|message, context| {
        let fails = message.offset().get() == 5 && context.attempt() == 1;
        if fails { Ok(Outcome::Retry) } else { Ok(Outcome::Done) }
    });
    let builder = rig.builder().shards(3).hasher(by_number).batch_max(1);
    let consumer = builder.start(listener).unwrap();
    rig.wait_for_commit(q(0), 30);
    rig.wait_for_commit(q(1), 10);
    eventually("the answer has come", || {
        consumer.metrics().queues.iter().all(|queue| queue.lag == Some(0) && queue.span == 0)
    });
    let metrics = consumer.metrics();
    assert_eq!((metrics.pulled, metrics.admitted, metrics.repeated), (40, 40, 0));
    assert_eq!((metrics.delivered, metrics.succeeded, metrics.failed), (42, 40, 2));
    assert_eq!(
        (metrics.in_flight, metrics.stashed, metrics.overflow, metrics.lanes_held),
        (0, 0, 0, 0)
    );
    assert_eq!((metrics.hand_off.count, metrics.call.count), (40, 42));
    let commits = rig.script.commits(q(0)).len() + rig.script.commits(q(1)).len();
    assert_eq!(metrics.commits, commits as u64);
    assert_eq!(metrics.shards.len(), 3);
    assert_eq!(metrics.shards.iter().map(|shard| shard.delivered).sum::<u64>(), 42);
    let of_queue = |index: usize| {
        let queue = &metrics.queues[index];
        (queue.queue, queue.watermark.map(|mark| mark.get()), queue.paused)
    };
    assert_eq!([of_queue(0), of_queue(1)], [(q(0), Some(30), false), (q(1), Some(10), false)]);
    let shown = metrics.to_string();
    assert!(
        shown.starts_with("pulled 40 · admitted 40 · delivered 42 · succeeded 40 · failed 2"),
        "{shown}"
    );
    rig.stop(&consumer);
}

#[test]
fn an_observer_may_ask_its_consumer() {
    let rig = Rig::with_queues(1);
    let handle = std::sync::Arc::new(std::sync::OnceLock::<keylane::Consumer>::new());
    let asked = crate::support::Log::default();
    let builder = rig.builder().observer({
        let (handle, asked) = (std::sync::Arc::clone(&handle), asked.clone());
        move |event: &Event| {
            if matches!(event, Event::Revoking { .. } | Event::Revoked { .. }) {
                let consumer = handle.wait();
                asked.push((consumer.metrics().queues.len(), consumer.holding().len()));
            }
        }
    });
    handle.set(builder.start(rig.done()).unwrap()).unwrap();
    rig.commit_round(q(0), "K");
    rig.script.begin_revoke(q(0));
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    asked.wait_for_len(2);
    rig.stop(handle.wait());
}
