//! Reading: seeks, pulls, limits, pauses, filters, what is between the offsets, commits.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use keylane_rocketmq::{Config, KeyFrom};
use keylane_source::{Committed, EndOffset, FetchLimits, ResetCause, SeekTo, Source, SourceEvent};

use crate::broker::frame::Frame;
use crate::broker::{Cluster, Put, What};
use crate::member::{Member, at, commit, config, queue};

fn one_queue() -> (Cluster, keylane_source::QueueId) {
    let cluster = Cluster::start(&["a"]);
    cluster.topic("a", "t", 1);
    (cluster, queue("a", 0))
}

fn put_all(cluster: &Cluster, count: u32) {
    for number in 0..count {
        cluster.put("a", "t", 0, Put::new(number.to_string()));
    }
}

fn is_fetch(event: &SourceEvent) -> bool {
    matches!(event, SourceEvent::Fetched(_))
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn every_message_of_every_queue_in_order() {
    let cluster = Cluster::start(&["a", "b"]);
    let mut queues = Vec::new();
    for broker in ["a", "b"] {
        cluster.topic(broker, "t", 2);
        for index in 0..2 {
            queues.push(queue(broker, index));
            for number in 0..250 {
                cluster.put(broker, "t", index as usize, Put::new(number.to_string()));
            }
        }
    }
    let mut member = Member::reading(config(&cluster), &queues);
    let bodies = member.read(1_000);
    assert_eq!(bodies.keys().copied().collect::<Vec<_>>(), queues);
    assert!(bodies.values().all(|bodies| *bodies == numbers(0..250)));
}

#[test]
fn nothing_is_read_before_the_engine_says_where() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 3);
    let mut member = Member::join(config(&cluster));
    assert!(matches!(member.assigned(1)[&queue], Committed::None));
    member.none("a fetch without a seek", is_fetch);
    assert_eq!(cluster.count("a", 11), 0);
    member.source.seek(queue, SeekTo::Position(at(1)));
    let fetch = member.fetch();
    assert_eq!((fetch.messages.len(), fetch.position), (2, at(3)));
    assert_eq!(fetch.end, EndOffset::At(at(3)));
}

#[test]
fn each_way_to_seek() {
    let (cluster, queue) = one_queue();
    for number in 0..6 {
        let put = Put { stored_ms: 1_000 * number, ..Put::new(number.to_string()) };
        cluster.put("a", "t", 0, put);
    }
    cluster.change(|state| {
        state.brokers.get_mut("a").unwrap().topics.get_mut("t").unwrap()[0].trim(2);
    });
    let mut member = Member::join(config(&cluster));
    member.assigned(1);
    member.source.seek(queue, SeekTo::Earliest);
    assert_eq!(member.read(4)[&queue], numbers(2..6));
    member.source.seek(queue, SeekTo::TimestampMs(3_500));
    let fetch = member.fetch();
    assert_eq!(fetch.messages[0].offset().get(), 4);
    assert_eq!(fetch.messages[0].timestamp_ms(), Some(4_000));
    member.source.seek(queue, SeekTo::Position(at(3)));
    assert_eq!(member.read(3)[&queue], numbers(3..6));
    member.source.seek(queue, SeekTo::Latest);
    member.until("end", |event| match event {
        SourceEvent::End { end, .. } => (*end == EndOffset::At(at(6))).then_some(()),
        _ => None,
    });
    cluster.put("a", "t", 0, Put::new("6"));
    assert_eq!(member.read(1)[&queue], ["6"]);
}

#[test]
fn a_message_that_arrives_ends_the_brokers_hold() {
    let (cluster, queue) = one_queue();
    let hold = Duration::from_secs(60);
    let mut member = Member::reading(config(&cluster).hold(hold), &[queue]);
    member.until_so("a pull is held", |_| cluster.count("a", 11) == 2);
    cluster.put("a", "t", 0, Put::new("now"));
    assert_eq!(member.read(1)[&queue], ["now"]);
}

#[test]
fn the_first_pull_is_not_held_so_that_the_end_is_known() {
    let (cluster, queue) = one_queue();
    let mut member = Member::reading(config(&cluster).hold(Duration::from_secs(60)), &[queue]);
    let end = member.until("end", |event| match event {
        SourceEvent::End { end, .. } => Some(*end),
        _ => None,
    });
    assert_eq!(end, EndOffset::At(at(0)));
}

#[test]
fn a_fetch_is_cut_to_the_limits() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 10);
    let mut member = Member::join(config(&cluster));
    member.assigned(1);
    member.limits = FetchLimits { messages: 100, bytes: 1 };
    member.source.seek(queue, SeekTo::Earliest);
    let fetch = member.fetch();
    assert_eq!((fetch.messages.len(), fetch.position), (1, at(1)));
    member.limits = FetchLimits { messages: 4, bytes: 1 << 20 };
    let fetch = member.fetch();
    assert_eq!((fetch.messages.len(), fetch.position), (4, at(5)));
    assert_eq!(member.read(5)[&queue], numbers(5..10));
}

#[test]
fn a_paused_queue_brings_nothing_and_loses_nothing() {
    let cluster = Cluster::start(&["a"]);
    cluster.topic("a", "t", 2);
    let (paused, other) = (queue("a", 0), queue("a", 1));
    let mut member = Member::reading(config(&cluster), &[paused, other]);
    member.until_so("both pulls are held", |_| cluster.count("a", 11) == 4);
    member.source.pause(paused);
    member.source.pause(paused);
    cluster.put("a", "t", 0, Put::new("kept"));
    cluster.put("a", "t", 1, Put::new("read"));
    assert_eq!(member.read(1)[&other], ["read"]);
    member.none("a fetch while paused", is_fetch);
    member.source.resume(paused);
    assert_eq!(member.read(1)[&paused], ["kept"]);
}

#[test]
fn a_seek_drops_what_was_not_given_out() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 10);
    let mut member = Member::reading(config(&cluster), &[queue]);
    member.limits = FetchLimits { messages: 2, bytes: 1 << 20 };
    assert_eq!(member.read(2)[&queue], numbers(0..2));
    member.source.seek(queue, SeekTo::Position(at(8)));
    assert_eq!(member.read(2)[&queue], numbers(8..10));
}

#[test]
fn of_two_seeks_the_later_one_counts_however_late_the_first_is_answered() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 10);
    let mut member = Member::join(config(&cluster));
    member.assigned(1);
    for _ in 0..10 {
        member.source.seek(queue, SeekTo::Earliest);
        member.source.seek(queue, SeekTo::Position(at(8)));
        assert_eq!(member.read(2)[&queue], numbers(8..10));
        member.none("a fetch from where the first seek went", is_fetch);
    }
}

#[test]
fn the_waker_ends_a_wait_and_is_never_lost() {
    let (cluster, _) = one_queue();
    let mut member = Member::join(config(&cluster));
    member.assigned(1);
    let waker = member.source.waker();
    waker.wake();
    waker.wake();
    member.poll_for(Duration::from_secs(3_600));
    let other = std::thread::spawn(move || waker.wake());
    member.poll_for(Duration::from_secs(3_600));
    other.join().unwrap();
}

#[test]
fn a_commit_is_answered_by_the_broker() {
    let (cluster, queue) = one_queue();
    let mut member = Member::join(config(&cluster));
    member.assigned(1);
    member.source.commit(commit(queue, 7, 1));
    let (answered, result) = member.commit_result();
    assert_eq!((answered, result.is_ok()), (commit(queue, 7, 1), true));
    assert_eq!(cluster.committed("a", "g", "t", 0), Some(7));
    cluster.fault("a", 15, 1, What::Refuse(1));
    member.source.commit(commit(queue, 9, 2));
    let (answered, result) = member.commit_result();
    assert_eq!(answered, commit(queue, 9, 2));
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "commit t@a/0 at 9: refused with code 1: as told");
    assert!(error.is_retryable());
    assert_eq!(cluster.committed("a", "g", "t", 0), Some(7));
    member.source.commit(commit(crate::member::queue("b", 0), 9, 3));
    assert_eq!(
        member.commit_result().1.unwrap_err().to_string(),
        "commit t@b/0 at 9: not this member's"
    );
}

#[test]
fn a_first_commit_that_is_acknowledged_and_not_stored_has_failed() {
    let (cluster, queue) = one_queue();
    let mut member = Member::reading(config(&cluster), &[queue]);
    cluster.fault("a", 15, 1, What::Pretend);
    member.source.commit(commit(queue, 5, 1));
    let error = member.commit_result().1.unwrap_err().to_string();
    assert_eq!(error, "commit t@a/0 at 5: acknowledged, and not there");
    member.source.commit(commit(queue, 6, 2));
    assert!(member.commit_result().1.is_ok());
    assert_eq!(cluster.committed("a", "g", "t", 0), Some(6));
    // The first one only.
    cluster.fault("a", 15, 1, What::Pretend);
    member.source.commit(commit(queue, 7, 3));
    assert!(member.commit_result().1.is_ok());
}

#[test]
fn first_commits_are_sent_one_at_a_time() {
    let cluster = Cluster::start(&["a"]);
    cluster.topic("a", "t", 3);
    let queues = [0, 1, 2].map(|index| queue("a", index));
    let mut member = Member::reading(config(&cluster), &queues);
    cluster.fault("a", 15, 1, What::Ignore);
    for (queue, tag) in queues.iter().zip(1..) {
        member.source.commit(commit(*queue, 5, tag));
    }
    // Whatever else is answered meanwhile.
    member.source.look_up_committed(queues[0]);
    member.until("another answer", |event| {
        matches!(event, SourceEvent::LookedUp { .. }).then_some(())
    });
    assert_eq!(cluster.count("a", 15), 1);
    cluster.cut("a");
    let mut results = [(); 3].map(|()| member.commit_result());
    results.sort_by_key(|(commit, _)| commit.tag.0);
    assert_eq!(results.map(|(_, result)| result.is_ok()), [false, true, true]);
    let committed = [0, 1, 2].map(|index| cluster.committed("a", "g", "t", index));
    assert_eq!(committed, [None, Some(5), Some(5)]);
}

#[test]
fn what_was_committed_none_and_failed_are_three_things() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 5);
    cluster.fault("a", 14, 1, What::Refuse(1));
    let mut member = Member::join(config(&cluster));
    let Committed::Failed(error) = member.assigned(1).remove(&queue).unwrap() else { panic!() };
    let place = "look up what group g has committed of t@a/0";
    assert_eq!(error.to_string(), format!("{place}: refused with code 1: as told"));
    let look_up = |member: &mut Member| {
        member.source.look_up_committed(queue);
        member.until("look-up", |event| match event {
            SourceEvent::LookedUp { committed, .. } => Some(committed.clone()),
            _ => None,
        })
    };
    assert!(matches!(look_up(&mut member), Committed::None));
    member.source.commit(commit(queue, 3, 1));
    assert!(member.commit_result().1.is_ok());
    let Committed::At { watermark, .. } = look_up(&mut member) else { panic!() };
    assert_eq!(watermark.get(), 3);
    drop(member);
    let mut next = Member::join(config(&cluster));
    let Committed::At { watermark, .. } = next.assigned(1).remove(&queue).unwrap() else {
        panic!()
    };
    assert_eq!(watermark.get(), 3);
}

#[test]
fn filtered_messages_are_passed_over_and_so_is_a_hash_that_collides() {
    let (cluster, queue) = one_queue();
    // "Aa" and "BB" have one hash: the broker sends both.
    for tag in ["Aa", "x", "BB", "x", "x"] {
        cluster.put("a", "t", 0, Put::new(tag).with("TAGS", tag));
    }
    let config = Config::new([cluster.name_server.clone()], "g")
        .subscribe("t", "Aa || y")
        .retries(false)
        .call_timeout(Duration::from_secs(2));
    let mut member = Member::reading(config, &[queue]);
    let (mut bodies, mut position) = (Vec::new(), at(0));
    while position < at(5) {
        let fetch = member.fetch();
        bodies.extend(fetch.messages.iter().map(|message| message.payload().unwrap().to_vec()));
        position = fetch.position;
    }
    assert_eq!((bodies, position), (vec![b"Aa".to_vec()], at(5)));
}

#[test]
fn offsets_without_a_message_are_asked_for_twice_and_passed() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 6);
    cluster.change(|state| {
        let log = &mut state.brokers.get_mut("a").unwrap().topics.get_mut("t").unwrap()[0];
        (log.messages[2], log.messages[3]) = (None, None);
    });
    let mut member = Member::reading(config(&cluster), &[queue]);
    assert_eq!(member.read(4)[&queue], ["0", "1", "4", "5"]);
    let asked: Vec<String> = {
        let state = cluster.state();
        let pulls = state.seen.iter().filter(|(_, code, _)| *code == 11);
        pulls.map(|(_, _, fields)| fields["queueOffset"].clone()).collect()
    };
    assert_eq!(asked[..2], ["0", "2"]);
}

#[test]
fn what_a_broker_leaves_out_by_mistake_is_fetched_after_all() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 5);
    // It says that reading goes on at 7, with the messages up to 5.
    cluster.fault("a", 11, 1, What::Skip(2));
    let mut member = Member::reading(config(&cluster), &[queue]);
    assert_eq!(member.read(5)[&queue], numbers(0..5));
    cluster.put("a", "t", 0, Put::new("5"));
    cluster.put("a", "t", 0, Put::new("6"));
    assert_eq!(member.read(2)[&queue], numbers(5..7));
}

#[test]
fn a_position_that_does_not_exist_is_out_of_range() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 8);
    cluster.change(|state| {
        state.brokers.get_mut("a").unwrap().topics.get_mut("t").unwrap()[0].trim(3);
    });
    let mut member = Member::join(config(&cluster));
    member.assigned(1);
    for asked in [1, 9] {
        member.source.seek(queue, SeekTo::Position(at(asked)));
        let cause = member.until("reset", |event| match event {
            SourceEvent::Reset { cause, .. } => Some(cause.clone()),
            _ => None,
        });
        let ResetCause::OutOfRange { asked: said, begin, end } = cause else { panic!("{cause:?}") };
        assert_eq!((said, begin, end), (at(asked), at(3), at(8)));
        member.none("a fetch after a reset", is_fetch);
    }
    member.source.seek(queue, SeekTo::Position(at(3)));
    assert_eq!(member.read(5)[&queue], numbers(3..8));
}

fn moved(member: &mut Member) -> keylane_source::Position {
    member.until("reset", |event| match event {
        SourceEvent::Reset { cause: ResetCause::Moved { to }, .. } => Some(*to),
        _ => None,
    })
}

#[test]
fn an_offset_that_an_operator_moves_is_followed() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 8);
    let mut member = Member::reading(config(&cluster).hold(Duration::from_millis(100)), &[queue]);
    member.read(8);
    move_to(&cluster, 2);
    assert_eq!(moved(&mut member), at(2));
    member.source.seek(queue, SeekTo::Position(at(2)));
    assert_eq!(member.read(6)[&queue], numbers(2..8));
}

fn move_to(cluster: &Cluster, offset: i64) {
    cluster.change(|state| {
        let key = ("g".to_owned(), "t".to_owned(), 0);
        state.brokers.get_mut("a").unwrap().resets.insert(key, offset);
    });
}

/// Brokers do not end a hold for an offset that is moved.
#[test]
fn an_offset_that_is_moved_is_followed_though_a_pull_is_held() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 8);
    let minute = Duration::from_secs(60);
    let config = config(&cluster).hold(minute).check_every(Duration::from_millis(50));
    let mut member = Member::reading(config, &[queue]);
    member.read(8);
    member.until_so("a pull is held", |_| {
        let state = cluster.state();
        let held = |code, fields: &HashMap<String, String>| {
            code == 11 && fields["queueOffset"] == "8" && fields["sysFlag"] == "6"
        };
        state.seen.iter().any(|(_, code, fields)| held(*code, fields))
    });
    move_to(&cluster, 2);
    assert_eq!(moved(&mut member), at(2));
    member.source.seek(queue, SeekTo::Position(at(2)));
    assert_eq!(member.read(6)[&queue], numbers(2..8));
    // What ends the pull of before is the next message, and it changes nothing.
    cluster.put("a", "t", 0, Put::new("8"));
    assert_eq!(member.read(1)[&queue], numbers(8..9));
    member.none("read twice", is_fetch);
}

/// As by an operator who wants to get past a message that fills the budget.
#[test]
fn an_offset_that_is_moved_is_followed_though_the_queue_is_paused() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 8);
    let mut member = Member::join(config(&cluster).check_every(Duration::from_millis(50)));
    member.assigned(1);
    // No pull is under way, and none is sent.
    member.source.pause(queue);
    member.source.seek(queue, SeekTo::Position(at(0)));
    move_to(&cluster, 6);
    assert_eq!(moved(&mut member), at(6));
    member.source.seek(queue, SeekTo::Position(at(6)));
    member.source.resume(queue);
    assert_eq!(member.read(2)[&queue], numbers(6..8));
}

#[test]
fn brokers_that_leave_moved_offsets_to_the_members() {
    let (cluster, queue) = one_queue();
    put_all(&cluster, 8);
    let mut member = Member::reading(config(&cluster), &[queue]);
    member.read(8);
    let table = r#"{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:2}}"#;
    let request = Frame::request(220).with("group", "g").with("topic", "t").with_body(table);
    cluster.state().brokers["a"].tell("g", &request);
    assert_eq!(moved(&mut member), at(2));
    member.until_so("the offset is stored", |_| cluster.committed("a", "g", "t", 0) == Some(2));
    member.source.seek(queue, SeekTo::Position(at(2)));
    assert_eq!(member.read(6)[&queue], numbers(2..8));
}

#[test]
fn bodies_in_each_compression() {
    let (cluster, queue) = one_queue();
    let body = b"account-9: withdraw 5; ".repeat(300);
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(&body).unwrap();
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(&body).unwrap();
    let fastest = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(&body[..], fastest);
    let bodies = [(0x001, zlib.finish().unwrap()), (0x101, lz4.finish().unwrap()), (0x201, zstd)];
    for (flags, body) in bodies {
        cluster.put("a", "t", 0, Put { flags, ..Put::new(body) });
    }
    let mut member = Member::reading(config(&cluster), &[queue]);
    let text = String::from_utf8(body).unwrap();
    assert_eq!(member.read(3)[&queue], [text.clone(), text.clone(), text]);
}

#[test]
fn key_headers_and_attempts() {
    let (cluster, queue) = one_queue();
    let put = Put { reconsume_times: 3, ..Put::new("b") };
    cluster.put("a", "t", 0, put.with("KEYS", "k1 k2").with("trace", "4f"));
    for (key, expected) in [
        (KeyFrom::default(), "k1 k2"),
        (KeyFrom::FirstKey, "k1"),
        (KeyFrom::Property("trace".into()), "4f"),
    ] {
        let mut member = Member::reading(config(&cluster).key(key), &[queue]);
        let message = member.fetch().messages.remove(0);
        assert_eq!(message.key(), Some(expected.as_bytes()));
        assert_eq!(message.attempts(), 3);
        assert_eq!(message.headers().get("trace"), Some(Some(&b"4f"[..])));
        assert!(member.close().1.is_ok());
    }
}
