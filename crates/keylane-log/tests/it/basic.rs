//! Appending, consuming, committing, and finding it all again.

use std::time::Duration;

use keylane_log::{Log, Record};
use keylane_source::{Committed, QueueId, SeekTo, Source, SourceEvent};

use crate::support::{LIMITS, assigned, at, commit, poll_for, read_all};

#[test]
fn what_is_appended_is_read_in_order_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 3).unwrap();
    let producer = log.producer("t").unwrap();
    let mut expected = vec![Vec::new(); 3];
    for round in 0..5_u32 {
        let mut batch = producer.batch();
        for n in 0..100 {
            let (key, payload) = (format!("k{}", n % 7), format!("{round}/{n}"));
            let queue = batch.push(&Record::new().with_key(&key).with_payload(&payload)).unwrap();
            assert_eq!(queue, producer.queue_of(&key));
            expected[queue.index() as usize].push((key, payload));
        }
        assert_eq!(batch.len(), 100);
        let appended = producer.append(&mut batch).unwrap();
        assert_eq!(appended.iter().map(|one| one.count).sum::<u64>(), 100);
        assert!(batch.is_empty());
    }
    drop(producer);
    let mut log = Some(log);
    for reopened in [false, true] {
        if reopened {
            drop(log.take()); // the folder is free before it is opened again
            log = Some(Log::open(folder.path()).unwrap());
        }
        let log = log.as_ref().unwrap();
        assert_eq!(log.verify().unwrap(), 500);
        let mut source = log.source("t", "g").unwrap();
        for (queue, messages) in read_all(&mut source) {
            let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
            let pairs: Vec<_> =
                messages.iter().map(|m| (text(m.key()), text(m.payload()))).collect();
            assert_eq!(pairs, expected[queue.index() as usize]);
            let offsets: Vec<_> = messages.iter().map(|m| m.offset().get()).collect();
            assert_eq!(offsets, (0..messages.len() as u64).collect::<Vec<_>>());
        }
    }
}

#[test]
fn absent_empty_and_present_come_back_as_they_went() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 1).unwrap();
    let producer = log.producer("t").unwrap();
    let values: [Option<&[u8]>; 3] = [None, Some(b""), Some(b"\0\xff\x80")];
    for key in values {
        for payload in values {
            let mut record = Record::new();
            if let Some(key) = key {
                record = record.with_key(key);
            }
            if let Some(payload) = payload {
                record = record.with_payload(payload);
            }
            producer.send(&record).unwrap();
        }
    }
    let headers: [(&[u8], Option<&[u8]>); 3] =
        [(b"a", None), (b"a", Some(b"")), (b"", Some(b"\0x"))];
    producer.send(&Record::new().with_headers(&headers).with_timestamp_ms(-5)).unwrap();

    let messages = read_all(&mut log.source("t", "g").unwrap()).into_values().next().unwrap();
    assert_eq!(messages.len(), 10);
    for (n, message) in messages[..9].iter().enumerate() {
        assert_eq!((message.key(), message.payload()), (values[n / 3], values[n % 3]), "{n}");
        assert_eq!((message.timestamp_ms(), message.headers().len()), (None, 0));
    }
    assert_eq!(messages[9].headers().iter().collect::<Vec<_>>(), headers);
    assert_eq!(messages[9].timestamp_ms(), Some(-5));
}

#[test]
fn a_committed_offset_is_found_by_the_next_consumer_and_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 2).unwrap();
    let queues = [0, 1].map(|index| QueueId::new("t", index));
    let mut source = log.source("t", "g").unwrap();
    assert!(assigned(&mut source).iter().all(|(_, c)| matches!(c, Committed::None)));
    commit(&mut source, queues[1], 7, "note").unwrap();
    source.close(Duration::from_secs(5), &mut Vec::new()).unwrap();
    drop(source);
    let mut log = Some(log);
    for reopened in [false, true] {
        if reopened {
            drop(log.take()); // the folder is free before it is opened again
            log = Some(Log::open(folder.path()).unwrap());
        }
        let log = log.as_ref().unwrap();
        let found = assigned(&mut log.source("t", "g").unwrap());
        assert!(matches!(found[0], (queue, Committed::None) if queue == queues[0]));
        let (queue, Committed::At { watermark, metadata }) = &found[1] else {
            panic!("{:?}", found[1])
        };
        assert_eq!((*queue, watermark.get(), &**metadata), (queues[1], 7, "note"));
    }
}

#[test]
fn a_waiting_poll_ends_when_something_is_appended() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 1).unwrap();
    let mut source = log.source("t", "g").unwrap();
    for (queue, _) in assigned(&mut source) {
        source.seek(queue, SeekTo::Latest);
    }
    let producer = log.producer("t").unwrap();
    let appending = std::thread::spawn(move || producer.send(&Record::new().with_payload("x")));
    let position = poll_for(&mut source, LIMITS, |event| match event {
        SourceEvent::Fetched(fetch) => Some(fetch.position),
        _ => None,
    });
    assert_eq!(position, at(1));
    appending.join().unwrap().unwrap();
}
