//! Messages that are finished later, from other threads.

use keylane::{Event, FailurePolicy, HoldingState, NoKey, Outcome, Ticket};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::support::{Log, MS, Rig, SECOND, eventually, q, spawn};

/// The open tickets, by queue and offset.
type Tickets = Arc<Mutex<HashMap<(u32, u64), Ticket>>>;

/// A listener that defers everything.
fn deferring(rig: &Rig) -> (Tickets, impl keylane::IntoListener + use<>) {
    let tickets = Tickets::default();
    let kept = Arc::clone(&tickets);
    let listener = rig.each(move |message, context| {
        let (ticket, deferred) = context.defer();
        kept.lock().insert((message.queue().index(), message.offset().get()), ticket);
        Ok(deferred)
    });
    (tickets, listener)
}

#[track_caller]
fn take(tickets: &Tickets, queue: u32, offset: u64) -> Ticket {
    eventually("the ticket", || tickets.lock().contains_key(&(queue, offset)));
    tickets.lock().remove(&(queue, offset)).expect("it is there")
}

#[test]
fn tickets_are_settled_in_any_order_from_any_thread() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["a", "b", "c", "a"]);
    let (tickets, listener) = deferring(&rig);
    let consumer = rig.builder().shards(2).start(listener).unwrap();
    for offset in [2, 1, 0, 3] {
        let ticket = take(&tickets, 0, offset);
        if offset != 3 {
            assert_eq!(rig.attempts(q(0), 3), 0, "its key's ticket is open");
        }
        let other = rig.clone();
        spawn("other", move || other.finish(q(0), offset, ticket)).join().unwrap();
    }
    rig.wait_for_commit(q(0), 4);
    assert_eq!(consumer.metrics().in_flight, 0);
    rig.stop(&consumer);
}

#[test]
fn an_open_ticket_closes_its_key_in_every_queue() {
    let rig = Rig::with_queues(2);
    rig.produce(q(0), "K");
    let (tickets, listener) = deferring(&rig);
    let consumer = rig.builder().start(listener).unwrap();
    let ticket = take(&tickets, 0, 0);
    rig.produce_all(q(1), ["K", "L"]);
    let other = take(&tickets, 1, 1);
    assert_eq!(rig.attempts(q(1), 0), 0);
    let holding = consumer.holding();
    assert_eq!(holding[0].state, HoldingState::Running);
    rig.finish(q(0), 0, ticket);
    let next = take(&tickets, 1, 0);
    rig.finish(q(1), 0, next);
    rig.finish(q(1), 1, other);
    rig.wait_for_commit(q(1), 2);
    rig.stop(&consumer);
}

#[test]
fn spread_messages_wait_for_nobodys_ticket() {
    let rig = Rig::with_queues(2);
    (0..2).for_each(|index| {
        rig.script.produce_with(q(index), |message| message.with_payload("no key"));
    });
    let (tickets, listener) = deferring(&rig);
    let builder = rig.builder().shards(1).no_key(NoKey::Spread);
    let consumer = builder.start(listener).unwrap();
    let both = [take(&tickets, 0, 0), take(&tickets, 1, 0)];
    both.into_iter().for_each(Ticket::done);
    (0..2).for_each(|index| rig.wait_for_commit(q(index), 1));
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_ticket_that_fails_or_is_dropped_is_a_failed_attempt() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "K"]);
    let (tickets, listener) = deferring(&rig);
    let consumer = rig.builder().start(listener).unwrap();
    rig.fail(q(0), 0, take(&tickets, 0, 0), "the other side said no");
    rig.fail(q(0), 0, take(&tickets, 0, 0), "and again");
    drop(take(&tickets, 0, 0));
    take(&tickets, 0, 0).settle(Ok(Outcome::Retry));
    rig.finish(q(0), 0, take(&tickets, 0, 0));
    rig.finish(q(0), 1, take(&tickets, 0, 1));
    rig.wait_for_commit(q(0), 2);
    assert_eq!(rig.offsets(q(0)), [0, 0, 0, 0, 0, 1]);
    let errors = rig.events.all().into_iter().filter_map(|event| match event {
        Event::Failed { error, attempts, .. } => Some((attempts, error)),
        _ => None,
    });
    let expected = [
        "the other side said no",
        "and again",
        "the ticket was dropped without an answer",
        "the listener asked for a retry",
    ];
    assert!(errors.eq((1..).zip(expected.map(str::to_owned))));
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_ticket_may_be_settled_before_its_call_returns() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "K", "K"]);
    let listener = rig.each(|_, context| {
        let (ticket, deferred) = context.defer();
        ticket.done();
        Ok(deferred)
    });
    let consumer = rig.builder().start(listener).unwrap();
    rig.wait_for_commit(q(0), 3);
    assert_eq!(rig.offsets(q(0)), [0, 1, 2]);
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_ticket_that_was_not_promised_settles_nothing() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "K"]);
    let kept: Log<()> = Log::default();
    let tickets = Tickets::default();
    let listener = rig.each({
        let (kept, tickets) = (kept.clone(), Arc::clone(&tickets));
        move |message, context| {
            let (ticket, _) = context.defer();
            tickets.lock().insert((0, message.offset().get()), ticket);
            kept.push(());
            Ok(Outcome::Done)
        }
    });
    let consumer = rig.builder().start(listener).unwrap();
    rig.wait_for_commit(q(0), 2);
    take(&tickets, 0, 0).fail("nobody asked");
    drop(take(&tickets, 0, 1));
    eventually("both are counted", || consumer.metrics().stale_completions == 2);
    assert_eq!((kept.len(), consumer.metrics().failed), (2, 0));
    rig.stop(&consumer);
}

#[test]
fn a_revoke_waits_for_a_ticket_and_commits_what_it_says() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "K"]);
    let (tickets, listener) = deferring(&rig);
    let consumer = rig.builder().start(listener).unwrap();
    let ticket = take(&tickets, 0, 0);
    rig.script.begin_revoke(q(0));
    rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
    assert!(rig.script.look(|state| state.is_assigned(q(0))));
    rig.finish(q(0), 0, ticket);
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    assert_eq!(rig.script.committed(q(0)), Some(1));
    assert_eq!(rig.offsets(q(0)), [0]);
    rig.stop_early(&consumer);
}

#[test]
fn a_ticket_of_a_queue_that_was_taken_away_is_counted_and_closes_its_key_until_then() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "K");
    let (tickets, listener) = deferring(&rig);
    let consumer = rig.builder().revoke_timeout(50 * MS).start(listener).unwrap();
    let late = take(&tickets, 0, 0);
    rig.script.begin_revoke(q(0));
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    rig.script.assign(q(0));
    eventually("it was pulled again", || consumer.metrics().admitted == 2);
    assert_eq!(rig.attempts(q(0), 0), 1, "the old call has not ended");
    rig.finish(q(0), 0, late);
    let again = take(&tickets, 0, 0);
    assert_eq!(consumer.metrics().stale_completions, 1);
    rig.finish(q(0), 0, again);
    rig.wait_for_commit(q(0), 1);
    consumer.stop(SECOND).unwrap();
}

#[test]
fn a_stop_waits_for_a_ticket_within_its_deadline() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["K", "K"]);
    let (tickets, listener) = deferring(&rig);
    let consumer = Arc::new(rig.builder().start(listener).unwrap());
    let ticket = take(&tickets, 0, 0);
    let stopping = spawn("stop", {
        let consumer = Arc::clone(&consumer);
        move || consumer.stop(20 * SECOND)
    });
    rig.events.wait_for("the stop", |event| matches!(event, Event::Stopping { .. }));
    rig.finish(q(0), 0, ticket);
    // What waited behind it was in the shard already.
    rig.finish(q(0), 1, take(&tickets, 0, 1));
    stopping.join().unwrap().unwrap();
    assert_eq!(rig.script.committed(q(0)), Some(2));
    rig.recorder.verdict().assert_clean();
}

#[test]
fn a_ticket_that_stays_open_is_abandoned_and_may_be_settled_after_the_end() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "K");
    let (tickets, listener) = deferring(&rig);
    let consumer = rig.builder().start(listener).unwrap();
    let ticket = take(&tickets, 0, 0);
    let error = consumer.stop(100 * MS).unwrap_err();
    assert!(error.is_deadline());
    let [abandoned] = &error.report().unwrap().abandoned[..] else { panic!("{error}") };
    assert_eq!((abandoned.queue, abandoned.offset.get()), (q(0), 0));
    let commits = rig.script.commits(q(0));
    drop(consumer);
    ticket.done();
    assert_eq!(rig.script.commits(q(0)), commits);
}

#[test]
fn a_ticket_may_say_all_that_a_listener_may() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["a", "b", "c"]);
    let (tickets, listener) = deferring(&rig);
    let policy = FailurePolicy::default().backoff(MS, MS);
    let consumer = rig.builder().failure(policy).start(listener).unwrap();
    take(&tickets, 0, 0).settle(Ok(Outcome::Skip("not ours".into())));
    rig.wait_for_commit(q(0), 1);
    take(&tickets, 0, 1).settle(Err("not yet".into()));
    rig.finish(q(0), 1, take(&tickets, 0, 1));
    rig.wait_for_commit(q(0), 2);
    take(&tickets, 0, 2).settle(Ok(Outcome::Stop("enough".into())));
    let error = consumer.wait().unwrap_err();
    assert!(error.is_stopped_by_listener());
    assert_eq!(rig.script.committed(q(0)), Some(2));
}

#[test]
fn bells_that_ring_while_a_call_runs_take_no_place_of_a_message() {
    // Each settled ticket has the shard looked at; the channel has room for one message.
    let rig = Rig::with_queues(1);
    let latch = crate::support::Latch::new();
    let tickets = Tickets::default();
    let listener = rig.each({
        let (latch, tickets) = (latch.clone(), Arc::clone(&tickets));
        move |message, context| {
            let offset = message.offset().get();
            match offset {
                0..8 => {
                    let (ticket, deferred) = context.defer();
                    tickets.lock().insert((0, offset), ticket);
                    return Ok(deferred);
                }
                8 => latch.pass(),
                _ => {}
            }
            Ok(Outcome::Done)
        }
    });
    rig.produce_all(q(0), (0..9).map(|n| n.to_string()));
    let builder = rig.builder().shards(1).channel_capacity(1).batch_max(1);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    (0..8).for_each(|offset| rig.finish(q(0), offset, take(&tickets, 0, offset)));
    (0..8).for_each(|_| consumer.resume());
    rig.produce_all(q(0), (9..20).map(|n| n.to_string()));
    latch.open();
    rig.wait_for_commit(q(0), 20);
    rig.stop(&consumer);
}
