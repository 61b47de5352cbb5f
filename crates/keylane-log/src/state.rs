//! The keys and values of the store's `state` keyspace: identity, topics, groups, commits. No I/O.
//!
//! | key | value |
//! | --- | --- |
//! | `i` | the log's identity, u128 |
//! | `t` topic | u8 1 = live, 0 = deleted; u32 queues; name |
//! | `b` topic queue | u64 first offset, once retention has removed something |
//! | `g` topic group | nothing: the group has had a consumer on this topic |
//! | `o` topic length group queue | u64 watermark, metadata |
//! | `c` topic | u64 how many groups of commits were written: compared with the topic's marks |
//!
//! Numbers in keys are big-endian, so that they sort; in values little-endian.

use bytes::{Buf, Bytes};
use keylane_source::Watermark;

use crate::Error;

pub(crate) const IDENTITY: &[u8] = b"i";

pub(crate) fn topics_prefix() -> Vec<u8> {
    b"t".to_vec()
}

fn key(tag: u8, topic: u32) -> Vec<u8> {
    let mut key = vec![tag];
    key.extend_from_slice(&topic.to_be_bytes());
    key
}

pub(crate) fn topic_key(topic: u32) -> Vec<u8> {
    key(b't', topic)
}

pub(crate) fn begin_key(topic: u32, queue: u32) -> Vec<u8> {
    let mut key = key(b'b', topic);
    key.extend_from_slice(&queue.to_be_bytes());
    key
}

pub(crate) fn begins_prefix(topic: u32) -> Vec<u8> {
    key(b'b', topic)
}

pub(crate) fn groups_prefix(topic: u32) -> Vec<u8> {
    key(b'g', topic)
}

pub(crate) fn group_key(topic: u32, group: &str) -> Vec<u8> {
    let mut key = groups_prefix(topic);
    key.extend_from_slice(group.as_bytes());
    key
}

pub(crate) fn group_of(key: &[u8]) -> Result<&str, Error> {
    let name = key.get(5..).and_then(|name| str::from_utf8(name).ok());
    name.ok_or_else(|| Error::damaged("a group has an impossible key"))
}

pub(crate) fn commits_prefix(topic: u32, group: &str) -> Vec<u8> {
    let mut key = key(b'o', topic);
    // A name has at most 249 bytes.
    key.push(u8::try_from(group.len()).unwrap_or(u8::MAX));
    key.extend_from_slice(group.as_bytes());
    key
}

pub(crate) fn all_commits_prefix(topic: u32) -> Vec<u8> {
    key(b'o', topic)
}

pub(crate) fn commit_key(topic: u32, group: &str, queue: u32) -> Vec<u8> {
    let mut key = commits_prefix(topic, group);
    key.extend_from_slice(&queue.to_be_bytes());
    key
}

pub(crate) fn commit_count_key(topic: u32) -> Vec<u8> {
    key(b'c', topic)
}

/// The number at the end of a key: the queue, or the topic.
pub(crate) fn number_of(key: &[u8]) -> Result<u32, Error> {
    let number = key.last_chunk::<4>();
    number.map(|n| u32::from_be_bytes(*n)).ok_or_else(|| Error::damaged("an impossible key"))
}

pub(crate) fn number(value: &[u8]) -> Result<u64, Error> {
    let bytes = value.try_into().map_err(|_| Error::damaged("a number is short or long"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// What a group has committed for a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) watermark: Watermark,
    pub(crate) metadata: String,
}

impl Stored {
    pub(crate) fn encode(watermark: Watermark, metadata: &str) -> Vec<u8> {
        let mut value = watermark.get().to_le_bytes().to_vec();
        value.extend_from_slice(metadata.as_bytes());
        value
    }

    pub(crate) fn decode(mut value: Bytes) -> Result<Self, Error> {
        let damaged = || Error::damaged("a commit is not one");
        let watermark = value.try_get_u64_le().ok().and_then(Watermark::new);
        let metadata = String::from_utf8(value.to_vec()).map_err(|_| damaged())?;
        Ok(Self { watermark: watermark.ok_or_else(damaged)?, metadata })
    }
}

/// A topic as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) live: bool,
    pub(crate) queues: u32,
    pub(crate) name: String,
}

impl Registered {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = vec![u8::from(self.live)];
        value.extend_from_slice(&self.queues.to_le_bytes());
        value.extend_from_slice(self.name.as_bytes());
        value
    }

    pub(crate) fn decode(mut value: Bytes) -> Result<Self, Error> {
        let damaged = || Error::damaged("a topic's entry is not one");
        let live = value.try_get_u8().map_err(|_| damaged())? == 1;
        let queues = value.try_get_u32_le().map_err(|_| damaged())?;
        let name = String::from_utf8(value.to_vec()).map_err(|_| damaged())?;
        Ok(Self { live, queues, name })
    }
}
