//! The only module that calls librdkafka's C interface directly; its own interface is safe.
//!
//! What the safe wrappers of `rdkafka` do not offer, and this module does: partition queues
//! forwarded into one application queue, the batched read ([`batch`]), commits and look-ups whose
//! results arrive on a queue ([`event`]), and a client that outlives its source.
//!
//! # Invariants
//!
//! 1. **The handle outlives everything made from it.** Queues, topic lists in flight and messages
//!    hold an `Arc` of [`Handle`]; `rd_kafka_destroy` waits for ever for a message that is still
//!    alive, so it is called by whoever drops the last of them, on a thread of its own: neither a
//!    stop nor a shard thread waits for it.
//! 2. **Topic lists never outlive a call.** A list that was given to pause or seek keeps hidden
//!    references to partitions, which would keep the client alive.
//! 3. **One thread reads.** The batched read beside a concurrent seek, pause or rebalance is not
//!    safe in librdkafka; [`Reader`](batch::Reader) and [`Client`] are used by the thread that owns
//!    the source (`&mut`), and are `Send`, not shared.
//! 4. **Callbacks only raise a flag.** librdkafka calls [`on_activity`] under its locks: it touches
//!    the [`Signal`] and nothing of librdkafka.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use keylane_source::QueueId;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use rdkafka_sys as sys;

use crate::Error;
use crate::signal::Signal;

pub(crate) mod batch;
mod destroyer;
pub(crate) mod event;

pub(crate) use batch::{Reader, Run, Tail, Trouble};
pub(crate) use event::{Code, Event, Partition};

/// Finds a reply's request again: librdkafka carries it as an opaque pointer.
pub(crate) type Tag = usize;

/// A consumer of librdkafka. Destroyed with the last `Arc`, on a thread of its own.
struct Handle {
    raw: NonNull<sys::rd_kafka_t>,
    /// What librdkafka's callbacks raise; alive until the client is destroyed.
    signal: Arc<Signal>,
}

// SAFETY: librdkafka's handles may be used from any thread (its manual, "Threads and callbacks").
unsafe impl Send for Handle {}
// SAFETY: as above; what must not run concurrently is kept apart by invariant 3.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        /// The client on its way to the thread that destroys it.
        struct Doomed(
            NonNull<sys::rd_kafka_t>,
            #[expect(dead_code, reason = "kept alive")] Arc<Signal>,
        );
        // SAFETY: as for Handle, whose only owner this is now.
        unsafe impl Send for Doomed {}
        impl Doomed {
            fn destroy(self) {
                // Leaving the group is `begin_close`'s business, with a deadline; without it the
                // session runs out, as after a crash.
                let flags = sys::RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE;
                // SAFETY: the last reference; queues and messages held an Arc of the handle.
                unsafe { sys::rd_kafka_destroy_flags(self.0.as_ptr(), flags) }
            }
        }
        let doomed = Doomed(self.raw, Arc::clone(&self.signal));
        let thread = std::thread::Builder::new().name("kafka-destroy".to_owned());
        if let Err(error) = thread.spawn(move || doomed.destroy()) {
            log::warn!("kafka client left undestroyed, no thread for it: {error}");
        }
    }
}

/// Raises the signal whose address was given to `rd_kafka_queue_cb_event_enable`.
extern "C" fn on_activity(_client: *mut sys::rd_kafka_t, signal: *mut c_void) {
    // SAFETY: the address of the Signal in the handle's Arc, which outlives its queues.
    let signal = unsafe { &*signal.cast::<Signal>() };
    signal.activity();
}

/// A queue of librdkafka's.
pub(crate) struct Queue {
    raw: NonNull<sys::rd_kafka_queue_t>,
    client: Arc<Handle>,
}

// SAFETY: queues may be used from any thread, as handles may.
unsafe impl Send for Queue {}
// SAFETY: as above; that only one thread reads is invariant 3.
unsafe impl Sync for Queue {}

impl Queue {
    /// Raises the client's signal whenever the queue stops being empty.
    fn watched(self) -> Self {
        let signal = Arc::as_ptr(&self.client.signal).cast_mut().cast::<c_void>();
        let (queue, callback) = (self.raw.as_ptr(), Some(on_activity as _));
        // SAFETY: queue and signal are alive until Drop has taken the callback away.
        unsafe { sys::rd_kafka_queue_cb_event_enable(queue, callback, signal) }
        self
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let queue = self.raw.as_ptr();
        // SAFETY: the queue is ours until the next line.
        unsafe { sys::rd_kafka_queue_cb_event_enable(queue, None, ptr::null_mut()) }
        // SAFETY: our reference is given back once; the client is still alive (the Arc).
        unsafe { sys::rd_kafka_queue_destroy(queue) }
    }
}

/// A consumer: what it can be asked for. Nothing here waits, save [`seek`](Self::seek) (bounded).
pub(crate) struct Client {
    handle: Arc<Handle>,
    /// Rebalances, errors and log lines.
    pub(crate) events: Queue,
    /// Results of commits and look-ups.
    pub(crate) replies: Queue,
    /// Messages of all partitions that are forwarded.
    messages: Arc<Queue>,
}

impl Client {
    pub(crate) fn new(config: &ClientConfig, signal: Arc<Signal>) -> Result<Self, Error> {
        let native = config.create_native_config().map_err(|e| Error::new(e.to_string()))?;
        let events = sys::RD_KAFKA_EVENT_REBALANCE
            | sys::RD_KAFKA_EVENT_OFFSET_COMMIT
            | sys::RD_KAFKA_EVENT_ERROR
            | sys::RD_KAFKA_EVENT_LOG;
        // SAFETY: the configuration is ours and alive.
        unsafe { sys::rd_kafka_conf_set_events(native.ptr(), events) }
        let mut text = [0; 512];
        let kind = sys::rd_kafka_type_t::RD_KAFKA_CONSUMER;
        let (conf, at, size) = (native.ptr(), text.as_mut_ptr(), text.len());
        // SAFETY: takes the configuration over when it succeeds, else writes at most `size` bytes.
        let raw = unsafe { sys::rd_kafka_new(kind, conf, at, size) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::new(format!("create the Kafka client: {}", text_of(&text))));
        };
        // Owned by the client now.
        let _ = ManuallyDrop::new(native);
        Self::with_queues(Arc::new(Handle { raw, signal }))
    }

    fn with_queues(handle: Arc<Handle>) -> Result<Self, Error> {
        let rk = handle.raw.as_ptr();
        // The main queue's events (errors, log) come on the consumer's queue: one queue to poll.
        // SAFETY: a consumer with a group, not yet subscribed.
        unsafe { sys::rd_kafka_poll_set_consumer(rk) };
        // SAFETY: `log.queue` is set; NULL stands for the main queue.
        unsafe { sys::rd_kafka_set_log_queue(rk, ptr::null_mut()) };
        let queue = |raw| {
            let raw =
                NonNull::new(raw).ok_or_else(|| Error::new("the Kafka client has no queue"))?;
            Ok::<_, Error>(Queue { raw, client: Arc::clone(&handle) }.watched())
        };
        // SAFETY: gives a reference to the consumer's queue, or NULL.
        let events = queue(unsafe { sys::rd_kafka_queue_get_consumer(rk) })?;
        // SAFETY: makes a queue.
        let replies = queue(unsafe { sys::rd_kafka_queue_new(rk) })?;
        // SAFETY: makes a queue.
        let messages = Arc::new(queue(unsafe { sys::rd_kafka_queue_new(rk) })?);
        Ok(Self { handle, events, replies, messages })
    }

    fn rk(&self) -> *mut sys::rd_kafka_t {
        self.handle.raw.as_ptr()
    }

    /// Reads messages, with their headers or without. Fails where no thread can be started.
    pub(crate) fn reader(&self, headers: bool) -> io::Result<Reader> {
        Reader::new(Arc::clone(&self.messages), headers)
    }

    pub(crate) fn subscribe(&self, topics: &[String]) -> Result<(), Code> {
        let mut list = TopicPartitionList::with_capacity(topics.len());
        for topic in topics {
            list.add_topic_unassigned(topic);
        }
        // SAFETY: the list is alive for the call.
        accepted(unsafe { sys::rd_kafka_subscribe(self.rk(), list.ptr()) })
    }

    /// Sends the partition's messages into the queue that is read, or (`false`) keeps them, and
    /// what is fetched from now on, in the partition's own queue. Nothing is lost or reordered.
    pub(crate) fn forward(&self, queue: QueueId, on: bool) {
        let Ok(topic) = CString::new(queue.topic()) else { return };
        // SAFETY: gives a reference to the partition's queue, or NULL.
        let raw = unsafe {
            sys::rd_kafka_queue_get_partition(self.rk(), topic.as_ptr(), partition_of(queue))
        };
        let Some(raw) = NonNull::new(raw) else { return };
        let partition = Queue { raw, client: Arc::clone(&self.handle) };
        let to = if on { self.messages.raw.as_ptr() } else { ptr::null_mut() };
        // SAFETY: both queues are alive; NULL ends the forwarding.
        unsafe { sys::rd_kafka_queue_forward(partition.raw.as_ptr(), to) }
    }

    /// Takes these partitions over, at these offsets.
    pub(crate) fn assign(&self, partitions: &[(QueueId, i64)]) -> Result<(), Code> {
        let list = list_at(partitions)?;
        if self.is_incremental() {
            // SAFETY: the list is alive for the call; the error, if any, is ours.
            taken(unsafe { sys::rd_kafka_incremental_assign(self.rk(), list.ptr()) })
        } else {
            // SAFETY: the list is alive for the call.
            accepted(unsafe { sys::rd_kafka_assign(self.rk(), list.ptr()) })
        }
    }

    /// Gives these partitions back; in the eager protocol always all of them.
    pub(crate) fn unassign(&self, partitions: &[QueueId]) -> Result<(), Code> {
        if self.is_incremental() {
            let list = list_of(partitions);
            // SAFETY: the list is alive for the call; the error, if any, is ours.
            taken(unsafe { sys::rd_kafka_incremental_unassign(self.rk(), list.ptr()) })
        } else {
            // SAFETY: NULL stands for the whole assignment.
            accepted(unsafe { sys::rd_kafka_assign(self.rk(), ptr::null()) })
        }
    }

    /// Whether the group's protocol changes assignments piece by piece (cooperative, KIP-848).
    pub(crate) fn is_incremental(&self) -> bool {
        // SAFETY: a static string, or NULL where there is no group.
        let name = unsafe { sys::rd_kafka_rebalance_protocol(self.rk()) };
        if name.is_null() {
            return false;
        }
        // SAFETY: not NULL, zero-terminated, static.
        let name = unsafe { CStr::from_ptr(name) };
        name == c"COOPERATIVE"
    }

    /// Whether the assignment is gone already, so that nothing may be committed any more.
    pub(crate) fn assignment_lost(&self) -> bool {
        // SAFETY: the client is alive.
        unsafe { sys::rd_kafka_assignment_lost(self.rk()) != 0 }
    }

    /// Stops (and drops) or starts the fetching of these partitions.
    pub(crate) fn pause(&self, queues: &[QueueId], pause: bool) {
        let list = list_of(queues);
        if pause {
            // SAFETY: the list is alive for the call.
            unsafe { sys::rd_kafka_pause_partitions(self.rk(), list.ptr()) };
        } else {
            // SAFETY: the list is alive for the call.
            unsafe { sys::rd_kafka_resume_partitions(self.rk(), list.ptr()) };
        }
    }

    /// Moves the partitions; waits for at most `timeout` until librdkafka's own thread has done so
    /// (no request is sent). One result per partition, in the same order.
    pub(crate) fn seek(
        &self,
        partitions: &[(QueueId, i64)],
        timeout: Duration,
    ) -> Result<Vec<Result<(), Code>>, Code> {
        let list = list_at(partitions)?;
        // SAFETY: the list is alive for the call; the error, if any, is ours.
        taken(unsafe { sys::rd_kafka_seek_partitions(self.rk(), list.ptr(), millis(timeout)) })?;
        // SAFETY: the list is alive and nobody else holds it.
        let seen = unsafe { event::partitions(list.ptr()) };
        let result = |(queue, _): &(QueueId, i64)| {
            let found = seen.iter().find(|partition| partition.queue == *queue);
            found.map_or(Err(Code::UNKNOWN_PARTITION), Partition::accepted)
        };
        Ok(partitions.iter().map(result).collect())
    }

    /// Asks the group's coordinator to store offsets; [`Event::Stored`] answers.
    pub(crate) fn commit(
        &self,
        offsets: impl Iterator<Item = (QueueId, i64, String)>,
        tag: Tag,
    ) -> Result<(), Code> {
        let mut list = TopicPartitionList::new();
        for (queue, offset, metadata) in offsets {
            let mut partition = list.add_partition(queue.topic(), partition_of(queue));
            partition
                .set_offset(Offset::Offset(offset))
                .map_err(|_| Code::from(RDKafkaRespErr::RD_KAFKA_RESP_ERR__INVALID_ARG))?;
            if !metadata.is_empty() {
                partition.set_metadata(metadata);
            }
        }
        let replies = self.replies.raw.as_ptr();
        let (rk, list, tag) = (self.rk(), list.ptr(), opaque(tag));
        // SAFETY: the list is copied; the tag comes back as it is and is never dereferenced.
        accepted(unsafe { sys::rd_kafka_commit_queue(rk, list, replies, None, tag) })
    }

    /// Asks what the group has committed; [`Event::Committed`] answers.
    pub(crate) fn look_up_committed(
        &self,
        group: &str,
        queues: &[QueueId],
        timeout: Duration,
        tag: Tag,
    ) {
        let Ok(group) = CString::new(group) else { return };
        let api = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS;
        let options = AdminOptions::new(self, api, timeout, tag);
        options.require_stable_offsets();
        let list = list_of(queues);
        // SAFETY: group and list are copied.
        let mut request =
            unsafe { sys::rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), list.ptr()) };
        let (rk, to) = (self.rk(), self.replies.raw.as_ptr());
        let (of, options) = (&raw mut request, options.0.as_ptr());
        // SAFETY: request and options are alive for the call, which copies them.
        unsafe { sys::rd_kafka_ListConsumerGroupOffsets(rk, of, 1, options, to) }
        // SAFETY: ours, and not used any more.
        unsafe { sys::rd_kafka_ListConsumerGroupOffsets_destroy(request) }
    }

    /// Asks where these partitions begin (-2) or end (-1), or from which offset on they are not
    /// older than a timestamp (milliseconds); [`Event::Offsets`] answers.
    pub(crate) fn look_up_offsets(
        &self,
        queues: &[(QueueId, i64)],
        read_committed: bool,
        timeout: Duration,
        tag: Tag,
    ) -> Result<(), Code> {
        let api = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS;
        let options = AdminOptions::new(self, api, timeout, tag);
        options.isolation(read_committed);
        let list = list_at(queues)?;
        let (rk, list, to) = (self.rk(), list.ptr(), self.replies.raw.as_ptr());
        // SAFETY: list and options are alive for the call, which copies them.
        unsafe { sys::rd_kafka_ListOffsets(rk, list, options.0.as_ptr(), to) }
        Ok(())
    }

    /// The end of a partition as the last fetch reported it.
    pub(crate) fn end_of(&self, queue: QueueId) -> Option<i64> {
        let topic = CString::new(queue.topic()).ok()?;
        let (mut begin, mut end) = (-1, -1);
        let (at, low, high) = (topic.as_ptr(), &raw mut begin, &raw mut end);
        let partition = partition_of(queue);
        // SAFETY: writes two numbers.
        let code =
            unsafe { sys::rd_kafka_get_watermark_offsets(self.rk(), at, partition, low, high) };
        (accepted(code).is_ok() && end >= 0).then_some(end)
    }

    /// Begins to leave the group: the rebalance events that follow must be answered until
    /// [`is_closed`](Self::is_closed).
    pub(crate) fn begin_close(&self) -> Result<(), Code> {
        let events = self.events.raw.as_ptr();
        // SAFETY: the queue is alive; the error, if any, is ours.
        taken(unsafe { sys::rd_kafka_consumer_close_queue(self.rk(), events) })
    }

    pub(crate) fn is_closed(&self) -> bool {
        // SAFETY: the client is alive.
        unsafe { sys::rd_kafka_consumer_closed(self.rk()) != 0 }
    }
}

/// Options of one admin request, destroyed with the value.
struct AdminOptions(NonNull<sys::rd_kafka_AdminOptions_t>);

impl AdminOptions {
    fn new(client: &Client, api: sys::rd_kafka_admin_op_t, timeout: Duration, tag: Tag) -> Self {
        // SAFETY: makes the options; it is NULL for an unknown operation only.
        let raw = unsafe { sys::rd_kafka_AdminOptions_new(client.rk(), api) };
        let options = Self(NonNull::new(raw).expect("librdkafka knows its own operations"));
        let (raw, mut text) = (raw, [0; 128]);
        let (at, size) = (text.as_mut_ptr(), text.len());
        // SAFETY: the options are alive; at most `size` bytes are written.
        unsafe { sys::rd_kafka_AdminOptions_set_request_timeout(raw, millis(timeout), at, size) };
        // SAFETY: the tag comes back as it is and is never dereferenced.
        unsafe { sys::rd_kafka_AdminOptions_set_opaque(raw, opaque(tag)) };
        options
    }

    /// Not the offsets of a transaction that may still be aborted.
    fn require_stable_offsets(&self) {
        let raw = self.0.as_ptr();
        // SAFETY: the options are alive; the error, if any, is ours.
        let set = unsafe { sys::rd_kafka_AdminOptions_set_require_stable_offsets(raw, 1) };
        let _ = taken(set);
    }

    /// Whether the end is that of what is committed, or of everything.
    fn isolation(&self, read_committed: bool) {
        use sys::rd_kafka_IsolationLevel_t as Level;
        let level = if read_committed {
            Level::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED
        } else {
            Level::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED
        };
        // SAFETY: the options are alive; the error, if any, is ours.
        let set = unsafe { sys::rd_kafka_AdminOptions_set_isolation_level(self.0.as_ptr(), level) };
        let _ = taken(set);
    }
}

impl Drop for AdminOptions {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.0.as_ptr()) }
    }
}

fn opaque(tag: Tag) -> *mut c_void {
    ptr::without_provenance_mut(tag)
}

fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

/// Kafka's partitions are non-negative 32-bit numbers, and so is every index that came from it or
/// passed the builder.
fn partition_of(queue: QueueId) -> i32 {
    i32::try_from(queue.index()).unwrap_or(i32::MAX)
}

fn list_of(queues: &[QueueId]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(queues.len());
    for queue in queues {
        list.add_partition(queue.topic(), partition_of(*queue));
    }
    list
}

fn list_at(partitions: &[(QueueId, i64)]) -> Result<TopicPartitionList, Code> {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for (queue, offset) in partitions {
        list.add_partition(queue.topic(), partition_of(*queue))
            .set_offset(Offset::from_raw(*offset))
            .map_err(|_| Code::from(RDKafkaRespErr::RD_KAFKA_RESP_ERR__INVALID_ARG))?;
    }
    Ok(list)
}

fn accepted(code: RDKafkaRespErr) -> Result<(), Code> {
    Code::from(code).accepted()
}

/// Takes an error object of librdkafka's over, which is NULL where there is no error.
fn taken(error: *mut sys::rd_kafka_error_t) -> Result<(), Code> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: an error object, ours.
    let code = unsafe { sys::rd_kafka_error_code(error) };
    // SAFETY: ours, destroyed once.
    unsafe { sys::rd_kafka_error_destroy(error) };
    Err(code.into())
}

/// A zero-terminated text in a buffer of ours.
fn text_of(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> =
        buffer.iter().take_while(|&&c| c != 0).map(|&c| c.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
