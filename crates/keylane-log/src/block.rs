//! A block: the records that one append brought to one queue, stored as one value. No I/O.
//!
//! ```text
//!  0  magic       "KLB1"
//!  4  header CRC  u32, over bytes 8..48
//!  8  body CRC    u32, over the body
//! 12  body length u32
//! 16  topic       u32, the topic's number
//! 20  queue       u32
//! 24  base        u64, the offset of the first record; the others follow without a gap
//! 32  count       u32, at least 1
//! 36  zero        u32
//! 40  timestamp   i64, the highest one in the queue up to this block's end; i64::MIN = none
//! 48  body        the records, one after the other
//! ```
//!
//! Invariants, checked by [`Block::decode`] and [`Block::next_record`]: a block says itself which
//! topic, queue and offsets it holds, so that one in the wrong place is noticed; both CRCs hold;
//! the body holds exactly `count` records and not a byte more; no bytes whatever make it panic.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::record::{Record, Stored};

pub(crate) const HEADER_BYTES: usize = 48;
/// A block is closed, and the next one of the batch begun, once its body has reached this size.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// "No timestamp" inside a header.
pub(crate) const NO_TIMESTAMP: i64 = i64::MIN;

const MAGIC: &[u8; 4] = b"KLB1";
/// One past the highest offset.
const END_MAX: u64 = 1 << 63;

/// Why bytes are not a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// Where a block belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) topic: u32,
    pub(crate) queue: u32,
    /// The offset of the first record.
    pub(crate) base: u64,
    pub(crate) count: u32,
    /// The highest timestamp in the queue up to the end of this block.
    pub(crate) timestamp_max: i64,
}

impl Header {
    /// The offset behind the last record.
    pub(crate) fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    /// Reads and checks a header, without a look at the body's bytes.
    pub(crate) fn decode(block: &[u8]) -> Result<Self, Malformed> {
        let Some((head, body)) = block.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Malformed("the block is shorter than its header"));
        };
        if head[..4] != *MAGIC {
            return Err(Malformed("these bytes are not a block"));
        }
        if u32_at(head, 4) != crc32fast::hash(&head[8..]) {
            return Err(Malformed("the header does not match its CRC"));
        }
        let header = Self {
            topic: u32_at(head, 16),
            queue: u32_at(head, 20),
            base: u64_at(head, 24),
            count: u32_at(head, 32),
            timestamp_max: u64_at(head, 40).cast_signed(),
        };
        if u32_at(head, 36) != 0 {
            return Err(Malformed("the header has unknown fields"));
        }
        if header.count == 0 {
            return Err(Malformed("the block holds no record"));
        }
        if header.base.checked_add(u64::from(header.count)).is_none_or(|end| end > END_MAX) {
            return Err(Malformed("the block's offsets are out of range"));
        }
        if usize::try_from(u32_at(head, 12)) != Ok(body.len()) {
            return Err(Malformed("the body is shorter or longer than it was"));
        }
        Ok(header)
    }
}

fn u32_at(head: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

fn u64_at(head: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(head, at)) | u64::from(u32_at(head, at + 4)) << 32
}

/// A checked block on its way out: records are taken from its front.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) header: Header,
    rest: Bytes,
    next: u64,
}

impl Block {
    /// Checks header, length and both CRCs.
    pub(crate) fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let header = Header::decode(&bytes)?;
        let body_crc = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        let rest = bytes.slice(HEADER_BYTES..);
        if crc32fast::hash(&rest) != body_crc {
            return Err(Malformed("the records do not match their CRC"));
        }
        Ok(Self { header, rest, next: header.base })
    }

    /// The offset of the record that comes next; the block's end when there is none left.
    pub(crate) fn next_offset(&self) -> u64 {
        self.next
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.next == self.header.end()
    }

    /// The memory that the rest of the block keeps alive, about.
    pub(crate) fn bytes_left(&self) -> usize {
        self.rest.len()
    }

    /// The next record and its offset. After an error it is still the next one.
    pub(crate) fn next_record(&mut self) -> Result<Option<(u64, Stored)>, Malformed> {
        if self.is_finished() {
            return Ok(None);
        }
        let record = Stored::decode(&mut self.rest).and_then(|record| {
            if self.next + 1 == self.header.end() && !self.rest.is_empty() {
                return Err(Malformed("bytes follow the block's last record"));
            }
            Ok(record)
        });
        // No record is found in what is left behind a malformed one.
        let record = record.inspect_err(|_| self.rest.clear())?;
        self.next += 1;
        Ok(Some((self.next - 1, record)))
    }
}

/// A block on its way in. It learns its place (topic, queue, base) only when it is appended, so
/// that encoding and the CRC of the body need no lock.
#[derive(Debug, Default)]
pub(crate) struct BlockBuilder {
    bytes: BytesMut,
    count: u32,
    timestamp_max: Option<i64>,
}

/// A block whose body is complete.
#[derive(Debug)]
pub(crate) struct SealedBody {
    bytes: BytesMut,
    pub(crate) count: u32,
    pub(crate) timestamp_max: i64,
    body_crc: u32,
    body_bytes: u32,
}

impl BlockBuilder {
    pub(crate) fn push(&mut self, record: &Record<'_>) {
        if self.bytes.is_empty() {
            self.bytes.put_bytes(0, HEADER_BYTES);
        }
        record.encode(&mut self.bytes);
        self.count += 1;
        self.timestamp_max = self.timestamp_max.max(record.timestamp_ms);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the next record belongs into a block of its own.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= HEADER_BYTES + BLOCK_BYTES
    }

    /// Closes the body and leaves an empty builder with room for as much again.
    pub(crate) fn seal(&mut self) -> SealedBody {
        let capacity = self.bytes.len() + self.bytes.len() / 8;
        let bytes = std::mem::replace(&mut self.bytes, BytesMut::with_capacity(capacity));
        let body = &bytes[HEADER_BYTES..];
        let body_crc = crc32fast::hash(body);
        // At most BLOCK_BYTES and one record.
        let body_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let timestamp_max = self.timestamp_max.take().unwrap_or(NO_TIMESTAMP);
        SealedBody {
            bytes,
            count: std::mem::take(&mut self.count),
            timestamp_max,
            body_crc,
            body_bytes,
        }
    }
}

impl SealedBody {
    /// The block, at its place. `queue_timestamp_max` is the queue's highest timestamp so far.
    pub(crate) fn place(
        mut self,
        topic: u32,
        queue: u32,
        base: u64,
        queue_timestamp_max: i64,
    ) -> Bytes {
        let mut head = [0; HEADER_BYTES];
        head[..4].copy_from_slice(MAGIC);
        let mut fields = &mut head[8..];
        fields.put_u32_le(self.body_crc);
        fields.put_u32_le(self.body_bytes);
        fields.put_u32_le(topic);
        fields.put_u32_le(queue);
        fields.put_u64_le(base);
        fields.put_u32_le(self.count);
        fields.put_u32_le(0);
        fields.put_i64_le(self.timestamp_max.max(queue_timestamp_max));
        let crc = crc32fast::hash(&head[8..]);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        self.bytes[..HEADER_BYTES].copy_from_slice(&head);
        self.bytes.freeze()
    }
}

/// What a fuzz target calls: decodes any bytes as a block, and encodes again what it found. Not
/// part of the public interface.
///
/// # Panics
///
/// When a decoded block does not encode to the same bytes: that is the finding.
#[doc(hidden)]
pub fn fuzz_block(bytes: &[u8]) {
    let Ok(mut block) = Block::decode(Bytes::copy_from_slice(bytes)) else { return };
    let header = block.header;
    let mut again = BlockBuilder::default();
    while let Ok(Some((offset, stored))) = block.next_record() {
        assert!(offset >= header.base && offset < header.end(), "an offset outside of the block");
        let headers: Vec<_> = stored.headers.iter().collect();
        again.push(&Record {
            key: stored.key.as_deref(),
            payload: stored.payload.as_deref(),
            headers: &headers,
            timestamp_ms: stored.timestamp_ms,
            queue: None,
        });
    }
    if block.is_finished() && block.bytes_left() == 0 {
        let again = again.seal();
        let bytes_again =
            again.place(header.topic, header.queue, header.base, header.timestamp_max);
        let body = |bytes: &[u8]| bytes[HEADER_BYTES..].to_vec();
        assert_eq!(body(&bytes_again), body(bytes), "decode and encode are not inverse");
    }
}

/// The same for the records alone, which the CRC would keep a fuzzer away from.
#[doc(hidden)]
pub fn fuzz_records(body: &[u8]) {
    let mut rest = Bytes::copy_from_slice(body);
    while !rest.is_empty() {
        let before = rest.clone();
        let Ok(stored) = Stored::decode(&mut rest) else { return };
        let headers: Vec<_> = stored.headers.iter().collect();
        let record = Record {
            key: stored.key.as_deref(),
            payload: stored.payload.as_deref(),
            headers: &headers,
            timestamp_ms: stored.timestamp_ms,
            queue: None,
        };
        let mut again = BytesMut::new();
        record.encode(&mut again);
        assert_eq!(again[..], before[..before.len() - rest.len()], "not inverse");
    }
}

#[cfg(test)]
mod tests;
