//! What the benchmarks share: messages, medians, CPU time.
#![forbid(unsafe_code)]

use std::time::Duration;

use bytes::Bytes;
use keylane_source::{Message, MessageParts, Offset, QueueId};
use keylane_testkit::memory::MemoryTopic;

/// How many keys there are, where a benchmark does not say otherwise.
pub const KEYS: u64 = 10_000;

/// Messages in a block.
const BLOCK: usize = 256;
const KEY: usize = "key-01234567".len();
const PAYLOAD: usize = 100;

/// `messages` messages in `queues` queues, with payloads of 100 bytes. Keys and payloads are slices
/// of blocks of 256 messages, as they are in what a broker answers to a fetch; the blocks stand in
/// memory already, and come again after 10,240 messages: what it costs to make them is not what is
/// measured.
pub fn topic(queues: u32, messages: u64) -> MemoryTopic {
    topic_of(queues, messages, KEYS)
}

/// The same, of so many keys.
pub fn topic_of(queues: u32, messages: u64, keys: u64) -> MemoryTopic {
    let mut places = 0..keys.max(KEYS).next_multiple_of(BLOCK as u64);
    let mut block = || -> Option<Bytes> {
        let mut block = Vec::with_capacity(BLOCK * (KEY + PAYLOAD));
        for place in places.by_ref().take(BLOCK) {
            // A step that is prime to the number of keys: each comes about as often as any other,
            // not one after another.
            block.extend(format!("key-{:08}", place * 7_919 % keys).bytes());
            block.extend([b'x'; PAYLOAD]);
        }
        (!block.is_empty()).then(|| block.into())
    };
    let blocks: Vec<Bytes> = std::iter::from_fn(&mut block).collect();
    MemoryTopic::generate("bench", queues, messages / u64::from(queues), move |queue, offset| {
        make(&blocks, queue, offset)
    })
}

fn make(blocks: &[Bytes], queue: QueueId, offset: Offset) -> Message {
    let place = usize::try_from(offset.get()).unwrap_or_default();
    // Each queue begins at a block of its own.
    let block = &blocks[(place / BLOCK + queue.index() as usize * 7) % blocks.len()];
    let at = place % BLOCK * (KEY + PAYLOAD);
    Message::from_parts(
        queue,
        offset,
        MessageParts {
            key: Some(block.slice(at..at + KEY)),
            payload: Some(block.slice(at + KEY..at + KEY + PAYLOAD)),
            ..MessageParts::default()
        },
    )
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
