//! Reading a queue: from a position to the block that holds it, every step checked.

use keylane_source::QueueId;

use crate::Error;
use crate::block::{Block, Malformed};
use crate::log::Core;
use crate::record::Stored;
use crate::topic::Topic;

/// What lies at a position.
#[derive(Debug)]
pub(crate) enum Read {
    /// The block that holds it, with the position's record next.
    Block(Block),
    /// Retention has removed it.
    Trimmed,
}

/// The block that holds `position`, which lies between the queue's begin and its end.
///
/// # Errors
///
/// Damaged: there is none, or it is not what was written.
pub(crate) fn block(core: &Core, topic: &Topic, queue: u32, position: u64) -> Result<Read, Error> {
    let bounds = &topic.queues[queue as usize];
    let id = bounds.id;
    let doing = || format!("read {id} at offset {position}");
    let wrong = |what: String| Error::damaged(format!("{}: {what}", doing()));
    let found = core.store.blocks(topic.number, queue, position, bounds.end()).next();
    // The begin is published before anything is removed: asked after the read, it tells retention
    // from damage.
    if position < bounds.begin() {
        return Ok(Read::Trimmed);
    }
    let Some(found) = found.transpose().map_err(|error| error.context(doing()))? else {
        return Err(wrong(format!(
            "there is no record from here to the queue's end at {}",
            bounds.end()
        )));
    };
    let mut block = Block::decode(found.bytes).map_err(|error| wrong(error.to_string()))?;
    let header = block.header;
    if (header.topic, header.queue, header.end() - 1) != (topic.number, queue, found.last) {
        return Err(wrong(format!(
            "in the place of the block that ends at {} lies one of topic {} queue {} that ends at {}",
            found.last,
            header.topic,
            header.queue,
            header.end() - 1
        )));
    }
    if header.base > position {
        return Err(wrong(format!("the next record that is there has offset {}", header.base)));
    }
    while block.next_offset() < position {
        record(&mut block, id)?;
    }
    Ok(Read::Block(block))
}

/// The next record of a block; an error says which one it is.
pub(crate) fn record(block: &mut Block, queue: QueueId) -> Result<Option<(u64, Stored)>, Error> {
    let at = block.next_offset();
    block
        .next_record()
        .map_err(|error: Malformed| Error::damaged(format!("read {queue} at offset {at}: {error}")))
}
