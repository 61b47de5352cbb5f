//! A source that fails.

use std::time::Duration;

use keylane::source::{
    Commit, Committed, FetchLimits, QueueId, SeekTo, Source, SourceError, SourceEvent, SourceWaker,
};
use keylane::{Consumer, Event, Health, Outcome, listen};
use keylane_testkit::script::Call;

use crate::support::{Events, Latch, MS, Rig, SECOND, eventually, q, threads_named, timed};

#[test]
fn trouble_that_passes_degrades_health_and_is_polled_again() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.commit_round(q(0), "K");
    rig.script.fail_polls(3, &SourceError::retryable("broker 1 is not there"));
    for failures in 1..=3 {
        let event = rig.events.wait_for(
            "trouble",
            |event| matches!(event, Event::SourceTrouble { failures: n, .. } if *n == failures),
        );
        let expected = format!("source: broker 1 is not there (failure {failures}, again in ");
        assert!(event.to_string().starts_with(&expected), "{event}");
    }
    rig.commit_round(q(0), "K");
    assert_eq!(consumer.health(), Health::Healthy);
    rig.stop(&consumer);
}

#[test]
fn trouble_that_lasts_is_seen_in_health() {
    let rig = Rig::with_queues(1);
    rig.script.fail_polls(1_000_000, &SourceError::retryable("broker 1 is not there"));
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.events.wait_for("trouble", |event| matches!(event, Event::SourceTrouble { .. }));
    let reason = "the source has trouble: broker 1 is not there".to_owned();
    assert_eq!(consumer.health(), Health::Degraded(vec![reason]));
    let (_, took) = timed(|| rig.stop(&consumer));
    assert!(took < 2 * SECOND, "{took:?}: nothing was read, so nothing is to be committed");
}

#[test]
fn a_source_in_trouble_is_not_polled_in_a_hot_loop_while_the_consumer_stops() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "K");
    let latch = Latch::new();
    let listener = rig.passing(&latch, |_| true);
    let consumer = rig.builder().start(listener).unwrap();
    latch.wait_for_arrivals(1);
    rig.script.fail_polls(10_000_000, &SourceError::retryable("broker 1 is not there"));
    let before = rig.script.look(|state| state.polls());
    assert!(consumer.stop(500 * MS).is_err_and(|error| error.is_deadline()));
    let polls = rig.script.look(|state| state.polls()) - before;
    assert!(polls < 1_000, "{polls} polls in half a second");
    latch.open();
}

#[test]
fn a_fatal_error_stops_the_consumer_after_a_last_commit() {
    let rig = Rig::with_queues(1);
    rig.produce(q(0), "K");
    let consumer = rig.builder().commit_interval(3_600 * SECOND).start(rig.done()).unwrap();
    eventually("it is done", || consumer.metrics().succeeded == 1);
    rig.script.fail_polls(1, &SourceError::fatal("the topic is gone"));
    rig.script.wait_for("the close", |state| state.is_closed());
    let error = consumer.wait().unwrap_err();
    assert!(error.is_source());
    let expected = "the source failed: the topic is gone; stopped in ";
    assert!(error.to_string().starts_with(expected), "{error}");
    let cause = std::error::Error::source(&error).expect("a cause");
    assert_eq!(cause.to_string(), "the topic is gone");
    assert_eq!(rig.script.committed(q(0)), Some(1));
    assert!(rig.script.look(|state| state.is_closed()));
    rig.recorder.verdict().assert_clean();
    let event = rig.events.wait_for("the stop", |event| matches!(event, Event::Stopping { .. }));
    assert_eq!(event.to_string(), "stopping: the source failed: the topic is gone");
    assert!(consumer.stop(SECOND).unwrap_err().is_source());
}

#[test]
fn a_fatal_error_that_lasts_ends_without_waiting_for_answers_that_cannot_come() {
    let rig = Rig::with_queues(1);
    rig.script.delay_commits(1);
    rig.produce(q(0), "K");
    let builder = rig.builder().commit_interval(3_600 * SECOND).stop_timeout(20 * SECOND);
    let consumer = builder.start(rig.done()).unwrap();
    eventually("it is done", || consumer.metrics().succeeded == 1);
    rig.script.fail_polls(10_000_000, &SourceError::fatal("thrown out of the group"));
    let (ended, took) = timed(|| {
        rig.script.wait_for("the close", |state| state.is_closed());
        consumer.wait()
    });
    assert!(took < 10 * SECOND, "{took:?}: until the stop's deadline");
    let error = ended.unwrap_err();
    assert!(error.is_source());
    // The close has answered it.
    assert_eq!(error.report().unwrap().queues[0].committed.map(|mark| mark.get()), Some(1));
    assert!(rig.script.look(|state| state.polls()) < 5_000, "polled in a hot loop");
}

#[test]
fn a_fatal_error_of_one_queue_ends_that_queue_alone() {
    let rig = Rig::with_queues(2);
    let consumer = rig.builder().start(rig.done()).unwrap();
    (0..2).for_each(|index| rig.commit_round(q(index), "K"));
    rig.script.fail_queue(q(0), SourceError::fatal("the topic was deleted"));
    let event = rig.events.wait_for("the end", |event| matches!(event, Event::QueueFailed { .. }));
    assert_eq!(event.to_string(), "it/0: ended: the topic was deleted");
    rig.commit_round(q(1), "K");
    let reason = "it/0: ended: the topic was deleted".to_owned();
    assert_eq!(consumer.health(), Health::Degraded(vec![reason]));
    assert!(consumer.metrics().queues.iter().all(|queue| queue.queue == q(1)));
    let report = rig.stop(&consumer);
    let ended = &report.queues[0];
    assert_eq!(ended.not_read.as_deref(), Some("it had ended: the topic was deleted"));
    assert_eq!(
        (ended.queue, ended.unfinished, report.queues[1].not_read.is_none()),
        (q(0), 0, true)
    );
    let shown =
        "; it/0 was not read: it had ended: the topic was deleted, 0 unfinished, committed at 1";
    assert!(report.to_string().ends_with(shown), "{report}");
}

#[test]
fn what_a_queue_had_done_that_ended_with_an_error_is_in_the_report() {
    let rig = Rig::with_queues(2);
    rig.produce_all(q(0), ["good", "good", "bad", "good", "bad", "bad"]);
    let listener = rig.each(|message, _| match message.key() {
        Some(b"bad") => Ok(Outcome::RetryAfter(3_600 * SECOND)),
        _ => Ok(Outcome::Done),
    });
    let builder = rig.builder().in_flight_max(8).commit_interval(3_600 * SECOND);
    let consumer = builder.start(listener).unwrap();
    eventually("the good are done", || consumer.metrics().succeeded == 3);
    rig.produce_all(q(0), (0..20).map(|_| "bad"));
    eventually("the budget is full", || consumer.metrics().stashed > 0);
    rig.script.fail_queue(q(0), SourceError::fatal("the topic was deleted"));
    rig.events.wait_for("the end", |event| matches!(event, Event::QueueFailed { .. }));
    let error = consumer.stop(10 * SECOND).unwrap_err();
    let report = error.report().unwrap();
    let ended = &report.queues[0];
    assert_eq!(ended.watermark.map(|mark| mark.get()), Some(2));
    assert_eq!(ended.committed.map(|mark| mark.get()), Some(0));
    assert_eq!((ended.unfinished, ended.finished_above, report.unfinished), (23, 1, 23));
    assert_eq!(ended.commit_error.as_deref(), Some("the queue ended before"));
    let shown = "; it/0 was not read: it had ended: the topic was deleted, 23 unfinished, committed \
                 at 0; commit it/0: the queue ended before";
    assert!(error.to_string().ends_with(shown), "{error}");
    rig.recorder.verdict_so_far().assert_clean();
}

#[test]
fn trouble_of_one_queue_is_an_event_and_nothing_else() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.fail_queue(q(0), SourceError::retryable("the leader has moved"));
    let event = rig.events.wait_for("it", |event| matches!(event, Event::QueueTrouble { .. }));
    assert_eq!(event.to_string(), "it/0: the leader has moved");
    rig.commit_round(q(0), "K");
    rig.stop(&consumer);
}

#[test]
fn the_vector_of_a_fetch_comes_back_empty_once_all_of_it_is_admitted() {
    for in_flight_max in [10, 1] {
        let rig = Rig::with_queues(1);
        for _ in 0..3 {
            rig.produce(q(0), "K");
        }
        let consumer = rig.builder().in_flight_max(in_flight_max).start(rig.done()).unwrap();
        eventually("all is done", || consumer.metrics().succeeded == 3);
        rig.stop(&consumer);
        // One fetch, admitted at once or one by one.
        assert_eq!(rig.script.look(|state| state.recycled().to_vec()), [0], "{in_flight_max}");
    }
}

/// A source that does one thing: something bad, in one of its methods.
#[derive(Default)]
struct Bad {
    /// A queue whose committed offset could not be read, and will not be.
    assigns: Option<QueueId>,
    panics: bool,
    hangs: Option<Latch>,
}

impl Source for Bad {
    fn poll(
        &mut self,
        _: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        match self.assigns.take() {
            Some(queue) => {
                let committed = Committed::Failed(SourceError::retryable("no answer"));
                events.push(SourceEvent::Assigned { queue, committed });
            }
            None => std::thread::park_timeout(wait.min(MS)), // Its poll waits.
        }
        if self.panics {
            std::panic::resume_unwind(Box::new("the client library has a bug"));
        }
        if let Some(latch) = &self.hangs {
            latch.pass();
        }
        Ok(())
    }
    fn seek(&mut self, _: QueueId, _: SeekTo) {}
    fn pause(&mut self, _: QueueId) {}
    fn resume(&mut self, _: QueueId) {}
    fn commit(&mut self, _: Commit) {}
    fn look_up_committed(&mut self, _: QueueId) {}
    fn release(&mut self, _: QueueId) {}
    fn waker(&self) -> SourceWaker {
        SourceWaker::noop()
    }
    fn close(&mut self, _: Duration, _: &mut Vec<SourceEvent>) -> Result<(), SourceError> {
        Ok(())
    }
}

#[test]
fn a_source_that_panics_ends_the_consumer_and_all_its_threads() {
    let events = Events::default();
    let consumer = Consumer::builder(Bad { panics: true, ..Bad::default() })
        .shards(3)
        .thread_name("badsource")
        .observer(events.clone())
        .dead_letters(crate::support::Letters::default())
        .start(listen::each(|_, _| Ok(Outcome::Done)))
        .unwrap();
    let error = consumer.wait().unwrap_err();
    assert!(!error.is_source() && !error.is_config());
    let expected =
        "internal error: the source's thread panicked: the client library has a bug; stopped in ";
    assert!(error.to_string().starts_with(expected), "{error}");
    eventually("all threads end", || threads_named("badsource") == 0);
    assert_eq!(consumer.health(), Health::Stopped);
}

#[test]
fn a_source_that_does_not_return_is_left_behind() {
    let latch = Latch::new();
    let consumer = Consumer::builder(Bad { hangs: Some(latch.clone()), ..Bad::default() })
        .shards(1)
        .start(listen::each(|_, _| Ok(Outcome::Done)))
        .unwrap();
    latch.wait_for_arrivals(1);
    let (stopped, took) = timed(|| consumer.stop(100 * MS));
    let error = stopped.unwrap_err();
    assert!(error.is_deadline() && error.report().is_none());
    assert_eq!(
        error.to_string(),
        "the source did not return within 600ms; its thread was left behind"
    );
    assert!(took < 2 * SECOND, "{took:?}");
    latch.open();
}

#[test]
fn a_look_up_that_is_never_answered_is_seen() {
    let events = Events::default();
    let consumer = Consumer::builder(Bad { assigns: Some(q(0)), ..Bad::default() })
        .shards(1)
        .stall_after(5 * MS)
        .observer(events.clone())
        .start(listen::each(|_, _| Ok(Outcome::Done)))
        .unwrap();
    let event = events.wait_for("the wait", |event| matches!(event, Event::NotRead { .. }));
    let waited = "it/0: has waited for its committed offset for ";
    assert!(event.to_string().starts_with(waited), "{event}");
    let Health::Degraded(reasons) = consumer.health() else { panic!("it is not well") };
    assert!(reasons.iter().any(|reason| reason.starts_with(waited)), "{reasons:?}");
    let queue = &consumer.metrics().queues[0];
    assert!(queue.waiting >= Some(5 * MS) && queue.epoch.is_none(), "{queue:?}");
    events.wait_until("it is said again", |all| {
        all.iter().filter(|event| matches!(event, Event::NotRead { .. })).count() > 1
    });
    let report = consumer.stop(SECOND).unwrap();
    let why = report.queues[0].not_read.as_deref();
    assert_eq!(why, Some("it waited for its committed offset"));
}

#[test]
fn a_source_is_woken_and_not_polled_all_the_time() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().commit_interval(3_600 * SECOND).start(rig.done()).unwrap();
    eventually("it is read", || rig.script.look(|state| state.position(q(0)).is_some()));
    let polls = rig.script.look(|state| state.polls());
    rig.produce_all(q(0), (0..100).map(|n| n.to_string()));
    eventually("all are done", || consumer.metrics().succeeded == 100);
    let after = rig.script.look(|state| state.polls());
    assert!(after - polls < 20, "{} polls for one fetch", after - polls);
    rig.stop(&consumer);
    assert!(rig.script.history().iter().any(|call| matches!(call, Call::Close { .. })));
}
