//! What must be there: the log's identity, the store's folders and the topics, in a file apart from
//! the store.
//!
//! An embedded store that has lost its files opens as an empty one. The manifest is what such a
//! store is compared with. It changes only when a topic is created or deleted.
//!
//! The file is text, one fact a line, the CRC of the lines before it in the last one:
//!
//! ```text
//! keylane-log 1
//! identity 5f0e9c…
//! folder 0
//! topic 1 3 flights
//! crc 8d3a00f1
//! ```
//!
//! Replacing it is crash-safe: the old content is first written to `manifest.previous`, then the
//! new one to `manifest`, each through a temporary file that is forced to the disk and renamed. So
//! at any instant one of the two is whole. One that is empty or corrupt is passed over for the
//! other one; the topic that the previous copy may lack is found in the store (see `open.rs`).

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::Error;

const FILE: &str = "manifest";
const PREVIOUS: &str = "manifest.previous";
pub(crate) const FILES: [&str; 4] = [FILE, PREVIOUS, "manifest.new", "manifest.previous.new"];

/// The most queues that a topic can have.
pub(crate) const QUEUES_MAX: u32 = 65_536;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Tells this log from every other: the store and the marks carry it too.
    pub(crate) identity: u128,
    /// The folders that the store had right after it was created, and always has.
    pub(crate) folders: Vec<String>,
    pub(crate) topics: Vec<TopicEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicEntry {
    /// Never used twice, so that a topic created anew has nothing in common with the old one.
    pub(crate) number: u32,
    pub(crate) queues: u32,
    pub(crate) name: String,
}

impl Manifest {
    fn encode(&self) -> String {
        let mut text = format!("keylane-log 1\nidentity {:032x}\n", self.identity);
        for folder in &self.folders {
            text += &format!("folder {folder}\n");
        }
        for topic in &self.topics {
            text += &format!("topic {} {} {}\n", topic.number, topic.queues, topic.name);
        }
        let crc = crc32fast::hash(text.as_bytes());
        text + &format!("crc {crc:08x}\n")
    }

    /// `None` for anything that [`encode`](Self::encode) has not written.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?;
        let (lines, crc) = text.strip_suffix('\n')?.rsplit_once("\ncrc ")?;
        let lines = text.get(..=lines.len())?;
        if crc != format!("{:08x}", crc32fast::hash(lines.as_bytes())) {
            return None;
        }
        let mut lines = lines.lines();
        if lines.next()? != "keylane-log 1" {
            return None;
        }
        let identity = lines.next()?.strip_prefix("identity ")?;
        let identity = u128::from_str_radix(identity, 16).ok()?;
        let mut manifest = Self { identity, folders: Vec::new(), topics: Vec::new() };
        for line in lines {
            match line.split_once(' ')? {
                ("folder", name) => manifest.folders.push(name.to_owned()),
                ("topic", rest) => manifest.topics.push(TopicEntry::decode(rest)?),
                _ => return None,
            }
        }
        Some(manifest)
    }

    /// Reads the newest whole copy; `None` where there is neither.
    ///
    /// # Errors
    ///
    /// Damaged: there is a copy, and none that is whole.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, Error> {
        let mut seen = false;
        for name in [FILE, PREVIOUS] {
            let path = folder.join(name);
            match fs::read(&path) {
                Ok(bytes) => {
                    seen = true;
                    if let Some(manifest) = Self::decode(&bytes) {
                        return Ok(Some(manifest));
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("read", &path, error)),
            }
        }
        if !seen {
            return Ok(None);
        }
        Err(Error::damaged(format!(
            "{} is empty or corrupt, and so is its previous copy",
            folder.join(FILE).display()
        )))
    }

    /// Replaces the file, as the module says.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        match fs::read(folder.join(FILE)) {
            // A corrupt copy must not push out the good one.
            Ok(current) if Self::decode(&current).is_some() => {
                replace(folder, PREVIOUS, &current)?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &folder.join(FILE), error)),
        }
        replace(folder, FILE, self.encode().as_bytes())
    }
}

impl TopicEntry {
    fn decode(text: &str) -> Option<Self> {
        let (number, text) = text.split_once(' ')?;
        let (queues, name) = text.split_once(' ')?;
        let topic =
            Self { number: number.parse().ok()?, queues: queues.parse().ok()?, name: name.into() };
        let is_possible = check_name("topic", name).is_ok() && check_queues(topic.queues).is_ok();
        is_possible.then_some(topic)
    }
}

/// A name that stands in a line of the manifest and in every message: 1 to 249 bytes, none of them
/// a control character.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > 249 || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "{what} {name:?}: a name has 1 to 249 bytes and no control characters"
        )));
    }
    Ok(())
}

pub(crate) fn check_queues(queues: u32) -> Result<(), Error> {
    if queues == 0 || queues > QUEUES_MAX {
        return Err(Error::invalid(format!("{queues} queues are outside of 1 to {QUEUES_MAX}")));
    }
    Ok(())
}

fn replace(folder: &Path, name: &str, content: &[u8]) -> Result<(), Error> {
    let new = folder.join(format!("{name}.new"));
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.map_err(|error| Error::io("write", &new, error))?;
    let path = folder.join(name);
    fs::rename(&new, &path).map_err(|error| Error::io("replace", &path, error))?;
    sync_folder(folder)
}

/// Forces a folder's entries to the disk, where the system can.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    if cfg!(unix) {
        File::open(folder)
            .and_then(|opened| opened.sync_all())
            .map_err(|error| Error::io("sync the folder", folder, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(topics: u32) -> Manifest {
        let topic = |number| TopicEntry { number, queues: 3, name: format!("topic {number}") };
        Manifest {
            identity: 0x1234,
            folders: vec!["0".into(), "1".into()],
            topics: (1..=topics).map(topic).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), None);
        for topics in [0, 1, 2] {
            manifest(topics).write(folder.path()).unwrap();
            assert_eq!(Manifest::read(folder.path()).unwrap(), Some(manifest(topics)));
        }
    }

    #[test]
    fn every_flip_and_every_cut_is_noticed() {
        let whole = manifest(2).encode().into_bytes();
        assert_eq!(Manifest::decode(&whole), Some(manifest(2)));
        for at in 0..whole.len() {
            assert_eq!(Manifest::decode(&whole[..at]), None, "cut at {at}");
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(Manifest::decode(&flipped), None, "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_corrupt_file_gives_way_to_the_previous_copy_and_two_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        manifest(1).write(folder.path()).unwrap();
        manifest(2).write(folder.path()).unwrap();
        fs::write(folder.path().join(FILE), "").unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), Some(manifest(1)));
        manifest(3).write(folder.path()).unwrap();
        fs::write(folder.path().join(FILE), "keylane-log 1\n").unwrap();
        assert_eq!(
            Manifest::read(folder.path()).unwrap(),
            Some(manifest(1)),
            "the corrupt copy pushed out the good one"
        );
        fs::write(folder.path().join(PREVIOUS), "").unwrap();
        let error = Manifest::read(folder.path()).unwrap_err();
        assert!(error.is_damaged(), "{error}");
    }
}
