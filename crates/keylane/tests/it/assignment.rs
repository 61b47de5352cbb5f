//! Queues come and go: revoked, given back, lost.

use keylane::source::{QueueId, SourceError, SourceEvent};
use keylane::{BatchOutcome, Event, Outcome};
use keylane_testkit::script::Call;

use crate::support::{Latch, Log, MS, Rig, SECOND, by_number, eventually, q, timed};

/// Where a call stands in the source's history.
fn place(rig: &Rig, which: impl Fn(&Call) -> bool) -> usize {
    rig.script.history().iter().position(which).expect("the call was made")
}

#[test]
fn scenario_07_what_an_earlier_tenure_finishes_late_is_counted_and_nothing_else() {
    let rig = Rig::with_queues(0);
    rig.script.start_at(q(1), crate::support::position(200));
    rig.script.store(q(1), crate::support::watermark(200));
    rig.script.assign(q(1));
    rig.produce_all(q(1), (200..216).map(|n| (n % 8).to_string()));
    let old: Vec<_> = (0..8).map(|_| Latch::new()).collect();
    let new = Latch::new();
    let first_epoch = Log::default();
    let listener = rig.each({
        let (old, new, first_epoch) = (old.clone(), new.clone(), first_epoch.clone());
        move |message, context| {
            if first_epoch.len() < 8 {
                first_epoch.push(context.epoch());
            }
            match first_epoch.all()[0] == context.epoch() {
                true => old[(message.offset().get() % 8) as usize].pass(),
                false => new.pass(),
            }
            Ok(Outcome::Done)
        }
    });
    let builder = rig.builder().shards(8).batch_max(1).hasher(by_number);
    let consumer = builder.revoke_timeout(100 * MS).start(listener).unwrap();
    rig.calls.wait_for_len(8);

    rig.script.begin_revoke(q(1));
    rig.script.wait_for("the release", |state| state.is_released(q(1)));
    rig.events.wait_until("each call that still runs is named", |events| {
        let is_overrun = |event: &&Event| matches!(event, Event::RevokeTimedOut { .. });
        events.iter().filter(is_overrun).count() == 8
    });
    rig.script.assign(q(1));
    eventually("all are pulled again", || consumer.metrics().admitted == 32);
    for (done, offset) in (1..).zip((200..208).rev()) {
        assert_eq!(rig.attempts(q(1), offset), 1, "the key's old call has not returned");
        old[(offset % 8) as usize].open();
        eventually("the late call", || consumer.metrics().stale_completions == done);
    }
    new.wait_for_arrivals(8);
    assert!(rig.script.commits(q(1)).is_empty());
    new.open();
    rig.wait_for_commit(q(1), 216);
    let metrics = consumer.metrics();
    assert_eq!((metrics.stale_completions, metrics.in_flight, metrics.in_flight_bytes), (8, 0, 0));
    assert!(!metrics.queues[0].paused);
    rig.stop(&consumer);
    assert_eq!(rig.calls.len(), 24);
    assert_eq!(rig.script.commits(q(1)).last(), Some(&216));
}

#[test]
fn scenario_09_a_revoke_waits_for_what_runs_and_commits_it_while_polling_goes_on() {
    let rig = Rig::with_queues(2);
    rig.produce_all(q(0), (0..8).map(|n| (n % 4).to_string()));
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
    let builder = rig.builder().shards(4).batch_max(2).hasher(by_number);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(4);
    rig.produce_all(q(1), (0..12).map(|n| n.to_string()));
    eventually("q1 is in flight", || consumer.metrics().admitted == 20);

    let (_, took) = timed(|| {
        rig.script.begin_revoke(q(0));
        rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
        let polls = rig.script.look(|state| state.polls());
        rig.produce(q(1), "5");
        rig.script.wait_for("polling goes on", |state| state.polls() > polls);
        latch.open();
        rig.script.wait_for("the release", |state| state.is_released(q(0)));
    });
    assert!(took < 4 * SECOND, "{took:?}: that is the bound, not the drain");
    rig.wait_for_commit(q(1), 13);
    rig.stop(&consumer);

    assert_eq!(rig.script.commits(q(0)), [8]);
    let committed =
        place(&rig, |call| matches!(call, Call::Commit(commit) if commit.queue == q(0)));
    assert!(committed < place(&rig, |call| *call == Call::Release(q(0))));
    assert_eq!(rig.offsets(q(1)).len(), 13, "q1 was not disturbed");
    let revoked = rig.events.wait_for("the end", |event| matches!(event, Event::Revoked { .. }));
    assert_eq!(revoked.to_string(), "it/0: given back at 8, 0 unfinished");
}

#[test]
fn a_revoke_drops_what_waits_and_gives_its_budget_back() {
    let rig = Rig::with_queues(2);
    let latch = Latch::new();
    let listener = rig.passing(&latch, |message| message.queue() == q(0));
    // One shard, one running: the others wait in call, channel, overflow and stash.
    rig.produce_all(q(0), (0..40).map(|n| n.to_string()));
    let builder = rig.builder().shards(1).batch_max(2).channel_capacity(2).in_flight_max(20);
    let consumer = builder.start(listener).unwrap();
    latch.wait_for_arrivals(1);
    eventually("the budget is used up", || consumer.metrics().stashed > 0);
    let metrics = consumer.metrics();
    assert!(metrics.overflow > 0 && metrics.queues[0].paused, "{metrics:?}");

    rig.script.begin_revoke(q(0));
    rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
    latch.open();
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    assert_eq!(rig.script.committed(q(0)), Some(1), "one ran, and counts");
    rig.produce_all(q(1), (0..100).map(|n| n.to_string()));
    rig.wait_for_commit(q(1), 100);
    assert_eq!(rig.offsets(q(0)), [0]);
    let metrics = consumer.metrics();
    assert_eq!((metrics.in_flight, metrics.in_flight_bytes, metrics.overflow), (0, 0, 0));
    let revoked = rig.events.wait_for("the end", |event| matches!(event, Event::Revoked { .. }));
    // One was finished; the others were in flight, or waited for budget.
    assert_eq!(revoked.to_string(), "it/0: given back at 1, 39 unfinished");

    // Given back: it goes on behind what was committed.
    rig.script.assign(q(0));
    rig.wait_for_commit(q(0), 40);
    assert_eq!(rig.attempts(q(0), 0), 1);
    rig.stop(&consumer);
}

#[test]
fn a_queue_that_fails_while_it_is_taken_away_is_given_back_all_the_same() {
    let rig = Rig::with_queues(2);
    rig.produce_all(q(0), ["K", "K"]);
    let latch = Latch::new();
    let listener = rig.passing(&latch, |message| message.queue() == q(0));
    let consumer = rig.builder().shards(2).hasher(by_number).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.begin_revoke(q(0));
    rig.events.wait_for("the revoke", |event| matches!(event, Event::Revoking { .. }));
    rig.script.fail_queue(q(0), SourceError::fatal("the topic was deleted"));
    let failed = rig.events.wait_for("it", |event| matches!(event, Event::QueueFailed { .. }));
    assert_eq!(failed.to_string(), "it/0: ended: the topic was deleted");
    assert!(!rig.script.look(|state| state.is_released(q(0))), "a call of it runs");
    latch.open();
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    let revoked = rig.events.wait_for("the end", |event| matches!(event, Event::Revoked { .. }));
    assert_eq!(revoked.to_string(), "it/0: given back at 0, 2 unfinished");
    assert_eq!(rig.script.commits(q(0)), [0; 0], "what comes after its failure does not count");
    rig.stop_early(&consumer);
}

#[test]
fn a_queue_that_is_lost_is_fenced_at_once_and_not_committed() {
    let rig = Rig::with_queues(2);
    rig.produce_all(q(0), ["a", "a", "a"]);
    let latch = Latch::new();
    let listener =
        rig.passing(&latch, |message| message.queue() == q(0) && message.offset().get() == 1);
    let builder = rig.builder().shards(2).batch_max(1).hasher(|key| u64::from(key == b"barrier"));
    let consumer = builder.commit_interval(50 * MS).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.lose(q(0));
    let lost = rig.events.wait_for("the loss", |event| matches!(event, Event::Lost { .. }));
    assert!(matches!(lost, Event::Lost { unfinished: 2, .. }), "{lost}");
    let before = rig.script.commits(q(0));
    latch.open();
    eventually("the late end", || consumer.metrics().stale_completions == 1);
    rig.commit_round(q(1), "barrier");
    assert_eq!(rig.script.commits(q(0)), before, "it is somebody else's by now");
    assert_eq!(rig.offsets(q(0)), [0, 1], "nothing begins any more");

    rig.script.assign(q(0));
    rig.wait_for_commit(q(0), 3);
    rig.stop(&consumer);
}

#[test]
fn the_bound_of_a_revoke_holds_also_when_its_commit_is_not_answered() {
    let rig = Rig::with_queues(1);
    rig.script.hold_commits();
    rig.produce(q(0), "a");
    let consumer = rig.builder().revoke_timeout(50 * MS).start(rig.done()).unwrap();
    rig.script.wait_for("a commit", |state| state.unanswered().len() == 1);
    rig.script.begin_revoke(q(0));
    rig.script.wait_for("the release", |state| state.is_released(q(0)));
    rig.script.let_commits_go();
    // The broker answers that the queue is not ours any more: that changes nothing.
    rig.script.assign(q(0));
    rig.wait_for_commit(q(0), 1);
    assert_eq!(rig.attempts(q(0), 0), 2, "what was not committed comes again");
    rig.stop(&consumer);
}

#[test]
fn a_queue_may_be_taken_away_before_anything_came_of_it() {
    let rig = Rig::with_queues(1);
    rig.script.fail_look_ups(q(1), u32::MAX);
    rig.script.assign(q(1));
    rig.script.begin_revoke(q(0));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.wait_for("q0's release", |state| state.is_released(q(0)));
    rig.events.wait_for("a failed look-up", |event| matches!(event, Event::LookUpFailed { .. }));
    rig.script.begin_revoke(q(1));
    rig.script.wait_for("q1's release", |state| state.is_released(q(1)));
    assert!(consumer.metrics().queues.is_empty());
    assert!(rig.script.commits(q(0)).is_empty() && rig.script.commits(q(1)).is_empty());
    rig.stop(&consumer);
}

#[test]
fn an_assignment_without_a_loss_before_it_ends_the_old_tenure() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["a", "a"]);
    let latch = Latch::new();
    let listener = rig.passing(&latch, |_| true);
    let consumer = rig.builder().batch_max(1).start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.assign(q(0));
    rig.events.wait_for("the loss", |event| matches!(event, Event::Lost { .. }));
    latch.open();
    rig.wait_for_commit(q(0), 2);
    assert_eq!(rig.offsets(q(0)), [0, 0, 1], "the first call was an earlier tenure's");
    assert_eq!(consumer.metrics().stale_completions, 1);
    consumer.stop(SECOND).unwrap();
}

#[test]
fn events_of_queues_that_are_not_ours_change_nothing() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.inject(SourceEvent::Lost { queue: q(5) });
    rig.script.inject(SourceEvent::Revoking { queue: q(6) });
    rig.script.wait_for("an answer to the revoke", |state| {
        state.history().contains(&Call::Release(q(6)))
    });
    rig.produce(q(0), "a");
    rig.wait_for_commit(q(0), 1);
    rig.stop(&consumer);
}

/// Three queues under load, each taken away by `take` and given back many times.
fn come_and_go(take: impl Fn(&Rig, QueueId)) -> Rig {
    let rig = Rig::with_queues(3);
    for index in 0..3 {
        rig.produce_all(q(index), (0..3_000).map(|n| format!("key-{}", n % 23)));
    }
    let builder = rig.builder().shards(3).batch_max(8).channel_capacity(16).in_flight_max(200);
    let consumer = builder.start(rig.done()).unwrap();
    for round in 0..20 {
        let calls = rig.calls.len();
        rig.calls.wait_until("some progress", |seen| seen.len() > calls || seen.len() >= 9_000);
        take(&rig, q(round % 3));
        rig.script.assign(q(round % 3));
    }
    (0..3).for_each(|index| rig.wait_for_commit(q(index), 3_000));
    let metrics = consumer.metrics();
    assert_eq!((metrics.in_flight, metrics.in_flight_bytes, metrics.lanes_held), (0, 0, 0));
    consumer.stop(10 * SECOND).unwrap();
    rig
}

#[test]
fn queues_are_revoked_under_load_and_every_guarantee_is_kept() {
    let rig = come_and_go(|rig, queue| {
        rig.script.begin_revoke(queue);
        rig.script.wait_for("the release", |state| state.is_released(queue));
    });
    let verdict = rig.recorder.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.delivered, 9_000);
}

#[test]
fn queues_are_lost_under_load_and_every_message_is_handled() {
    let rig = come_and_go(|rig, queue| {
        let is_loss = |event: &Event| matches!(event, Event::Lost { .. });
        let losses = rig.events.count(is_loss);
        rig.script.lose(queue);
        // The scripted broker knows no generations: it would take a commit of the old tenure.
        rig.events.wait_until("the loss", |events| {
            events.iter().filter(|event| is_loss(event)).count() > losses
        });
    });
    // The recorder counts a call that began before a loss to the epoch after it, so what it says of
    // order and duplicates does not hold here.
    let verdict = rig.recorder.verdict();
    assert_eq!((verdict.delivered, verdict.lost, verdict.committed), (9_000, 0, true), "{verdict}");
    assert_eq!((verdict.overlap_violations, verdict.commit_violations), (0, 0), "{verdict}");
}
