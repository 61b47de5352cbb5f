//! What is removed, what is kept, and what a group is told that comes too late.

use keylane_log::{Log, LogSource, Options, Record, Retention};
use keylane_source::{FetchLimits, QueueId, ResetCause, SeekTo, Source, SourceEvent};

use crate::support::{LIMITS, assigned, at, commit, poll_for};

fn queue(index: u32) -> QueueId {
    QueueId::new("t", index)
}

/// Ten blocks of ten records in each of two queues.
fn fill(log: &Log) {
    log.create_topic("t", 2).unwrap();
    let producer = log.producer("t").unwrap();
    let mut batch = producer.batch();
    for _ in 0..10 {
        for n in 0..20 {
            batch.push(&Record::new().with_payload("x").to_queue(n % 2)).unwrap();
        }
        producer.append(&mut batch).unwrap();
    }
}

fn consumer(log: &Log, group: &str) -> LogSource {
    let mut source = log.source("t", group).unwrap();
    assigned(&mut source);
    source
}

fn bounds(log: &Log) -> Vec<(u64, u64)> {
    let topic = log.topic("t").unwrap();
    topic.queues.iter().map(|queue| (queue.begin.get(), queue.end.get())).collect()
}

#[test]
fn only_what_every_group_has_passed_is_removed_in_whole_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    fill(&log);
    assert_eq!(log.trim("t").unwrap(), [], "without a group");
    let (mut slow, mut fast) = (consumer(&log, "slow"), consumer(&log, "fast"));
    commit(&mut fast, queue(0), 100, "").unwrap();
    assert_eq!(log.trim("t").unwrap(), [], "a group that has not committed holds everything");
    commit(&mut slow, queue(0), 35, "").unwrap();
    let trimmed = log.trim("t").unwrap();
    assert_eq!(trimmed.len(), 1);
    let one = trimmed[0];
    assert_eq!((one.queue, one.from, one.begin), (queue(0), at(0), at(30)));
    assert_eq!(bounds(&log), [(30, 100), (0, 100)]);
    assert_eq!(log.verify().unwrap(), 70 + 100);
    drop((slow, fast, log));

    let log = Log::open(folder.path()).unwrap();
    assert_eq!(bounds(&log), [(30, 100), (0, 100)]);
    assert_eq!(log.verify().unwrap(), 70 + 100);
    assert!(log.forget_group("t", "nobody").unwrap_err().is_not_found());
    log.forget_group("t", "slow").unwrap();
    log.trim("t").unwrap();
    assert_eq!(bounds(&log), [(100, 100), (0, 100)]);
    drop(log);

    // A queue without a record remembers where it is.
    let log = Log::open(folder.path()).unwrap();
    assert_eq!(bounds(&log), [(100, 100), (0, 100)]);
    let (_, offset) = log.producer("t").unwrap().send(&Record::new().to_queue(0)).unwrap();
    assert_eq!(offset.get(), 100);
    assert_eq!(log.verify().unwrap(), 101);
}

#[test]
fn a_group_that_comes_too_late_is_told_where_the_queue_begins() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    fill(&log);
    let mut source = consumer(&log, "g");
    // It has read a little of the first block and keeps the rest.
    source.seek(queue(0), SeekTo::Earliest);
    let limits = FetchLimits { messages: 3, bytes: 1000 };
    let read = poll_for(&mut source, limits, |event| match event {
        SourceEvent::Fetched(fetch) => Some(fetch.position),
        _ => None,
    });
    assert_eq!(read, at(3));
    source.pause(queue(0));
    commit(&mut source, queue(0), 50, "").unwrap();
    log.trim("t").unwrap();
    source.resume(queue(0));
    // The memory of that block is good; behind it there is a gap.
    let asked = poll_for(&mut source, limits, |event| match event {
        SourceEvent::Reset { cause: ResetCause::OutOfRange { asked, begin, end }, .. } => {
            assert_eq!((*begin, *end), (at(50), at(100)));
            Some(*asked)
        }
        SourceEvent::QueueError { error, .. } => panic!("{error}"),
        _ => None,
    });
    assert_eq!(asked, at(10));
    for position in [0, 49] {
        source.seek(queue(0), SeekTo::Position(at(position)));
        poll_for(&mut source, LIMITS, |event| match event {
            SourceEvent::Reset { cause: ResetCause::OutOfRange { asked, begin, end }, .. } => {
                assert_eq!((*asked, *begin, *end), (at(position), at(50), at(100)));
                Some(())
            }
            _ => None,
        });
    }
    source.seek(queue(0), SeekTo::Earliest);
    let first = poll_for(&mut source, LIMITS, |event| match event {
        SourceEvent::Fetched(fetch) => Some(fetch.messages[0].offset().get()),
        _ => None,
    });
    assert_eq!(first, 50);
}

#[test]
fn what_is_consumed_goes_by_itself_if_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let log = Options::new().retention(Retention::Consumed).open(folder.path()).unwrap();
    fill(&log);
    let mut source = consumer(&log, "g");
    commit(&mut source, queue(1), 100, "").unwrap();
    // The answer comes before the removal, and the next commit is taken up after it.
    commit(&mut source, queue(0), 20, "").unwrap();
    assert_eq!(bounds(&log)[1], (100, 100));
    drop((source, log));
    assert_eq!(bounds(&Log::open(folder.path()).unwrap()), [(20, 100), (100, 100)]);
}

#[test]
fn groups_and_their_lag_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    fill(&log);
    assert_eq!(log.groups("t").unwrap(), []);
    let (mut a, b) = (consumer(&log, "a"), consumer(&log, "b"));
    commit(&mut a, queue(0), 40, "note").unwrap();
    drop(b);
    let groups = log.groups("t").unwrap();
    let shown: Vec<_> = groups.iter().map(|g| (&*g.group, g.is_live)).collect();
    assert_eq!(shown, [("a", true), ("b", false)]);
    let queues: Vec<_> = groups[0]
        .queues
        .iter()
        .map(|q| (q.queue, q.committed.map(|w| w.get()), &*q.metadata, q.lag))
        .collect();
    assert_eq!(queues, [(queue(0), Some(40), "note", 60), (queue(1), None, "", 100)]);
    assert!(groups[1].queues.iter().all(|q| q.committed.is_none() && q.lag == 100));
    assert!(log.groups("u").unwrap_err().is_not_found());
}
