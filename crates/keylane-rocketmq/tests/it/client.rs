//! The client's own calls, and dead letters.

use std::sync::mpsc;

use keylane_rocketmq::{Client, Outgoing, RocketMqDeadLetters};
use keylane_source::{
    Ack, DeadLetter, DeadLetterReason, DeadLetterSink, Headers, Message, Offset, SourceError,
};

use crate::broker::{Cluster, What};
use crate::member::{at, queue};

#[test]
fn topics_messages_and_offsets() {
    let cluster = Cluster::start(&["a", "b"]);
    let client = Client::new([cluster.name_server.clone()]).unwrap();
    let error = client.route("t").unwrap_err();
    assert_eq!(error.code(), Some(17));
    let route = client.create_topic("t", 2).unwrap();
    let all = [queue("a", 0), queue("a", 1), queue("b", 0), queue("b", 1)];
    assert_eq!((route.readable(), route.writable()), (&all[..], &all[..]));
    let message = Outgoing::new("withdraw 5").key("account-9").tag("x");
    let sent = client.send(all[1], &message).unwrap();
    assert_eq!((sent.queue, sent.offset), (all[1], at(0)));
    let batch = [Outgoing::new("one"), Outgoing::new("two").key("k")];
    assert_eq!(client.send_batch(all[1], &batch).unwrap().offset, at(1));
    assert_eq!(client.min_offset(all[1]).unwrap(), at(0));
    assert_eq!(client.max_offset(all[1]).unwrap(), at(3));
    let state = cluster.state();
    let log = &state.brokers["a"].topics["t"][1];
    assert_eq!(log.get(0).unwrap().property("KEYS"), Some("account-9"));
    assert_eq!(log.get(0).unwrap().body, b"withdraw 5");
    assert_eq!(log.get(2).unwrap().body, b"two");
    assert_eq!(log.get(2).unwrap().property("KEYS"), Some("k"));
}

#[test]
fn what_cannot_be_sent_is_not() {
    let cluster = Cluster::start(&["a"]);
    let client = Client::new([cluster.name_server.clone()]).unwrap();
    client.create_topic("t", 1).unwrap();
    let bad = Outgoing::new("x").property("na\u{1}me", "v");
    let error = client.send(queue("a", 0), &bad).unwrap_err();
    assert!(error.is_configuration());
    assert!(error.to_string().starts_with("send to t@a/0: the property \"na\\u{1}me\" contains"));
    let error = client.send(queue("a", 0), &Outgoing::new("")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "send to t@a/0: an empty body, which brokers take in a batch only"
    );
    assert!(error.is_configuration());
    assert!(client.send_batch(queue("a", 0), &[]).unwrap_err().is_configuration());
    assert_eq!(cluster.count("a", 310), 0);
    assert!(client.send(queue("x", 0), &Outgoing::new("x")).unwrap_err().is_unreachable());
}

fn letter(payload: &'static str) -> DeadLetter {
    let headers: Headers =
        [("KEYS", Some("account-9")), ("UNIQ_KEY", Some("U"))].into_iter().collect();
    let message = Message::new(queue("a", 0), Offset::new(4).unwrap())
        .with_payload(payload)
        .with_headers(headers);
    DeadLetter::new(message, 4, DeadLetterReason::AttemptsExhausted("no such account".into()))
}

fn store(sink: &mut RocketMqDeadLetters) -> Result<(), SourceError> {
    store_letter(sink, letter("withdraw 5"))
}

fn store_letter(sink: &mut RocketMqDeadLetters, letter: DeadLetter) -> Result<(), SourceError> {
    let (sender, receiver) = mpsc::channel();
    sink.send(letter, Ack::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap()
}

fn dead_letters(cluster: &Cluster, broker: &str) -> usize {
    let state = cluster.state();
    state.brokers[broker].topics.get("%DLQ%g").map_or(0, |logs| logs[0].messages.len())
}

#[test]
fn a_dead_letter_goes_where_java_puts_it() {
    let cluster = Cluster::start(&["a", "b"]);
    cluster.topic("a", "t", 1);
    cluster.topic("b", "t", 1);
    let mut sink = RocketMqDeadLetters::new([cluster.name_server.clone()], "g").unwrap();
    store(&mut sink).unwrap();
    assert_eq!((dead_letters(&cluster, "a"), dead_letters(&cluster, "b")), (1, 0));
    let state = cluster.state();
    let dead = state.brokers["a"].topics["%DLQ%g"][0].get(0).unwrap();
    assert_eq!(dead.body, b"withdraw 5");
    for (name, value) in [
        ("KEYS", "account-9"),
        ("UNIQ_KEY", "U"),
        ("RETRY_TOPIC", "t"),
        ("ORIGIN_MESSAGE_ID", "U"),
        ("DLQ_ORIGIN_TOPIC", "t"),
        ("DLQ_ORIGIN_MESSAGE_ID", "U"),
        ("keylane.reason", "attempts exhausted, last error: no such account"),
    ] {
        assert_eq!(dead.property(name), Some(value), "{name}");
    }
}

#[test]
fn a_dead_letter_is_acknowledged_only_when_it_is_stored() {
    let cluster = Cluster::start(&["a", "b"]);
    cluster.topic("a", "t", 1);
    cluster.topic("b", "t", 1);
    for broker in ["a", "b"] {
        cluster.topic(broker, "%RETRY%g", 1);
        cluster.fault(broker, 310, 1, What::Refuse(14));
    }
    let mut sink = RocketMqDeadLetters::new([cluster.name_server.clone()], "g").unwrap();
    let error = store(&mut sink).unwrap_err();
    assert!(error.is_retryable());
    assert!(error.to_string().starts_with("store dead letter t@a/0 at 4: "), "{error}");
    assert_eq!((dead_letters(&cluster, "a"), dead_letters(&cluster, "b")), (0, 0));
    // With its own broker in trouble the other one takes it.
    cluster.fault("a", 310, 1, What::Refuse(14));
    store(&mut sink).unwrap();
    assert_eq!((dead_letters(&cluster, "a"), dead_letters(&cluster, "b")), (0, 1));
}

#[test]
fn a_dead_letter_without_a_body_says_so_as_brokers_take_none() {
    let cluster = Cluster::start(&["a"]);
    cluster.topic("a", "t", 1);
    let mut sink = RocketMqDeadLetters::new([cluster.name_server.clone()], "g").unwrap();
    store_letter(&mut sink, letter("")).unwrap();
    let state = cluster.state();
    let dead = state.brokers["a"].topics["%DLQ%g"][0].get(0).unwrap();
    assert_eq!((&dead.body[..], dead.property("keylane.empty_body")), (&b"\0"[..], Some("true")));
}
