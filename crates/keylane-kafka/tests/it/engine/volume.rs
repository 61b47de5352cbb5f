//! Much, and slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylane::{BatchOutcome, Consumer, Event, FailurePolicy, Message, Outcome, listen};
use keylane_kafka::Record;
use keylane_source::{Offset, QueueId};
use keylane_testkit::guarantee::{self, Scope};
use keylane_testkit::recorder::{Recorded, Recorder};

use super::{Filler, STOP, Stage, until};

#[test]
fn a_million_keyed_messages_keep_every_promise() {
    const MESSAGES: u64 = 1_000_000;
    const PARTITIONS: u32 = 8;
    let (budget, fetch) = (20_000, 512);
    let Some(mut stage) = Stage::new("million", 8, &[]) else { return };
    let limit = u64::try_from(budget + 8 * fetch).unwrap();
    stage.recorder = Recorder::with_in_flight_limit(Scope::key(), limit);
    let mut filler = Filler::new(&stage, PARTITIONS, 10_000);
    let failures = Arc::new(AtomicU64::new(0));
    let recorder = stage.recorder.clone();
    let failed = Arc::clone(&failures);
    // One message in 5,003 fails when it comes for the first time: its key waits, others do not.
    let listener = listen::batches(move |batch| {
        let call = recorder.begin_batch(batch.iter(), batch.shard());
        let fails = |index: usize, message: &Message| {
            batch.attempt(index) == 1 && message.offset().get() % 5_003 == 5_002
        };
        let bad = batch.iter().enumerate().find(|(index, message)| fails(*index, message));
        let Some((index, _)) = bad else {
            call.settle(guarantee::Outcome::Done);
            return Ok(BatchOutcome::Done);
        };
        failed.fetch_add(1, Ordering::Relaxed);
        call.settle_each(&vec![guarantee::Outcome::Done; index]);
        Ok(BatchOutcome::FailedAt { index, error: "for the first time".into() })
    });
    let source = Recorded::new(stage.broker.source().build().unwrap(), &stage.recorder);
    let retry = FailurePolicy::default().backoff(Duration::from_millis(5), Duration::from_secs(1));
    let consumer = Consumer::builder(source)
        .shards(16)
        .in_flight_max(budget)
        .fetch_max(fetch)
        .failure(retry)
        .start(listener)
        .unwrap();
    for _ in 0..MESSAGES {
        filler.send();
    }
    filler.flush();
    stage.until_committed(PARTITIONS);
    let failures = failures.load(Ordering::Relaxed);
    // 125,000 a partition: offsets 5,002, 10,005 and so on.
    assert_eq!(failures, 8 * 24);
    stage.verdict(vec![consumer], MESSAGES);
}

#[test]
fn a_listener_slower_than_the_poll_limit_does_not_cost_the_membership() {
    let limit = Duration::from_secs(3);
    let Some(stage) = Stage::new("slow", 1, &[]) else { return };
    let builder = stage.broker.source().set("max.poll.interval.ms", limit.as_millis().to_string());
    let source = Recorded::new(builder.build().unwrap(), &stage.recorder);
    let (recorder, queue) = (stage.recorder.clone(), QueueId::new(&stage.broker.topic, 0));
    recorder.produced_range(queue, Offset::ZERO, keylane_source::Position::new(20).unwrap());
    let taken = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&taken);
    let consumer = Consumer::builder(source)
        .shards(2)
        .observer(move |event: &Event| {
            if matches!(event, Event::Lost { .. } | Event::Revoking { .. }) {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        })
        .start(listen::each(move |message: &Message, context| {
            let call = recorder.begin(message, context.shard(), context.attempt());
            if message.offset() == Offset::ZERO {
                std::thread::sleep(limit * 2);
            }
            call.settle(guarantee::Outcome::Done);
            Ok(Outcome::Done)
        }))
        .unwrap();
    let producer = stage.broker.producer();
    for n in 0..20 {
        let key = format!("key-{n}");
        producer.send(Record::to(&stage.broker.topic).key(key.as_bytes())).unwrap();
    }
    producer.flush(STOP).unwrap();
    stage.until_committed(1);
    assert_eq!(taken.load(Ordering::Relaxed), 0, "the queue was taken away");
    until("it is healthy", || match consumer.health() {
        keylane::Health::Healthy => Ok(()),
        other => Err(other.to_string()),
    });
    stage.verdict(vec![consumer], 20);
}
