//! Removing what nobody needs: records that every group has passed, and whole topics.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::Ordering;

use keylane_source::{Position, QueueId};

use crate::Error;
use crate::groups::in_use;
use crate::inspect::{at, commits, group_names};
use crate::shared::Core;
use crate::state::{self, Registered};
use crate::store::Store;
use crate::topic::Topic;

/// One write to the store removes at most so many blocks.
const REMOVALS_MAX: usize = 1024;

/// What a trim removed from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trimmed {
    /// The queue.
    pub queue: QueueId,
    /// Where it began.
    pub from: Position,
    /// Where it begins now.
    pub begin: Position,
}

pub(crate) fn trim(core: &Core, topic: &Topic) -> Result<Vec<Trimmed>, Error> {
    let doing = || format!("trim topic {:?}", topic.name);
    let _one_at_a_time = topic.trimming.lock();
    let needed = needed_from(core, topic).map_err(|error| error.context(doing()))?;
    let mut trimmed = Vec::new();
    for (queue, needed) in topic.queues.iter().zip(needed) {
        let from = queue.begin();
        trim_queue(core, topic, queue.id.index(), needed.min(queue.end()))
            .map_err(|error| error.context(doing()))?;
        if queue.begin() > from {
            let (from, begin) = (at(from), at(queue.begin()));
            trimmed.push(Trimmed { queue: queue.id, from, begin });
        }
    }
    Ok(trimmed)
}

/// For each queue the lowest offset that some group has still to finish; 0 without groups.
fn needed_from(core: &Core, topic: &Topic) -> Result<Vec<u64>, Error> {
    let mut needed: Option<Vec<u64>> = None;
    for group in group_names(core, topic)? {
        let commits = commits(core, topic, &group)?;
        let commits = commits.iter().map(|commit| commit.as_ref().map_or(0, |c| c.watermark.get()));
        needed = Some(match needed {
            None => commits.collect(),
            Some(needed) => needed.into_iter().zip(commits).map(|(a, b)| a.min(b)).collect(),
        });
    }
    Ok(needed.unwrap_or_else(|| vec![0; topic.queues.len()]))
}

/// Removes the blocks that end at or below `needed`.
fn trim_queue(core: &Core, topic: &Topic, index: u32, needed: u64) -> Result<(), Error> {
    let queue = &topic.queues[index as usize];
    loop {
        core.check_running()?;
        let mut write = core.store.write();
        let mut begin = queue.begin();
        for last in core.store.block_ends(topic.number, index, begin, needed) {
            let last = last?;
            write.remove_block(topic.number, index, last);
            begin = last + 1;
            if write.len() == REMOVALS_MAX {
                break;
            }
        }
        if write.len() == 0 {
            return Ok(());
        }
        write.put_state(&state::begin_key(topic.number, index), &begin.to_le_bytes());
        queue.set_begin(begin);
        write.commit(core.syncs_each_batch()).map_err(|error| core.stop(error))?;
        core.background.written();
    }
}

pub(crate) fn delete_topic(core: &Core, name: &str) -> Result<(), Error> {
    let doing = || format!("delete topic {name:?}");
    let mut manifest = core.manifest.lock();
    let topic = core.topic(name)?;
    core.check_running()?;
    {
        let live = core.live.lock();
        if let Some((_, group)) = live.iter().find(|(number, _)| *number == topic.number) {
            return Err(in_use(group, name).context(doing()));
        }
        // Under the lock of the live ones: no consumer can begin from here on.
        topic.deleted.store(true, Ordering::Release);
    }
    let mut delete = || {
        let append = topic.append.lock();
        let entry = Registered { live: false, queues: topic.queue_count(), name: name.into() };
        let mut write = core.store.write();
        write.put_state(&state::topic_key(topic.number), &entry.encode());
        write.commit(true).map_err(|error| core.stop(error))?;
        drop(append);
        core.topics.write().remove(name);
        let mut changed = manifest.clone();
        changed.topics.retain(|entry| entry.number != topic.number);
        changed.write(&core.folder)?;
        *manifest = changed;
        remove_topic(&core.store, &core.marks_path(topic.number), topic.number)
    };
    delete().map_err(|error: Error| error.context(doing()))
}

/// Removes the marks, blocks and state of a topic whose entry says that it is deleted. The entry
/// stays, so that the number is never used again.
pub(crate) fn remove_topic(store: &Store, marks: &Path, number: u32) -> Result<(), Error> {
    match std::fs::remove_file(marks) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Error::io("remove", marks, error));
        }
        _ => {}
    }
    let Some(entry) = store.state(&state::topic_key(number))? else { return Ok(()) };
    for queue in 0..Registered::decode(entry)?.queues {
        loop {
            let mut write = store.write();
            for last in store.block_ends(number, queue, 0, u64::MAX).take(REMOVALS_MAX) {
                write.remove_block(number, queue, last?);
            }
            if write.len() == 0 {
                break;
            }
            write.commit(false)?;
        }
    }
    let prefixes = [
        state::begins_prefix(number),
        state::groups_prefix(number),
        state::all_commits_prefix(number),
        state::commit_count_key(number),
    ];
    remove_states(store, &prefixes)
}

fn remove_states(store: &Store, prefixes: &[Vec<u8>]) -> Result<(), Error> {
    let mut write = store.write();
    for prefix in prefixes {
        for entry in store.states(prefix) {
            write.remove_state(&entry?.0);
        }
    }
    write.commit(false)
}
