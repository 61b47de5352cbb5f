//! Many keys through four queues in both ordered modes, with failures, panics and dead letters; real
//! messages in number.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use flate2::read::GzDecoder;
use keylane::{Exhausted, FailurePolicy, Mode, OrderlyStatus, Outcome, listen};
use keylane_rocketmq::{Config, Outgoing, RocketMqDeadLetters, RocketMqSource};
use keylane_source::{Message, Offset, SeekTo, Source};
use keylane_testkit::guarantee::{self, Scope};
use keylane_testkit::recorder::RecordedSink;
use keylane_testkit::workload::{Fault, Faults};

use super::{Filler, STOP, Stage, builder, until};
use crate::member::{Member, at};

#[test]
fn many_keys_in_both_ordered_modes_with_failures_and_panics() {
    let name = "many_keys_in_both_ordered_modes_with_failures_and_panics";
    for (mode, scope) in [(Mode::KeySharded, Scope::key()), (Mode::QueueLocked, Scope::Queue)] {
        let Some(stage) = Stage::shared(name, 4, scope) else { return };
        let mut filler = Filler::new(&stage, 4_000);
        filler.send(20_000);
        let (sent, ends) = (filler.sent, filler.ends);
        let source = RocketMqSource::new(stage.config()).unwrap();
        let recorder = stage.recorder.clone();
        let faults = Faults { seed: 1, fail_rate: 0.01, panic_rate: 0.002 };
        let listener = listen::each(move |message: &Message, context| {
            let call = recorder.begin(message, context.shard(), context.attempt());
            match faults.decide(message.queue(), message.offset(), context.attempt()) {
                Fault::None => call.settle(guarantee::Outcome::Done),
                Fault::Fail => return Err("as told".into()),
                // A panic that says nothing. The call is dropped by it: it has failed.
                Fault::Panic => std::panic::resume_unwind(Box::new(())),
            }
            Ok(Outcome::Done)
        });
        let backoff =
            FailurePolicy::default().backoff(Duration::from_millis(1), Duration::from_millis(10));
        let policy = backoff.then(Exhausted::Stop);
        let builder = builder(source, &stage.recorder, mode).failure(policy);
        let consumer = builder.start(listener).unwrap();
        stage.until_committed(&ends);
        let metrics = consumer.metrics();
        assert!(metrics.failed > 0 && metrics.panicked > 0, "{metrics:?}");
        let verdict = stage.end(vec![consumer], sent);
        assert_eq!(verdict.duplicates, 0, "{verdict}");
    }
}

/// A message that an orderly listener refuses for ever goes where Java's would go, once, and its
/// successors follow it.
#[test]
fn orderly_retries_past_the_limit_end_in_the_dead_letter_topic() {
    let name = "orderly_retries_past_the_limit_end_in_the_dead_letter_topic";
    for (mode, scope) in [(Mode::KeySharded, Scope::key()), (Mode::QueueLocked, Scope::Queue)] {
        let Some(stage) = Stage::shared(name, 4, scope) else { return };
        let mut poison = BTreeSet::new();
        for (index, queue) in stage.queues.iter().enumerate() {
            let body = |n: u64| match n {
                20 | 21 | 70 => format!("poison {index}/{n}"),
                n => n.to_string(),
            };
            let messages: Vec<Outgoing> = (0..100)
                .map(|n| Outgoing::new(body(n)).key(format!("key-{index}-{}", n % 10)))
                .collect();
            stage.recorder.produced_range(*queue, Offset::ZERO, at(100));
            stage.client.send_batch(*queue, &messages).unwrap();
            poison.extend([20, 21, 70].map(body));
        }
        let recorder = stage.recorder.clone();
        let listener = listen::orderly(move |messages, context| {
            let call = recorder.begin_batch(messages, 0);
            let refused = messages.iter().any(|m| m.payload().unwrap().starts_with(b"poison"));
            if refused {
                context.set_suspend_current_queue_time(Duration::from_millis(10));
                call.settle(guarantee::Outcome::Failed);
                return OrderlyStatus::SuspendCurrentQueueAMoment;
            }
            call.settle(guarantee::Outcome::Done);
            OrderlyStatus::Success
        });
        let letters = RocketMqDeadLetters::new([stage.server.clone()], stage.group.clone());
        let sink = RecordedSink::new(letters.unwrap(), &stage.recorder);
        let policy = FailurePolicy::default().attempts_max(3).then(Exhausted::DeadLetter);
        let source = RocketMqSource::new(stage.config().retries(true)).unwrap();
        let builder = builder(source, &stage.recorder, mode).batch_max(1);
        let consumer = builder.failure(policy).dead_letters(sink).start(listener).unwrap();
        stage.until_committed(&[100; 4]);
        assert_eq!(dead(&stage), poison);
        stage.end(vec![consumer], 400 - poison.len() as u64);
    }
}

/// The bodies in the group's dead-letter topic, each of which is there once.
fn dead(stage: &Stage) -> BTreeSet<String> {
    let topic = format!("%DLQ%{}", stage.group);
    let config = Config::new([stage.server.clone()], format!("{}-dlq", stage.group));
    let mut reader = Member::join(config.subscribe(topic, "*").retries(false));
    let queue = *reader.assigned(1).keys().next().unwrap();
    reader.source.seek(queue, SeekTo::Earliest);
    let end = stage.client.max_offset(queue).unwrap().get();
    let bodies = reader.read(usize::try_from(end).unwrap()).remove(&queue).unwrap();
    assert!(reader.close().1.is_ok());
    let distinct: BTreeSet<String> = bodies.iter().cloned().collect();
    assert_eq!(distinct.len(), bodies.len(), "{bodies:?}");
    distinct
}

/// The flights of 2013 by aircraft, an airport a queue: keys as the world has them, some messages
/// without one.
#[test]
fn three_hundred_thousand_flights_by_tail_number() {
    const FLIGHTS: usize = 300_000;
    let name = "three_hundred_thousand_flights_by_tail_number";
    let Some(stage) = Stage::shared(name, 3, Scope::key()) else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/data/flights-2013.csv.gz");
    let file = std::fs::File::open(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut rows = csv::Reader::from_reader(GzDecoder::new(file));
    let mut queues: [Vec<Outgoing>; 3] = Default::default();
    for row in rows.records().take(FLIGHTS) {
        let row = row.unwrap();
        let queue = ["EWR", "JFK", "LGA"].iter().position(|origin| *origin == &row[1]).unwrap();
        let body = row.iter().collect::<Vec<_>>().join(",");
        // An empty key is none.
        queues[queue].push(Outgoing::new(body).key(&row[2]));
    }
    let ends = queues.each_ref().map(|messages| messages.len() as u64);
    assert_eq!(ends.iter().sum::<u64>(), FLIGHTS as u64);
    for (queue, messages) in stage.queues.iter().zip(&queues) {
        stage.recorder.produced_range(*queue, Offset::ZERO, at(messages.len() as u64));
        for batch in messages.chunks(500) {
            stage.client.send_batch(*queue, batch).unwrap();
        }
    }
    let consumer = stage.member(&stage.recorder, Duration::ZERO);
    until("every flight is handled", || {
        let done = consumer.metrics().succeeded;
        if done == FLIGHTS as u64 { Ok(()) } else { Err(done.to_string()) }
    });
    stage.until_committed(&ends);
    let report = consumer.stop(STOP).unwrap();
    assert!(report.all_committed(), "{report}");
    let verdict = stage.end(Vec::new(), FLIGHTS as u64);
    assert_eq!(verdict.duplicates, 0, "{verdict}");
}
