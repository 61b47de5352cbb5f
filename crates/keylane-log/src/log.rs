//! The handle.

use std::path::Path;
use std::sync::Arc;

use keylane_source::{Position, QueueId};

use crate::error::Kind;
use crate::inspect::{GroupInfo, PowerLoss, TopicInfo};
use crate::manifest::{check_name, check_queues};
use crate::producer::Producer;
use crate::retention::{self, Trimmed};
use crate::shared::{Core, Shared};
use crate::source::LogSource;
use crate::{Error, Options, groups, inspect, open};

/// A log: topics with queues, and what groups have committed, in one folder.
///
/// A handle is cheap to clone; producers and sources keep the log open as well. When the last of
/// them is dropped, what was written is forced to the disk and the folder is free for another
/// process. See the [crate] for an example.
#[derive(Debug, Clone)]
pub struct Log {
    pub(crate) shared: Arc<Shared>,
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
    /// until [`forget_group`](Self::forget_group). May wait for commits of an earlier consumer to
    /// be written.
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
        groups::forget_group(self.core(), topic, group)
    }

    /// Moves what a group has committed for a queue, as an operator does: it reads on from there. A
    /// live consumer is told ([`ResetCause::Moved`](keylane_source::ResetCause::Moved)), and what
    /// it commits before it has learned of it is refused, so that the move holds.
    ///
    /// # Errors
    ///
    /// NotFound: no such topic, or the topic knows no such group. Invalid: no such queue, or the
    /// position lies outside of it. I/O.
    pub fn move_offset(&self, group: &str, queue: QueueId, to: Position) -> Result<(), Error> {
        groups::move_offset(self.core(), group, queue, to)
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

    /// Reads every record of every topic, and checks what [the crate](crate) says of damage.
    /// Returns how many records there are.
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
