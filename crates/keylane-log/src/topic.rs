//! A topic in memory: where each of its queues begins and ends, and who is told when one grows.
//!
//! Invariants:
//!
//! 1. `end` of a queue is published after the store and the marks have been given the records: who
//!    reads up to `end` finds them.
//! 2. `begin` is published before the store is told to remove what lies below.
//! 3. Offsets are given out and written under the one `append` lock, so that they have no gap and
//!    no block comes after one with higher offsets. It is also what guards the marks.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keylane_source::QueueId;
use parking_lot::Mutex;

use crate::Error;
use crate::block::{NO_TIMESTAMP, SealedBody};
use crate::error::Kind;
use crate::inbox::Inbox;
use crate::marks::{Mark, Marks, cell_of};
use crate::shared::Core;

/// One past the highest offset.
const END_MAX: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) number: u32,
    pub(crate) name: Box<str>,
    pub(crate) queues: Box<[Queue]>,
    pub(crate) append: Mutex<Append>,
    pub(crate) subscribers: Mutex<Vec<Arc<Inbox>>>,
    /// Something was written since the last sync began.
    pub(crate) dirty: AtomicBool,
    pub(crate) deleted: AtomicBool,
    /// One trim at a time.
    pub(crate) trimming: Mutex<()>,
    pub(crate) marks_file: Arc<File>,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    begin: AtomicU64,
    end: AtomicU64,
}

/// What an append needs and changes.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) marks: Marks,
    /// The highest timestamp of each queue.
    pub(crate) timestamps_max: Vec<i64>,
}

/// What one append brought to one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) queue: u32,
    pub(crate) base: u64,
    pub(crate) count: u64,
}

impl Queue {
    pub(crate) fn new(id: QueueId, begin: u64, end: u64) -> Self {
        Self { id, begin: AtomicU64::new(begin), end: AtomicU64::new(end) }
    }

    pub(crate) fn begin(&self) -> u64 {
        self.begin.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn set_begin(&self, begin: u64) {
        self.begin.store(begin, Ordering::Release);
    }
}

impl Topic {
    pub(crate) fn new(number: u32, name: &str, queues: Box<[Queue]>, marks: Marks) -> Self {
        let marks_file = marks.file();
        let timestamps_max = vec![NO_TIMESTAMP; queues.len()];
        Self {
            number,
            name: name.into(),
            queues,
            append: Mutex::new(Append { marks, timestamps_max }),
            subscribers: Mutex::default(),
            dirty: false.into(),
            deleted: false.into(),
            trimming: Mutex::default(),
            marks_file,
        }
    }

    /// Appends these bodies, each to its queue, all of them or none; returns where they went.
    ///
    /// Acknowledged means: given to the operating system, and on the disk if every batch is forced.
    pub(crate) fn append(
        &self,
        core: &Core,
        bodies: Vec<(u32, SealedBody)>,
    ) -> Result<Vec<Placed>, Error> {
        let mut append = self.append.lock();
        core.check_running()?;
        if self.deleted.load(Ordering::Acquire) {
            return Err(Error::new(Kind::NotFound, format!("topic {:?} was deleted", self.name)));
        }
        let placed = self.write_blocks(core, &mut append, bodies)?;
        self.dirty.store(true, Ordering::Release);
        for one in &placed {
            let end = one.base + one.count;
            self.queues[one.queue as usize].end.store(end, Ordering::Release);
        }
        drop(append);
        core.background.written();
        for inbox in &*self.subscribers.lock() {
            inbox.grown(placed.iter().map(|one| one.queue));
        }
        Ok(placed)
    }

    fn write_blocks(
        &self,
        core: &Core,
        append: &mut Append,
        bodies: Vec<(u32, SealedBody)>,
    ) -> Result<Vec<Placed>, Error> {
        let mut placed: Vec<Placed> = Vec::with_capacity(bodies.len());
        let mut write = core.store.write();
        for (queue, body) in bodies {
            // A queue's bodies stand one behind the other.
            let end_so_far = match placed.last() {
                Some(last) if last.queue == queue => last.base + last.count,
                _ => self.queues[queue as usize].end(),
            };
            let count = u64::from(body.count);
            if count > END_MAX - end_so_far {
                return Err(Error::invalid(format!(
                    "append to {} at {end_so_far}: the queue is full",
                    self.queues[queue as usize].id
                )));
            }
            let timestamp_max = &mut append.timestamps_max[queue as usize];
            *timestamp_max = body.timestamp_max.max(*timestamp_max);
            let block = body.place(self.number, queue, end_so_far, *timestamp_max);
            write.put_block(self.number, queue, end_so_far + count - 1, block);
            match placed.last_mut() {
                Some(last) if last.queue == queue => last.count += count,
                _ => placed.push(Placed { queue, base: end_so_far, count }),
            }
        }
        let sync = core.syncs_each_batch();
        let marks = placed.iter().map(|one| {
            let acknowledged = one.base + one.count;
            let cell = cell_of(one.queue);
            (cell, acknowledged)
        });
        let marks: Vec<_> = marks.collect();
        write.commit(sync).and_then(|()| append.acknowledge(&marks, sync)).map_err(|error| {
            core.stop(error.context(format!("append to topic {:?}", self.name)))
        })?;
        Ok(placed)
    }

    /// 1 to 65,536.
    pub(crate) fn queue_count(&self) -> u32 {
        u32::try_from(self.queues.len()).unwrap_or(u32::MAX)
    }

    /// One of its queues, by an index that comes from outside.
    pub(crate) fn queue(&self, index: u32) -> Result<&Queue, Error> {
        self.queues.get(index as usize).ok_or_else(|| {
            Error::invalid(format!(
                "queue {index} of topic {:?}, which has queues 0 to {}",
                self.name,
                self.queues.len() - 1
            ))
        })
    }
}

impl Append {
    /// Moves the marks to these ends, which the store has been given (and, if `durable`, forced to
    /// the disk).
    pub(crate) fn acknowledge(
        &mut self,
        ends: &[(usize, u64)],
        durable: bool,
    ) -> Result<(), Error> {
        let marks: Vec<_> = ends
            .iter()
            .map(|&(cell, acknowledged)| {
                let durable = if durable { acknowledged } else { self.marks.get(cell).durable };
                (cell, Mark { acknowledged, durable })
            })
            .collect();
        self.marks.set(marks)
    }

    /// The cells whose end is not known to be on the disk, with that end.
    pub(crate) fn not_durable(&self) -> Vec<(usize, u64)> {
        let cells = 0..self.timestamps_max.len() + 1;
        let marks = cells.map(|cell| (cell, self.marks.get(cell)));
        marks
            .filter(|(_, mark)| mark.durable != mark.acknowledged)
            .map(|(cell, mark)| (cell, mark.acknowledged))
            .collect()
    }

    /// Notes that these ends are on the disk.
    pub(crate) fn set_durable(&mut self, ends: &[(usize, u64)]) -> Result<(), Error> {
        let marks: Vec<_> = ends
            .iter()
            .map(|&(cell, durable)| {
                let acknowledged = self.marks.get(cell).acknowledged;
                (cell, Mark { acknowledged, durable })
            })
            .collect();
        self.marks.set(marks)
    }
}
