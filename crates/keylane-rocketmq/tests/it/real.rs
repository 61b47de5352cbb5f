//! Against Apache's own name server and broker, for what the in-process ones cannot prove.
//!
//! `KEYLANE_ROCKETMQ=host:port` names a name server; without it every test says that it is skipped.
//! `KEYLANE_ROCKETMQ_VERSION` says which version answers there (5.3.3 when it is not set).
//! Topics and groups have names of their own, so that tests run side by side and again.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keylane_rocketmq::{Client, Config, Outgoing, RocketMqDeadLetters, Route};
use keylane_source::{
    Ack, Committed, DeadLetter, DeadLetterReason, DeadLetterSink, EndOffset, LockReply, QueueId,
    ResetCause, SeekTo, Source, SourceEvent,
};

use crate::broker::frame::Frame;
use crate::member::{Member, at, commit};

pub(crate) struct Real {
    pub(crate) server: String,
    pub(crate) client: Client,
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) route: Arc<Route>,
}

/// Whether a name server is given; says that a test is skipped where it is not.
pub(crate) fn is_there(test: &str) -> bool {
    let there = std::env::var_os("KEYLANE_ROCKETMQ").is_some();
    if !there {
        println!("skipped: {test} needs a name server, KEYLANE_ROCKETMQ=host:port");
    }
    there
}

/// The broker's version, as Maven names it.
pub(crate) fn version() -> String {
    std::env::var("KEYLANE_ROCKETMQ_VERSION").unwrap_or_else(|_| "5.3.3".to_owned())
}

/// Whether the broker is one of the 4.9 line. Where nothing is committed for a young queue, it
/// answers a commit of 0.
pub(crate) fn is_before_5() -> bool {
    version().starts_with("4.")
}

/// A topic with this many queues, or `None` where there is no broker.
pub(crate) fn real(test: &str, queues: u32) -> Option<Real> {
    static TOPICS: AtomicU32 = AtomicU32::new(0);
    if !is_there(test) {
        return None;
    }
    let server = std::env::var("KEYLANE_ROCKETMQ").unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let number = TOPICS.fetch_add(1, Ordering::Relaxed);
    let (topic, group) = (format!("t-{now}-{number}"), format!("g-{now}-{number}"));
    let client = Client::new([server.clone()]).unwrap();
    let route = client.create_topic(&topic, queues).unwrap();
    Some(Real { server, client, topic, group, route })
}

impl Real {
    fn config(&self) -> Config {
        Config::new([self.server.clone()], self.group.clone())
            .subscribe(self.topic.clone(), "*")
            .retries(false)
    }

    fn queue(&self, index: usize) -> QueueId {
        self.route.readable()[index]
    }

    fn put(&self, index: usize, numbers: std::ops::Range<u32>) {
        let messages: Vec<Outgoing> = numbers.map(|n| Outgoing::new(n.to_string())).collect();
        self.client.send_batch(self.queue(index), &messages).unwrap();
    }

    /// A request that the client does not have, of an operator above all.
    pub(crate) fn ask(&self, request: &Frame) -> Frame {
        let (_, address) = self.route.masters().next().unwrap();
        ask(address, request)
    }
}

/// Sends one request to a broker, outside of any client.
pub(crate) fn ask(address: &str, request: &Frame) -> Frame {
    let stream = TcpStream::connect(address).unwrap();
    let (mut input, output) = (stream.try_clone().unwrap(), Mutex::new(stream));
    request.write(1, 0, &output);
    Frame::read(&mut input).unwrap()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn messages_offsets_and_commits() {
    let Some(real) = real("messages_offsets_and_commits", 4) else { return };
    for index in 0..4 {
        real.put(index, 0..100);
        real.put(index, 100..150);
    }
    let mut member = Member::join(real.config());
    let assigned = member.assigned(4);
    let is_none = |committed: &Committed| match committed {
        Committed::At { watermark, .. } => is_before_5() && watermark.get() == 0,
        committed => matches!(committed, Committed::None) && !is_before_5(),
    };
    assert!(assigned.values().all(is_none), "{assigned:?}");
    for queue in assigned.keys() {
        member.source.seek(*queue, SeekTo::Earliest);
    }
    let bodies = member.read(600);
    assert!(bodies.values().all(|bodies| *bodies == numbers(0..150)));
    let first = real.queue(0);
    member.source.commit(commit(first, 70, 1));
    assert!(member.commit_result().1.is_ok());
    assert!(member.close().1.is_ok());
    let mut next = Member::join(real.config());
    let Some(Committed::At { watermark, .. }) = next.assigned(4).remove(&first) else { panic!() };
    assert_eq!(watermark.get(), 70);
    next.source.seek(first, SeekTo::Position(watermark.into()));
    assert_eq!(next.read(80)[&first], numbers(70..150));
    assert!(next.close().1.is_ok());
    assert_eq!(real.client.min_offset(first).unwrap(), at(0));
    assert_eq!(real.client.max_offset(first).unwrap(), at(150));
    assert_eq!(real.client.search_offset(first, 0).unwrap(), at(0));
}

#[test]
fn keys_tags_headers_and_a_body_that_is_compressed() {
    let Some(real) = real("keys_tags_headers_and_a_body_that_is_compressed", 1) else { return };
    let queue = real.queue(0);
    let long = "account-9: withdraw 5; ".repeat(1_000);
    for (tag, body) in [("x", "x"), ("y", "y"), ("x", &long[..])] {
        let message = Outgoing::new(body.to_owned()).key("k1 k2").tag(tag).property("trace", "4f");
        real.client.send(queue, &message).unwrap();
    }
    let config = Config::new([real.server.clone()], real.group.clone())
        .subscribe(real.topic.clone(), "x || z")
        .retries(false);
    let mut member = Member::reading(config, &[queue]);
    let (mut messages, mut position) = (Vec::new(), at(0));
    while position < at(3) {
        let fetch = member.fetch();
        messages.extend(fetch.messages);
        position = fetch.position;
    }
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[1].payload(), Some(long.as_bytes()));
    assert_eq!((messages[1].key(), messages[1].offset().get()), (Some(&b"k1 k2"[..]), 2));
    assert_eq!(messages[1].headers().get("trace"), Some(Some(&b"4f"[..])));
    assert!(messages[1].timestamp_ms().is_some());
    assert!(member.close().1.is_ok());
}

#[test]
fn a_message_that_arrives_ends_the_brokers_hold() {
    let Some(real) = real("a_message_that_arrives_ends_the_brokers_hold", 1) else { return };
    let queue = real.queue(0);
    let mut member = Member::reading(real.config().hold(Duration::from_secs(60)), &[queue]);
    let end = member.until("end", |event| match event {
        SourceEvent::End { end, .. } => Some(*end),
        _ => None,
    });
    assert_eq!(end, EndOffset::At(at(0)), "the first pull of an empty queue is not held");
    for number in 0..20 {
        real.put(0, number..number + 1);
        assert_eq!(member.read(1)[&queue], numbers(number..number + 1));
    }
    assert!(member.close().1.is_ok());
}

#[test]
fn members_share_and_take_over_with_locks() {
    let Some(real) = real("members_share_and_take_over_with_locks", 4) else { return };
    let never = Duration::from_secs(600);
    let mut first = Member::join(real.config().client_id("m1").rebalance_every(never));
    let queues: Vec<QueueId> = first.assigned(4).into_keys().collect();
    lock(&mut first, &queues, "held");
    let mut second = Member::join(real.config().client_id("m2").rebalance_every(never));
    let taken: Vec<QueueId> = second.assigned(2).into_keys().collect();
    assert_eq!(taken, queues[2..]);
    lock(&mut second, &taken, "refused");
    for _ in 0..2 {
        let queue = first.revoking();
        first.source.commit(commit(queue, 0, 1));
        first.source.locks().unwrap().release(&[queue]);
        assert!(first.commit_result().1.is_ok());
        first.source.release(queue);
    }
    second.until_so("the locks are free", |second| {
        first.poll();
        ask_lock(second, &taken) == ["held", "held"]
    });
    second.source.locks().unwrap().release(&taken);
    assert!(second.close().1.is_ok());
    assert_eq!(first.assigned(2).into_keys().collect::<Vec<_>>(), queues[2..]);
    lock(&mut first, &queues, "held");
    assert!(first.close().1.is_ok());
}

fn lock(member: &mut Member, queues: &[QueueId], expected: &str) {
    assert_eq!(ask_lock(member, queues), vec![expected; queues.len()]);
}

fn ask_lock(member: &mut Member, queues: &[QueueId]) -> Vec<&'static str> {
    member.source.locks().unwrap().acquire(queues);
    let reply = |member: &mut Member| match member.lock_reply().1 {
        LockReply::Held => "held",
        LockReply::Refused => "refused",
        LockReply::Lost => "lost",
        _ => "failed",
    };
    queues.iter().map(|_| reply(member)).collect()
}

#[test]
fn a_member_that_vanishes_is_replaced_and_its_lock_expires() {
    let Some(real) = real("a_member_that_vanishes_is_replaced_and_its_lock_expires", 1) else {
        return;
    };
    let queue = real.queue(0);
    let mut first = Member::join(real.config().client_id("m1"));
    first.assigned(1);
    lock(&mut first, &[queue], "held");
    let mut second = Member::join(real.config().client_id("m2"));
    second.until_so("it has joined", |second| {
        second.poll();
        real.client.members(&real.group, queue).is_ok_and(|members| members.len() == 2)
    });
    // As by kill -9: no farewell, its connections end.
    drop(first);
    assert!(second.assigned(1).contains_key(&queue));
    let start = Instant::now();
    lock(&mut second, &[queue], "refused");
    // 60 s, unless the broker was started with a shorter lease.
    while ask_lock(&mut second, &[queue]) != ["held"] {
        assert!(start.elapsed() < Duration::from_secs(90), "the lock does not expire");
        second.poll_for(Duration::from_millis(200));
    }
    println!("the lock of a member that vanished was granted after {:?}", start.elapsed());
    second.source.locks().unwrap().release(&[queue]);
    assert!(second.close().1.is_ok());
}

#[test]
fn positions_that_do_not_exist_and_offsets_that_an_operator_moves() {
    let name = "positions_that_do_not_exist_and_offsets_that_an_operator_moves";
    let Some(real) = real(name, 1) else { return };
    let queue = real.queue(0);
    real.put(0, 0..50);
    // The broker would hold a pull for longer than a test waits.
    let mut member = Member::join(real.config().hold(Duration::from_secs(60)));
    member.assigned(1);
    member.source.seek(queue, SeekTo::Position(at(99)));
    let cause = reset(&mut member);
    let ResetCause::OutOfRange { asked, begin, end } = cause else { panic!("{cause:?}") };
    assert_eq!((asked, begin, end), (at(99), at(0), at(50)));
    member.source.seek(queue, SeekTo::Earliest);
    member.read(50);
    // Brokers before 5.0 move only what was committed, and leave the rest to the members.
    member.source.commit(commit(queue, 50, 1));
    assert!(member.commit_result().1.is_ok());
    // What `mqadmin resetOffsetByTime` sends: everything since 1970, and by force.
    let request = Frame::request(222)
        .with("topic", &real.topic)
        .with("group", &real.group)
        .with("timestamp", 0)
        .with("isForce", true);
    let answer = real.ask(&request);
    assert_eq!(answer.code, 0, "{answer:?}");
    let start = Instant::now();
    let cause = reset(&mut member);
    println!("the reset was noticed after {:?}", start.elapsed());
    let ResetCause::Moved { to } = cause else { panic!("{cause:?}") };
    assert_eq!(to, at(0));
    member.source.seek(queue, SeekTo::Position(to));
    assert_eq!(member.read(50)[&queue], numbers(0..50));
    assert!(member.close().1.is_ok());
    assert_eq!(real.client.committed(&real.group, queue).unwrap().map(|w| w.get()), Some(0));
}

fn reset(member: &mut Member) -> ResetCause {
    member.until("reset", |event| match event {
        SourceEvent::Reset { cause, .. } => Some(cause.clone()),
        _ => None,
    })
}

#[test]
fn a_dead_letter_is_in_the_dead_letter_topic_once() {
    let Some(real) = real("a_dead_letter_is_in_the_dead_letter_topic_once", 1) else { return };
    let queue = real.queue(0);
    real.client.send(queue, &Outgoing::new("withdraw 5").key("account-9")).unwrap();
    let mut member = Member::reading(real.config().retries(true), &[queue]);
    let message = loop {
        if let Some(message) = member.fetch().messages.pop() {
            break message;
        }
    };
    // Brokers of version 5 name messages that come without a name.
    let named = |name| message.headers().get(name).flatten();
    let name = named("UNIQ_KEY").or_else(|| named("keylane.message_id")).unwrap().to_vec();
    let mut sink = RocketMqDeadLetters::new([real.server.clone()], real.group.clone()).unwrap();
    let (sender, receiver) = mpsc::channel();
    let reason = DeadLetterReason::AttemptsExhausted("no such account".into());
    let letter = DeadLetter::new(message, 3, reason);
    sink.send(letter, Ack::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap().unwrap();
    assert!(member.close().1.is_ok());
    let config = Config::new([real.server.clone()], format!("{}-dlq", real.group))
        .subscribe(format!("%DLQ%{}", real.group), "*")
        .retries(false);
    let mut reader = Member::join(config);
    let dlq = *reader.assigned(1).keys().next().unwrap();
    reader.source.seek(dlq, SeekTo::Earliest);
    let fetch = reader.fetch();
    assert_eq!((fetch.messages.len(), fetch.position), (1, at(1)));
    let dead = &fetch.messages[0];
    assert_eq!(dead.payload(), Some(&b"withdraw 5"[..]));
    assert_eq!(dead.key(), Some(&b"account-9"[..]));
    let header = |name: &str| {
        let value = dead.headers().get(name).flatten().unwrap_or_else(|| panic!("no {name}"));
        String::from_utf8(value.to_vec()).unwrap()
    };
    assert_eq!(header("RETRY_TOPIC"), real.topic);
    assert_eq!(header("ORIGIN_MESSAGE_ID").as_bytes(), name);
    assert_eq!(header("keylane.reason"), "attempts exhausted, last error: no such account");
    assert!(reader.close().1.is_ok());
}

#[test]
fn members_that_differ_are_reported() {
    let Some(real) = real("members_that_differ_are_reported", 2) else { return };
    let mut first = Member::join(real.config().client_id("m1"));
    first.assigned(2);
    let other = Config::new([real.server.clone()], real.group.clone())
        .subscribe(real.topic.clone(), "x")
        .retries(false);
    let mut second = Member::join(other.client_id("m2"));
    second.assigned(1);
    first.until_so("it is reported", |first| {
        second.poll();
        !first.errors.is_empty()
    });
    let error = first.errors[0].to_string();
    let topic = &real.topic;
    assert!(error.contains(&format!("another member subscribes to {topic} \"x\"")), "{error}");
    drop(second);
    // Two members of one name: each takes the first half.
    let mut twin = Member::join(real.config().client_id("m1"));
    twin.until_so("it is reported", |twin| {
        first.poll();
        twin.errors.iter().any(|error| error.to_string().contains("has the client id"))
    });
}

/// A broker that stores a group's first offsets at the same time may lose one that it has
/// acknowledged.
#[test]
fn no_first_commit_is_lost_among_the_others() {
    let Some(real) = real("no_first_commit_is_lost_among_the_others", 16) else { return };
    for round in 0..10 {
        let config = Config::new([real.server.clone()], format!("{}-{round}", real.group));
        let mut member = Member::join(config.subscribe(real.topic.clone(), "*").retries(false));
        let queues: Vec<QueueId> = member.assigned(16).into_keys().collect();
        for queue in &queues {
            member.source.commit(commit(*queue, 5, 1));
        }
        for _ in &queues {
            assert!(member.commit_result().1.is_ok());
        }
        for queue in &queues {
            member.source.look_up_committed(*queue);
        }
        for _ in &queues {
            let (queue, committed) = member.until("look-up", |event| match event {
                SourceEvent::LookedUp { queue, committed } => Some((*queue, committed.clone())),
                _ => None,
            });
            let stored =
                matches!(&committed, Committed::At { watermark, .. } if watermark.get() == 5);
            assert!(stored, "round {round}, {queue}: {committed:?}");
        }
        assert!(member.close().1.is_ok());
    }
}
