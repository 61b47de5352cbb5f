//! What can be seen of a log: topics, queues, groups, lag; and the check of every record.

use keylane_source::{Position, QueueId, Watermark};

use crate::Error;
use crate::reader::{self, Read};
use crate::shared::Core;
use crate::state::{self, Stored};
use crate::topic::{Queue, Topic};

/// A topic and its queues.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicInfo {
    /// Its name.
    pub name: String,
    /// Its queues, by index.
    pub queues: Vec<QueueInfo>,
}

/// Where a queue begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// The queue.
    pub queue: QueueId,
    /// The offset of the first record that is kept.
    pub begin: Position,
    /// The offset that the next record will get.
    pub end: Position,
}

/// A group, as one topic knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupInfo {
    /// Its name.
    pub group: String,
    /// Whether it has a live consumer.
    pub is_live: bool,
    /// The topic's queues, by index.
    pub queues: Vec<GroupQueueInfo>,
}

/// What a group has committed for a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupQueueInfo {
    /// The queue.
    pub queue: QueueId,
    /// The next offset that it will read after a restart; `None`: it has never committed.
    pub committed: Option<Watermark>,
    /// What it committed beside that; empty: nothing.
    pub metadata: String,
    /// How many records it has still to finish: up to the queue's end from what it committed, or
    /// from the queue's begin.
    pub lag: u64,
}

/// What a power failure took from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PowerLoss {
    /// The queue.
    pub queue: QueueId,
    /// Where it ends now.
    pub end: Position,
    /// Where it had ended: what lies between was acknowledged, not forced to the disk, and is gone.
    pub acknowledged: Position,
}

pub(crate) fn topic(topic: &Topic) -> TopicInfo {
    let queue = |queue: &Queue| {
        // The begin first: it never passes an end that is read after it.
        let (begin, end) = (at(queue.begin()), at(queue.end()));
        QueueInfo { queue: queue.id, begin, end }
    };
    TopicInfo { name: topic.name.to_string(), queues: topic.queues.iter().map(queue).collect() }
}

/// A bound of the store as a position: it has been checked when it was written and read.
pub(crate) fn at(bound: u64) -> Position {
    Position::new(bound).unwrap_or(Position::ZERO)
}

/// The names of the groups that a topic knows.
pub(crate) fn group_names(core: &Core, topic: &Topic) -> Result<Vec<String>, Error> {
    let groups = core.store.states(&state::groups_prefix(topic.number));
    groups.map(|entry| Ok(state::group_of(&entry?.0)?.to_owned())).collect()
}

/// What a group has committed, by queue index.
pub(crate) fn commits(
    core: &Core,
    topic: &Topic,
    group: &str,
) -> Result<Vec<Option<Stored>>, Error> {
    let mut commits = vec![None; topic.queues.len()];
    for entry in core.store.states(&state::commits_prefix(topic.number, group)) {
        let (key, value) = entry?;
        let queue = state::number_of(&key)? as usize;
        if let Some(commit) = commits.get_mut(queue) {
            *commit = Some(Stored::decode(value)?);
        }
    }
    Ok(commits)
}

pub(crate) fn groups(core: &Core, topic: &Topic) -> Result<Vec<GroupInfo>, Error> {
    let mut groups = Vec::new();
    for group in group_names(core, topic)? {
        let commits = commits(core, topic, &group)?;
        let queues = topic.queues.iter().zip(commits).map(|(queue, commit)| {
            let (committed, metadata) = match commit {
                None => (None, String::new()),
                Some(Stored { watermark, metadata }) => (Some(watermark), metadata),
            };
            let from = committed.map_or(0, Watermark::get).max(queue.begin());
            let lag = queue.end().saturating_sub(from);
            GroupQueueInfo { queue: queue.id, committed, metadata, lag }
        });
        let queues = queues.collect();
        let is_live = core.live.lock().contains(&(topic.number, group.as_str().into()));
        groups.push(GroupInfo { group, is_live, queues });
    }
    groups.sort_by(|a, b| a.group.cmp(&b.group));
    Ok(groups)
}

/// Reads all of a topic; returns how many records it has.
pub(crate) fn verify(core: &Core, topic: &Topic) -> Result<u64, Error> {
    let mut records = 0;
    for queue in &topic.queues {
        let (mut position, end) = (queue.begin(), queue.end());
        while position < end {
            match reader::block(core, topic, queue.id.index(), position)? {
                Read::Trimmed => position = queue.begin(),
                Read::Block(mut block) => {
                    while reader::record(&mut block, queue.id)?.is_some() {
                        records += 1;
                    }
                    position = block.header.end();
                }
            }
        }
    }
    Ok(records)
}
