use super::written::Written;
use super::*;
use proptest::prelude::*;

fn decode(bytes: Vec<u8>) -> Result<Vec<Stored>, WireError> {
    decode_all(bytes.into())
}

#[test]
fn every_field_is_where_it_belongs() {
    let messages = decode(Written::default().bytes()).unwrap();
    assert_eq!(
        messages,
        [Stored {
            queue_id: 3,
            offset: 41,
            commit_log_offset: 1_000_000,
            store_host: Bytes::from_static(&[2; 8]),
            store_timestamp_ms: 1_700_000_000_123,
            reconsume_times: 2,
            flag: 17,
            topic: "orders".into(),
            properties: "KEYS\u{1}account-9\u{2}".into(),
            body: "withdraw 5".into(),
        }]
    );
}

#[test]
fn ipv6_hosts_and_long_topics() {
    let topic = "t".repeat(200);
    for flags in [0x10, 0x20, 0x30] {
        let written = Written { version: 2, flags, topic: topic.clone(), ..Written::default() };
        let message = decode(written.bytes()).unwrap().remove(0);
        assert_eq!(message.topic, topic.as_bytes());
        assert_eq!(message.store_host.len(), if flags & 0x20 == 0 { 8 } else { 20 });
        assert_eq!(message.body, &b"withdraw 5"[..]);
    }
}

#[test]
fn bodies_share_the_answers_memory() {
    let bytes = Bytes::from(Written::default().bytes());
    let message = decode_all(bytes.clone()).unwrap().remove(0);
    assert!(!bytes.is_unique());
    let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
    assert!((start..end).contains(&(message.body.as_ptr() as usize)));
    assert!((start..end).contains(&(message.properties.as_ptr() as usize)));
}

#[test]
fn a_compressed_body_is_decompressed() {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
    encoder.write_all(b"withdraw 5").unwrap();
    let body = encoder.finish().unwrap();
    let written = Written { flags: 0x1, body: body.clone(), ..Written::default() };
    assert_eq!(decode(written.bytes()).unwrap()[0].body, &b"withdraw 5"[..]);
    let plain = Written { body: body.clone(), ..Written::default() };
    assert_eq!(decode(plain.bytes()).unwrap()[0].body, &body[..]);
    let damaged = Written { flags: 0x1, body: body[..4].to_vec(), ..Written::default() };
    let error = decode(damaged.bytes()).unwrap_err().to_string();
    assert!(error.starts_with("message 0 of the answer: offset 41: Zlib body:"), "{error}");
}

#[test]
fn a_checksum_that_is_wrong_is_an_error_and_one_of_zero_is_none() {
    let wrong = Written { checksum: Some(1), ..Written::default() };
    let error = decode(wrong.bytes()).unwrap_err().to_string();
    assert!(error.contains("offset 41: the body's checksum is 0x"), "{error}");
    let none = Written { checksum: Some(0), ..Written::default() };
    assert_eq!(decode(none.bytes()).unwrap().len(), 1);
}

/// A batch that was stored as one message.
fn batch(count: &str) -> Vec<u8> {
    let message = |body: &'static str, property: &str| Outgoing {
        body: body.into(),
        properties: vec![("KEYS".to_owned(), property.to_owned())],
        flag: 5,
    };
    let body = encode_batch(&[message("one", "a"), message("two", "b")]).unwrap();
    Written {
        flags: 0xc0,
        body: body.to_vec(),
        properties: format!("INNER_NUM\u{1}{count}\u{2}"),
        ..Written::default()
    }
    .bytes()
}

#[test]
fn a_batch_comes_as_its_messages() {
    let messages = decode(batch("2")).unwrap();
    let seen: Vec<_> =
        messages.iter().map(|m| (m.offset, &m.body[..], &m.properties[..], m.flag)).collect();
    assert_eq!(
        seen,
        [(41, &b"one"[..], &b"KEYS\x01a\x02"[..], 5), (42, &b"two"[..], &b"KEYS\x01b\x02"[..], 5)]
    );
    assert_eq!((messages[1].queue_id, messages[1].reconsume_times), (3, 2));
}

#[test]
fn a_batch_that_lacks_a_message_is_an_error() {
    let error = decode(batch("3")).unwrap_err().to_string();
    assert_eq!(error, "message 0 of the answer: batch at offset 41: 3 messages announced, 2 there");
}

#[test]
fn every_cut_is_an_error() {
    let mut bytes = Written::default().bytes();
    let first = bytes.len();
    bytes.extend(Written { offset: 42, ..Written::default() }.bytes());
    assert_eq!(decode(bytes.clone()).unwrap().len(), 2);
    for end in (1..bytes.len()).filter(|end| *end != first) {
        assert!(decode(bytes[..end].to_vec()).is_err(), "cut at {end}");
    }
}

#[test]
fn lengths_that_do_not_fit_each_other_are_errors() {
    let good = Written::default().bytes();
    let changed = |at: usize, value: i32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        decode(bytes).unwrap_err().to_string()
    };
    let length = i32::try_from(good.len()).unwrap();
    assert!(changed(0, -1).contains("a message of -1 bytes"));
    assert!(changed(0, 90).contains("a message of 90 bytes"));
    assert!(changed(0, i32::MAX).contains("bytes announced"));
    assert!(changed(0, length - 1).contains("bytes announced"));
    assert!(changed(4, 7).contains("begins with 0x00000007"));
    assert!(changed(84, -2).contains("body length: a length of -2"));
    assert!(changed(84, 9).contains("bytes"));
}

proptest! {
    #[test]
    fn what_a_broker_writes_is_decoded(
        version in 1..=2u8,
        offset: i64,
        hosts in 0..4i32,
        body in proptest::collection::vec(any::<u8>(), 0..200),
        topic in "[a-z]{0,127}",
        properties in "[ -~]{0,300}",
        count in 1..4usize,
    ) {
        let flags = hosts << 4;
        let written =
            Written { version, offset, flags, body, topic, properties, ..Written::default() };
        let messages = decode(written.bytes().repeat(count)).unwrap();
        prop_assert_eq!(messages.len(), count);
        for message in messages {
            prop_assert_eq!(message.offset, written.offset);
            prop_assert_eq!(&message.body[..], &written.body[..]);
            prop_assert_eq!(&message.topic[..], written.topic.as_bytes());
            prop_assert_eq!(&message.properties[..], written.properties.as_bytes());
        }
    }

    #[test]
    fn damage_never_panics(at in 0..150usize, byte: u8, inner: bool) {
        let mut bytes = if inner { batch("2") } else { Written::default().bytes() };
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = decode(bytes);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(bytes);
    }
}
