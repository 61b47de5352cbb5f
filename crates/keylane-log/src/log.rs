//! The handle, and what all handles, producers and sources of one folder share.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use keylane_source::{Commit, QueueId};
use parking_lot::{Mutex, RwLock};

use crate::background::Background;
use crate::error::Kind;
use crate::inspect::{GroupInfo, PowerLoss, TopicInfo};
use crate::manifest::{Manifest, TopicEntry, check_name, check_queues};
use crate::marks::{COMMITS, Marks, Owner};
use crate::producer::Producer;
use crate::retention::{self, Trimmed};
use crate::source::LogSource;
use crate::state::{self, Registered, Stored};
use crate::store::Store;
use crate::topic::{Append, Queue, Topic};
use crate::{Error, Fsync, Options, inspect, open};

/// A log: topics with queues, and what groups have committed, in one folder.
///
/// A handle is cheap to clone; producers and sources keep the log open as well. When the last of
/// them is dropped, what was written is forced to the disk and the folder is free for another
/// process. See the [crate] for an example.
#[derive(Debug, Clone)]
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

/// The thread, and what it works on. Dropped with the last handle.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
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

impl Log {
    /// Opens the log in `folder`, or creates one where the folder is missing or empty, with the
    /// default [`Options`].
    ///
    /// # Errors
    ///
    /// As [`Options::open`].
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        Options::new().open(folder)
    }

    pub(crate) fn open_with(folder: &Path, options: &Options) -> Result<Self, Error> {
        let core = Arc::new(open::open(folder, options)?);
        let thread = std::thread::Builder::new().name("keylane-log".into()).spawn({
            let core = Arc::clone(&core);
            move || core.background.run(&core)
        });
        let thread = thread.map_err(|error| Error::io("start a thread for", folder, error))?;
        Ok(Self { shared: Arc::new(Shared { core, thread: Some(thread) }) })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.shared.core
    }

    /// The folder that holds the log.
    pub fn folder(&self) -> &Path {
        &self.core().folder
    }

    /// Creates a topic with this many queues, 1 to 65,536, and forces that to the disk. The number
    /// never changes: keys would go to other queues than before.
    ///
    /// # Errors
    ///
    /// AlreadyExists; invalid: a name that is not 1 to 249 bytes without control characters, or an
    /// impossible number of queues; I/O.
    pub fn create_topic(&self, name: &str, queues: u32) -> Result<(), Error> {
        let doing = || format!("create topic {name:?}");
        check_name("topic", name)
            .and_then(|()| check_queues(queues))
            .map_err(|e| e.context(doing()))?;
        let core = self.core();
        let mut manifest = core.manifest.lock();
        if core.topics.read().contains_key(name) {
            return Err(Error::new(
                Kind::AlreadyExists,
                format!("there is a topic {name:?} already"),
            ));
        }
        core.check_running()?;
        let topic =
            core.create_topic(&mut manifest, name, queues).map_err(|e| e.context(doing()))?;
        core.topics.write().insert(name.into(), Arc::new(topic));
        Ok(())
    }

    /// Creates the topic, or finds it there with as many queues.
    ///
    /// # Errors
    ///
    /// Invalid: it is there with another number of queues. Otherwise as
    /// [`create_topic`](Self::create_topic).
    pub fn ensure_topic(&self, name: &str, queues: u32) -> Result<(), Error> {
        match self.create_topic(name, queues) {
            Err(error) if error.is_already_exists() => {}
            result => return result,
        }
        let there = self.core().topic(name)?.queues.len();
        if u64::from(queues) == there as u64 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "topic {name:?} has {there} queues, which cannot become {queues}"
        )))
    }

    /// A producer for a topic.
    ///
    /// # Errors
    ///
    /// NotFound.
    pub fn producer(&self, topic: &str) -> Result<Producer, Error> {
        Ok(Producer::new(Arc::clone(&self.shared), self.core().topic(topic)?))
    }

    /// The group's consumer of a topic: all its queues. A group has one live consumer a topic.
    ///
    /// The group is remembered from here on: what it has not committed is not removed by retention
    /// until [`forget_group`](Self::forget_group). May wait for commits of an earlier consumer to be
    /// written.
    ///
    /// # Errors
    ///
    /// NotFound: no such topic. InUse: the group's consumer of this topic is alive, or not yet
    /// closed or dropped. Invalid: the group's name. I/O.
    pub fn source(&self, topic: &str, group: &str) -> Result<LogSource, Error> {
        LogSource::open(&self.shared, topic, group)
    }

    /// Forces everything that was acknowledged to the disk, whatever the policy.
    ///
    /// # Errors
    ///
    /// I/O; stopped: an earlier write failed.
    pub fn sync(&self) -> Result<(), Error> {
        self.core().check_running()?;
        self.core().sync()
    }

    /// Removes what every group of the topic has committed, in whole blocks (what one append
    /// brought). Without a group nothing is removed. A group that has not committed a queue holds
    /// all of it.
    ///
    /// A group that seeks below what is left is told
    /// [`OutOfRange`](keylane_source::ResetCause::OutOfRange). Space is given back as the store
    /// compacts, not at once.
    ///
    /// # Errors
    ///
    /// NotFound; damaged; I/O.
    pub fn trim(&self, topic: &str) -> Result<Vec<Trimmed>, Error> {
        let topic = self.core().topic(topic)?;
        retention::trim(self.core(), &topic)
    }

    /// Deletes a topic, its records and what groups have committed for it. A topic that is created
    /// anew under the same name starts at offset 0, without commits.
    ///
    /// # Errors
    ///
    /// NotFound; InUse: a consumer is alive; I/O.
    pub fn delete_topic(&self, name: &str) -> Result<(), Error> {
        retention::delete_topic(self.core(), name)
    }

    /// Forgets a group and what it has committed for a topic, so that it starts anew and no longer
    /// holds records.
    ///
    /// # Errors
    ///
    /// NotFound; InUse: its consumer is alive; I/O.
    pub fn forget_group(&self, topic: &str, group: &str) -> Result<(), Error> {
        retention::forget_group(self.core(), topic, group)
    }

    /// All topics, by name.
    pub fn topics(&self) -> Vec<TopicInfo> {
        self.core().topics.read().values().map(|topic| inspect::topic(topic)).collect()
    }

    /// One topic, with where its queues begin and end.
    ///
    /// # Errors
    ///
    /// NotFound.
    pub fn topic(&self, name: &str) -> Result<TopicInfo, Error> {
        Ok(inspect::topic(&*self.core().topic(name)?))
    }

    /// The groups of a topic, by name, with what each has committed and how far it is behind.
    ///
    /// # Errors
    ///
    /// NotFound; damaged; I/O.
    pub fn groups(&self, topic: &str) -> Result<Vec<GroupInfo>, Error> {
        inspect::groups(self.core(), &*self.core().topic(topic)?)
    }

    /// Reads every record of every topic, and checks what [the crate](crate) says of damage. Returns
    /// how many records there are.
    ///
    /// # Errors
    ///
    /// Damaged: the first damage that was found, with queue and offset; I/O.
    pub fn verify(&self) -> Result<u64, Error> {
        let topics: Vec<_> = self.core().topics.read().values().cloned().collect();
        topics.iter().map(|topic| inspect::verify(self.core(), topic)).sum()
    }

    /// What a power failure or a crash of the operating system took before this log was opened:
    /// queues that had acknowledged more than they have now. Empty where nothing is missing.
    pub fn power_loss(&self) -> &[PowerLoss] {
        &self.core().power_loss
    }
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
                    "the log in {} stopped after a failed write; open it again. That write: {error}",
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

    /// First the store entry, then the marks, last the manifest: see `open.rs` for what a crash
    /// between them leaves.
    fn create_topic(
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
        Topic::new(number, name, queues.collect(), marks)
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

impl Topic {
    pub(crate) fn new(
        number: u32,
        name: &str,
        queues: Box<[Queue]>,
        marks: Marks,
    ) -> Result<Self, Error> {
        let marks_file = marks.sync_handle()?;
        let timestamps_max = vec![crate::block::NO_TIMESTAMP; queues.len()];
        Ok(Self {
            number,
            name: name.into(),
            queues,
            append: Mutex::new(Append { marks, timestamps_max }),
            subscribers: Mutex::default(),
            dirty: false.into(),
            deleted: false.into(),
            trimming: Mutex::default(),
            marks_file,
        })
    }
}
