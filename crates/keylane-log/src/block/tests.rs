use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

/// Key, payload, headers, timestamp.
type Owned = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>, Option<i64>);

fn record() -> impl Strategy<Value = Owned> {
    let bytes = || vec(any::<u8>(), 0..40);
    // Lengths on both sides of where a varint grows.
    let payload =
        prop_oneof![bytes(), vec(any::<u8>(), 120..140), vec(any::<u8>(), 16_380..16_390)];
    let headers = vec((bytes(), option::of(bytes())), 0..4);
    let timestamp = option::of(any::<i64>().prop_filter("none", |ms| *ms != i64::MIN));
    (option::of(bytes()), option::of(payload), headers, timestamp)
}

fn build(records: &[Owned]) -> SealedBody {
    let mut builder = BlockBuilder::default();
    for (key, payload, headers, timestamp_ms) in records {
        let headers: Vec<_> = headers.iter().map(|(n, v)| (&n[..], v.as_deref())).collect();
        let record = Record {
            key: key.as_deref(),
            payload: payload.as_deref(),
            headers: &headers,
            timestamp_ms: *timestamp_ms,
            queue: None,
        };
        let before = builder.bytes.len().max(HEADER_BYTES);
        builder.push(&record);
        assert!(builder.bytes.len() - before <= record.encoded_max());
    }
    builder.seal()
}

fn read(block: &mut Block) -> Result<Vec<(u64, Owned)>, Malformed> {
    let mut records = Vec::new();
    while let Some((offset, stored)) = block.next_record()? {
        let headers = stored.headers.iter();
        let headers = headers.map(|(n, v)| (n.to_vec(), v.map(<[u8]>::to_vec))).collect();
        let owned = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.to_vec());
        let record = (owned(stored.key), owned(stored.payload), headers, stored.timestamp_ms);
        records.push((offset, record));
    }
    Ok(records)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_in_comes_out(
        records in vec(record(), 1..20),
        (topic, queue, base) in (any::<u32>(), any::<u32>(), 0..END_MAX - 20),
        before in any::<i64>(),
    ) {
        let highest = records.iter().filter_map(|record| record.3).max().unwrap_or(NO_TIMESTAMP);
        let bytes = build(&records).place(topic, queue, base, before);
        let mut block = Block::decode(bytes.clone()).unwrap();
        let count = u32::try_from(records.len()).unwrap();
        let timestamp_max = highest.max(before);
        prop_assert_eq!(block.header, Header { topic, queue, base, count, timestamp_max });
        let expected: Vec<_> = (base..).zip(records).collect();
        prop_assert_eq!(read(&mut block).unwrap(), expected);
        prop_assert!(block.is_finished());
        prop_assert_eq!(block.next_offset(), block.header.end());
        fuzz_block(&bytes);
    }

    #[test]
    fn any_flip_is_noticed(
        records in vec(record(), 1..4),
        at in any::<prop::sample::Index>(),
        bit in 0..8,
    ) {
        let mut bytes = build(&records).place(1, 2, 3, 4).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(Block::decode(bytes.into()).is_err());
    }

    #[test]
    fn any_bytes_are_decoded_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        fuzz_block(&bytes);
        fuzz_records(&bytes);
        // The same behind a header that holds, with a number of records that may not.
        let mut body = build(&[(None, None, vec![], None)]);
        body.bytes.truncate(HEADER_BYTES);
        body.bytes.extend_from_slice(&bytes);
        body.body_crc = crc32fast::hash(&bytes);
        body.body_bytes = u32::try_from(bytes.len()).unwrap();
        body.count = bytes.first().map_or(1, |byte| u32::from(*byte).max(1));
        let block = body.place(0, 0, 0, 0);
        fuzz_block(&block);
        let mut block = Block::decode(block).unwrap();
        if let Err(error) = read(&mut block) {
            let next = block.next_offset();
            prop_assert!(block.next_record().is_err(), "a record behind {error}");
            prop_assert_eq!(block.next_offset(), next);
        }
    }
}

#[test]
fn every_cut_is_noticed() {
    let bytes = build(&[(Some(b"k".to_vec()), None, vec![], Some(9))]).place(1, 2, 3, 4);
    for length in 0..bytes.len() {
        assert!(Block::decode(bytes.slice(..length)).is_err(), "cut at {length}");
    }
}

#[test]
fn bytes_behind_the_last_record_are_malformed_and_the_record_is_not_given() {
    let mut body = build(&[(None, None, vec![], None)]);
    body.bytes.put_u8(0);
    body.body_crc = crc32fast::hash(&body.bytes[HEADER_BYTES..]);
    body.body_bytes += 1;
    let mut block = Block::decode(body.place(0, 0, 7, 0)).unwrap();
    let error = block.next_record().unwrap_err();
    assert_eq!(error, Malformed("bytes follow the block's last record"));
    assert_eq!(block.next_offset(), 7);
}

#[test]
fn offsets_end_where_they_end() {
    let one = || build(&[(None, None, vec![], None)]);
    let last = Block::decode(one().place(0, 0, END_MAX - 1, 0)).unwrap();
    assert_eq!(last.header.end(), 1 << 63);
    let error = Block::decode(one().place(0, 0, END_MAX, 0)).unwrap_err();
    assert_eq!(error, Malformed("the block's offsets are out of range"));
}

#[test]
fn a_builder_says_when_a_block_is_full_and_starts_anew() {
    let mut builder = BlockBuilder::default();
    let payload = vec![0; BLOCK_BYTES / 2];
    builder.push(&Record::new().with_payload(&payload).with_timestamp_ms(5));
    assert!(!builder.is_full());
    builder.push(&Record::new().with_payload(&payload));
    assert!(builder.is_full());
    assert_eq!(builder.seal().count, 2);
    assert!(builder.is_empty() && !builder.is_full());
    builder.push(&Record::new());
    let body = builder.seal();
    assert_eq!((body.count, body.timestamp_max), (1, NO_TIMESTAMP));
}
