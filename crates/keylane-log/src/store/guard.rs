//! A look at the store's files before the store is let at them.
//!
//! `fjall` does three things on damage that a library must not do to its caller: it creates a store
//! where its marker file is gone, it deletes a keyspace whose marker is gone, and it allocates what
//! a damaged count asks for, before it checks the checksum, which can end the process. So these are
//! checked first:
//!
//! 1. what must be there is there: the markers, and those of every keyspace;
//! 2. the list of tables of each keyspace (file `v…`) has the checksum that `current` has for it;
//! 3. the table of contents at the end of each table and blob file has its own checksum.
//!
//! A file that does not look like one of these is left to the store, which refuses it.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Buf;
use xxhash_rust::xxh3::xxh3_128;

use crate::Error;

/// The end of a table or blob file: magic, version, checksum type, checksum, position and length of
/// the table of contents, which lies right before it.
const TRAILER_BYTES: usize = 4 + 1 + 1 + 16 + 8 + 8;
const TRAILER_MAGIC: &[u8] = b"SFA!\x01\x00";
/// No table of contents is near this long: it has a few sections.
const CONTENTS_BYTES_MAX: u64 = 1 << 20;

/// Checks a store that had these folders when it was created.
pub(super) fn check(store: &Path, folders: &[String]) -> Result<(), Error> {
    let keyspaces = store.join("keyspaces");
    let markers = folders.iter().map(|name| keyspaces.join(name).join("current"));
    let must: Vec<PathBuf> =
        ["version", "lock"].map(|name| store.join(name)).into_iter().chain(markers).collect();
    for path in must {
        if !path.try_exists().map_err(|error| Error::io("look for", &path, error))? {
            return Err(Error::damaged(format!("{} is missing", path.display())));
        }
    }
    for keyspace in folders.iter().map(|name| keyspaces.join(name)) {
        check_list(&keyspace)?;
        for kind in ["tables", "blobs"] {
            for file in files(&keyspace.join(kind))? {
                check_contents(&file).map_err(|error| Error::io("read", &file, error))??;
            }
        }
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let list = || match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
    };
    list().map_err(|error| Error::io("list", folder, error))
}

/// `current` names the list of tables: its number, its checksum, the checksum's kind (0 = XXH3).
fn check_list(keyspace: &Path) -> Result<(), Error> {
    let path = keyspace.join("current");
    let current = fs::read(&path).map_err(|error| Error::io("read", &path, error))?;
    let Some((fields, [0])) = current.split_first_chunk::<24>() else { return Ok(()) };
    let mut fields = &fields[..];
    let (number, checksum) = (fields.get_u64_le(), fields.get_u128_le());
    let path = keyspace.join(format!("v{number}"));
    match fs::read(&path) {
        Ok(list) if xxh3_128(&list) == checksum => Ok(()),
        Ok(_) => Err(Error::damaged(format!("{} does not match its checksum", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Error::damaged(format!("{} is missing", path.display())))
        }
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

/// The outer error is the operating system's.
fn check_contents(path: &Path) -> std::io::Result<Result<(), Error>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let Some(trailer_at) = length.checked_sub(TRAILER_BYTES as u64) else { return Ok(Ok(())) };
    let mut trailer = [0; TRAILER_BYTES];
    file.seek(SeekFrom::Start(trailer_at))?;
    file.read_exact(&mut trailer)?;
    let Some(mut fields) = trailer.strip_prefix(TRAILER_MAGIC) else { return Ok(Ok(())) };
    let (checksum, at) = (fields.get_u128_le(), fields.get_u64_le());
    let damaged = || {
        let what = "the table of contents does not match its checksum";
        Ok(Err(Error::damaged(format!("{}: {what}", path.display()))))
    };
    let Some(bytes) = trailer_at.checked_sub(at).filter(|bytes| *bytes <= CONTENTS_BYTES_MAX)
    else {
        return damaged();
    };
    let mut contents = Vec::new();
    file.seek(SeekFrom::Start(at))?;
    file.take(bytes).read_to_end(&mut contents)?;
    if xxh3_128(&contents) == checksum { Ok(Ok(())) } else { damaged() }
}
