//! Opening a folder: what must be there is there, or it is an error; nothing is created over it.
//!
//! | in the folder | what it is |
//! | --- | --- |
//! | `lock` | held by the one process that owns the folder |
//! | `manifest`, `manifest.previous` | what must be there ([`crate::manifest`]) |
//! | `marks/N` | the end marks of topic N ([`crate::marks`]) |
//! | `store/` | the embedded store ([`crate::store`]) |
//!
//! # Creation
//!
//! The store is built as `store.new`, closed, the manifest written, and `store.new` renamed to
//! `store`. A crash leaves no manifest (begin again), or a manifest without topics beside
//! `store.new` (rename it).
//!
//! # Topics
//!
//! A topic is created in the order store, marks, manifest, and deleted in the order store (its
//! entry says "deleted"), manifest, marks, blocks. The store's entry decides:
//!
//! | store | manifest | marks | it is |
//! | --- | --- | --- | --- |
//! | live | named | there | a topic |
//! | live | named | missing | damage |
//! | live | – | there | a creation cut short, or the manifest's previous copy: complete it |
//! | live | – | missing | a creation cut short, unless it has blocks: that is damage |
//! | deleted | any | any | a deletion cut short: complete it |
//! | – | named | any | damage: the store has lost it |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keylane_source::{Position, QueueId};

use crate::background::Background;
use crate::block::{Block, Header};
use crate::error::Kind;
use crate::inspect::PowerLoss;
use crate::manifest::{FILES, Manifest, TopicEntry, check_queues, sync_folder};
use crate::marks::{COMMITS, Marks, Owner, boot_id, cell_of};
use crate::shared::Core;
use crate::state::{self, Registered};
use crate::store::{self, Store};
use crate::topic::{Queue, Topic};
use crate::{Error, Options, retention};

const LOCK: &str = "lock";
pub(crate) const MARKS: &str = "marks";
const STORE: &str = "store";
const STORE_NEW: &str = "store.new";

pub(crate) fn marks_path(folder: &Path, topic: u32) -> PathBuf {
    folder.join(MARKS).join(topic.to_string())
}

pub(crate) fn open(folder: &Path, options: &Options) -> Result<Core, Error> {
    let doing = || format!("open the log in {}", folder.display());
    let lock = own(folder, options)?;
    let (manifest, store) = open_store(folder, options).map_err(|e| e.context(doing()))?;
    let owner = Owner { identity: manifest.identity, boot: boot_id() };
    let mut opening = Opening { folder, store: &store, owner, power_loss: Vec::new() };
    let (topics, manifest) = opening.topics(manifest).map_err(|error| error.context(doing()))?;
    let power_loss = opening.power_loss;
    Ok(Core {
        folder: folder.to_owned(),
        store,
        owner,
        manifest: manifest.into(),
        topics: topics.into(),
        live: Default::default(),
        background: Background::new(options.fsync, options.retention),
        fsync: options.fsync,
        power_loss,
        stopped: Default::default(),
        _lock: lock,
    })
}

/// Takes the lock, and creates the folder if it may. Leaves a folder alone that is not a log.
fn own(folder: &Path, options: &Options) -> Result<File, Error> {
    let path = folder.join(LOCK);
    let names = entries(folder)?;
    if names.is_empty() && options.existing_only {
        let missing = format!("there is no log in {}", folder.display());
        return Err(Error::new(Kind::NotFound, missing));
    }
    if let Some(first) = names.first()
        && !names.iter().any(|name| name == LOCK || FILES.contains(&name.as_str()))
    {
        return Err(Error::damaged(format!(
            "open the log in {}: there is no manifest but there is {first:?}: the manifest is \
             lost, or the folder holds something else than a log",
            folder.display()
        )));
    }
    fs::create_dir_all(folder).map_err(|error| Error::io("create the folder", folder, error))?;
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.map_err(|error| Error::io("open", &path, error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(Error::new(
            Kind::Locked,
            format!(
                "the log in {} is open already, in another process or through another handle of \
                 this one",
                folder.display()
            ),
        )),
        Err(fs::TryLockError::Error(error)) => Err(Error::io("lock", &path, error)),
    }
}

fn entries(folder: &Path) -> Result<Vec<String>, Error> {
    let list = || match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(names) => {
            names.map(|name| Ok(name?.file_name().to_string_lossy().into_owned())).collect()
        }
    };
    list().map_err(|error| Error::io("list", folder, error))
}

fn open_store(folder: &Path, options: &Options) -> Result<(Manifest, Store), Error> {
    let (path, new) = (folder.join(STORE), folder.join(STORE_NEW));
    let manifest = match Manifest::read(folder)? {
        Some(manifest) => manifest,
        None => create(folder, options)?,
    };
    let exists = |path: &Path| path.try_exists().map_err(|e| Error::io("look for", path, e));
    if !exists(&path)? && manifest.topics.is_empty() && exists(&new)? {
        fs::rename(&new, &path).map_err(|error| Error::io("rename", &new, error))?;
        sync_folder(folder)?;
    }
    if !exists(&path)? || !exists(&folder.join(MARKS))? {
        return Err(Error::damaged("the folder store or marks is missing"));
    }
    let store = Store::open(&path, &manifest.folders)?;
    let identity = store.state(state::IDENTITY)?;
    if identity.as_deref() != Some(&manifest.identity.to_le_bytes()[..]) {
        return Err(Error::damaged(format!(
            "the store in {} is not the one of this log, or has lost everything",
            path.display()
        )));
    }
    Ok((manifest, store))
}

/// Creates a log where there is none: everything but the last step.
fn create(folder: &Path, options: &Options) -> Result<Manifest, Error> {
    let ours = |name: &String| {
        let name = name.as_str();
        [LOCK, MARKS, STORE_NEW].contains(&name) || FILES.contains(&name)
    };
    let marks = folder.join(MARKS);
    if let Some(other) = entries(folder)?.iter().find(|name| !ours(name)) {
        return Err(Error::damaged(format!(
            "there is no manifest but there is {other:?}: the manifest is lost, or the folder \
             holds something else than a log"
        )));
    }
    if let Some(topic) = entries(&marks)?.first() {
        return Err(Error::damaged(format!(
            "there is no manifest, but there are marks of topic {topic}: the manifest is lost"
        )));
    }
    if options.existing_only {
        return Err(Error::new(Kind::NotFound, "there is no log yet"));
    }
    let new = folder.join(STORE_NEW);
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Error::io("remove the unfinished store", &new, error));
        }
        _ => {}
    }
    fs::create_dir_all(&marks).map_err(|error| Error::io("create the folder", &marks, error))?;
    let identity = new_identity();
    let store = Store::create(&new)?;
    let mut write = store.write();
    write.put_state(state::IDENTITY, &identity.to_le_bytes());
    write.commit(true)?;
    drop(store);
    let manifest = Manifest { identity, folders: store::folders(&new)?, topics: Vec::new() };
    manifest.write(folder)?;
    Ok(manifest)
}

/// 128 bits from the keys that the standard library draws for its hash maps.
fn new_identity() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half = |n: u8| u128::from(RandomState::new().hash_one(n));
    half(0) << 64 | half(1)
}

struct Opening<'a> {
    folder: &'a Path,
    store: &'a Store,
    owner: Owner,
    power_loss: Vec<PowerLoss>,
}

type Topics = BTreeMap<Box<str>, Arc<Topic>>;

impl Opening<'_> {
    /// The topics, and the manifest as it should be, written if it was not so.
    fn topics(&mut self, manifest: Manifest) -> Result<(Topics, Manifest), Error> {
        let mut registered = BTreeMap::new();
        for entry in self.store.states(&state::topics_prefix()) {
            let (key, value) = entry?;
            let entry = Registered::decode(value)?;
            check_queues(entry.queues)?;
            registered.insert(state::number_of(&key)?, entry);
        }
        for topic in &manifest.topics {
            let same =
                |entry: &&Registered| entry.queues == topic.queues && entry.name == topic.name;
            if registered.get(&topic.number).filter(same).is_none() {
                return Err(Error::damaged(format!(
                    "topic {:?} stands in the manifest, and the store has lost it",
                    topic.name
                )));
            }
        }
        let mut right = Manifest { topics: Vec::new(), ..manifest.clone() };
        let mut topics = BTreeMap::new();
        for (number, entry) in registered {
            let named = manifest.topics.iter().any(|topic| topic.number == number);
            if !entry.live {
                self.finish_deletion(number)?;
                continue;
            }
            let name: Box<str> = entry.name.as_str().into();
            let doing = || format!("topic {name:?}");
            let topic = self.topic(number, &entry, named).map_err(|e| e.context(doing()))?;
            let Registered { queues, name, .. } = entry;
            right.topics.push(TopicEntry { number, queues, name });
            topics.insert(name_of(&right), Arc::new(topic));
        }
        if right != manifest {
            right.write(self.folder)?;
        }
        Ok((topics, right))
    }

    fn finish_deletion(&self, number: u32) -> Result<(), Error> {
        retention::remove_topic(self.store, &marks_path(self.folder, number), number)
    }

    fn topic(&mut self, number: u32, entry: &Registered, named: bool) -> Result<Topic, Error> {
        let path = marks_path(self.folder, number);
        let exists = path.try_exists().map_err(|error| Error::io("look for", &path, error))?;
        let marks = if exists || named || self.has_blocks(number, entry.queues)? {
            match Marks::open(path.clone(), &self.owner, number, entry.queues) {
                // The creation was cut short while it wrote this file: nobody has used the topic.
                Err(error)
                    if error.is_damaged()
                        && !named
                        && !self.has_blocks(number, entry.queues)? =>
                {
                    Marks::create(path, &self.owner, number, entry.queues)?
                }
                opened => opened?,
            }
        } else {
            Marks::create(path, &self.owner, number, entry.queues)?
        };
        let commits = self.commits(number, entry, &marks)?;
        let mut queues = Vec::with_capacity(entry.queues as usize);
        let mut timestamps_max = Vec::with_capacity(entry.queues as usize);
        for index in 0..entry.queues {
            let queue = QueueId::new(&entry.name, index);
            let (begin, end, timestamp_max) = self.bounds(number, index, &marks, queue)?;
            queues.push(Queue::new(queue, begin, end));
            timestamps_max.push(timestamp_max);
        }
        let ends = queues.iter().zip(0..).map(|(queue, index)| (cell_of(index), queue.end()));
        let ends: Vec<_> = ends.chain([(COMMITS, commits)]).collect();
        let topic = Topic::new(number, &entry.name, queues.into(), marks);
        {
            let mut append = topic.append.lock();
            append.timestamps_max = timestamps_max;
            let changed = ends.into_iter().filter(|&(cell, end)| {
                append.marks.get(cell).acknowledged != end || !append.marks.is_of_this_boot(cell)
            });
            let changed: Vec<_> = changed.collect();
            append.acknowledge(&changed, false)?;
        }
        topic.dirty.store(true, std::sync::atomic::Ordering::Release);
        Ok(topic)
    }

    fn has_blocks(&self, number: u32, queues: u32) -> Result<bool, Error> {
        for queue in 0..queues {
            if self.store.block_ends(number, queue, 0, u64::MAX).next().transpose()?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many groups of commits were written. Damage if there are fewer than the marks say.
    fn commits(&self, number: u32, entry: &Registered, marks: &Marks) -> Result<u64, Error> {
        let count = self.store.state(&state::commit_count_key(number))?;
        let count = count.map_or(Ok(0), |count| state::number(&count))?;
        let mark = marks.get(COMMITS);
        let must = if marks.is_of_this_boot(COMMITS) { mark.acknowledged } else { mark.durable };
        if count < must {
            return Err(Error::damaged(format!(
                "the store has {count} of {must} commits of topic {:?} that were acknowledged, \
                 says {}: commits are missing",
                entry.name,
                marks.path().display()
            )));
        }
        Ok(count)
    }

    /// Where a queue begins and ends in the store, and its highest timestamp. Damage if it is
    /// shorter than its marks.
    fn bounds(
        &mut self,
        topic: u32,
        index: u32,
        marks: &Marks,
        queue: QueueId,
    ) -> Result<(u64, u64, i64), Error> {
        let trimmed = self.store.state(&state::begin_key(topic, index))?;
        let begin = trimmed.map_or(Ok(0), |begin| state::number(&begin))?;
        let mut blocks = self.store.blocks(topic, index, 0, u64::MAX);
        let wrong = |what: &str| Error::damaged(format!("{queue}: {what}"));
        let (mut end, mut timestamp_max) = (begin, crate::block::NO_TIMESTAMP);
        if let Some(last) = blocks.next_back().transpose()? {
            let block = Block::decode(last.bytes).map_err(|error| {
                wrong(&format!("the last block, which ends at offset {}: {error}", last.last))
            })?;
            let Header { topic: of, queue: number, .. } = block.header;
            if (of, number, block.header.end() - 1) != (topic, index, last.last) {
                return Err(wrong("the last block is not where it belongs"));
            }
            (end, timestamp_max) = (block.header.end(), block.header.timestamp_max);
        }
        let mark = marks.get(cell_of(index));
        let acknowledged_binds = marks.is_of_this_boot(cell_of(index));
        let must = if acknowledged_binds { mark.acknowledged } else { mark.durable };
        if end < must {
            return Err(Error::damaged(format!(
                "{queue} ends at offset {end} in the store, but {} says that it had come to \
                 {must}: records are missing",
                marks.path().display()
            )));
        }
        if end < mark.acknowledged {
            let at = |bound| Position::new(bound).unwrap_or(Position::ZERO);
            let acknowledged = at(mark.acknowledged);
            self.power_loss.push(PowerLoss { queue, end: at(end), acknowledged });
        }
        Ok((begin, end, timestamp_max))
    }
}

fn name_of(manifest: &Manifest) -> Box<str> {
    manifest.topics.last().map_or("", |topic| &topic.name).into()
}
