//! What comes from librdkafka's event queues, as values of ours.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::ptr::NonNull;

use keylane_source::QueueId;
use rdkafka::types::RDKafkaRespErr;
use rdkafka_sys as sys;

use super::{Queue, Tag};

/// Something that happened, other than messages.
#[derive(Debug)]
pub(crate) enum Event {
    /// The group gives these partitions to us.
    Assign(Vec<Partition>),
    /// The group takes these partitions away.
    Revoke(Vec<Partition>),
    /// The answer to a commit: an error of the whole request, or one per partition.
    Stored { tag: Tag, result: Result<(), Code>, partitions: Vec<Partition> },
    /// The answer to a look-up of the group's commits.
    Committed { tag: Tag, result: Result<Vec<Partition>, String> },
    /// The answer to a look-up of offsets.
    Offsets { tag: Tag, result: Result<Vec<Partition>, String> },
    /// Trouble of the client as a whole, or of the group.
    Trouble { code: Code, fatal: bool, text: String },
    /// A line of librdkafka's log, with its syslog level.
    Log { level: i32, facility: String, text: String },
    /// Something that we did not ask for.
    Other,
}

/// One entry of a topic list.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) queue: QueueId,
    pub(crate) offset: i64,
    pub(crate) metadata: String,
    pub(crate) code: Code,
}

impl Partition {
    pub(crate) fn accepted(&self) -> Result<(), Code> {
        self.code.accepted()
    }
}

/// An error code of Kafka's (positive) or librdkafka's (negative); zero is "no error". A number,
/// because brokers may send codes that this librdkafka has no name for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(i32);

impl Code {
    pub(crate) const UNKNOWN_PARTITION: Self =
        Self(RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION as i32);
    pub(crate) const END_OF_PARTITION: Self =
        Self(RDKafkaRespErr::RD_KAFKA_RESP_ERR__PARTITION_EOF as i32);
    pub(crate) const OFFSET_RESET: Self =
        Self(RDKafkaRespErr::RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET as i32);
    /// The coordinator takes no commits until the group's members have joined again.
    pub(crate) const REBALANCING: Self =
        Self(RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS as i32);
    /// We did not poll for longer than `max.poll.interval.ms`: the group goes on without us.
    pub(crate) const POLLED_TOO_LATE: Self =
        Self(RDKafkaRespErr::RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED as i32);
    /// A connection was lost: routine, since librdkafka connects again by itself.
    pub(crate) const TRANSPORT: Self = Self(RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT as i32);

    pub(crate) fn accepted(self) -> Result<(), Self> {
        if self.0 == 0 { Ok(()) } else { Err(self) }
    }
}

impl From<RDKafkaRespErr> for Code {
    fn from(code: RDKafkaRespErr) -> Self {
        Self(code as i32)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(code) = RDKafkaRespErr::try_from(self.0) else {
            return write!(f, "Kafka error {}", self.0);
        };
        // SAFETY: gives a static text.
        let text = unsafe { sys::rd_kafka_err2str(code) };
        // SAFETY: static, zero-terminated.
        f.write_str(&unsafe { text_at(text) })
    }
}

impl std::error::Error for Code {}

impl Queue {
    /// The next event, if there is one. Never waits. Tells librdkafka that we are alive.
    pub(crate) fn next(&self) -> Option<Event> {
        // SAFETY: the queue is alive; the event is ours.
        let raw = unsafe { sys::rd_kafka_queue_poll(self.raw.as_ptr(), 0) };
        Some(Raw(NonNull::new(raw)?).decode())
    }
}

/// An event of librdkafka's, destroyed with the value.
struct Raw(NonNull<sys::rd_kafka_event_t>);

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

impl Raw {
    fn decode(&self) -> Event {
        // SAFETY: the event is alive.
        let kind = unsafe { sys::rd_kafka_event_type(self.0.as_ptr()) };
        match kind {
            sys::RD_KAFKA_EVENT_REBALANCE => self.rebalance(),
            sys::RD_KAFKA_EVENT_OFFSET_COMMIT => Event::Stored {
                tag: self.tag(),
                result: self.code().accepted(),
                partitions: self.partitions(),
            },
            sys::RD_KAFKA_EVENT_LISTCONSUMERGROUPOFFSETS_RESULT => {
                Event::Committed { tag: self.tag(), result: self.committed() }
            }
            sys::RD_KAFKA_EVENT_LISTOFFSETS_RESULT => {
                Event::Offsets { tag: self.tag(), result: self.offsets() }
            }
            sys::RD_KAFKA_EVENT_ERROR => self.trouble(),
            sys::RD_KAFKA_EVENT_LOG => self.log(),
            _ => Event::Other,
        }
    }

    fn rebalance(&self) -> Event {
        // SAFETY: the event is alive.
        match unsafe { sys::rd_kafka_event_error(self.0.as_ptr()) } {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                Event::Assign(self.partitions())
            }
            // Revoked, or an error, which librdkafka wants answered by giving everything back.
            _ => Event::Revoke(self.partitions()),
        }
    }

    fn trouble(&self) -> Event {
        // SAFETY: the event is alive.
        let fatal = unsafe { sys::rd_kafka_event_error_is_fatal(self.0.as_ptr()) } != 0;
        Event::Trouble { code: self.code(), fatal, text: self.text() }
    }

    fn log(&self) -> Event {
        let (mut facility, mut text, mut level) = (std::ptr::null(), std::ptr::null(), 0);
        let (f, t, l) = (&raw mut facility, &raw mut text, &raw mut level);
        // SAFETY: the event is alive; writes two texts of the event and a number.
        if unsafe { sys::rd_kafka_event_log(self.0.as_ptr(), f, t, l) } != 0 {
            return Event::Other;
        }
        // SAFETY: the event's texts, alive.
        let facility = unsafe { text_at(facility) };
        // SAFETY: as above.
        let text = unsafe { text_at(text) };
        Event::Log { level, facility, text }
    }

    fn committed(&self) -> Result<Vec<Partition>, String> {
        self.whole()?;
        let (event, mut count) = (self.0.as_ptr(), 0);
        // SAFETY: the event is a result of that request, alive.
        let result = unsafe { sys::rd_kafka_event_ListConsumerGroupOffsets_result(event) };
        let at = &raw mut count;
        // SAFETY: a result, alive with its event.
        let groups = unsafe { sys::rd_kafka_ListConsumerGroupOffsets_result_groups(result, at) };
        if count == 0 {
            return Err("the answer names no group".to_owned());
        }
        // SAFETY: `count` pointers; there is at least one.
        let group = unsafe { *groups };
        // SAFETY: alive with its event.
        let error = unsafe { sys::rd_kafka_group_result_error(group) };
        if !error.is_null() {
            // SAFETY: not NULL, alive with its event.
            let text = unsafe { sys::rd_kafka_error_string(error) };
            // SAFETY: alive with its error.
            return Err(unsafe { text_at(text) });
        }
        // SAFETY: alive with its event.
        let list = unsafe { sys::rd_kafka_group_result_partitions(group) };
        // SAFETY: as above; NULL is allowed.
        Ok(unsafe { partitions(list) })
    }

    fn offsets(&self) -> Result<Vec<Partition>, String> {
        self.whole()?;
        let (event, mut count) = (self.0.as_ptr(), 0);
        // SAFETY: the event is a result of that request, alive.
        let result = unsafe { sys::rd_kafka_event_ListOffsets_result(event) };
        let at = &raw mut count;
        // SAFETY: a result, alive with its event.
        let infos = unsafe { sys::rd_kafka_ListOffsets_result_infos(result, at) };
        let mut all = Vec::with_capacity(count);
        for index in 0..count {
            // SAFETY: `count` pointers.
            let info = unsafe { infos.add(index) };
            // SAFETY: in range.
            let info = unsafe { *info };
            // SAFETY: alive with its event.
            let partition = unsafe { sys::rd_kafka_ListOffsetsResultInfo_topic_partition(info) };
            // SAFETY: as above.
            all.extend(unsafe { partition_at(partition) });
        }
        Ok(all)
    }

    /// The request's error, if it failed as a whole.
    fn whole(&self) -> Result<(), String> {
        self.code().accepted().map_err(|_| self.text())
    }

    fn code(&self) -> Code {
        // SAFETY: the event is alive.
        unsafe { sys::rd_kafka_event_error(self.0.as_ptr()) }.into()
    }

    fn text(&self) -> String {
        // SAFETY: the event is alive.
        let text = unsafe { sys::rd_kafka_event_error_string(self.0.as_ptr()) };
        // SAFETY: the event's text, or NULL.
        unsafe { text_at(text) }
    }

    fn tag(&self) -> Tag {
        // SAFETY: the event is alive. The pointer is a number of ours, never dereferenced.
        unsafe { sys::rd_kafka_event_opaque(self.0.as_ptr()) }.addr()
    }

    fn partitions(&self) -> Vec<Partition> {
        // SAFETY: the event is alive.
        let list = unsafe { sys::rd_kafka_event_topic_partition_list(self.0.as_ptr()) };
        // SAFETY: the event's list, or NULL.
        unsafe { partitions(list) }
    }
}

/// The entries of a list.
///
/// # Safety
///
/// The list is NULL, or alive and not changed during the call.
pub(super) unsafe fn partitions(
    list: *const sys::rd_kafka_topic_partition_list_t,
) -> Vec<Partition> {
    // SAFETY: NULL or alive, says the caller.
    let Some(list) = (unsafe { list.as_ref() }) else { return Vec::new() };
    let count = usize::try_from(list.cnt).unwrap_or(0);
    let mut all = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: `cnt` entries.
        let entry = unsafe { list.elems.add(index) };
        // SAFETY: in range, alive with the list.
        all.extend(unsafe { partition_at(entry) });
    }
    all
}

/// One entry; none for an entry without a partition (of a list of topics).
///
/// # Safety
///
/// The entry is alive.
unsafe fn partition_at(entry: *const sys::rd_kafka_topic_partition_t) -> Option<Partition> {
    // SAFETY: alive, says the caller; its code is not read as an enum.
    let entry = unsafe { &*entry };
    // SAFETY: a field of a live entry.
    let code = unsafe { code_at(&raw const entry.err) };
    // SAFETY: zero-terminated, alive with the entry.
    let topic = unsafe { text_at(entry.topic) };
    let metadata = if entry.metadata.is_null() {
        String::new()
    } else {
        // SAFETY: `size` bytes, alive with the entry.
        let bytes =
            unsafe { std::slice::from_raw_parts(entry.metadata.cast::<u8>(), entry.metadata_size) };
        String::from_utf8_lossy(bytes).into_owned()
    };
    let queue = QueueId::new(&topic, u32::try_from(entry.partition).ok()?);
    Some(Partition { queue, offset: entry.offset, metadata, code })
}

/// A code that may be one that the generated enum has no value for: it is read as a number.
///
/// # Safety
///
/// Alive.
pub(super) unsafe fn code_at(code: *const RDKafkaRespErr) -> Code {
    // SAFETY: an enum of this size and layout, alive, says the caller.
    Code(unsafe { code.cast::<i32>().read() })
}

/// A text of librdkafka's; NULL is the empty one.
///
/// # Safety
///
/// NULL, or zero-terminated and alive.
pub(super) unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not NULL, and what the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_without_a_name_are_shown_as_numbers() {
        assert_eq!(Code(9_999).to_string(), "Kafka error 9999");
        assert_eq!(Code(25).to_string(), "Broker: Unknown member");
        assert_eq!(Code(0).accepted(), Ok(()));
        assert_eq!(Code(25).accepted(), Err(Code(25)));
    }

    #[test]
    fn lists_are_read_whole_and_entries_without_partition_are_left_out() {
        let mut list = rdkafka::TopicPartitionList::new();
        list.add_topic_unassigned("pattern");
        let mut entry = list.add_partition("t", 3);
        entry.set_offset(rdkafka::Offset::Offset(7)).unwrap();
        entry.set_metadata("beside");
        // SAFETY: alive.
        let all = unsafe { partitions(list.ptr()) };
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].queue, all[0].offset), (QueueId::new("t", 3), 7));
        assert_eq!(all[0].metadata, "beside");
        // SAFETY: NULL is allowed.
        assert!(unsafe { partitions(std::ptr::null()) }.is_empty());
    }
}
