//! Topics and offsets change under load.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane::{Consumer, Message, Outcome, listen};
use keylane_kafka::Record;
use keylane_source::{Offset, Position, QueueId};
use keylane_testkit::guarantee::{self, Scope};
use keylane_testkit::recorder::{Recorded, Recorder};
use parking_lot::Mutex;
use rdkafka::admin::{AdminOptions, NewPartitions};
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::producer::{BaseRecord, Producer};
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::{ANSWER, Filler, STOP, Stage, start, under_load, until_assigned};
use crate::fetch::COOPERATIVE;
use crate::real_broker::block_on;

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn partitions_added_under_load_are_read_too() {
    let Some(stage) = Stage::new("grows", 2, &[]) else { return };
    let source = || {
        let often = ("topic.metadata.refresh.interval.ms", "300");
        stage.broker.source().set(COOPERATIVE.0, COOPERATIVE.1).set(often.0, often.1)
    };
    let first = start(source(), &stage.recorder, MILLISECOND);
    let second = start(source(), &stage.recorder.another_member(), MILLISECOND);
    until_assigned(&first, 1);
    until_assigned(&second, 1);
    let mut filler = Filler::new(&stage, 2, 300);
    under_load(&mut filler, || {
        let more = NewPartitions::new(&stage.broker.topic, 6);
        block_on(stage.broker.admin.create_partitions(&[more], &AdminOptions::new())).unwrap();
        until_assigned(&first, 3);
        until_assigned(&second, 3);
    });
    // A producer that knows the new ones. Keys move, as they do in every topic that grows.
    let mut wider = Filler::new(&stage, 6, 300);
    wider.ends[..2].copy_from_slice(&filler.ends);
    let start = Instant::now();
    wider.send_until(|| start.elapsed() > Duration::from_secs(2));
    stage.until_committed(6);
    stage.verdict(vec![first, second], filler.sent + wider.sent);
}

#[test]
fn offsets_that_an_operator_resets_are_where_the_group_goes_on() {
    let Some(mut stage) = Stage::new("operator", 2, &[]) else { return };
    let mut filler = Filler::new(&stage, 2, 50);
    (0..2_000).for_each(|_| filler.send());
    filler.flush();
    let first = start(stage.broker.source(), &stage.recorder, MILLISECOND);
    stage.until_committed(2);
    first.stop(STOP).unwrap();
    stage.recorder.verdict().assert_clean();
    assert_eq!(stage.recorder.verdict().delivered, 2_000);

    // What the admin client does: the group is empty, an outsider stores offsets. One goes back, one
    // stays; traffic goes on meanwhile.
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&stage.broker.topic, 0, KafkaOffset::Offset(400)).unwrap();
    stage.outsider.commit(&offsets, CommitMode::Sync).unwrap();
    // A new record: what is below the reset is owed by nobody.
    stage.recorder = Recorder::new(Scope::key());
    let again = QueueId::new(&stage.broker.topic, 0);
    let reset = Offset::new(400).unwrap();
    stage.recorder.produced_range(again, reset, Position::new(1_000).unwrap());
    filler.recorder = stage.recorder.clone();
    let second = start(stage.broker.source(), &stage.recorder, MILLISECOND);
    (0..1_000).for_each(|_| filler.send());
    filler.flush();
    stage.until_committed(2);
    stage.verdict(vec![second], 600 + 1_000);
}

#[test]
fn aborted_transactions_are_never_delivered_and_never_hold_a_commit() {
    const PARTITIONS: u32 = 3;
    let Some(stage) = Stage::new("aborts", 3, &[]) else { return };
    let consumer = start(stage.broker.source(), &stage.recorder, MILLISECOND);
    until_assigned(&consumer, 3);
    let producer = stage.broker.transactional();
    let (mut end, mut delivered) = (0, 0);
    for round in 0..40_u64 {
        producer.begin_transaction().unwrap();
        let commits = round % 3 != 1;
        for n in 0..25 {
            for partition in 0..PARTITIONS {
                if commits {
                    let queue = QueueId::new(&stage.broker.topic, partition);
                    stage.recorder.produced(queue, Offset::new(end + n).unwrap());
                    delivered += 1;
                }
                let (key, index) = (format!("key-{}", n % 7), i32::try_from(partition).unwrap());
                let record = BaseRecord::to(&stage.broker.topic).partition(index).key(&key);
                producer.send(record.payload(if commits { "kept" } else { "aborted" })).unwrap();
            }
        }
        producer.flush(ANSWER).unwrap();
        match commits {
            true => producer.commit_transaction(ANSWER).unwrap(),
            false => producer.abort_transaction(ANSWER).unwrap(),
        }
        // Each partition has its messages, and a marker behind them.
        end += 25 + 1;
    }
    // Markers are the last thing in each partition: the commit passes them.
    stage.until_committed(PARTITIONS);
    assert_eq!(delivered, 27 * 25 * 3);
    stage.verdict(vec![consumer], delivered);
}

#[test]
fn what_compaction_has_left_is_delivered_and_the_commit_reaches_the_end() {
    let compacted = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("min.compaction.lag.ms", "0"),
    ];
    let Some(stage) = Stage::new("compacts", 1, &compacted) else { return };
    let producer = stage.broker.producer();
    let mut sent = 0;
    // Segments are rolled when something is appended, and cleaned some time later: written until
    // most of what is there has gone.
    let start = Instant::now();
    let newest = loop {
        let mut newest = HashMap::new();
        for n in 0..100 {
            let (key, payload) = (format!("key-{}", n % 20), sent.to_string());
            let record = Record::to(&stage.broker.topic).key(key.as_bytes());
            producer.send(record.payload(payload.as_bytes())).unwrap();
            newest.insert(key, sent);
            sent += 1;
        }
        producer.flush(ANSWER).unwrap();
        let left = left_of(&stage);
        if left < sent / 2 {
            break newest;
        }
        assert!(start.elapsed() < super::PATIENCE, "never compacted: {left} of {sent}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let last: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    let (recorder, seen) = (stage.recorder.clone(), Arc::clone(&last));
    let source = Recorded::new(stage.broker.source().build().unwrap(), &stage.recorder);
    let consumer = Consumer::builder(source)
        .shards(4)
        .start(listen::each(move |message: &Message, context| {
            let call = recorder.begin(message, context.shard(), context.attempt());
            let key = String::from_utf8(message.key().unwrap_or_default().to_vec())?;
            let payload = str::from_utf8(message.payload().unwrap_or_default())?.parse()?;
            seen.lock().insert(key, payload);
            call.settle(guarantee::Outcome::Done);
            Ok(Outcome::Done)
        }))
        .unwrap();
    stage.until_committed(1);
    consumer.stop(STOP).unwrap();
    let verdict = stage.recorder.verdict();
    verdict.assert_clean();
    assert!(verdict.delivered < sent, "there were no holes");
    assert_eq!(*last.lock(), newest);
}

/// How many messages there are, read without a group.
fn left_of(stage: &Stage) -> u64 {
    let mut reader = crate::member::Member::new(
        keylane_kafka::KafkaSource::builder(&stage.broker.servers, "nobody")
            .assign([(&stage.broker.topic, 0)])
            .set("fetch.wait.max.ms", "10"),
    );
    let queue = QueueId::new(&stage.broker.topic, 0);
    let end = u64::try_from(stage.progress(1)[0].1).unwrap();
    let at_end = Position::new(end).unwrap();
    reader.until("it is read", |reader| reader.positions.get(&queue) == Some(&at_end));
    let left = reader.offsets(queue).len() as u64;
    reader.close().unwrap();
    left
}
