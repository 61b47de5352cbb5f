//! The batched read: many messages with one call, as runs of one partition.
//!
//! # Who owns the bytes
//!
//! A message of librdkafka's is a slice of the buffer that a whole fetch came in (up to a megabyte
//! a partition) and keeps it alive. Payloads of at least [`SHARED_FROM`] bytes are shared: the
//! message is destroyed with its last [`Bytes`], and holds the client until then. Everything else
//! is copied into blocks of [`BLOCK`] bytes that many messages share, and the original is destroyed
//! with the batch: cheaper than an owner of its own, and a small message that is kept pins a block
//! and not a fetch.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use keylane_source::{Emptied, Headers, Message, MessageParts, Offset, QueueId};
use rdkafka_sys as sys;

use super::destroyer::Destroyer;
use super::event::{Code, code_at, text_at};
use super::{Handle, Queue};

/// From this length on, a payload is shared with librdkafka and not copied.
const SHARED_FROM: usize = 1024;
/// How many bytes of small messages share one allocation.
const BLOCK: usize = 64 * 1024;
/// The most messages that one read brings.
const READ_MAX: usize = 4096;

/// Reads the queue that the partitions are forwarded to. One thread, and no seek, pause or
/// rebalance beside it: `&mut` and the owning source see to that.
pub(crate) struct Reader {
    queue: Arc<Queue>,
    /// A batch during a call, all `None` otherwise.
    batch: Vec<Option<Raw>>,
    block: BytesMut,
    headers: bool,
    /// Given back, to be filled again.
    pub(crate) emptied: Emptied,
    destroyer: Destroyer,
}

/// What was read of one partition, in order: messages, then perhaps an end or an error.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) queue: QueueId,
    pub(crate) messages: Vec<Message>,
    pub(crate) tail: Option<Tail>,
}

/// What a run ends with, where it does not end with a message.
#[derive(Debug)]
pub(crate) enum Tail {
    /// The partition's end is at this offset: nothing below it is still to come.
    End(i64),
    Trouble(Trouble),
}

/// An error of one partition.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) code: Code,
    /// Where it was being read.
    pub(crate) offset: i64,
    pub(crate) text: String,
}

impl Reader {
    pub(super) fn new(queue: Arc<Queue>, headers: bool) -> io::Result<Self> {
        let batch = std::iter::repeat_with(|| None).take(READ_MAX).collect();
        let destroyer = Destroyer::new()?;
        let (block, emptied) = (BytesMut::new(), Emptied::default());
        Ok(Self { queue, batch, block, headers, emptied, destroyer })
    }

    /// Takes up to `max` messages (and at most [`READ_MAX`]) that are there already. Never waits.
    pub(crate) fn read(&mut self, max: usize, runs: &mut Vec<Run>) {
        let max = max.clamp(1, READ_MAX);
        let queue = self.queue.raw.as_ptr();
        // An `Option<Raw>` is a pointer that may be NULL.
        let at = self.batch.as_mut_ptr().cast();
        // SAFETY: `at` has room for `max`, and what is written there is ours to destroy; the
        // timeout is zero because the call would wait for all of it until the batch is full.
        let read = unsafe { sys::rd_kafka_consume_batch_queue(queue, 0, at, max) };
        let read = usize::try_from(read).unwrap_or(0);
        let mut rest = 0..read;
        while let Some(first) = rest.next() {
            let mut end = first + 1;
            let Some(whose) = self.whose(first) else {
                self.warn(first);
                continue;
            };
            while end < read && self.is_message(end - 1) && self.whose(end) == Some(whose) {
                end += 1;
            }
            rest = end..read;
            runs.extend(self.run(first, end));
        }
        self.destroyer.destroy(&mut self.batch[..read], &self.queue.client);
    }

    /// Topic handle and partition of a raw message. All messages of a batch, and with them their
    /// topics, are alive until its end.
    fn whose(&self, index: usize) -> Option<(*mut sys::rd_kafka_topic_t, i32)> {
        let fields = self.batch[index].as_ref()?.fields();
        (!fields.rkt.is_null()).then_some((fields.rkt, fields.partition))
    }

    /// An error without a partition. Those come as events; here it would have no queue.
    fn warn(&self, index: usize) {
        if let Some(raw) = &self.batch[index] {
            log::warn!("kafka: {} among the messages", raw.code());
        }
    }

    fn is_message(&self, index: usize) -> bool {
        self.batch[index].as_ref().is_some_and(|raw| raw.code().accepted().is_ok())
    }

    fn run(&mut self, first: usize, end: usize) -> Option<Run> {
        // SAFETY: the message, and with it its topic, is alive.
        let queue = unsafe { queue_of(self.batch[first].as_ref()?.fields()) };
        let mut messages = self.emptied.take();
        messages.reserve(end - first);
        let mut run = Run { queue, messages, tail: None };
        for index in first..end {
            let Some(raw) = self.batch[index].take() else { continue };
            match raw.code().accepted() {
                Ok(()) => {
                    let (message, raw) = self.message(raw, queue);
                    run.messages.extend(message);
                    self.batch[index] = raw;
                }
                Err(code) => run.tail = Some(raw.tail(code)),
            }
        }
        Some(run)
    }

    /// The message, and what it was made of where that is not shared. No message for an offset that
    /// is none, which librdkafka does not hand out.
    fn message(&mut self, raw: Raw, queue: QueueId) -> (Option<Message>, Option<Raw>) {
        let Some(offset) = Offset::from_i64(raw.fields().offset) else { return (None, Some(raw)) };
        let timestamp_ms = raw.timestamp_ms();
        let headers = if self.headers { raw.headers() } else { None }.unwrap_or_default();
        let (key, payload) = (raw.key(), raw.payload());
        let (has_key, has_payload) = (key.is_some(), payload.is_some());
        let shared = payload.is_some_and(|payload| payload.len() >= SHARED_FROM);
        let copied = if shared { None } else { payload };
        let (key, copied) = self.copy(key.unwrap_or_default(), copied.unwrap_or_default());
        let (payload, raw) = if shared {
            let _client = Arc::clone(&self.queue.client);
            (Some(Bytes::from_owner(Shared { raw, _client })), None)
        } else {
            (has_payload.then_some(copied), Some(raw))
        };
        let key = has_key.then_some(key);
        let parts = MessageParts { key, payload, headers, timestamp_ms, attempts: 0 };
        (Some(Message::from_parts(queue, offset, parts)), raw)
    }

    /// Copies both into the block, with one look at it.
    fn copy(&mut self, first: &[u8], second: &[u8]) -> (Bytes, Bytes) {
        let length = first.len() + second.len();
        if length == 0 {
            return (Bytes::new(), Bytes::new());
        }
        if self.block.capacity() < length {
            // A fresh block, not one that waits for the old one's messages to be dropped.
            self.block = BytesMut::with_capacity(length.max(BLOCK));
        }
        self.block.extend_from_slice(first);
        self.block.extend_from_slice(second);
        let mut both = self.block.split().freeze();
        (both.split_to(first.len()), both)
    }
}

/// A message of librdkafka's, destroyed with the value.
#[repr(transparent)]
pub(super) struct Raw(NonNull<sys::rd_kafka_message_t>);

// SAFETY: a message may be read and destroyed on any thread; nothing else points to it.
unsafe impl Send for Raw {}
// SAFETY: it is only read until it is destroyed.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once, before the client (invariant 1).
        unsafe { sys::rd_kafka_message_destroy(self.0.as_ptr()) }
    }
}

/// A payload that is still librdkafka's. The fields are dropped in this order: message, client.
struct Shared {
    raw: Raw,
    _client: Arc<Handle>,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.raw.payload().unwrap_or_default()
    }
}

impl Raw {
    fn fields(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: alive until Drop.
        unsafe { self.0.as_ref() }
    }

    fn code(&self) -> Code {
        // SAFETY: a field of a live message; not read as an enum.
        unsafe { code_at(&raw const self.fields().err) }
    }

    fn key(&self) -> Option<&[u8]> {
        let fields = self.fields();
        // SAFETY: `key_len` bytes, alive with the message.
        unsafe { bytes_at(fields.key.cast(), fields.key_len) }
    }

    fn payload(&self) -> Option<&[u8]> {
        let fields = self.fields();
        // SAFETY: `len` bytes, alive with the message.
        unsafe { bytes_at(fields.payload.cast(), fields.len) }
    }

    fn timestamp_ms(&self) -> Option<i64> {
        use sys::rd_kafka_timestamp_type_t as Kind;
        let mut kind = Kind::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: alive; writes the kind.
        let time = unsafe { sys::rd_kafka_message_timestamp(self.0.as_ptr(), &raw mut kind) };
        (kind != Kind::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE).then_some(time)
    }

    fn headers(&self) -> Option<Headers> {
        let mut list = ptr::null_mut();
        // SAFETY: alive; writes a pointer that lives as long as the message.
        let found = unsafe { sys::rd_kafka_message_headers(self.0.as_ptr(), &raw mut list) };
        Code::from(found).accepted().ok()?;
        // SAFETY: the list is alive with the message.
        let count = unsafe { sys::rd_kafka_header_cnt(list) };
        // SAFETY: as above, and `index` is below the count.
        Some((0..count).map(|index| unsafe { header_at(list, index) }).collect())
    }

    fn tail(&self, code: Code) -> Tail {
        let offset = self.fields().offset;
        if code == Code::END_OF_PARTITION {
            return Tail::End(offset);
        }
        // SAFETY: alive; gives a text that lives as long as the message.
        let text = unsafe { sys::rd_kafka_message_errstr(self.0.as_ptr()) };
        // SAFETY: as above, or NULL.
        let text = unsafe { text_at(text) };
        Tail::Trouble(Trouble { code, offset, text })
    }
}

/// # Safety
///
/// The message, and with it its topic, is alive.
unsafe fn queue_of(message: &sys::rd_kafka_message_t) -> QueueId {
    // SAFETY: the message holds its topic.
    let name = unsafe { sys::rd_kafka_topic_name(message.rkt) };
    // SAFETY: alive with the topic.
    let name = unsafe { text_at(name) };
    QueueId::new(&name, message.partition.cast_unsigned())
}

/// # Safety
///
/// NULL, or `length` bytes that live for `'a`.
unsafe fn bytes_at<'a>(at: *const u8, length: usize) -> Option<&'a [u8]> {
    if at.is_null() {
        return None;
    }
    // SAFETY: not NULL, and what the caller says.
    Some(unsafe { std::slice::from_raw_parts(at, length) })
}

/// # Safety
///
/// The list is alive and has such a header.
unsafe fn header_at(list: *mut sys::rd_kafka_headers_t, index: usize) -> (Bytes, Option<Bytes>) {
    let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
    let (n, v, s) = (&raw mut name, &raw mut value, &raw mut size);
    // SAFETY: what the caller says; writes two pointers into the list and a number.
    unsafe { sys::rd_kafka_header_get_all(list, index, n, v, s) };
    // SAFETY: zero-terminated, alive with the list.
    let name = unsafe { text_at(name) };
    // SAFETY: `size` bytes, alive with the list.
    let value = unsafe { bytes_at(value.cast(), size) };
    (name.into(), value.map(Bytes::copy_from_slice))
}
