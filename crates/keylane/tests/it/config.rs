//! G10: what cannot work is rejected by a sentence, before anything was started.

use std::time::Duration;

use keylane::source::{
    Commit, FetchLimits, QueueId, SeekTo, Source, SourceError, SourceEvent, SourceWaker,
};
use keylane::{Consumer, ConsumerBuilder, Exhausted, FailurePolicy, Mode, NoKey, Outcome, listen};

use crate::support::{MS, Rig, SECOND, q, threads_named};

/// A source that must not be touched.
struct Untouched;

impl Source for Untouched {
    fn poll(
        &mut self,
        _: FetchLimits,
        _: Duration,
        _: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        unreachable!()
    }
    fn seek(&mut self, _: QueueId, _: SeekTo) {
        unreachable!()
    }
    fn pause(&mut self, _: QueueId) {
        unreachable!()
    }
    fn resume(&mut self, _: QueueId) {
        unreachable!()
    }
    fn commit(&mut self, _: Commit) {
        unreachable!()
    }
    fn look_up_committed(&mut self, _: QueueId) {
        unreachable!()
    }
    fn release(&mut self, _: QueueId) {
        unreachable!()
    }
    fn waker(&self) -> SourceWaker {
        unreachable!()
    }
    fn close(&mut self, _: Duration, _: &mut Vec<SourceEvent>) -> Result<(), SourceError> {
        unreachable!()
    }
}

/// What `start` says of these options. The factory must not be called either.
#[track_caller]
fn rejected(
    options: impl FnOnce(ConsumerBuilder<Untouched>) -> ConsumerBuilder<Untouched>,
) -> String {
    let builder = options(Consumer::builder(Untouched).thread_name("rejected"));
    let listener = listen::per_shard(|_| -> Never { unreachable!() });
    let error = builder.start(listener).expect_err("it cannot work");
    assert!(error.is_config() && !error.is_deadline() && !error.is_source());
    assert!(error.report().is_none());
    assert_eq!(format!("{error:?}"), format!("Error({error})"));
    error.to_string()
}

struct Never;

impl keylane::Listener for Never {
    fn on_message(
        &mut self,
        _: &keylane::Message,
        _: &mut keylane::Context<'_>,
    ) -> keylane::Handled {
        unreachable!()
    }
}

/// Options by what is wrong with them.
type Wrong = (fn(ConsumerBuilder<Untouched>) -> ConsumerBuilder<Untouched>, &'static str);

#[test]
fn scenario_23_sizes_of_zero_and_beyond_are_rejected_by_a_sentence() {
    let all: [Wrong; 19] = [
        (|b| b.shards(0), "option shards is 0; allowed: 1..=4096"),
        (|b| b.shards(1_000_000), "option shards is 1000000; allowed: 1..=4096"),
        (|b| b.channel_capacity(0), "option channel_capacity is 0; allowed: 1..=1048576"),
        (
            |b| b.channel_capacity(1 << 21),
            "option channel_capacity is 2097152; allowed: 1..=1048576",
        ),
        (|b| b.batch_max(0), "option batch_max is 0; allowed: 1..=65536"),
        (|b| b.batch_max(65_537), "option batch_max is 65537; allowed: 1..=65536"),
        (|b| b.fetch_max(0), "option fetch_max is 0; allowed: 1..=1048576"),
        (|b| b.fetch_bytes_max(0), "option fetch_bytes_max is 0; allowed: 1..=1099511627776"),
        (|b| b.in_flight_max(0), "option in_flight_max is 0; allowed: 1..=100000000"),
        (
            |b| b.in_flight_bytes_max(0),
            "option in_flight_bytes_max is 0; allowed: 1..=1099511627776",
        ),
        (|b| b.queue_in_flight_max(0), "option queue_in_flight_max is 0; allowed: 1..=10000"),
        (
            |b| b.in_flight_max(10).queue_in_flight_max(11),
            "option queue_in_flight_max is 11; allowed: 1..=10 (the option in_flight_max)",
        ),
        (|b| b.span_max(0), "option span_max is 0; allowed: 1..=4294967296"),
        (|b| b.commit_count(0), "option commit_count is 0; allowed: 1..=18446744073709551615"),
        (|b| b.stack_size(1), "option stack_size is 1; allowed: 16384..=1073741824"),
        (
            |b| b.stack_size(usize::MAX),
            "option stack_size is 18446744073709551615; allowed: 16384..=1073741824",
        ),
        (
            |b| b.thread_name(""),
            "option thread_name is \"\"; allowed: a name without NUL, not empty",
        ),
        (
            |b| b.thread_name("a\0b"),
            "option thread_name is \"a\\0b\"; allowed: a name without NUL, not empty",
        ),
        (
            |b| b.failure(FailurePolicy::default().attempts_max(0).then(Exhausted::Skip)),
            "option failure.attempts_max is 0; allowed: 1..=4294967295",
        ),
    ];
    for (options, sentence) in all {
        assert_eq!(rejected(options), sentence);
    }
    assert_eq!(threads_named("rejected"), 0);
}

#[test]
fn scenario_23_times_of_zero_and_beyond_are_rejected_by_a_sentence() {
    let day = 24 * 3_600 * SECOND;
    assert_eq!(
        rejected(|b| b.commit_interval(Duration::ZERO)),
        "option commit_interval is 0ns; allowed: 1ms..=3600s"
    );
    assert_eq!(
        rejected(|b| b.commit_interval(day)),
        "option commit_interval is 86400s; allowed: 1ms..=3600s"
    );
    assert_eq!(rejected(|b| b.linger(day)), "option linger is 86400s; allowed: 0ns..=3600s");
    assert_eq!(
        rejected(|b| b.revoke_timeout(Duration::ZERO)),
        "option revoke_timeout is 0ns; allowed: 1ms..=3600s"
    );
    assert_eq!(
        rejected(|b| b.stop_timeout(Duration::ZERO)),
        "option stop_timeout is 0ns; allowed: 1ms..=3600s"
    );
    assert_eq!(
        rejected(|b| b.stall_after(Duration::ZERO)),
        "option stall_after is 0ns; allowed: 1ms..=86400s"
    );
    let backoff = |first, max| FailurePolicy::default().backoff(first, max);
    assert_eq!(
        rejected(|b| b.failure(backoff(Duration::ZERO, SECOND))),
        "option failure.backoff.first is 0ns; allowed: 1ms..=3600s"
    );
    assert_eq!(
        rejected(|b| b.failure(backoff(SECOND, MS))),
        "option failure.backoff.max is 1ms; allowed: 1s..=3600s"
    );
    assert_eq!(
        rejected(|b| b.failure(backoff(SECOND, day))),
        "option failure.backoff.max is 86400s; allowed: 1s..=3600s"
    );
}

#[test]
fn what_does_not_fit_together_is_rejected_by_a_sentence() {
    for jitter in [-0.1, 1.5, f64::NAN, f64::INFINITY] {
        assert_eq!(
            rejected(|b| b.failure(FailurePolicy::default().jitter(jitter))),
            format!("option failure.jitter is {jitter}; allowed: 0.0..=1.0")
        );
    }
    assert_eq!(
        rejected(|b| b.failure(FailurePolicy::default().attempts_max(3))),
        "option failure.then is DeadLetter without a dead-letter sink; allowed: Skip, Stop, or \
         DeadLetter together with the option dead_letters"
    );
    for mode in [Mode::QueueLocked, Mode::Concurrent] {
        assert_eq!(
            rejected(|b| b.mode(mode).no_key(NoKey::Spread)),
            format!(
                "option no_key is Spread in mode {mode:?}, which has no routing keys; allowed: the \
                 default, or mode KeySharded"
            )
        );
        assert_eq!(
            rejected(|b| b.mode(mode).route_by(|_| Ok(None))),
            format!(
                "option route_by is set in mode {mode:?}, which has no routing keys; allowed: mode \
                 KeySharded"
            )
        );
    }
    assert_eq!(threads_named("rejected"), 0);
}

#[test]
fn scenario_23_ones_everywhere_are_accepted_and_work() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..100).map(|n| n.to_string()));
    let policy = FailurePolicy::default().backoff(MS, MS).attempts_max(1).then(Exhausted::Skip);
    let builder = rig
        .builder()
        .shards(1)
        .channel_capacity(1)
        .batch_max(1)
        .fetch_max(1)
        .fetch_bytes_max(1)
        .in_flight_max(1)
        .in_flight_bytes_max(1)
        .queue_in_flight_max(1)
        .span_max(1)
        .commit_count(1)
        .commit_interval(MS)
        .failure(policy)
        .stack_size(16 << 10);
    let consumer = builder.start(rig.done()).unwrap();
    rig.wait_for_commit(q(0), 100);
    assert_eq!(consumer.metrics().in_flight_max, 1);
    rig.stop(&consumer);
    assert!(rig.offsets(q(0)).into_iter().eq(0..100));
}

#[test]
fn a_source_without_queues_is_a_consumer_that_waits() {
    let rig = Rig::new();
    let consumer = rig.builder().start(rig.done()).unwrap();
    rig.script.wait_for("polls", |state| state.polls() > 1);
    let report = rig.stop(&consumer);
    assert!(report.queues.is_empty() && report.all_committed());
}

#[test]
fn a_consumer_without_a_message_does_nothing_else() {
    let rig = Rig::with_queues(1);
    let consumer = rig.builder().start(rig.each(|_, _| Ok(Outcome::Done))).unwrap();
    rig.script.wait_for("the start", |state| state.position(q(0)).is_some());
    rig.stop(&consumer);
    assert!(rig.script.commits(q(0)).is_empty());
}
