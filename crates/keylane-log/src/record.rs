//! One record: what a producer hands over, and its form inside a block. No I/O.
//!
//! ```text
//! flags u8         1 key · 2 payload · 4 timestamp · 8 headers; no other bit
//! timestamp i64    only with flag 4
//! key              varint length, bytes; only with flag 1
//! payload          varint length, bytes; only with flag 2
//! headers          varint count ≥ 1, each: varint length, name, varint 0 = no value, n = n-1 bytes
//! ```
//!
//! Numbers are little-endian, varints are LEB128 of at most 32 bits in their shortest form. There
//! is one encoding of a record and no other, so that decode and encode are inverse both ways.

use bytes::{Buf, BufMut, Bytes};
use keylane_source::Headers;

use crate::block::Malformed;

const KEY: u8 = 1;
const PAYLOAD: u8 = 2;
const TIMESTAMP: u8 = 4;
const HEADERS: u8 = 8;

/// The largest record, encoded: 64 MiB.
pub(crate) const RECORD_BYTES_MAX: usize = 64 << 20;

/// A record to append: borrowed, so that nothing is copied but once, into the block.
///
/// Key and payload are each absent, empty or bytes, and come back as they went in. The queue is
/// chosen by the key unless [`to_queue`](Self::to_queue) says otherwise.
///
/// ```
/// use keylane_log::Record;
///
/// let record = Record::new()
///     .with_key("account-9")
///     .with_payload("withdraw 5")
///     .with_headers(&[(b"trace", Some(b"4f"))])
///     .with_timestamp_ms(1_700_000_000_000);
/// # let _ = record;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: &'a [(&'a [u8], Option<&'a [u8]>)],
    pub(crate) timestamp_ms: Option<i64>,
    pub(crate) queue: Option<u32>,
}

impl<'a> Record<'a> {
    /// A record without key, payload, headers and timestamp.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the key. An empty key is a key, and chooses a queue like any other.
    #[must_use]
    pub fn with_key<K: AsRef<[u8]> + ?Sized>(mut self, key: &'a K) -> Self {
        self.key = Some(key.as_ref());
        self
    }

    /// Sets the payload. An empty payload is a payload.
    #[must_use]
    pub fn with_payload<P: AsRef<[u8]> + ?Sized>(mut self, payload: &'a P) -> Self {
        self.payload = Some(payload.as_ref());
        self
    }

    /// Sets the headers: names and values, in order; a name may stand several times.
    #[must_use]
    pub fn with_headers(mut self, headers: &'a [(&'a [u8], Option<&'a [u8]>)]) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the timestamp, in milliseconds since 1970 (UTC). Default: none. `i64::MIN` is none.
    #[must_use]
    pub fn with_timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = (timestamp_ms != i64::MIN).then_some(timestamp_ms);
        self
    }

    /// Appends to this queue of the topic, whatever the key.
    #[must_use]
    pub fn to_queue(mut self, index: u32) -> Self {
        self.queue = Some(index);
        self
    }

    /// The bytes of key, payload and headers.
    pub fn size(&self) -> usize {
        let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
        let headers: usize = self.headers.iter().map(|(n, v)| n.len() + length(*v)).sum();
        length(self.key) + length(self.payload) + headers
    }

    /// At most so many bytes are what [`encode`](Self::encode) appends.
    pub(crate) fn encoded_max(&self) -> usize {
        24 + 10 * self.headers.len() + self.size()
    }

    /// Appends the record's encoding. The caller has checked that
    /// [`encoded_max`](Self::encoded_max) is at most [`RECORD_BYTES_MAX`], so that every length
    /// fits a varint.
    pub(crate) fn encode(&self, out: &mut impl BufMut) {
        let flag = |bit, set| if set { bit } else { 0 };
        out.put_u8(
            flag(KEY, self.key.is_some())
                | flag(PAYLOAD, self.payload.is_some())
                | flag(TIMESTAMP, self.timestamp_ms.is_some())
                | flag(HEADERS, !self.headers.is_empty()),
        );
        if let Some(timestamp) = self.timestamp_ms {
            out.put_i64_le(timestamp);
        }
        for bytes in [self.key, self.payload].into_iter().flatten() {
            put_varint(out, bytes.len());
            out.put_slice(bytes);
        }
        if !self.headers.is_empty() {
            put_varint(out, self.headers.len());
            for (name, value) in self.headers {
                put_varint(out, name.len());
                out.put_slice(name);
                put_varint(out, value.map_or(0, |value| value.len() + 1));
                out.put_slice(value.unwrap_or_default());
            }
        }
    }
}

/// A record as it lies in a block: slices of the block's memory.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) key: Option<Bytes>,
    pub(crate) payload: Option<Bytes>,
    pub(crate) headers: Headers,
    pub(crate) timestamp_ms: Option<i64>,
}

impl Stored {
    /// Takes one record from the front of `body`.
    pub(crate) fn decode(body: &mut Bytes) -> Result<Self, Malformed> {
        let flags = body.try_get_u8().map_err(|_| Malformed("a record ends early"))?;
        if flags & !(KEY | PAYLOAD | TIMESTAMP | HEADERS) != 0 {
            return Err(Malformed("a record has unknown flags"));
        }
        let mut timestamp_ms = None;
        if flags & TIMESTAMP != 0 {
            let value = body.try_get_i64_le().map_err(|_| Malformed("a timestamp ends early"))?;
            timestamp_ms = Some(value);
        }
        let key = if flags & KEY != 0 { Some(take_bytes(body)?) } else { None };
        let payload = if flags & PAYLOAD != 0 { Some(take_bytes(body)?) } else { None };
        let headers = if flags & HEADERS != 0 { take_headers(body)? } else { Headers::default() };
        Ok(Self { key, payload, headers, timestamp_ms })
    }
}

fn take_headers(body: &mut Bytes) -> Result<Headers, Malformed> {
    let count = get_varint(body)?;
    // A header takes two bytes at least: no allocation that the bytes do not cover.
    if count == 0 || count > body.len() / 2 {
        return Err(Malformed("a record has an impossible number of headers"));
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let name = take_bytes(body)?;
        let value = match get_varint(body)? {
            0 => None,
            length => Some(take(body, length - 1)?),
        };
        headers.push((name, value));
    }
    Ok(headers.into_iter().collect())
}

fn take_bytes(body: &mut Bytes) -> Result<Bytes, Malformed> {
    let length = get_varint(body)?;
    take(body, length)
}

fn take(body: &mut Bytes, length: usize) -> Result<Bytes, Malformed> {
    if length > body.len() {
        return Err(Malformed("a record ends early"));
    }
    Ok(body.split_to(length))
}

fn put_varint(out: &mut impl BufMut, mut value: usize) {
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            return out.put_u8(low);
        }
        out.put_u8(0x80 | low);
    }
}

fn get_varint(body: &mut Bytes) -> Result<usize, Malformed> {
    let mut value = 0_u64;
    for shift in (0..35).step_by(7) {
        let byte = body.try_get_u8().map_err(|_| Malformed("a length ends early"))?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                return Err(Malformed("a length is not in its shortest form"));
            }
            let value = u32::try_from(value).map_err(|_| Malformed("a length is too large"))?;
            return usize::try_from(value).map_err(|_| Malformed("a length is too large"));
        }
    }
    Err(Malformed("a length is too long"))
}
