//! Appending: one record, or a batch of them in one write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use keylane_source::{Offset, QueueId};

use crate::block::{BlockBuilder, SealedBody};
use crate::error::Kind;
use crate::partition::queue_of;
use crate::record::RECORD_BYTES_MAX;
use crate::shared::Shared;
use crate::topic::{Placed, Topic};
use crate::{Error, Record};

/// The largest batch: 256 MiB of records. It is one write to the store, and as large in memory.
const BATCH_BYTES_MAX: usize = 256 << 20;

/// Appends to one topic. Cheap to clone, and usable from any thread.
///
/// A record goes to the queue that it names, or else to the one that its key hashes to (XXH3 of the
/// key's bytes: the same queue in every process and release), or else, without a key, to the next
/// queue in turn. An empty key is a key.
#[derive(Debug, Clone)]
pub struct Producer {
    shared: Arc<Shared>,
    topic: Arc<Topic>,
    /// Where records without a key go next.
    turn: Arc<AtomicU32>,
}

/// Records that will be appended together, encoded as they come.
///
/// Reused after [`Producer::append`]. It holds its encoded bytes in memory, at most 256 MiB.
#[derive(Debug)]
pub struct Batch {
    topic: Arc<Topic>,
    builders: Vec<BlockBuilder>,
    /// Bodies that are full, in the order in which they were, and the queues of those that are not.
    sealed: Vec<(u32, SealedBody)>,
    open: Vec<u32>,
    records: usize,
    bytes: usize,
    turn: u32,
}

/// What an append brought to one queue: these offsets, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// The queue.
    pub queue: QueueId,
    /// The offset of the first record.
    pub first: Offset,
    /// How many records, at least 1.
    pub count: u64,
}

impl Producer {
    pub(crate) fn new(shared: Arc<Shared>, topic: Arc<Topic>) -> Self {
        Self { shared, topic, turn: Arc::default() }
    }

    /// The topic that it appends to.
    pub fn topic(&self) -> &str {
        &self.topic.name
    }

    /// How many queues the topic has.
    pub fn queues(&self) -> u32 {
        self.topic.queue_count()
    }

    /// The queue that a key goes to.
    pub fn queue_of(&self, key: impl AsRef<[u8]>) -> QueueId {
        self.topic.queues[queue_of(key.as_ref(), self.queues()) as usize].id
    }

    /// Appends one record; when this returns it is acknowledged. Batches are many times faster.
    ///
    /// # Errors
    ///
    /// As [`Batch::push`] and [`append`](Self::append).
    pub fn send(&self, record: &Record<'_>) -> Result<(QueueId, Offset), Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (index, _) = choose(&self.topic, record, turn, 0)?;
        let mut builder = BlockBuilder::default();
        builder.push(record);
        let placed = self.topic.append(&self.shared.core, vec![(index, builder.seal())])?;
        // One record went in.
        let one = self.appended(placed[0]);
        Ok((one.queue, one.first))
    }

    /// An empty batch for this topic.
    pub fn batch(&self) -> Batch {
        let builders = std::iter::repeat_with(BlockBuilder::default);
        Batch {
            builders: builders.take(self.topic.queues.len()).collect(),
            topic: Arc::clone(&self.topic),
            sealed: Vec::new(),
            open: Vec::new(),
            records: 0,
            bytes: 0,
            turn: self.turn.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Appends a batch in one write, all of it or nothing, and leaves it empty. When this returns
    /// the records are acknowledged: handed to the operating system, and on the disk if
    /// [`Fsync`](crate::Fsync) says so. They stand in each queue in the order in which they were
    /// pushed.
    ///
    /// Returns what each queue got, in order of the queues; nothing for an empty batch.
    ///
    /// # Errors
    ///
    /// Invalid: the batch is of another topic. NotFound: the topic was deleted. I/O: the write
    /// failed, nothing was acknowledged, and nothing more is written until the log is opened again
    /// ([`Error::is_stopped`]).
    pub fn append(&self, batch: &mut Batch) -> Result<Vec<Appended>, Error> {
        if !Arc::ptr_eq(&batch.topic, &self.topic) {
            return Err(Error::invalid(format!(
                "append to topic {:?}: the batch is of topic {:?}",
                self.topic.name, batch.topic.name
            )));
        }
        let bodies = batch.take();
        if bodies.is_empty() {
            return Ok(Vec::new());
        }
        let placed = self.topic.append(&self.shared.core, bodies)?;
        Ok(placed.into_iter().map(|one| self.appended(one)).collect())
    }

    fn appended(&self, placed: Placed) -> Appended {
        let queue = self.topic.queues[placed.queue as usize].id;
        // The append has checked that it lies in range.
        let first = Offset::new(placed.base).unwrap_or(Offset::MAX);
        Appended { queue, first, count: placed.count }
    }
}

/// The queue of a record, and the bytes that it takes at most. `turn` is for records without a key.
fn choose(
    topic: &Topic,
    record: &Record<'_>,
    turn: u32,
    batch_bytes: usize,
) -> Result<(u32, usize), Error> {
    let queues = topic.queue_count();
    let index = match (record.queue, record.key) {
        (Some(index), _) => index,
        (None, Some(key)) => queue_of(key, queues),
        (None, None) => turn % queues,
    };
    let queue = topic.queue(index)?.id;
    let size = record.encoded_max();
    if size > RECORD_BYTES_MAX || batch_bytes + size > BATCH_BYTES_MAX {
        return Err(Error::new(
            Kind::TooLarge,
            format!(
                "append {size} bytes to {queue}: a record has at most {RECORD_BYTES_MAX}, and a \
                 batch, which has {batch_bytes} already, at most {BATCH_BYTES_MAX}"
            ),
        ));
    }
    Ok((index, size))
}

impl Batch {
    /// Adds a record, encoded and copied here; returns the queue that it will go to.
    ///
    /// # Errors
    ///
    /// Invalid: the record names a queue that the topic does not have. TooLarge: the record has
    /// more than 64 MiB (with 10 bytes more for each header), or the batch would have more than 256
    /// MiB. The batch stays as it was.
    pub fn push(&mut self, record: &Record<'_>) -> Result<QueueId, Error> {
        let (index, size) = choose(&self.topic, record, self.turn, self.bytes)?;
        self.turn = self.turn.wrapping_add(1);
        let builder = &mut self.builders[index as usize];
        if builder.is_empty() {
            self.open.push(index);
        }
        builder.push(record);
        if builder.is_full() {
            self.sealed.push((index, builder.seal()));
            self.open.retain(|open| *open != index);
        }
        self.records += 1;
        self.bytes += size;
        Ok(self.topic.queues[index as usize].id)
    }

    /// How many records it holds.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The bytes that it holds, at most: keys, payloads, headers, and what tells them apart.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bodies, those of a queue together and in order.
    fn take(&mut self) -> Vec<(u32, SealedBody)> {
        let mut bodies = std::mem::take(&mut self.sealed);
        for index in self.open.drain(..) {
            bodies.push((index, self.builders[index as usize].seal()));
        }
        bodies.sort_by_key(|(index, _)| *index);
        (self.records, self.bytes) = (0, 0);
        bodies
    }
}
