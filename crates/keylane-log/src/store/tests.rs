//! What the store gives back without an error, and is wrong all the same: it must be noticed by
//! what reads it. Here the store is told to write such things.

use std::time::Duration;

use bytes::Bytes;
use keylane_source::{
    Commit, CommitTag, Committed, FetchLimits, QueueId, SeekTo, Source, SourceEvent, Watermark,
};

use crate::block::BlockBuilder;
use crate::error::Kind;
use crate::marks::{Mark, Marks, Owner, cell_of};
use crate::{Error, Fsync, Log, LogSource, Options, Record, state};

const LIMITS: FetchLimits = FetchLimits { messages: 100, bytes: 1 << 20 };

fn log() -> (tempfile::TempDir, Log) {
    let folder = tempfile::tempdir().unwrap();
    let log = Options::new().fsync(Fsync::Never).open(folder.path()).unwrap();
    log.create_topic("t", 2).unwrap();
    let producer = log.producer("t").unwrap();
    for _ in 0..3 {
        let mut batch = producer.batch();
        for n in 0..4 {
            batch.push(&Record::new().with_payload("x").to_queue(n % 2)).unwrap();
        }
        producer.append(&mut batch).unwrap();
    }
    (folder, log)
}

/// Two records, as of this place.
fn block(topic: u32, queue: u32, base: u64) -> Bytes {
    let mut builder = BlockBuilder::default();
    builder.push(&Record::new());
    builder.push(&Record::new());
    builder.seal().place(topic, queue, base, 0)
}

/// Polls once, after a seek of both queues to their begin.
fn read(source: &mut LogSource) -> Vec<SourceEvent> {
    let mut events = Vec::new();
    source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
    for index in 0..2 {
        source.seek(QueueId::new("t", index), SeekTo::Earliest);
    }
    events.clear();
    source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
    source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
    events
}

/// What is wrong, how it is written, which offsets of queue 0 are read all the same, what is said.
type Case = (fn(&Log), &'static [u64], &'static str);

fn put(log: &Log, last: u64, block: Bytes) {
    let mut write = log.core().store.write();
    write.put_block(1, 0, last, block);
    write.commit(false).unwrap();
}

const CASES: [Case; 6] = [
    (
        |log| {
            let mut write = log.core().store.write();
            write.remove_block(1, 0, 3);
            write.commit(false).unwrap();
        },
        &[0, 1],
        "read t/0 at offset 2: the next record that is there has offset 4",
    ),
    (
        |log| {
            let mut write = log.core().store.write();
            write.remove_block(1, 0, 5);
            write.commit(false).unwrap();
        },
        &[0, 1, 2, 3],
        "read t/0 at offset 4: there is no record from here to the queue's end at 6",
    ),
    (
        |log| {
            let mut changed = block(1, 0, 2).to_vec();
            *changed.last_mut().unwrap() ^= 1;
            put(log, 3, changed.into());
        },
        &[0, 1],
        "read t/0 at offset 2: the records do not match their CRC",
    ),
    (
        |log| put(log, 3, block(1, 1, 2)),
        &[0, 1],
        "read t/0 at offset 2: in the place of the block up to 3 lies one of topic 1 \
         queue 1 up to 3",
    ),
    (
        |log| put(log, 1, block(1, 0, 2)),
        &[],
        "read t/0 at offset 0: in the place of the block up to 1 lies one of topic 1 \
         queue 0 up to 3",
    ),
    (|log| put(log, 5, Bytes::new()), &[0, 1, 2, 3], "read t/0 at offset 4: the block is shorter"),
];

#[test]
fn a_wrong_block_ends_its_queue_with_an_error_that_says_where() {
    for (write, offsets, sentence) in CASES {
        let (_folder, log) = log();
        write(&log);
        let error = log.verify().unwrap_err();
        assert!(error.is_damaged() && error.to_string().starts_with(sentence), "{error}");

        let mut source = log.source("t", "g").unwrap();
        let (mut read_of, mut errors) = ([Vec::new(), Vec::new()], Vec::new());
        for event in read(&mut source) {
            match event {
                SourceEvent::Fetched(fetch) => {
                    let offsets = fetch.messages.iter().map(|message| message.offset().get());
                    read_of[fetch.queue.index() as usize].extend(offsets);
                }
                SourceEvent::QueueError { queue, error } => errors.push((queue, error)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(read_of[0], offsets, "{sentence}");
        assert_eq!(read_of[1], [0, 1, 2, 3, 4, 5], "the other queue goes on");
        let [(queue, error)] = &errors[..] else { panic!("{errors:?}") };
        assert_eq!(*queue, QueueId::new("t", 0));
        assert!(error.is_fatal() && error.to_string().starts_with(sentence), "{error}");
    }
}

#[test]
fn a_wrong_last_block_is_found_when_the_log_is_opened() {
    let (folder, log) = log();
    put(&log, 5, Bytes::from_static(b"nonsense"));
    drop(log);
    let error = Log::open(folder.path()).unwrap_err();
    assert!(error.is_damaged());
    assert!(error.to_string().contains("t/0: the last block, which ends at offset 5"), "{error}");
}

/// "Could not be read" is neither "none" nor an offset, and the other queue does not wait for it.
#[test]
fn a_commit_that_cannot_be_read_is_a_failed_look_up() {
    let (_folder, log) = log();
    let store = &log.core().store;
    store.state.insert(state::commit_key(1, "g", 0), b"nonsense").unwrap();
    let mut source = log.source("t", "g").unwrap();
    let mut events = Vec::new();
    source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
    source.look_up_committed(QueueId::new("t", 0));
    source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
    let [
        SourceEvent::Assigned { committed: Committed::Failed(error), .. },
        SourceEvent::Assigned { committed: Committed::None, .. },
        SourceEvent::LookedUp { committed: Committed::Failed(_), .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    let sentence = "look up what group \"g\" committed for t/0: state ";
    assert!(error.to_string().starts_with(sentence), "{error}");
    assert!(log.groups("t").unwrap_err().is_damaged());
    assert!(log.trim("t").unwrap_err().is_damaged(), "removed for a group that may need it");
}

#[test]
fn nothing_is_written_after_a_failed_write_and_every_commit_is_answered() {
    let (folder, log) = log();
    let producer = log.producer("t").unwrap();
    let mut source = log.source("t", "g").unwrap();
    log.core().stop(Error::new(Kind::Io, "the disk is full"));
    let refused = [
        producer.send(&Record::new()).map(drop),
        log.create_topic("u", 1),
        log.sync(),
        log.trim("t").map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert!(error.is_stopped(), "{error}");
        assert!(error.to_string().contains("That write: the disk is full"), "{error}");
    }
    let (queue, watermark) = (QueueId::new("t", 0), Watermark::new(1).unwrap());
    source.commit(Commit { queue, watermark, metadata: String::new(), tag: CommitTag(0) });
    let mut events = Vec::new();
    source.close(Duration::from_secs(30), &mut events).unwrap();
    let [SourceEvent::CommitResult { result: Err(error), .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(error.is_fatal());
    assert!(error.to_string().starts_with("commit t/0 at 1 for group \"g\": "), "{error}");
    drop(source);
    assert!(log.delete_topic("t").unwrap_err().is_stopped());
    // What was acknowledged before is still read, and is there after opening again.
    assert_eq!(log.verify().unwrap(), 12);
    drop((log, producer));
    let log = Log::open(folder.path()).unwrap();
    assert_eq!((log.verify().unwrap(), log.topics().len()), (12, 1));
}

/// What is on the disk after a power failure: the store without its newest writes, and a mark that
/// says what was acknowledged, from before the machine started anew.
#[test]
fn a_power_failure_is_reported_and_what_was_forced_to_the_disk_must_be_there() {
    for durable in [4, 6] {
        let (folder, log) = log();
        let (path, owner) = (log.core().marks_path(1), log.core().owner);
        let mut write = log.core().store.write();
        write.remove_block(1, 0, 5);
        write.commit(false).unwrap();
        drop(log);
        let before = Owner { boot: [9; 16], ..owner };
        let mut marks = Marks::open(path, &before, 1, 2).unwrap();
        marks.set([(cell_of(0), Mark { acknowledged: 6, durable })]).unwrap();
        drop(marks);
        let opened = Log::open(folder.path());
        if durable == 6 {
            let error = opened.unwrap_err();
            assert!(error.to_string().contains("says that it had come to 6"), "{error}");
            continue;
        }
        let log = opened.unwrap();
        let [loss] = log.power_loss() else { panic!("{:?}", log.power_loss()) };
        assert_eq!(
            (loss.queue, loss.end.get(), loss.acknowledged.get()),
            (QueueId::new("t", 0), 4, 6)
        );
        drop(log);
        // Told once; appending goes on where the queue ends now.
        let log = Log::open(folder.path()).unwrap();
        assert!(log.power_loss().is_empty());
        let (_, offset) = log.producer("t").unwrap().send(&Record::new().to_queue(0)).unwrap();
        assert_eq!((offset.get(), log.verify().unwrap()), (4, 11));
    }
}
