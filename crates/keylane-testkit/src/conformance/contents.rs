//! What is in a message: the bytes that were sent, no more and no less.

use keylane_source::Message;

use super::driver::{Driver, has};
use super::fixture::{Capability, Fixture, Record};

/// Produces these records into one queue and reads them back.
fn sent_and_read<F: Fixture>(records: &[Record]) -> Vec<Message> {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    records.iter().for_each(|record| _ = fixture.produce(queue, record.clone()));
    Driver::reading(&mut fixture).read(queue, records.len())
}

/// Key and payload are what was sent, for texts and for keys that are missing; a payload may be any
/// bytes, also none.
pub fn keys_and_payloads_come_as_they_were_sent<F: Fixture>() {
    let any_bytes: Vec<u8> = (0..=255).collect();
    let records = [
        Record::new().with_key("account-9").with_payload("withdraw 5"),
        Record::new().with_payload("no key"),
        Record::new().with_key("account-9").with_payload(any_bytes),
        Record::new().with_key("a").with_payload(""),
        Record::new().with_key("k".repeat(200)).with_payload("x".repeat(5_000)),
    ];
    for (sent, read) in records.iter().zip(sent_and_read::<F>(&records)) {
        assert_eq!(read.key_bytes(), sent.key.as_ref(), "key of {read:?}");
        let payload = read.payload_bytes().cloned().unwrap_or_default();
        assert_eq!(Some(payload), sent.payload, "payload of {read:?}");
        assert_eq!(read.attempts(), 0, "attempts of {read:?}");
    }
}

/// A key may be any bytes.
pub fn binary_keys_come_as_they_were_sent<F: Fixture>() {
    if !has::<F>(Capability::BinaryKeys) {
        return;
    }
    let keys: [&[u8]; 3] = [&[0], &[0xff, 0xfe, 0, 1], b"caf\xe9"];
    let records = keys.map(|key| Record::new().with_key(key.to_vec()).with_payload("p"));
    let read = sent_and_read::<F>(&records);
    let read: Vec<_> = read.iter().map(|message| message.key().unwrap_or(b"none")).collect();
    assert_eq!(read, keys);
}

/// An empty key is `Some` of nothing, a missing one is `None`.
pub fn an_empty_key_is_not_a_missing_one<F: Fixture>() {
    if !has::<F>(Capability::EmptyKeys) {
        return;
    }
    let record = Record::new().with_payload("p");
    let read = sent_and_read::<F>(&[record.clone(), record.with_key("")]);
    assert_eq!([read[0].key(), read[1].key()], [None, Some(&b""[..])]);
}

/// A missing payload (a tombstone) is `None`, an empty one is `Some` of nothing.
pub fn a_missing_payload_is_not_an_empty_one<F: Fixture>() {
    if !has::<F>(Capability::NullPayloads) {
        return;
    }
    let record = Record::new().with_key("k");
    let read = sent_and_read::<F>(&[record.clone(), record.with_payload("")]);
    assert_eq!([read[0].payload(), read[1].payload()], [None, Some(&b""[..])]);
}

/// Headers come in the order in which they were set, repeated names and missing values included.
pub fn headers_come_in_order<F: Fixture>() {
    if !has::<F>(Capability::Headers) {
        return;
    }
    let record = Record::new()
        .with_payload("p")
        .with_header("trace", Some("4f"))
        .with_header("empty", Some(""))
        .with_header("trace", Some("50"))
        .with_header("flag", None);
    let read = sent_and_read::<F>(&[record, Record::new().with_payload("none")]);
    let headers: Vec<_> = read[0].headers().iter().collect();
    let expected: [(&[u8], Option<&[u8]>); 4] =
        [(b"trace", Some(b"4f")), (b"empty", Some(b"")), (b"trace", Some(b"50")), (b"flag", None)];
    assert_eq!(headers, expected);
    assert!(read[1].headers().is_empty(), "{:?}", read[1].headers());
}

/// A timestamp that the producer has set is the message's.
pub fn timestamps_come_as_they_were_sent<F: Fixture>() {
    if !has::<F>(Capability::Timestamps) {
        return;
    }
    let at = 1_234_567_890_123;
    let read = sent_and_read::<F>(&[Record::new().with_payload("p").with_timestamp_ms(at)]);
    assert_eq!(read[0].timestamp_ms(), Some(at));
}
