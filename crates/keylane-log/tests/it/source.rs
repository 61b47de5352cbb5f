//! The rules of `Source`, one by one.
#![expect(clippy::unwrap_used, reason = "this is part of the tests")]

use std::time::{Duration, Instant};

use keylane_log::{Log, LogSource, Record};
use keylane_source::{
    Commit, CommitTag, Committed, EndOffset, Fetch, FetchLimits, QueueId, ResetCause, SeekTo,
    Source, SourceEvent, Watermark,
};

use crate::support::{LIMITS, PATIENCE, assigned, at, commit, poll_for};

/// A topic "t" with two queues, and this many records in queue 0: payload and timestamp are the
/// offset, in batches of ten.
fn log(records: u64) -> (tempfile::TempDir, Log) {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 2).unwrap();
    append(&log, 0..records);
    (folder, log)
}

fn append(log: &Log, numbers: std::ops::Range<u64>) {
    let producer = log.producer("t").unwrap();
    let mut batch = producer.batch();
    for n in numbers {
        let (payload, timestamp_ms) = (n.to_string(), i64::try_from(n).unwrap() * 10);
        let record = Record::new().with_payload(&payload).with_timestamp_ms(timestamp_ms);
        batch.push(&record.to_queue(0)).unwrap();
        if batch.len() == 10 {
            producer.append(&mut batch).unwrap();
        }
    }
    producer.append(&mut batch).unwrap();
}

fn queue() -> QueueId {
    QueueId::new("t", 0)
}

fn source(log: &Log) -> LogSource {
    let mut source = log.source("t", "g").unwrap();
    assert_eq!(assigned(&mut source).len(), 2);
    source
}

fn poll(source: &mut LogSource, limits: FetchLimits) -> Vec<SourceEvent> {
    let mut events = Vec::new();
    source.poll(limits, Duration::ZERO, &mut events).unwrap();
    events
}

/// The offsets of the next fetch; panics if there is none, or anything but an end beside it.
fn offsets(source: &mut LogSource, limits: FetchLimits) -> Vec<u64> {
    let mut all = Vec::new();
    for event in poll(source, limits) {
        match event {
            SourceEvent::Fetched(Fetch { queue: of, messages, position, .. }) => {
                assert_eq!(of, queue());
                all.extend(messages.iter().map(|message| message.offset().get()));
                assert_eq!(position, at(all.last().unwrap() + 1));
            }
            SourceEvent::End { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    all
}

fn few(messages: usize) -> FetchLimits {
    FetchLimits { messages, ..LIMITS }
}

#[test]
fn nothing_comes_before_a_seek_and_limits_hold_across_blocks() {
    let (_folder, log) = log(25);
    let mut source = source(&log);
    assert!(poll(&mut source, LIMITS).is_empty());
    source.seek(queue(), SeekTo::Position(at(3)));
    assert_eq!(offsets(&mut source, few(4)), [3, 4, 5, 6]);
    assert_eq!(offsets(&mut source, few(4)), [7, 8, 9, 10]);
    assert_eq!(offsets(&mut source, few(1)), [11]);
    assert_eq!(offsets(&mut source, LIMITS), (12..25).collect::<Vec<_>>());
    assert!(poll(&mut source, LIMITS).is_empty());
}

#[test]
fn bytes_limit_a_fetch_and_one_message_always_comes() {
    let (_folder, log) = log(25);
    let mut source = source(&log);
    source.seek(queue(), SeekTo::Earliest);
    // One byte a message up to offset 9, two from there on.
    let limits = FetchLimits { messages: 100, bytes: 3 };
    let first = offsets(&mut source, limits);
    assert_eq!(first, [0, 1, 2]);
    assert_eq!(offsets(&mut source, FetchLimits { messages: 100, bytes: 1 }), [3]);
    assert_eq!(offsets(&mut source, FetchLimits { messages: 0, bytes: 0 }), [4]);
}

#[test]
fn a_paused_queue_brings_nothing_and_goes_on_where_it_was() {
    let (_folder, log) = log(25);
    let mut source = source(&log);
    source.seek(queue(), SeekTo::Earliest);
    assert_eq!(offsets(&mut source, few(3)), [0, 1, 2]);
    source.pause(queue());
    source.pause(queue());
    assert!(poll(&mut source, LIMITS).is_empty());
    append(&log, 25..30);
    assert!(poll(&mut source, LIMITS).is_empty());
    source.resume(queue());
    assert_eq!(offsets(&mut source, LIMITS), (3..30).collect::<Vec<_>>());
    // A seek while paused is answered, and brings nothing.
    source.pause(queue());
    source.seek(queue(), SeekTo::Position(at(28)));
    assert!(offsets(&mut source, LIMITS).is_empty());
    source.resume(queue());
    assert_eq!(offsets(&mut source, LIMITS), [28, 29]);
}

#[test]
fn seeks_find_earliest_latest_and_timestamps() {
    let (_folder, log) = log(25);
    let mut source = source(&log);
    for (to, first) in [
        (SeekTo::Earliest, 0),
        (SeekTo::TimestampMs(i64::MIN), 0),
        (SeekTo::TimestampMs(0), 0),
        (SeekTo::TimestampMs(1), 1),
        (SeekTo::TimestampMs(90), 9),
        (SeekTo::TimestampMs(91), 10),
        (SeekTo::TimestampMs(240), 24),
        (SeekTo::Position(at(24)), 24),
    ] {
        source.seek(queue(), to);
        let first_offset = poll_for(&mut source, few(1), |event| match event {
            SourceEvent::Fetched(fetch) => Some(fetch.messages[0].offset().get()),
            _ => None,
        });
        assert_eq!(first_offset, first, "{to:?}");
    }
    for to in [SeekTo::Latest, SeekTo::TimestampMs(241), SeekTo::Position(at(25))] {
        source.seek(queue(), to);
        let events = poll(&mut source, LIMITS);
        let [SourceEvent::End { end: EndOffset::At(end), .. }] = &events[..] else {
            panic!("{to:?}: {events:?}")
        };
        assert_eq!(*end, at(25));
        assert!(poll(&mut source, LIMITS).is_empty(), "{to:?}");
    }
    append(&log, 25..26);
    assert_eq!(offsets(&mut source, LIMITS), [25]);
}

#[test]
fn records_that_are_out_of_order_in_time_are_found_by_the_first_that_is_late_enough() {
    let (_folder, log) = log(0);
    let producer = log.producer("t").unwrap();
    for timestamp in [Some(10), None, Some(50), Some(20), Some(60)] {
        let record = Record::new().to_queue(0);
        let record = timestamp.map_or(record, |timestamp| record.with_timestamp_ms(timestamp));
        producer.send(&record).unwrap();
    }
    let mut source = source(&log);
    for (timestamp, offset) in [(5, 0), (11, 2), (20, 2), (50, 2), (51, 4)] {
        source.seek(queue(), SeekTo::TimestampMs(timestamp));
        let found = poll_for(&mut source, few(1), |event| match event {
            SourceEvent::Fetched(fetch) => Some(fetch.messages[0].offset().get()),
            _ => None,
        });
        assert_eq!(found, offset, "{timestamp}");
    }
}

#[test]
fn a_position_outside_of_the_queue_is_answered_and_the_queue_waits() {
    let (_folder, log) = log(25);
    let mut source = source(&log);
    source.seek(queue(), SeekTo::Position(at(26)));
    let events = poll(&mut source, LIMITS);
    let [SourceEvent::Reset { queue: of, cause: ResetCause::OutOfRange { asked, begin, end } }] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*of, *asked, *begin, *end), (queue(), at(26), at(0), at(25)));
    append(&log, 25..40);
    assert!(poll(&mut source, LIMITS).is_empty(), "read on without a seek");
    source.seek(queue(), SeekTo::Position(at(39)));
    assert_eq!(offsets(&mut source, LIMITS), [39]);
}

#[test]
fn a_wake_is_never_lost() {
    let (_folder, log) = log(0);
    let mut source = source(&log);
    source.waker().wake();
    let start = Instant::now();
    let mut events = Vec::new();
    source.poll(LIMITS, PATIENCE, &mut events).unwrap();
    assert!(events.is_empty() && start.elapsed() < PATIENCE);
    let waker = source.waker();
    let waking = std::thread::spawn(move || waker.wake());
    source.poll(LIMITS, PATIENCE, &mut events).unwrap();
    assert!(events.is_empty() && start.elapsed() < PATIENCE);
    waking.join().unwrap();
    // Used once, it is used up: this one waits to its end.
    let (start, wait) = (Instant::now(), Duration::from_millis(20));
    source.poll(LIMITS, wait, &mut events).unwrap();
    assert!(start.elapsed() >= wait);
}

#[test]
fn commits_are_answered_each_and_looked_up() {
    let (_folder, log) = log(25);
    let mut source = source(&log);
    for n in 0..50 {
        let watermark = Watermark::new(n).unwrap();
        source.commit(Commit {
            queue: queue(),
            watermark,
            metadata: n.to_string(),
            tag: CommitTag(n),
        });
    }
    let mut answered = Vec::new();
    while answered.len() < 50 {
        let mut events = Vec::new();
        source.poll(LIMITS, PATIENCE, &mut events).unwrap();
        for event in events {
            let SourceEvent::CommitResult { commit, result: Ok(()) } = event else {
                panic!("{event:?}")
            };
            answered.push(commit.tag.0);
        }
    }
    assert_eq!(answered, (0..50).collect::<Vec<_>>());
    source.look_up_committed(queue());
    let events = poll(&mut source, LIMITS);
    let [SourceEvent::LookedUp { queue: of, committed: Committed::At { watermark, metadata } }] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*of, watermark.get(), &**metadata), (queue(), 49, "49"));
    // A lower one is a value too.
    commit(&mut source, queue(), 3, "").unwrap();
    drop(source);
    let found = assigned(&mut log.source("t", "g").unwrap());
    assert!(matches!(&found[0].1, Committed::At { watermark, .. } if watermark.get() == 3));
}

#[test]
fn a_commit_that_cannot_be_is_refused() {
    let (_folder, log) = log(0);
    let mut source = source(&log);
    for (queue, metadata) in [
        (QueueId::new("t", 2), String::new()),
        (QueueId::new("u", 0), String::new()),
        (queue(), "x".repeat(65_537)),
    ] {
        let error = commit(&mut source, queue, 1, &metadata).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("commit {queue} at 1 for group")),
            "{error}"
        );
    }
}

#[test]
fn a_released_queue_says_nothing_more() {
    let (_folder, log) = log(25);
    let mut source = source(&log);
    source.seek(queue(), SeekTo::Earliest);
    source.look_up_committed(queue());
    source.release(queue());
    append(&log, 25..30);
    source.seek(queue(), SeekTo::Earliest);
    source.resume(queue());
    source.look_up_committed(queue());
    assert!(poll(&mut source, LIMITS).is_empty());
}

#[test]
fn close_answers_what_was_handed_over_and_frees_the_group() {
    let (_folder, log) = log(0);
    let mut first = source(&log);
    let error = log.source("t", "g").unwrap_err();
    assert!(error.is_in_use(), "{error}");
    assert_eq!(
        error.to_string(),
        "group \"g\" has a live consumer of topic \"t\"; it can have one"
    );
    let other_group = log.source("t", "h").unwrap();
    let watermark = Watermark::new(8).unwrap();
    let asked = Commit { queue: queue(), watermark, metadata: "m".into(), tag: CommitTag(1) };
    first.commit(asked.clone());
    let mut events = Vec::new();
    first.close(PATIENCE, &mut events).unwrap();
    let [SourceEvent::CommitResult { commit, result: Ok(()) }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*commit, asked);
    // Free as soon as it is closed; a drop of the closed one does not free the next one.
    let second = log.source("t", "g").unwrap();
    drop(first);
    assert!(log.source("t", "g").unwrap_err().is_in_use());
    drop(second);
    // A commit that is under way when its consumer is dropped is seen by the next.
    let mut third = source(&log);
    let watermark = Watermark::new(9).unwrap();
    third.commit(Commit { watermark, ..asked });
    drop(third);
    let found = assigned(&mut log.source("t", "g").unwrap());
    assert!(matches!(&found[0].1, Committed::At { watermark, .. } if watermark.get() == 9));
    drop(other_group);
}

#[test]
fn many_queues_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("many", 300).unwrap();
    let producer = log.producer("many").unwrap();
    let mut batch = producer.batch();
    for n in 0..3000 {
        batch.push(&Record::new().to_queue(n % 300)).unwrap();
    }
    producer.append(&mut batch).unwrap();
    let mut source = log.source("many", "g").unwrap();
    for (queue, _) in assigned(&mut source) {
        source.seek(queue, SeekTo::Earliest);
    }
    let mut seen = vec![0; 300];
    while seen.iter().sum::<usize>() < 3000 {
        for event in poll(&mut source, few(5)) {
            if let SourceEvent::Fetched(fetch) = event {
                assert!(fetch.messages.len() <= 5);
                seen[fetch.queue.index() as usize] += fetch.messages.len();
                let lowest = seen.iter().min().unwrap();
                assert!(seen.iter().all(|n| *n <= lowest + 10), "a queue was left behind");
            }
        }
    }
}

#[test]
fn messages_share_the_memory_of_their_block() {
    let (_folder, log) = log(10);
    let mut source = source(&log);
    source.seek(queue(), SeekTo::Earliest);
    let messages = poll_for(&mut source, LIMITS, |event| match event {
        SourceEvent::Fetched(fetch) => Some(fetch.messages.clone()),
        _ => None,
    });
    let addresses: Vec<_> =
        messages.iter().map(|m| m.payload_bytes().unwrap().as_ptr() as usize).collect();
    // flags, timestamp, length, one digit: the records lie one behind the other.
    assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] == 1 + 8 + 1 + 1), "{addresses:?}");
}
