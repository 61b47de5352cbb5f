//! What the answer to a pull says. No I/O, no clock; runs on the thread that read the answer.

use std::collections::HashSet;

use bytes::Bytes;
use keylane_source::{EndOffset, Headers, Message, Offset, Position, QueueId};

use crate::wire::code::answer;
use crate::wire::message::{self, Stored};
use crate::wire::reply::{self, Failure};
use crate::wire::{Frame, WireError, properties};
use crate::{Error, KeyFrom};

/// The header under which the id of a message is given out that has no `UNIQ_KEY`.
pub(crate) const MESSAGE_ID: &str = "keylane.message_id";
/// The header under which a producer's own flag is given out, where it is not zero.
pub(crate) const FLAG: &str = "keylane.flag";

/// What is read from a queue, and how.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) key: KeyFrom,
    /// The tags that are wanted; empty: all messages.
    pub(crate) tags: HashSet<Bytes>,
}

/// What a pull brought.
#[derive(Debug)]
pub(crate) enum Pulled {
    /// Messages; there may be none, when none of them has a tag that is wanted.
    Found(Found),
    /// Nothing, up to `position`.
    Nothing { position: Position, end: EndOffset },
    /// The position asked for is not where the group reads on.
    Moved { to: Position, begin: Position, end: Position },
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) messages: Vec<Message>,
    pub(crate) position: Position,
    pub(crate) end: EndOffset,
    /// For the next pull. With `BelieveFirst`, `position` is the first of offsets that were passed
    /// over and that nothing explains: it has to be asked for once more.
    pub(crate) gaps: Gaps,
}

/// Whether offsets that the broker passes over are believed to hold no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// None was seen in this queue so far.
    AskAgain,
    /// One that begins at the position asked for was seen there before.
    BelieveFirst,
    /// One was confirmed: this queue has such offsets.
    Believe,
}

impl Reading {
    pub(crate) fn read(
        &self,
        frame: &Frame,
        queue: QueueId,
        asked: Position,
        gaps: Gaps,
    ) -> Result<Pulled, Error> {
        match frame.code {
            answer::SUCCESS => Ok(Pulled::Found(self.found(frame, queue, asked, gaps)?)),
            answer::PULL_NOT_FOUND | answer::PULL_RETRY_IMMEDIATELY => {
                let position = reply::position(frame, "nextBeginOffset")?;
                if position < asked {
                    let error = format!("reading goes back from {asked} to {position}");
                    return Err(WireError::new(error).into());
                }
                Ok(Pulled::Nothing { position, end: end(frame)? })
            }
            answer::PULL_OFFSET_MOVED => Ok(Pulled::Moved {
                to: reply::position(frame, "nextBeginOffset")?,
                begin: reply::position(frame, "minOffset")?,
                end: reply::position(frame, "maxOffset")?,
            }),
            _ => Err(Failure::refused(frame).into()),
        }
    }

    fn found(
        &self,
        frame: &Frame,
        queue: QueueId,
        asked: Position,
        gaps: Gaps,
    ) -> Result<Found, WireError> {
        let next = reply::position(frame, "nextBeginOffset")?;
        let stored = message::decode_all(frame.body.clone())?;
        if stored.is_empty() || next <= asked {
            let error = format!("{} messages from {asked} up to {next}", stored.len());
            return Err(WireError::new(error));
        }
        let mut found = Found {
            messages: Vec::with_capacity(stored.len()),
            position: asked,
            end: end(frame)?,
            gaps: if gaps == Gaps::BelieveFirst { Gaps::AskAgain } else { gaps },
        };
        for message in stored {
            let offset = belongs(&message, queue)?;
            if Position::from(offset) < asked {
                continue; // the start of a batch, stored as one, that was read before
            }
            if Position::from(offset) < found.position {
                let error = format!("offset {offset} behind {}", found.position);
                return Err(WireError::new(error));
            }
            if !self.pass(queue, &mut found, offset.into(), gaps, asked) {
                return Ok(found);
            }
            found.position = offset.next();
            found.messages.extend(self.message(message, queue, offset));
        }
        if next < found.position {
            let error = format!("messages up to {}, but reading goes on at {next}", found.position);
            return Err(WireError::new(error));
        }
        self.pass(queue, &mut found, next, gaps, asked);
        Ok(found)
    }

    /// Passes over the offsets up to `to`, if there are any; `false`: not yet, nothing explains
    /// them. A filter does, and so does a broker that passes over them a second time.
    fn pass(
        &self,
        queue: QueueId,
        found: &mut Found,
        to: Position,
        gaps: Gaps,
        asked: Position,
    ) -> bool {
        let from = found.position;
        if from < to && self.tags.is_empty() {
            let asked_again = gaps == Gaps::BelieveFirst && from == asked;
            if !asked_again && found.gaps != Gaps::Believe {
                found.gaps = Gaps::BelieveFirst;
                return false;
            }
            found.gaps = Gaps::Believe;
            log::warn!("{queue}: the broker has no message from {from} up to {to}");
        }
        found.position = to;
        true
    }

    /// The message as the engine wants it, unless its tag is not wanted: a broker compares hashes.
    fn message(&self, stored: Stored, queue: QueueId, offset: Offset) -> Option<Message> {
        let mut list: Vec<(Bytes, Bytes)> = properties::decode(&stored.properties).collect();
        let get = |name: &str| list.iter().find(|(known, _)| known == name);
        if !self.tags.is_empty() {
            let tag = get(properties::TAGS).map(|(_, tag)| tag);
            tag.filter(|tag| self.tags.contains(*tag))?;
        }
        let key = self.key.select(&list);
        if get(properties::UNIQUE_ID).is_none() {
            list.push((Bytes::from_static(MESSAGE_ID.as_bytes()), message_id(&stored).into()));
        }
        if stored.flag != 0 {
            list.push((FLAG.into(), stored.flag.to_string().into()));
        }
        let headers: Headers = list.into_iter().map(|(name, value)| (name, Some(value))).collect();
        let message = Message::new(queue, offset)
            .with_payload(stored.body)
            .with_headers(headers)
            .with_timestamp_ms(stored.store_timestamp_ms)
            .with_attempts(u32::try_from(stored.reconsume_times).unwrap_or(0));
        Some(match key {
            Some(key) => message.with_key(key),
            None => message,
        })
    }
}

/// A message's offset, if it is one of the queue that was asked for.
fn belongs(message: &Stored, queue: QueueId) -> Result<Offset, WireError> {
    let index = i64::from(message.queue_id);
    // A light queue is a view on messages that lie in other topics.
    let elsewhere =
        queue.topic().as_bytes() != &message.topic[..] || index != i64::from(queue.index());
    if elsewhere && !queue.topic().starts_with("%LMQ%") {
        let topic = String::from_utf8_lossy(&message.topic);
        return Err(WireError::new(format!("a message of {topic}/{index} in answer to {queue}")));
    }
    Offset::from_i64(message.offset)
        .ok_or_else(|| WireError::new(format!("a message at offset {}", message.offset)))
}

fn end(frame: &Frame) -> Result<EndOffset, WireError> {
    Ok(EndOffset::At(reply::position(frame, "maxOffset")?))
}

/// The id that a broker gives to a message: its host and its place in the commit log.
fn message_id(stored: &Stored) -> String {
    use std::fmt::Write;
    let mut id = String::with_capacity(56);
    for byte in stored.store_host.iter().chain(&stored.commit_log_offset.to_be_bytes()) {
        // Writing to a string cannot fail.
        let _ = write!(id, "{byte:02X}");
    }
    id
}

#[cfg(test)]
mod tests;
