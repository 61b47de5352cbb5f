//! The end marks of one topic: how far each queue, and the topic's commits, had come.
//!
//! A store that dropped its tail as "torn", or lost a file, opens shorter than it was, in silence.
//! So after each write, and before it is acknowledged, its end goes into this file, which the store
//! knows nothing of. On open a queue must reach
//!
//! 1. its *durable* end always: that was written after an `fsync` of the store had returned;
//! 2. its *acknowledged* end, if the machine has not been started anew since: what the operating
//!    system was given outlives the process. After a power failure the store may be shorter than
//!    that, by right; whether there was one is told by the system's boot id. A system without boot
//!    ids is taken as started anew.
//!
//! A queue may always be *longer* than its marks: the process died between the two writes.
//!
//! # The file
//!
//! A header, then a cell for the topic's commits and one for each queue; a cell is two copies of 64
//! bytes, written in turn, so that a torn write leaves the other one. A copy does not cross a disk
//! sector. Both copies bad, or a file of another length, is damage.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, BufMut};

use crate::Error;

const COPY_BYTES: usize = 64;
const CELL_BYTES: usize = 2 * COPY_BYTES;
const HEADER_BYTES: usize = COPY_BYTES;
const MAGIC: &[u8; 4] = b"KLM1";
/// One write covers all changed cells up to this many bytes; beyond it each cell is written alone.
const SPAN_BYTES_MAX: usize = 4096;

/// Whose marks they are: the log's identity, and this start of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) identity: u128,
    pub(crate) boot: [u8; 16],
}

/// How far a queue, or a topic's commits, had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    pub(crate) acknowledged: u64,
    pub(crate) durable: u64,
}

/// The file, its content in memory, and the marks in it.
#[derive(Debug)]
pub(crate) struct Marks {
    path: PathBuf,
    file: Arc<File>,
    image: Vec<u8>,
    cells: Vec<Cell>,
    boot: [u8; 16],
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    generation: u64,
    mark: Mark,
    boot: [u8; 16],
}

/// The cell of the topic's commits; those of the queues follow.
pub(crate) const COMMITS: usize = 0;

/// The cell of a queue.
pub(crate) fn cell_of(queue: u32) -> usize {
    queue as usize + 1
}

impl Marks {
    /// Writes a new file, all marks zero, and forces it to the disk.
    pub(crate) fn create(
        path: PathBuf,
        owner: &Owner,
        topic: u32,
        queues: u32,
    ) -> Result<Self, Error> {
        let cell = Cell { generation: 0, mark: Mark::default(), boot: owner.boot };
        let cells = vec![cell; queues as usize + 1];
        let mut image = header(owner.identity, topic, queues);
        for (index, cell) in cells.iter().enumerate() {
            for _ in 0..2 {
                image.extend_from_slice(&cell.encode(index));
            }
        }
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&image)?;
            file.sync_all()?;
            Ok(file)
        });
        let file = written.map_err(|error| Error::io("write", &path, error))?;
        Ok(Self { path, file: Arc::new(file), image, cells, boot: owner.boot })
    }

    /// Opens what [`create`](Self::create) has written.
    pub(crate) fn open(
        path: PathBuf,
        owner: &Owner,
        topic: u32,
        queues: u32,
    ) -> Result<Self, Error> {
        let damaged = |what: &str| Error::damaged(format!("{}: {what}", path.display()));
        let mut image = Vec::new();
        let mut file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(damaged("the topic's end marks are missing"));
            }
            Err(error) => return Err(Error::io("open", &path, error)),
        };
        file.read_to_end(&mut image).map_err(|error| Error::io("read", &path, error))?;
        let cells = queues as usize + 1;
        if image.len() != HEADER_BYTES + cells * CELL_BYTES {
            return Err(damaged("the file is shorter or longer than it was"));
        }
        if image[..HEADER_BYTES] != header(owner.identity, topic, queues) {
            return Err(damaged("the header is corrupt, or the file belongs to another log"));
        }
        let read = |index| {
            let copies = image[HEADER_BYTES + index * CELL_BYTES..].chunks(COPY_BYTES).take(2);
            let newest = copies.filter_map(|copy| Cell::decode(copy, index));
            newest.max_by_key(|cell| cell.generation).ok_or_else(|| match index {
                COMMITS => damaged("the end mark of the topic's commits is corrupt"),
                _ => damaged(&format!("the end mark of queue {} is corrupt", index - 1)),
            })
        };
        let cells = (0..cells).map(read).collect::<Result<_, _>>()?;
        Ok(Self { path, file: Arc::new(file), image, cells, boot: owner.boot })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn get(&self, cell: usize) -> Mark {
        self.cells[cell].mark
    }

    /// Whether what was acknowledged must be there: the mark is of this start of the machine.
    pub(crate) fn is_of_this_boot(&self, cell: usize) -> bool {
        self.boot != NO_BOOT_ID && self.cells[cell].boot == self.boot
    }

    /// Changes marks and hands them to the operating system.
    pub(crate) fn set(
        &mut self,
        changes: impl IntoIterator<Item = (usize, Mark)>,
    ) -> Result<(), Error> {
        let mut changed = Vec::new();
        for (index, mark) in changes {
            let cell = &mut self.cells[index];
            *cell = Cell { generation: cell.generation + 1, mark, boot: self.boot };
            let copy = if cell.generation.is_multiple_of(2) { 0 } else { COPY_BYTES };
            let at = HEADER_BYTES + index * CELL_BYTES + copy;
            self.image[at..at + COPY_BYTES].copy_from_slice(&cell.encode(index));
            changed.push(at);
        }
        let (Some(&first), Some(&last)) = (changed.iter().min(), changed.iter().max()) else {
            return Ok(());
        };
        if last + COPY_BYTES - first <= SPAN_BYTES_MAX {
            return self.write(first, last + COPY_BYTES);
        }
        changed.into_iter().try_for_each(|at| self.write(at, at + COPY_BYTES))
    }

    fn write(&mut self, from: usize, to: usize) -> Result<(), Error> {
        let mut file = &*self.file;
        let written = file.seek(SeekFrom::Start(from as u64));
        written
            .and_then(|_| file.write_all(&self.image[from..to]))
            .map_err(|error| Error::io("write", &self.path, error))
    }

    /// The file, to force it to the disk while others go on to change it.
    pub(crate) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }
}

impl Cell {
    fn encode(&self, index: usize) -> [u8; COPY_BYTES] {
        let mut copy = [0; COPY_BYTES];
        let mut fields = &mut copy[4..];
        fields.put_u32_le(u32::try_from(index).unwrap_or(u32::MAX));
        fields.put_u64_le(self.generation);
        fields.put_u64_le(self.mark.acknowledged);
        fields.put_u64_le(self.mark.durable);
        fields.put_slice(&self.boot);
        let crc = crc32fast::hash(&copy[4..]);
        copy[..4].copy_from_slice(&crc.to_le_bytes());
        copy
    }

    /// `None` for a copy that was not written, or not at this index.
    fn decode(copy: &[u8], index: usize) -> Option<Self> {
        let (crc, mut fields) = copy.split_first_chunk::<4>()?;
        if copy.len() != COPY_BYTES || u32::from_le_bytes(*crc) != crc32fast::hash(fields) {
            return None;
        }
        if usize::try_from(fields.get_u32_le()) != Ok(index) {
            return None;
        }
        let generation = fields.get_u64_le();
        let mark = Mark { acknowledged: fields.get_u64_le(), durable: fields.get_u64_le() };
        let mut boot = [0; 16];
        fields.copy_to_slice(&mut boot);
        Some(Self { generation, mark, boot })
    }
}

fn header(identity: u128, topic: u32, queues: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.put_slice(MAGIC);
    header.put_u128_le(identity);
    header.put_u32_le(topic);
    header.put_u32_le(queues);
    let crc = crc32fast::hash(&header);
    header.put_u32_le(crc);
    header.resize(HEADER_BYTES, 0);
    header
}

const NO_BOOT_ID: [u8; 16] = [0; 16];

/// A value that changes whenever the machine starts; [`NO_BOOT_ID`] where the system has none.
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or(NO_BOOT_ID, u128::to_be_bytes)
}

#[cfg(test)]
mod tests;
