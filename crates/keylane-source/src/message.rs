//! One message, cheap to move and to clone: key, payload and headers are shared slices of the
//! buffer that they came in.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Offset, QueueId};

/// "No timestamp" in the field; the getter gives `None`.
const NO_TIMESTAMP: i64 = i64::MIN;

/// A message as it was read from its queue.
///
/// Key and payload are each absent, empty or bytes, and the three are told apart: a Kafka tombstone
/// is a payload of `None`, not an empty one.
///
/// ```
/// use keylane_source::{Message, Offset, QueueId};
///
/// let message = Message::new(QueueId::new("orders", 0), Offset::new(7).unwrap())
///     .with_key("account-9")
///     .with_payload("withdraw 5");
/// assert_eq!(message.key(), Some(&b"account-9"[..]));
/// assert_eq!(message.payload(), Some(&b"withdraw 5"[..]));
/// assert_eq!(message.timestamp_ms(), None);
/// ```
#[derive(Clone)]
pub struct Message {
    key: Option<Bytes>,
    payload: Option<Bytes>,
    headers: Headers,
    queue: QueueId,
    offset: Offset,
    timestamp_ms: i64,
    attempts: u32,
}

/// What a message has beside its place: for [`Message::from_parts`]. By default, nothing.
#[derive(Clone, Default)]
pub struct MessageParts {
    /// The key; `None` and empty are different things.
    pub key: Option<Bytes>,
    /// The payload; `None` (a tombstone) and empty are different things.
    pub payload: Option<Bytes>,
    /// The headers, in the order in which the producer set them.
    pub headers: Headers,
    /// Milliseconds since 1970 (UTC), where the broker has a timestamp.
    pub timestamp_ms: Option<i64>,
    /// How often the message has been tried before this process got it.
    pub attempts: u32,
}

impl Message {
    /// A message without key, payload, headers, timestamp, and never tried before.
    pub fn new(queue: QueueId, offset: Offset) -> Self {
        Self {
            key: None,
            payload: None,
            headers: Headers::default(),
            queue,
            offset,
            timestamp_ms: NO_TIMESTAMP,
            attempts: 0,
        }
    }

    /// A message of parts that are all there: where millions are made a second, cheaper than one
    /// `with_` after the other, each of which moves it.
    ///
    /// ```
    /// use keylane_source::{Message, MessageParts, Offset, QueueId};
    ///
    /// let parts = MessageParts { key: Some("account-9".into()), ..MessageParts::default() };
    /// let message = Message::from_parts(QueueId::new("orders", 0), Offset::new(7).unwrap(), parts);
    /// assert_eq!(message.key(), Some(&b"account-9"[..]));
    /// assert_eq!(message.payload(), None);
    /// ```
    #[inline]
    pub fn from_parts(queue: QueueId, offset: Offset, parts: MessageParts) -> Self {
        let MessageParts { key, payload, headers, timestamp_ms, attempts } = parts;
        let timestamp_ms = timestamp_ms.unwrap_or(NO_TIMESTAMP);
        Self { key, payload, headers, queue, offset, timestamp_ms, attempts }
    }

    /// Sets the key. An empty key is a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the payload. An empty payload is a payload.
    #[must_use]
    pub fn with_payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Sets the headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the timestamp, in milliseconds since 1970 (UTC).
    #[must_use]
    pub fn with_timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = timestamp_ms;
        self
    }

    /// Sets how often the message has been tried before this process got it (RocketMQ's
    /// `reconsumeTimes`). Default 0.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// The queue that the message was read from.
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// Where it stands in its queue.
    pub fn offset(&self) -> Offset {
        self.offset
    }

    /// The key; `None` and empty are different things.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    /// The key as shared bytes, to keep it without a copy.
    pub fn key_bytes(&self) -> Option<&Bytes> {
        self.key.as_ref()
    }

    /// The payload; `None` (a tombstone) and empty are different things.
    pub fn payload(&self) -> Option<&[u8]> {
        self.payload.as_deref()
    }

    /// The payload as shared bytes, to keep it without a copy.
    pub fn payload_bytes(&self) -> Option<&Bytes> {
        self.payload.as_ref()
    }

    /// The headers, in the order in which the producer set them.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Milliseconds since 1970 (UTC), where the broker has a timestamp.
    pub fn timestamp_ms(&self) -> Option<i64> {
        (self.timestamp_ms != NO_TIMESTAMP).then_some(self.timestamp_ms)
    }

    /// How often the message had been tried before this process got it.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The bytes of key, payload and headers: what the budget counts.
    pub fn size(&self) -> usize {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        length(&self.key) + length(&self.payload) + self.headers.size()
    }

    /// The same message in memory of its own.
    ///
    /// Key, payload and headers are slices of the buffer that a whole fetch came in, and a slice
    /// keeps its buffer alive. A message that is kept for long (held back for a retry, stored by a
    /// listener) is detached, so that it holds its own bytes and no more.
    #[must_use]
    pub fn detach(&self) -> Self {
        let copy = |bytes: &Option<Bytes>| bytes.as_deref().map(Bytes::copy_from_slice);
        Self {
            key: copy(&self.key),
            payload: copy(&self.payload),
            headers: self.headers.detach(),
            ..*self
        }
    }
}

impl fmt::Debug for Message {
    /// Names the message; its payload is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("queue", &self.queue)
            .field("offset", &self.offset)
            .field("key", &self.key)
            .field("payload_len", &self.payload.as_ref().map(Bytes::len))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MessageParts {
    /// As of a message: the payload is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageParts")
            .field("key", &self.key)
            .field("payload_len", &self.payload.as_ref().map(Bytes::len))
            .finish_non_exhaustive()
    }
}

/// Names and values beside the payload. A name may stand several times; a value may be absent.
///
/// ```
/// use keylane_source::Headers;
///
/// let headers: Headers = [("trace", Some("4f"))].into_iter().collect();
/// assert_eq!(headers.get("trace"), Some(Some(&b"4f"[..])));
/// assert_eq!(headers.get("span"), None);
/// ```
#[derive(Clone, Default)]
pub struct Headers(Option<Arc<[Header]>>);

type Header = (Bytes, Option<Bytes>);

impl Headers {
    /// The value of the first header of this name: `None` where there is no such header,
    /// `Some(None)` where it has no value.
    pub fn get(&self, name: &str) -> Option<Option<&[u8]>> {
        self.iter().find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| value)
    }

    /// All headers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.0.iter().flat_map(|all| all.iter()).map(|(name, value)| (&name[..], value.as_deref()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |all| all.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn size(&self) -> usize {
        match &self.0 {
            None => 0,
            Some(all) => all.iter().map(|(n, v)| n.len() + v.as_ref().map_or(0, Bytes::len)).sum(),
        }
    }

    fn detach(&self) -> Self {
        let copy = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        self.iter().map(|(name, value)| (copy(name), value.map(copy))).collect()
    }
}

impl<N: Into<Bytes>, V: Into<Bytes>> FromIterator<(N, Option<V>)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, Option<V>)>>(headers: I) -> Self {
        let all: Arc<[_]> =
            headers.into_iter().map(|(name, value)| (name.into(), value.map(Into::into))).collect();
        Self((!all.is_empty()).then_some(all))
    }
}

impl fmt::Debug for Headers {
    /// Names only: values are as private as payloads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |(name, _)| String::from_utf8_lossy(name).into_owned();
        f.debug_list().entries(self.iter().map(name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new(QueueId::new("t", 0), Offset::ZERO)
    }

    #[test]
    fn absent_empty_and_present_are_three_things() {
        let (absent, empty, present) = (message(), message().with_key(""), message().with_key("a"));
        assert_eq!(absent.key(), None);
        assert_eq!(empty.key(), Some(&b""[..]));
        assert_eq!(present.key(), Some(&b"a"[..]));
        assert_eq!(message().with_payload("").payload(), Some(&b""[..]));
        assert_eq!(message().payload(), None);
    }

    #[test]
    fn detach_leaves_the_shared_buffer() {
        let buffer = Bytes::from(vec![b'x'; 1024]);
        let message = message()
            .with_key(buffer.slice(0..2))
            .with_payload(buffer.slice(2..5))
            .with_headers([(buffer.slice(5..6), Some(buffer.slice(6..8)))].into_iter().collect())
            .with_timestamp_ms(3)
            .with_attempts(2);
        let detached = message.detach();
        drop(message);
        assert!(buffer.is_unique(), "a detached message still points into the fetch buffer");
        assert_eq!(detached.key(), Some(&b"xx"[..]));
        assert_eq!(detached.payload(), Some(&b"xxx"[..]));
        assert_eq!(detached.headers().get("x"), Some(Some(&b"xx"[..])));
        assert_eq!((detached.timestamp_ms(), detached.attempts()), (Some(3), 2));
    }

    #[test]
    fn size_counts_key_payload_and_headers() {
        let headers = [("name", Some("value")), ("n", None)].into_iter().collect();
        let message = message().with_key("key").with_payload("payload").with_headers(headers);
        assert_eq!(message.size(), 3 + 7 + 4 + 5 + 1);
    }

    #[test]
    fn payloads_and_header_values_are_not_printed() {
        let headers = [("name", Some("secret"))].into_iter().collect();
        let shown = format!("{:?}", message().with_payload("secret").with_headers(headers));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_message_stays_small() {
        // What a full channel costs is this number times its messages.
        assert_eq!(size_of::<Message>(), 112);
    }
}
