//! The embedded store: everything that is said to `fjall` is said here.
//!
//! Two keyspaces, written together in one atomic batch where it matters:
//!
//! | keyspace | key | value |
//! | --- | --- | --- |
//! | `blocks` | topic u32, queue u32, *last* offset u64, big-endian | a block ([`crate::block`]) |
//! | `state` | see [`crate::state`] | CRC of key and value, value |
//!
//! Blocks are keyed by their last offset, so that "the block that holds offset P" is the first key
//! at or behind P: one forward seek, also where P lies in the middle of a block. Values of a
//! kilobyte and more go to blob files, which are written once: compaction moves keys only.
//!
//! `fjall` creates what is missing, deletes folders that it does not know, drops a journal's tail
//! as torn, and asserts on some damage. So its files are looked at before it is let at them
//! ([`guard`]), its panics while opening are caught, and what it found is compared with the
//! manifest and the marks afterwards (`open.rs`).

mod guard;

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
};

use crate::Error;
use crate::error::Kind;

const BLOCKS: &str = "blocks";
const STATE: &str = "state";
/// What the store writes before it forgets: the memory of one keyspace's newest writes.
const MEMTABLE_BYTES: u64 = 16 << 20;
const CACHE_BYTES: u64 = 16 << 20;
const JOURNAL_BYTES: u64 = 128 << 20;

#[derive(Clone)]
pub(crate) struct Store {
    db: Database,
    blocks: Keyspace,
    state: Keyspace,
}

impl Store {
    /// Creates a store in a folder that does not exist.
    pub(crate) fn create(folder: &Path) -> Result<Self, Error> {
        let doing = || format!("create the store in {}", folder.display());
        Self::start(folder).map_err(|error| Error::foreign(Kind::Io, doing(), error))
    }

    /// Opens a store that was created before, and had these folders.
    pub(crate) fn open(folder: &Path, folders: &[String]) -> Result<Self, Error> {
        guard::check(folder, folders)?;
        let opened = catch_unwind(AssertUnwindSafe(|| Self::start(folder)));
        match opened {
            Ok(Ok(store)) => Ok(store),
            Ok(Err(error)) => Err(opening(folder, error)),
            Err(panic) => {
                let said = panic.downcast_ref::<String>().map(String::as_str);
                let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("-");
                Err(Error::damaged(format!("the store in {}: {said}", folder.display())))
            }
        }
    }

    fn start(folder: &Path) -> Result<Self, fjall::Error> {
        let db = Database::builder(folder)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(2)
            .open()?;
        let blocks = db.keyspace(BLOCKS, || {
            let blobs = KvSeparationOptions::default().compression(CompressionType::None);
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .with_kv_separation(Some(blobs))
        })?;
        let state = db.keyspace(STATE, || {
            KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES / 4)
        })?;
        Ok(Self { db, blocks, state })
    }

    /// The blocks of a queue that hold `from` or come behind it, up to the one that ends at `end`.
    pub(crate) fn blocks(
        &self,
        topic: u32,
        queue: u32,
        from: u64,
        end: u64,
    ) -> impl DoubleEndedIterator<Item = Result<StoredBlock, Error>> + use<> {
        let range = block_key(topic, queue, from)..block_key(topic, queue, end);
        self.blocks.range(range).map(|found| {
            let (key, value) = found.into_inner().map_err(reading)?;
            Ok(StoredBlock { last: last_of(&key)?, bytes: value.into() })
        })
    }

    /// The last offset of each such block.
    pub(crate) fn block_ends(
        &self,
        topic: u32,
        queue: u32,
        from: u64,
        end: u64,
    ) -> impl Iterator<Item = Result<u64, Error>> + use<> {
        let range = block_key(topic, queue, from)..block_key(topic, queue, end);
        self.blocks.range(range).map(|found| last_of(&found.key().map_err(reading)?))
    }

    /// The value that was stored under this key; `None` where there is none.
    pub(crate) fn state(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let value = self.state.get(key).map_err(reading)?;
        value.map(|value| unseal(key, value.into())).transpose()
    }

    /// All keys that begin so, with their values, in order.
    pub(crate) fn states(
        &self,
        prefix: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), Error>> + use<> {
        self.state.prefix(prefix).map(|found| {
            let (key, value) = found.into_inner().map_err(reading)?;
            let key = Bytes::from(key);
            let value = unseal(&key, value.into())?;
            Ok((key, value))
        })
    }

    /// Begins a group of changes that are all there after a crash, or none.
    pub(crate) fn write(&self) -> Write<'_> {
        Write { store: self, batch: self.db.batch() }
    }

    /// Forces everything written so far to the disk.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.db.persist(PersistMode::SyncAll).map_err(writing)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

#[derive(Debug)]
pub(crate) struct StoredBlock {
    pub(crate) last: u64,
    pub(crate) bytes: Bytes,
}

pub(crate) struct Write<'a> {
    store: &'a Store,
    batch: fjall::OwnedWriteBatch,
}

impl Write<'_> {
    pub(crate) fn put_block(&mut self, topic: u32, queue: u32, last: u64, block: Bytes) {
        self.batch.insert(&self.store.blocks, &block_key(topic, queue, last)[..], block);
    }

    pub(crate) fn remove_block(&mut self, topic: u32, queue: u32, last: u64) {
        self.batch.remove(&self.store.blocks, &block_key(topic, queue, last)[..]);
    }

    pub(crate) fn put_state(&mut self, key: &[u8], value: &[u8]) {
        let mut sealed = Vec::with_capacity(4 + value.len());
        sealed.extend_from_slice(&state_crc(key, value).to_le_bytes());
        sealed.extend_from_slice(value);
        self.batch.insert(&self.store.state, key, sealed);
    }

    pub(crate) fn remove_state(&mut self, key: &[u8]) {
        self.batch.remove(&self.store.state, key);
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    /// Hands the changes to the operating system, and with `sync` on to the disk.
    ///
    /// Without a mode of its own a batch may stay in the store's own buffer, which a `kill -9`
    /// takes with it: hence `Buffer`.
    pub(crate) fn commit(self, sync: bool) -> Result<(), Error> {
        let mode = if sync { PersistMode::SyncAll } else { PersistMode::Buffer };
        self.batch.durability(Some(mode)).commit().map_err(writing)
    }
}

fn block_key(topic: u32, queue: u32, offset: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&topic.to_be_bytes());
    key[4..8].copy_from_slice(&queue.to_be_bytes());
    key[8..].copy_from_slice(&offset.to_be_bytes());
    key
}

fn last_of(key: &[u8]) -> Result<u64, Error> {
    let last = key.last_chunk::<8>().filter(|_| key.len() == 16);
    let last = last.ok_or_else(|| Error::damaged("a block has an impossible key"))?;
    Ok(u64::from_be_bytes(*last))
}

fn state_crc(key: &[u8], value: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(key);
    crc.update(value);
    crc.finalize()
}

fn unseal(key: &[u8], mut sealed: Bytes) -> Result<Bytes, Error> {
    let damaged =
        || Error::damaged(format!("state {:?} is corrupt", key.escape_ascii().to_string()));
    if sealed.len() < 4 {
        return Err(damaged());
    }
    let crc = sealed.split_to(4);
    if crc[..] != state_crc(key, &sealed).to_le_bytes() {
        return Err(damaged());
    }
    Ok(sealed)
}

/// The folders that a store has right after its creation.
pub(crate) fn folders(folder: &Path) -> Result<Vec<String>, Error> {
    let path = folder.join("keyspaces");
    let list = || -> std::io::Result<Vec<String>> {
        let names = std::fs::read_dir(&path)?;
        names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    let mut names = list().map_err(|error| Error::io("list", &path, error))?;
    names.sort();
    Ok(names)
}

fn opening(folder: &Path, error: fjall::Error) -> Error {
    let doing = format!("open the store in {}", folder.display());
    let kind = match &error {
        fjall::Error::Locked => Kind::Locked,
        _ if is_refusal(&error) => Kind::Io,
        _ => Kind::Damaged,
    };
    Error::foreign(kind, doing, error)
}

fn reading(error: fjall::Error) -> Error {
    let kind = if is_refusal(&error) { Kind::Io } else { Kind::Damaged };
    Error::foreign(kind, "read the store", error)
}

fn writing(error: fjall::Error) -> Error {
    let kind = if matches!(error, fjall::Error::Poisoned) { Kind::Stopped } else { Kind::Io };
    Error::foreign(kind, "write to the store", error)
}

/// Whether the operating system refused, as opposed to giving bytes that are not the right ones.
fn is_refusal(error: &fjall::Error) -> bool {
    let (fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io))) = error else {
        return false;
    };
    // What reading or seeking by a number from a damaged or short file gives.
    use ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    !matches!(io.kind(), NotFound | UnexpectedEof | InvalidData | InvalidInput)
}

#[cfg(test)]
mod tests;
