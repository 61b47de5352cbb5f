//! Folders, topics, producers: what opens, what is refused, and by which sentence.

use std::fs;
use std::time::Duration;

use keylane_log::{Fsync, Log, Options, Record, Retention};
use keylane_source::QueueId;

use crate::support::{assigned, commit, read_all};

#[test]
fn a_folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 1).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(error.is_locked());
    assert_eq!(
        error.to_string(),
        format!(
            "the log in {} is open already, in another process or through another handle \
             of this one",
            folder.path().display()
        )
    );
    // A producer or a source keeps it open as well.
    let producer = log.producer("t").unwrap();
    drop(log);
    assert!(Log::open(folder.path()).unwrap_err().is_locked());
    producer.send(&Record::new()).unwrap();
    drop(producer);
    assert_eq!(Log::open(folder.path()).unwrap().verify().unwrap(), 1);
}

#[test]
fn another_process_is_told_the_folder() {
    // A child that owns the folder is part of the crash tests; here the parent owns it.
    let folder = tempfile::tempdir().unwrap();
    let _log = Log::open(folder.path()).unwrap();
    let mut child = crate::crash::child(folder.path(), 0, Retention::Keep);
    let output = child.wait_with_output_lines();
    let refused = format!("the log in {} is open already", folder.path().display());
    assert!(output.iter().any(|line| line.contains(&refused)), "{output:?}");
}

#[test]
fn what_is_not_a_log_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let existing = Options::new().existing_only(true);
    assert!(existing.open(&missing).unwrap_err().is_not_found());
    assert!(!missing.exists());
    fs::write(folder.path().join("thesis.txt"), "words").unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(error.is_damaged() && error.to_string().contains("thesis.txt"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was created");
    drop(Log::open(&missing).unwrap());
    drop(existing.open(&missing).unwrap());
}

#[test]
fn an_interval_that_cannot_work_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for interval in [Duration::ZERO, Duration::from_secs(3601)] {
        let options = Options::new().fsync(Fsync::Interval(interval));
        let error = options.open(folder.path()).unwrap_err();
        assert!(error.is_invalid());
        assert!(error.to_string().contains("outside of 1 ms to 1 h"), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn every_policy_writes_and_finds() {
    for fsync in [Fsync::EveryBatch, Fsync::Interval(Duration::from_millis(1)), Fsync::Never] {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new().fsync(fsync);
        let log = options.open(folder.path()).unwrap();
        log.create_topic("t", 2).unwrap();
        let producer = log.producer("t").unwrap();
        for _ in 0..10 {
            producer.send(&Record::new().with_payload("x")).unwrap();
        }
        log.sync().unwrap();
        drop((log, producer));
        let log = options.open(folder.path()).unwrap();
        assert_eq!(log.verify().unwrap(), 10);
        assert!(log.power_loss().is_empty());
    }
}

#[test]
fn topics_are_created_once_and_keep_their_queues() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("b", 3).unwrap();
    log.create_topic("a name with spaces, ü", 1).unwrap();
    assert!(log.create_topic("b", 3).unwrap_err().is_already_exists());
    log.ensure_topic("b", 3).unwrap();
    let error = log.ensure_topic("b", 4).unwrap_err();
    assert!(error.is_invalid());
    assert_eq!(error.to_string(), "topic \"b\" has 3 queues, which cannot become 4");
    for (name, queues) in [("", 1), ("x\ny", 1), (&*"n".repeat(250), 1), ("c", 0), ("c", 65_537)] {
        let error = log.create_topic(name, queues).unwrap_err();
        assert!(error.is_invalid(), "{error}");
    }
    for call in
        [log.producer("c").map(drop), log.source("c", "g").map(drop), log.trim("c").map(drop)]
    {
        assert!(call.unwrap_err().is_not_found());
    }
    assert!(log.source("b", "").unwrap_err().is_invalid());
    drop(log);
    let log = Log::open(folder.path()).unwrap();
    let topics = log.topics();
    let shape: Vec<_> = topics.iter().map(|t| (&*t.name, t.queues.len())).collect();
    assert_eq!(shape, [("a name with spaces, ü", 1), ("b", 3)]);
    assert_eq!(topics[1].queues[2].queue, QueueId::new("b", 2));
}

#[test]
fn a_deleted_topic_is_gone_and_a_new_one_starts_at_zero() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 2).unwrap();
    log.create_topic("other", 1).unwrap();
    let producer = log.producer("t").unwrap();
    producer.send(&Record::new().to_queue(1)).unwrap();
    let mut source = log.source("t", "g").unwrap();
    let error = log.delete_topic("t").unwrap_err();
    assert!(error.is_in_use(), "{error}");
    assigned(&mut source);
    commit(&mut source, QueueId::new("t", 1), 1, "").unwrap();
    drop(source);
    log.delete_topic("t").unwrap();
    assert!(log.delete_topic("t").unwrap_err().is_not_found());
    assert!(producer.send(&Record::new()).unwrap_err().is_not_found());
    log.create_topic("t", 3).unwrap();
    drop((log, producer));
    let log = Log::open(folder.path()).unwrap();
    assert_eq!(log.topics().len(), 2);
    let info = log.topic("t").unwrap();
    assert!(info.queues.len() == 3 && info.queues.iter().all(|q| q.end.get() == 0));
    assert_eq!(log.groups("t").unwrap(), []);
    let found = assigned(&mut log.source("t", "g").unwrap());
    assert!(found.iter().all(|(_, c)| matches!(c, keylane_source::Committed::None)));
    log.delete_topic("t").unwrap();
    drop(log);
    assert_eq!(Log::open(folder.path()).unwrap().topics().len(), 1);
}

#[test]
fn queues_are_chosen_by_number_by_key_or_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 3).unwrap();
    let producer = log.producer("t").unwrap();
    let mut batch = producer.batch();
    let mut turn: Vec<_> = (0..6).map(|_| batch.push(&Record::new()).unwrap().index()).collect();
    turn.sort();
    assert_eq!(turn, [0, 0, 1, 1, 2, 2]);
    let record = Record::new().with_key("N15910");
    assert_eq!(batch.push(&record.to_queue(1)).unwrap().index(), 1);
    let empty = batch.push(&Record::new().with_key("")).unwrap();
    assert_eq!(empty, producer.queue_of(""));
    assert_eq!(batch.push(&record).unwrap(), producer.queue_of("N15910"));
    let error = batch.push(&record.to_queue(3)).unwrap_err();
    assert_eq!(error.to_string(), "queue 3 of topic \"t\", which has queues 0 to 2");
    assert!(error.is_invalid());
    assert_eq!(batch.len(), 9);
    log.create_topic("u", 3).unwrap();
    let other = log.producer("u").unwrap();
    let error = other.append(&mut batch).unwrap_err();
    assert_eq!(error.to_string(), "append to topic \"u\": the batch is of topic \"t\"");
    assert_eq!(producer.append(&mut batch).unwrap().iter().map(|a| a.count).sum::<u64>(), 9);
    assert_eq!(producer.append(&mut batch).unwrap(), []);
}

#[test]
fn a_record_that_is_too_large_is_refused_and_a_large_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 1).unwrap();
    let producer = log.producer("t").unwrap();
    let large = vec![7; 3 << 20];
    let mut batch = producer.batch();
    for payload in [&large[..1], &large, &large[..2], &large[..500_000], &large[..3]] {
        batch.push(&Record::new().with_payload(payload)).unwrap();
    }
    let appended = producer.append(&mut batch).unwrap();
    assert_eq!((appended.len(), appended[0].count, appended[0].first.get()), (1, 5, 0));
    let too_large = vec![0; 64 << 20];
    let error = batch.push(&Record::new().with_payload(&too_large)).unwrap_err();
    assert!(error.is_too_large() && batch.is_empty(), "{error}");
    let (_, offset) = producer.send(&Record::new()).unwrap();
    assert_eq!(offset.get(), 5);
    let messages = read_all(&mut log.source("t", "g").unwrap()).into_values().next().unwrap();
    let sizes: Vec<_> = messages.iter().map(|message| message.size()).collect();
    assert_eq!(sizes, [1, 3 << 20, 2, 500_000, 3, 0]);
}

#[test]
fn producers_in_many_threads_leave_no_gap() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 2).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let producer = log.producer("t").unwrap();
            scope.spawn(move || {
                for n in 0..50_u32 {
                    let mut batch = producer.batch();
                    for queue in 0..2 {
                        let payload = format!("{thread}/{n}");
                        batch.push(&Record::new().with_payload(&payload).to_queue(queue)).unwrap();
                    }
                    producer.append(&mut batch).unwrap();
                }
            });
        }
    });
    assert_eq!(log.verify().unwrap(), 400);
    for messages in read_all(&mut log.source("t", "g").unwrap()).into_values() {
        let mut next = [0; 4];
        for message in messages {
            let text = String::from_utf8(message.payload().unwrap().to_vec()).unwrap();
            let (thread, n) = text.split_once('/').unwrap();
            let next = &mut next[thread.parse::<usize>().unwrap()];
            assert_eq!(n.parse::<u32>().unwrap(), *next);
            *next += 1;
        }
        assert_eq!(next, [50; 4]);
    }
}
