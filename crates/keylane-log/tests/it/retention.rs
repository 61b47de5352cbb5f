//! What is removed, what is kept, and what a group is told that comes too late.
#![expect(clippy::unwrap_used, reason = "this is part of the tests")]

use keylane_log::{Log, LogSource, Options, Record, Retention};
use keylane_source::{
    Commit, CommitTag, FetchLimits, QueueId, ResetCause, SeekTo, Source, SourceEvent, Watermark,
};

use crate::support::{LIMITS, PATIENCE, assigned, at, commit, poll_for};

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
    // Names of which one begins the other.
    let (mut a, mut b) = (consumer(&log, "a"), consumer(&log, "ab"));
    commit(&mut a, queue(0), 40, "note").unwrap();
    commit(&mut b, queue(1), 10, "").unwrap();
    drop(b);
    let groups = log.groups("t").unwrap();
    let shown: Vec<_> = groups.iter().map(|g| (&*g.group, g.is_live)).collect();
    assert_eq!(shown, [("a", true), ("ab", false)]);
    let queues: Vec<_> = groups[0]
        .queues
        .iter()
        .map(|q| (q.queue, q.committed.map(|w| w.get()), &*q.metadata, q.lag))
        .collect();
    assert_eq!(queues, [(queue(0), Some(40), "note", 60), (queue(1), None, "", 100)]);
    let lags: Vec<_> =
        groups[1].queues.iter().map(|q| (q.committed.map(|w| w.get()), q.lag)).collect();
    assert_eq!(lags, [(None, 100), (Some(10), 90)]);
    assert!(log.groups("u").unwrap_err().is_not_found());
}

#[test]
fn an_operator_moves_an_offset_and_what_is_on_its_way_does_not_undo_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    fill(&log);
    assert!(log.move_offset("g", queue(0), at(5)).unwrap_err().is_not_found());
    let mut source = consumer(&log, "g");
    for (queue, to, sentence) in [
        (queue(0), at(101), "it goes from 0 to 100"),
        (queue(2), at(0), "queue 2 of topic \"t\", which has queues 0 to 1"),
        (QueueId::on_broker("t", "b", 0), at(0), "there is no such queue"),
    ] {
        let error = log.move_offset("g", queue, to).unwrap_err();
        assert!(error.is_invalid() && error.to_string().ends_with(sentence), "{error}");
    }
    commit(&mut source, queue(0), 50, "").unwrap();
    source.seek(queue(0), SeekTo::Earliest);
    log.move_offset("g", queue(0), at(20)).unwrap();
    // The consumer does not know yet. A commit of the other queue goes through.
    let (first, second) = (Watermark::new(60).unwrap(), Watermark::new(7).unwrap());
    for (queue, watermark) in [(queue(0), first), (queue(1), second)] {
        let tag = CommitTag(watermark.get());
        source.commit(Commit { queue, watermark, metadata: String::new(), tag });
    }
    let (mut results, mut moved) = (Vec::new(), Vec::new());
    while results.len() < 2 || moved.is_empty() {
        let mut events = Vec::new();
        source.poll(LIMITS, PATIENCE, &mut events).unwrap();
        for event in events {
            match event {
                SourceEvent::CommitResult { commit, result } => {
                    results.push((commit.tag.0, result.is_ok()));
                }
                SourceEvent::Reset { cause: ResetCause::Moved { to }, .. } => moved.push(to),
                other => panic!("{other:?}"),
            }
        }
    }
    results.sort();
    assert_eq!((results, moved), (vec![(7, true), (60, false)], vec![at(20)]));
    let committed = |log: &Log| {
        let groups = log.groups("t").unwrap();
        groups[0].queues.iter().map(|q| q.committed.map(|w| w.get())).collect::<Vec<_>>()
    };
    assert_eq!(committed(&log), [Some(20), Some(7)]);
    commit(&mut source, queue(0), 30, "").unwrap();
    drop(source);
    // Without a consumer too.
    log.move_offset("g", queue(0), at(0)).unwrap();
    assert_eq!(committed(&log), [Some(0), Some(7)]);
}
