//! Finding a record by its timestamp, a bounded piece of work at a time.
//!
//! A block's header has the highest timestamp of its queue *up to* the block. That number never
//! falls, so that the first block that can hold the record is found by bisection over offsets, and
//! all blocks before it are known not to. From there on records are looked at one by one; the
//! number may come from a record that retention has removed, so that may take several blocks.

use crate::Error;
use crate::reader::{self, Read};
use crate::shared::Core;
use crate::topic::Topic;

/// How many blocks one call looks at, so that a poll does not take long.
const BLOCKS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) enum Search {
    /// Here is the record, or the queue's end.
    Found(u64),
    /// Not yet: go on here.
    From(u64),
}

/// The position of the first block that can hold a record of this timestamp or a later one.
pub(crate) fn first_block(
    core: &Core,
    topic: &Topic,
    queue: u32,
    timestamp_ms: i64,
) -> Result<u64, Error> {
    let bounds = &topic.queues[queue as usize];
    let (mut low, mut high) = (bounds.begin(), bounds.end());
    while low < high {
        match reader::block(core, topic, queue, low + (high - low) / 2)? {
            Read::Trimmed => low = bounds.begin(),
            Read::Block(block) if block.header.timestamp_max < timestamp_ms => {
                low = block.header.end();
            }
            Read::Block(block) => high = block.header.base,
        }
    }
    Ok(low)
}

/// Looks at a few blocks from this position on.
pub(crate) fn search(
    core: &Core,
    topic: &Topic,
    queue: u32,
    timestamp_ms: i64,
    mut from: u64,
) -> Result<Search, Error> {
    let bounds = &topic.queues[queue as usize];
    for _ in 0..BLOCKS_MAX {
        from = from.max(bounds.begin());
        if from >= bounds.end() {
            return Ok(Search::Found(from));
        }
        let Read::Block(mut block) = reader::block(core, topic, queue, from)? else { continue };
        while let Some((offset, record)) = reader::record(&mut block, bounds.id)? {
            if record.timestamp_ms.is_some_and(|timestamp| timestamp >= timestamp_ms) {
                return Ok(Search::Found(offset));
            }
        }
        from = block.header.end();
    }
    Ok(Search::From(from))
}
