//! What is fetched, and what pause, seek and limits do to it.

use std::time::{Duration, Instant};

use keylane_kafka::Record;
use keylane_source::{EndOffset, FetchLimits, Headers, Message, ResetCause, SeekTo, Source};

use crate::cluster::Cluster;
use crate::member::{Member, position, queue};

#[test]
fn key_payload_headers_and_timestamp_come_back_as_they_were_sent() {
    let cluster = Cluster::new(1);
    let headers: Headers = [("a", Some("1")), ("a", Some("")), ("b", None)].into_iter().collect();
    let large = vec![b'x'; 100_000];
    let producer = cluster.producer();
    for record in [
        Record::to("t").key(b"k").payload(b"v").headers(&headers).timestamp_ms(1_234_567),
        Record::to("t").key(b"").payload(b""),
        Record::to("t"),
        Record::to("t").key(b"large").payload(&large),
    ] {
        producer.send(record).unwrap();
    }
    producer.flush(Duration::from_secs(10)).unwrap();

    let mut member = Member::joined(cluster.source(), 1);
    member.until("all four are there", |m| m.count() == 4);
    let all = &member.messages[&queue(0)];
    assert_eq!(member.offsets(queue(0)), [0, 1, 2, 3]);
    assert_eq!((all[0].key(), all[0].payload()), (Some(&b"k"[..]), Some(&b"v"[..])));
    assert_eq!(all[0].timestamp_ms(), Some(1_234_567));
    let seen: Vec<_> = all[0].headers().iter().collect();
    assert_eq!(
        seen,
        [(&b"a"[..], Some(&b"1"[..])), (&b"a"[..], Some(&b""[..])), (&b"b"[..], None)]
    );
    assert_eq!((all[1].key(), all[1].payload()), (Some(&b""[..]), Some(&b""[..])));
    assert!(all[1].headers().is_empty());
    assert_eq!((all[2].key(), all[2].payload()), (None, None));
    assert_eq!((all[3].key(), all[3].payload()), (Some(&b"large"[..]), Some(&large[..])));
    member.close().unwrap();
}

#[test]
fn headers_are_left_out_where_nobody_wants_them() {
    let cluster = Cluster::new(1);
    let headers: Headers = [("a", Some("1"))].into_iter().collect();
    let producer = cluster.producer();
    producer.send(Record::to("t").key(b"k").payload(b"v").headers(&headers)).unwrap();
    producer.flush(Duration::from_secs(10)).unwrap();

    for (read, expected) in [(true, 1), (false, 0)] {
        let mut member = Member::joined(cluster.source().headers(read), 1);
        member.until("the message is there", |m| m.count() == 1);
        let message = &member.messages[&queue(0)][0];
        assert_eq!((message.key(), message.payload()), (Some(&b"k"[..]), Some(&b"v"[..])));
        assert_eq!(message.headers().len(), expected);
        member.close().unwrap();
    }
}

#[test]
fn a_close_does_not_wait_for_messages_that_are_alive() {
    let cluster = Cluster::new(1);
    let producer = cluster.producer();
    let large = vec![7; 50_000];
    producer.send(Record::to("t").payload(&large)).unwrap();
    producer.flush(Duration::from_secs(10)).unwrap();
    let mut member = Member::joined(cluster.source(), 1);
    member.until("the message is there", |m| m.count() == 1);
    let kept = member.messages.remove(&queue(0)).unwrap();
    member.close().unwrap();
    drop(member);
    // The payload is librdkafka's still; another member gets the queue meanwhile.
    let mut next = Member::joined(cluster.source(), 1);
    next.until("the message is there again", |m| m.count() == 1);
    assert_eq!(kept[0].payload(), Some(&large[..]));
    next.close().unwrap();
}

#[test]
fn a_payload_is_shared_until_a_message_is_detached_from_its_fetch() {
    let cluster = Cluster::new(1);
    let producer = cluster.producer();
    let (small, large) = (vec![1; 100], vec![2; 50_000]);
    for payload in [&small, &large] {
        producer.send(Record::to("t").key(b"k").payload(payload)).unwrap();
    }
    producer.flush(Duration::from_secs(10)).unwrap();
    let mut member = Member::joined(cluster.source(), 1);
    member.until("both are there", |m| m.count() == 2);
    let all = member.messages.remove(&queue(0)).unwrap();
    let place = |message: &Message| message.payload().unwrap().as_ptr();
    for (message, payload) in all.iter().zip([&small, &large]) {
        assert_eq!(place(&message.clone()), place(message));
        let detached = message.detach();
        assert_ne!(place(&detached), place(message));
        assert_eq!(detached.payload(), Some(&payload[..]));
        assert_eq!((detached.key(), detached.offset()), (Some(&b"k"[..]), message.offset()));
    }
    member.close().unwrap();
}

#[test]
fn nothing_is_fetched_before_the_seek() {
    let cluster = Cluster::new(2);
    cluster.fill(0, 0..10);
    cluster.fill(1, 0..10);
    let mut member = Member::new(cluster.source());
    member.starts = false;
    member.until("two queues are assigned", |m| m.owned.len() == 2);
    member.source.seek(queue(1), SeekTo::Position(position(4)));
    member.until("the queue that was started is read", |m| m.offsets(queue(1)).len() == 6);
    assert_eq!(member.offsets(queue(1)), [4, 5, 6, 7, 8, 9]);
    assert!(member.offsets(queue(0)).is_empty());
    member.close().unwrap();
}

#[test]
fn a_seek_drops_what_was_fetched_and_goes_where_it_is_told() {
    let cluster = Cluster::new(1);
    cluster.fill(0, 0..100);
    let mut member = Member::new(cluster.source());
    // More is read at a time than may be given out: the rest waits, and has to go.
    member.limits = FetchLimits { messages: 1_000, bytes: 20 };
    member.until("something is read", |m| m.count() > 0);
    let read = member.messages.remove(&queue(0)).unwrap();
    assert_eq!(read[0].offset().get(), 0);

    member.source.seek(queue(0), SeekTo::Position(position(97)));
    member.until("the tail is read", |m| m.count() == 3);
    assert_eq!(member.offsets(queue(0)), [97, 98, 99]);

    member.messages.clear();
    member.source.seek(queue(0), SeekTo::Earliest);
    member.until("all is read", |m| m.count() == 100);
    assert_eq!(member.offsets(queue(0)), (0..100).collect::<Vec<_>>());

    // Behind the last message: the position is told without one.
    member.messages.clear();
    member.positions.clear();
    member.source.seek(queue(0), SeekTo::Latest);
    member.until("the end is told", |m| m.positions.contains_key(&queue(0)));
    assert_eq!(member.positions[&queue(0)], position(100));
    assert_eq!(member.ends[&queue(0)], EndOffset::At(position(100)));
    cluster.fill(0, 100..101);
    member.until("a new message is read", |m| m.count() == 1);
    assert_eq!(member.offsets(queue(0)), [100]);
    member.close().unwrap();
}

#[test]
fn limits_hold_per_fetch_and_lose_nothing() {
    let cluster = Cluster::new(2);
    cluster.fill(0, 0..500);
    cluster.fill(1, 0..500);
    let mut member = Member::joined(cluster.source(), 2);
    for limits in
        [FetchLimits { messages: 7, bytes: 1 << 20 }, FetchLimits { messages: 1_000, bytes: 20 }]
    {
        member.messages.clear();
        member.limits = limits;
        let mut before = [0, 0];
        for index in [0, 1] {
            member.source.seek(queue(index), SeekTo::Earliest);
        }
        while member.count() < 1_000 {
            member.poll(Duration::from_millis(50));
            for index in [0, 1] {
                let now = member.offsets(queue(index)).len();
                let brought = now - before[index as usize];
                // The shortest payload is one byte long.
                let most = if limits.bytes == 20 { 20 } else { 7 };
                assert!(brought <= most, "{brought} messages with {limits:?}");
                before[index as usize] = now;
            }
        }
        for index in [0, 1] {
            assert_eq!(member.offsets(queue(index)), (0..500).collect::<Vec<_>>());
        }
    }
    member.close().unwrap();
}

#[test]
fn a_paused_queue_brings_nothing_and_the_resumed_one_loses_nothing() {
    let cluster = Cluster::new(2);
    cluster.fill(0, 0..2_000);
    cluster.fill(1, 0..2_000);
    let mut member = Member::joined(cluster.source(), 2);
    member.limits = FetchLimits { messages: 50, bytes: 1 << 20 };
    member.until("both are read", |m| {
        !m.offsets(queue(0)).is_empty() && !m.offsets(queue(1)).is_empty()
    });
    // Again and again, in the middle of what has been fetched.
    for _ in 0..5 {
        member.source.pause(queue(0));
        member.source.pause(queue(0));
        let seen = member.offsets(queue(0)).len();
        let other = member.offsets(queue(1)).len();
        let more = (other + 100).min(2_000);
        member.until("the other goes on", |m| m.offsets(queue(1)).len() >= more);
        assert_eq!(member.offsets(queue(0)).len(), seen, "a paused queue brought messages");
        member.source.resume(queue(0));
        let more = (seen + 100).min(2_000);
        member.until("it goes on", |m| m.offsets(queue(0)).len() >= more);
    }
    member.until("all is read", |m| m.count() == 4_000);
    for index in [0, 1] {
        assert_eq!(member.offsets(queue(index)), (0..2_000).collect::<Vec<_>>());
    }
    member.close().unwrap();
}

#[test]
fn a_position_outside_the_queue_is_told_and_can_be_left_again() {
    for settings in [[("partition.assignment.strategy", "range")], [COOPERATIVE]] {
        let cluster = Cluster::new(2);
        cluster.fill(0, 0..10);
        cluster.fill(1, 0..10);
        let mut member = Member::new(cluster.source().set(settings[0].0, settings[0].1));
        member.starts = false;
        member.until("two queues are assigned", |m| m.owned.len() == 2);
        member.source.seek(queue(1), SeekTo::Earliest);
        member.until("the other is read", |m| m.offsets(queue(1)).len() == 10);
        member.source.seek(queue(0), SeekTo::Position(position(1_000)));
        member.until("the reset is told", |m| !m.resets.is_empty());
        let (reset, cause) = &member.resets[0];
        assert_eq!(*reset, queue(0));
        let ResetCause::OutOfRange { asked, begin, end } = cause else { panic!("{cause:?}") };
        assert_eq!((*asked, *begin, *end), (position(1_000), position(0), position(10)));
        member.source.seek(queue(0), SeekTo::Position(position(8)));
        member.until("it is read again", |m| m.offsets(queue(0)).len() == 2);
        // The other queue has noticed nothing: no message twice, none lost.
        cluster.fill(1, 10..12);
        member.until("the other goes on", |m| m.offsets(queue(1)).len() >= 12);
        assert_eq!(member.offsets(queue(1)), (0..12).collect::<Vec<_>>());
        assert_eq!(member.offsets(queue(0)), [8, 9]);
        assert_eq!(member.resets.len(), 1);
        member.close().unwrap();
    }
}

pub(crate) const COOPERATIVE: (&str, &str) =
    ("partition.assignment.strategy", "cooperative-sticky");

#[test]
fn a_wake_ends_the_wait_and_is_never_lost() {
    let cluster = Cluster::new(1);
    let mut member = Member::joined(cluster.source(), 1);
    member.until("the queue's end is known", |m| m.positions.contains_key(&queue(0)));
    let hour = Duration::from_secs(3_600);
    let waker = member.source.waker();
    // Used before the wait, and during it.
    waker.wake();
    member.poll(hour);
    let waking = std::thread::spawn(move || waker.wake());
    member.poll(hour);
    waking.join().unwrap();
    member.close().unwrap();
}

#[test]
fn partitions_can_be_assigned_without_a_group() {
    let cluster = Cluster::new(3);
    cluster.fill(2, 0..5);
    let source = keylane_kafka::KafkaSource::builder(cluster.servers(), "g").assign([("t", 2)]);
    let mut member = Member::joined(source, 1);
    member.until("it is read", |m| m.count() == 5);
    assert_eq!(member.offsets(queue(2)), [0, 1, 2, 3, 4]);
    member.commit(crate::member::commit(queue(2), 5, "")).unwrap();
    member.close().unwrap();
}

#[test]
fn a_broker_that_is_away_is_an_error_and_a_close_keeps_its_time() {
    let cluster = Cluster::new(1);
    let mut member = Member::joined(cluster.source(), 1);
    cluster.mock().broker_down(1).unwrap();
    member.until("it is told", |m| !m.errors.is_empty());
    assert!(member.errors[0].is_retryable());
    member.source.commit(crate::member::commit(queue(0), 0, ""));
    let (start, mut events) = (Instant::now(), Vec::new());
    let timeout = Duration::from_secs(2);
    let _ = member.source.close(timeout, &mut events);
    assert!(start.elapsed() < timeout + Duration::from_millis(500), "{:?}", start.elapsed());
    assert_eq!(events.len(), 1, "the commit is answered: {events:?}");
}
