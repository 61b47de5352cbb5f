//! Reading a queue: from a position to the block that holds it, every step checked.

use keylane_source::QueueId;

use crate::Error;
use crate::block::{Block, Malformed};
use crate::record::Stored;
use crate::shared::Core;
use crate::store::StoredBlock;
use crate::topic::{Queue, Topic};

/// What lies at a position.
#[derive(Debug)]
pub(crate) enum Read {
    /// The block that holds it, with the position's record next.
    Block(Block),
    /// Retention has removed it.
    Trimmed,
}

/// Reads a queue onwards, block by block.
pub(crate) struct Reader<'a> {
    topic: u32,
    bounds: &'a Queue,
    end: u64,
    found: Box<dyn Iterator<Item = Result<StoredBlock, Error>>>,
}

impl<'a> Reader<'a> {
    /// From this position on, up to the queue's end as it is now.
    pub(crate) fn new(core: &Core, topic: &'a Topic, queue: u32, from: u64) -> Self {
        let bounds = &topic.queues[queue as usize];
        let end = bounds.end();
        let found = Box::new(core.store.blocks(topic.number, queue, from, end));
        Self { topic: topic.number, bounds, end, found }
    }

    /// The next block, which holds `position`: where the reader began, or where the last block
    /// ended. It lies before the queue's end.
    ///
    /// # Errors
    ///
    /// Damaged: there is none, or it is not what was written.
    pub(crate) fn block(&mut self, position: u64) -> Result<Read, Error> {
        let queue = self.bounds.id;
        let doing = || format!("read {queue} at offset {position}");
        let wrong = |what: String| Error::damaged(format!("{}: {what}", doing()));
        let found = self.found.next();
        // The begin is published before anything is removed: asked after the read, it tells
        // retention from damage.
        if position < self.bounds.begin() {
            return Ok(Read::Trimmed);
        }
        let Some(found) = found.transpose().map_err(|error| error.context(doing()))? else {
            return Err(wrong(format!(
                "there is no record from here to the queue's end at {}",
                self.end
            )));
        };
        let mut block = Block::decode(found.bytes).map_err(|error| wrong(error.to_string()))?;
        let header = block.header;
        let last = header.end() - 1;
        if (header.topic, header.queue, last) != (self.topic, queue.index(), found.last) {
            return Err(wrong(format!(
                "in the place of the block up to {} lies one of topic {} queue {} up to {last}",
                found.last, header.topic, header.queue
            )));
        }
        if header.base > position {
            return Err(wrong(format!("the next record that is there has offset {}", header.base)));
        }
        while block.next_offset() < position {
            record(&mut block, queue)?;
        }
        Ok(Read::Block(block))
    }
}

/// The block that holds `position`, which lies between the queue's begin and its end.
///
/// # Errors
///
/// As [`Reader::block`].
pub(crate) fn block(core: &Core, topic: &Topic, queue: u32, position: u64) -> Result<Read, Error> {
    Reader::new(core, topic, queue, position).block(position)
}

/// The next record of a block; an error says which one it is.
pub(crate) fn record(block: &mut Block, queue: QueueId) -> Result<Option<(u64, Stored)>, Error> {
    let at = block.next_offset();
    block
        .next_record()
        .map_err(|error: Malformed| Error::damaged(format!("read {queue} at offset {at}: {error}")))
}
