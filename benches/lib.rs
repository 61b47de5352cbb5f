//! What the benchmarks share: messages, medians, CPU time.
#![forbid(unsafe_code)]

use std::time::Duration;

use bytes::Bytes;
use keylane_source::{Message, Offset, QueueId};
use keylane_testkit::memory::MemoryTopic;

/// How many keys there are.
pub const KEYS: u64 = 10_000;

/// `messages` messages in `queues` queues, with payloads of 100 bytes that are slices of one buffer
/// and keys that stand in memory already: what it costs to make them is not what is measured.
pub fn topic(queues: u32, messages: u64) -> MemoryTopic {
    let payload = Bytes::from(vec![b'x'; 100]);
    let keys: Vec<Bytes> = (0..KEYS).map(|key| Bytes::from(format!("key-{key}"))).collect();
    MemoryTopic::generate("bench", queues, messages / u64::from(queues), move |queue, offset| {
        make(&keys, &payload, queue, offset)
    })
}

fn make(keys: &[Bytes], payload: &Bytes, queue: QueueId, offset: Offset) -> Message {
    // A step that is prime to the number of keys: each key as often as any other, not one after
    // another.
    let key = (offset.get() * 7_919 + u64::from(queue.index()) * 31) % KEYS;
    let key = keys[usize::try_from(key).unwrap_or_default()].clone();
    Message::new(queue, offset).with_key(key).with_payload(payload.clone())
}

/// The middle one of an odd number of values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The CPU time that this process has used so far, to a hundredth of a second; `None` where the
/// system does not say.
pub fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    // USER_HZ is 100 on every Linux that there is.
    Some(Duration::from_millis(ticks * 10))
}
