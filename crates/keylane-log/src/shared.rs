//! What all handles, producers and sources of one folder share.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use keylane_source::{Commit, QueueId};
use parking_lot::{Mutex, RwLock};

use crate::background::Background;
use crate::error::Kind;
use crate::inspect::PowerLoss;
use crate::manifest::{Manifest, TopicEntry};
use crate::marks::{COMMITS, Marks, Owner};
use crate::state::{self, Registered, Stored};
use crate::store::Store;
use crate::topic::{Queue, Topic};
use crate::{Error, Fsync, open};

/// The thread, and what it works on. Dropped with the last handle.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

/// Everything but the thread.
///
/// Lock order: `manifest`, `topics`, a topic's `trimming`, its `append`, its `subscribers`; `live`
/// alone.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) folder: PathBuf,
    pub(crate) store: Store,
    pub(crate) owner: Owner,
    pub(crate) manifest: Mutex<Manifest>,
    pub(crate) topics: RwLock<BTreeMap<Box<str>, Arc<Topic>>>,
    /// The consumers that are alive: topic and group.
    pub(crate) live: Mutex<HashSet<(u32, Arc<str>)>>,
    pub(crate) background: Background,
    pub(crate) fsync: Fsync,
    pub(crate) power_loss: Vec<PowerLoss>,
    /// Why nothing is written any more.
    pub(crate) stopped: OnceLock<Error>,
    /// Dropped last: the folder is ours until the store is closed.
    pub(crate) _lock: File,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.core.background.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nobody to tell here.
            drop(thread.join());
        }
    }
}

impl Core {
    pub(crate) fn topic(&self, name: &str) -> Result<Arc<Topic>, Error> {
        let topic = self.topics.read().get(name).cloned();
        topic.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no topic {name:?}")))
    }

    /// Whether nothing has failed so far.
    pub(crate) fn check_running(&self) -> Result<(), Error> {
        match self.stopped.get() {
            None => Ok(()),
            Some(error) => Err(Error::new(
                Kind::Stopped,
                format!(
                    "the log in {} stopped after a failed write; open it again. That \
                     write: {error}",
                    self.folder.display()
                ),
            )),
        }
    }

    /// Writes nothing any more: after a failed write nobody knows what the store holds, and what
    /// would be appended behind it could get offsets that are taken.
    #[cold]
    pub(crate) fn stop(&self, error: Error) -> Error {
        let _ = self.stopped.set(error.clone());
        error
    }

    pub(crate) fn syncs_each_batch(&self) -> bool {
        self.fsync == Fsync::EveryBatch
    }

    /// Creates a topic, and forces that to the disk.
    ///
    /// First the store entry, then the marks, last the manifest: see `open.rs` for what a crash
    /// between them leaves.
    pub(crate) fn create_topic(
        &self,
        manifest: &mut Manifest,
        name: &str,
        queues: u32,
    ) -> Result<Topic, Error> {
        let mut number = 1;
        for entry in self.store.states(&state::topics_prefix()) {
            number = number.max(state::number_of(&entry?.0)? + 1);
        }
        let mut write = self.store.write();
        let entry = Registered { live: true, queues, name: name.into() };
        write.put_state(&state::topic_key(number), &entry.encode());
        write.commit(true).map_err(|error| self.stop(error))?;
        let marks = Marks::create(self.marks_path(number), &self.owner, number, queues)?;
        crate::manifest::sync_folder(&self.folder.join(open::MARKS))?;
        let mut changed = manifest.clone();
        changed.topics.push(TopicEntry { number, queues, name: name.into() });
        changed.write(&self.folder)?;
        *manifest = changed;
        let queues = (0..queues).map(|index| Queue::new(QueueId::new(name, index), 0, 0));
        Ok(Topic::new(number, name, queues.collect(), marks))
    }

    pub(crate) fn marks_path(&self, topic: u32) -> PathBuf {
        open::marks_path(&self.folder, topic)
    }

    /// Writes commits of one topic: all of them or none, as [`Fsync`] says.
    pub(crate) fn write_commits<'a>(
        &self,
        topic: &Topic,
        commits: impl Iterator<Item = (&'a str, &'a Commit)>,
    ) -> Result<(), Error> {
        let mut append = topic.append.lock();
        self.check_running()?;
        if topic.deleted.load(Ordering::Acquire) {
            return Err(Error::new(Kind::NotFound, format!("topic {:?} was deleted", topic.name)));
        }
        let mut write = self.store.write();
        for (group, commit) in commits {
            let key = state::commit_key(topic.number, group, commit.queue.index());
            write.put_state(&key, &Stored::encode(commit.watermark, &commit.metadata));
        }
        let count = append.marks.get(COMMITS).acknowledged + 1;
        write.put_state(&state::commit_count_key(topic.number), &count.to_le_bytes());
        let sync = self.syncs_each_batch();
        write
            .commit(sync)
            .and_then(|()| append.acknowledge(&[(COMMITS, count)], sync))
            .map_err(|error| self.stop(error))?;
        topic.dirty.store(true, Ordering::Release);
        Ok(())
    }

    /// What a group has committed for a queue.
    pub(crate) fn committed(
        &self,
        topic: &Topic,
        group: &str,
        queue: u32,
    ) -> Result<Option<Stored>, Error> {
        let stored = self.store.state(&state::commit_key(topic.number, group, queue));
        stored.and_then(|found| found.map(Stored::decode).transpose()).map_err(|error| {
            let queue = topic.queues[queue as usize].id;
            error.context(format!("look up what group {group:?} committed for {queue}"))
        })
    }

    /// Forces everything written before this call to the disk, then moves the durable marks there.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let topics: Vec<_> = self.topics.read().values().cloned().collect();
        let dirty = topics.iter().filter(|topic| topic.dirty.swap(false, Ordering::AcqRel));
        let ends: Vec<_> = dirty.map(|topic| (topic, topic.append.lock().not_durable())).collect();
        if ends.is_empty() {
            return Ok(());
        }
        let synced = self.store.sync().and_then(|()| {
            for (topic, ends) in ends {
                topic.append.lock().set_durable(&ends)?;
                let path = self.marks_path(topic.number);
                topic.marks_file.sync_data().map_err(|error| Error::io("sync", &path, error))?;
            }
            Ok(())
        });
        // After a failed fsync the system may have dropped what it could not write: never go on.
        synced.map_err(|error| self.stop(error))
    }
}
