use super::*;
use crate::wire::message::written::Written;

fn queue() -> QueueId {
    QueueId::on_broker("orders", "a", 3)
}

fn at(number: u64) -> Position {
    Position::new(number).unwrap()
}

fn written(offset: i64) -> Written {
    Written {
        offset,
        flag: 0,
        properties: format!("KEYS\u{1}k{offset}\u{2}"),
        ..Written::default()
    }
}

/// The answer to a pull: the code, where to read on, and messages.
fn answer(code: i32, next: i64, messages: &[Written]) -> Frame {
    let fields = [("nextBeginOffset", next), ("minOffset", 5), ("maxOffset", 100)];
    Frame {
        code,
        opaque: 1,
        flag: 1,
        remark: None,
        fields: fields.iter().map(|(n, v)| ((*n).to_owned(), v.to_string())).collect(),
        body: messages.iter().flat_map(Written::bytes).collect::<Vec<u8>>().into(),
    }
}

fn reading(tags: &[&'static str]) -> Reading {
    let tags = tags.iter().map(|tag| Bytes::from_static(tag.as_bytes())).collect();
    Reading { key: KeyFrom::default(), tags }
}

fn found(frame: &Frame, asked: u64, gaps: Gaps) -> Found {
    match reading(&[]).read(frame, queue(), at(asked), gaps) {
        Ok(Pulled::Found(found)) => found,
        other => panic!("{other:?}"),
    }
}

fn failure(frame: &Frame, asked: u64) -> String {
    reading(&[]).read(frame, queue(), at(asked), Gaps::AskAgain).unwrap_err().to_string()
}

fn offsets(found: &Found) -> Vec<u64> {
    found.messages.iter().map(|message| message.offset().get()).collect()
}

#[test]
fn messages_with_key_headers_time_and_attempts() {
    let found = found(&answer(0, 43, &[written(41), written(42)]), 41, Gaps::AskAgain);
    assert_eq!((found.position, found.end), (at(43), EndOffset::At(at(100))));
    assert_eq!(found.gaps, Gaps::AskAgain);
    let message = &found.messages[1];
    assert_eq!((message.queue(), message.offset().get()), (queue(), 42));
    assert_eq!(message.key(), Some(&b"k42"[..]));
    assert_eq!(message.payload(), Some(&b"withdraw 5"[..]));
    assert_eq!(message.headers().get("KEYS"), Some(Some(&b"k42"[..])));
    assert_eq!((message.timestamp_ms(), message.attempts()), (Some(1_700_000_000_123), 2));
}

#[test]
fn what_only_the_broker_knows_becomes_a_header() {
    let plain = found(&answer(0, 42, &[written(41)]), 41, Gaps::AskAgain);
    let headers = plain.messages[0].headers();
    // Host 2.2.2.2, port 0x02020202, commit log offset 1,000,000.
    assert_eq!(headers.get(MESSAGE_ID), Some(Some(&b"020202020202020200000000000F4240"[..])));
    assert_eq!(headers.get(FLAG), None);
    let named = Written { properties: "UNIQ_KEY\u{1}U\u{2}".into(), flag: 5, ..written(41) };
    let named = found(&answer(0, 42, &[named]), 41, Gaps::AskAgain);
    let headers = named.messages[0].headers();
    assert_eq!(headers.get(MESSAGE_ID), None);
    assert_eq!(headers.get(FLAG), Some(Some(&b"5"[..])));
    assert_eq!(named.messages[0].key(), None);
}

#[test]
fn tags_are_compared_again() {
    let tagged = |offset, tag: &str| Written {
        properties: format!("TAGS\u{1}{tag}\u{2}"),
        ..written(offset)
    };
    // "Aa" and "BB" have one hash.
    let frame = answer(0, 50, &[tagged(41, "Aa"), tagged(44, "BB"), written(45)]);
    let pulled = reading(&["BB"]).read(&frame, queue(), at(41), Gaps::AskAgain);
    let Ok(Pulled::Found(found)) = pulled else { panic!("{pulled:?}") };
    assert_eq!((offsets(&found), found.position), (vec![44], at(50)));
    let none = reading(&["C"]).read(&frame, queue(), at(41), Gaps::AskAgain);
    let Ok(Pulled::Found(none)) = none else { panic!("{none:?}") };
    assert_eq!((offsets(&none), none.position), (vec![], at(50)));
}

#[test]
fn offsets_passed_over_are_asked_for_once_more() {
    let frame = answer(0, 46, &[written(41), written(44), written(45)]);
    let first = found(&frame, 41, Gaps::AskAgain);
    assert_eq!((offsets(&first), first.position), (vec![41], at(42)));
    assert_eq!(first.gaps, Gaps::BelieveFirst);
    // The same gap again: it is one.
    let again = answer(0, 46, &[written(44), written(45)]);
    let second = found(&again, 42, Gaps::BelieveFirst);
    assert_eq!((offsets(&second), second.position), (vec![44, 45], at(46)));
    assert_eq!(second.gaps, Gaps::Believe);
    // From now on a gap is a gap.
    let third = found(&frame, 41, Gaps::Believe);
    assert_eq!((offsets(&third), third.position), (vec![41, 44, 45], at(46)));
}

#[test]
fn offsets_that_come_when_asked_for_again_are_no_gap() {
    let again = answer(0, 44, &[written(42), written(43)]);
    let found = found(&again, 42, Gaps::BelieveFirst);
    assert_eq!((offsets(&found), found.gaps), (vec![42, 43], Gaps::AskAgain));
}

#[test]
fn a_gap_at_the_end_is_one_too() {
    let found = found(&answer(0, 46, &[written(41)]), 41, Gaps::AskAgain);
    assert_eq!((found.position, found.gaps), (at(42), Gaps::BelieveFirst));
}

#[test]
fn the_start_of_a_batch_that_was_read_before_is_dropped() {
    let found = found(&answer(0, 43, &[written(40), written(41), written(42)]), 41, Gaps::AskAgain);
    assert_eq!((offsets(&found), found.position), (vec![41, 42], at(43)));
}

#[test]
fn nothing_moves_the_position_or_leaves_it() {
    let read =
        |code, next| reading(&[]).read(&answer(code, next, &[]), queue(), at(41), Gaps::Believe);
    assert!(matches!(read(19, 41), Ok(Pulled::Nothing { position, .. }) if position == at(41)));
    assert!(matches!(read(20, 60), Ok(Pulled::Nothing { position, end })
        if position == at(60) && end == EndOffset::At(at(100))));
    assert!(matches!(read(21, 60), Ok(Pulled::Moved { to, begin, end })
        if (to, begin, end) == (at(60), at(5), at(100))));
    assert_eq!(failure(&answer(19, 40, &[]), 41), "reading goes back from 41 to 40");
}

#[test]
fn what_does_not_fit_is_an_error() {
    assert_eq!(failure(&answer(0, 43, &[]), 41), "0 messages from 41 up to 43");
    assert_eq!(failure(&answer(0, 41, &[written(41)]), 41), "1 messages from 41 up to 41");
    let back = answer(0, 44, &[written(41), written(42), written(42)]);
    assert_eq!(failure(&back, 41), "offset 42 behind 43");
    let short = answer(0, 42, &[written(41), written(42)]);
    assert_eq!(failure(&short, 41), "messages up to 43, but reading goes on at 42");
    let elsewhere = Written { queue: 4, ..written(41) };
    assert_eq!(
        failure(&answer(0, 42, &[elsewhere]), 41),
        "a message of orders/4 in answer to orders@a/3"
    );
    let other = Written { topic: "other".into(), ..written(41) };
    assert!(failure(&answer(0, 42, &[other]), 41).starts_with("a message of other/3"));
    assert_eq!(failure(&answer(0, 42, &[written(-1)]), 41), "a message at offset -1");
    assert_eq!(failure(&answer(24, 42, &[]), 41), "refused with code 24: no reason given");
}
