//! The batched read: many messages with one call, as runs of one partition.
//!
//! # Who owns the bytes
//!
//! A message of librdkafka's is a slice of the buffer that a whole fetch came in (up to a megabyte
//! a partition) and keeps it alive. Payloads of at least [`SHARED_FROM`] bytes are shared: the
//! message is destroyed with its last [`Bytes`], and holds the client until then. Everything else
//! is copied into blocks of [`BLOCK`] bytes that many messages share, and the original is destroyed
//! at once: cheaper than an owner of its own, and a small message that is kept pins a block and not
//! a fetch.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use keylane_source::{Headers, Message, Offset, QueueId};
use rdkafka_sys as sys;

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
    raw: Vec<*mut sys::rd_kafka_message_t>,
    block: BytesMut,
}

// SAFETY: `raw` holds pointers only during a call; the queue may be used from any thread, and the
// source uses it from one.
unsafe impl Send for Reader {}

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
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        let raw = vec![ptr::null_mut(); READ_MAX];
        Self { queue, raw, block: BytesMut::new() }
    }

    /// Takes up to `max` messages (and at most [`READ_MAX`]) that are there already. Never waits.
    pub(crate) fn read(&mut self, max: usize, runs: &mut Vec<Run>) {
        let max = max.clamp(1, READ_MAX);
        let (queue, at) = (self.queue.raw.as_ptr(), self.raw.as_mut_ptr());
        // SAFETY: `at` has room for `max`; the timeout is zero because the call would wait for
        // all of it until the batch is full.
        let read = unsafe { sys::rd_kafka_consume_batch_queue(queue, 0, at, max) };
        let read = usize::try_from(read).unwrap_or(0);
        let mut rest = 0..read;
        while let Some(first) = rest.next() {
            let mut end = first + 1;
            let Some(whose) = self.whose(first) else {
                self.discard(first);
                continue;
            };
            while end < read && self.is_message(end - 1) && self.whose(end) == Some(whose) {
                end += 1;
            }
            rest = end..read;
            runs.push(self.run(first, end));
        }
    }

    /// Topic handle and partition of a raw message. Handles are compared inside one batch only,
    /// where all messages, and with them their topics, are alive or just converted.
    fn whose(&self, index: usize) -> Option<(*mut sys::rd_kafka_topic_t, i32)> {
        let raw = NonNull::new(self.raw[index])?;
        // SAFETY: not yet destroyed: runs are converted after their end was found.
        let message = unsafe { raw.as_ref() };
        (!message.rkt.is_null()).then_some((message.rkt, message.partition))
    }

    /// An error without a partition. Those come as events; here it would have no queue.
    fn discard(&mut self, index: usize) {
        let raw = std::mem::replace(&mut self.raw[index], ptr::null_mut());
        if let Some(raw) = NonNull::new(raw).map(Raw) {
            log::warn!("kafka: {} among the messages", Raw::code_of(raw.0));
        }
    }

    fn is_message(&self, index: usize) -> bool {
        NonNull::new(self.raw[index]).is_some_and(|raw| Raw::code_of(raw).accepted().is_ok())
    }

    fn run(&mut self, first: usize, end: usize) -> Run {
        let head = NonNull::new(self.raw[first]).expect("a run begins at a message");
        // SAFETY: alive.
        let head = unsafe { head.as_ref() };
        // SAFETY: alive, and so is its topic.
        let queue = unsafe { queue_of(head) };
        let mut run = Run { queue, messages: Vec::with_capacity(end - first), tail: None };
        for index in first..end {
            let raw = std::mem::replace(&mut self.raw[index], ptr::null_mut());
            let Some(raw) = NonNull::new(raw) else { continue };
            let raw = Raw(raw);
            match Raw::code_of(raw.0).accepted() {
                Ok(()) => run.messages.extend(self.message(raw, queue)),
                Err(code) => run.tail = Some(raw.tail(code)),
            }
        }
        run
    }

    /// None for an offset that is none, which librdkafka does not hand out.
    fn message(&mut self, raw: Raw, queue: QueueId) -> Option<Message> {
        let offset = Offset::from_i64(raw.fields().offset)?;
        let mut message = Message::new(queue, offset);
        if let Some(time) = raw.timestamp_ms() {
            message = message.with_timestamp_ms(time);
        }
        if let Some(headers) = raw.headers() {
            message = message.with_headers(headers);
        }
        if let Some(key) = raw.key() {
            message = message.with_key(self.copy(key));
        }
        Some(match raw.payload() {
            None => message,
            Some(payload) if payload.len() < SHARED_FROM => {
                let payload = self.copy(payload);
                message.with_payload(payload)
            }
            Some(_) => message.with_payload(Bytes::from_owner(Shared {
                raw,
                _client: Arc::clone(&self.queue.client),
            })),
        })
    }

    fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        if self.block.capacity() < bytes.len() {
            // A fresh block, not one that waits for the old one's messages to be dropped.
            self.block = BytesMut::with_capacity(bytes.len().max(BLOCK));
        }
        self.block.extend_from_slice(bytes);
        self.block.split().freeze()
    }
}

/// A message of librdkafka's, destroyed with the value.
struct Raw(NonNull<sys::rd_kafka_message_t>);

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

    fn code_of(raw: NonNull<sys::rd_kafka_message_t>) -> Code {
        // SAFETY: alive; its code is not read as an enum.
        let fields = unsafe { raw.as_ref() };
        // SAFETY: a field of a live message.
        unsafe { code_at(&raw const fields.err) }
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
