//! What arrives at a source, from whichever thread: answers, notifications, and the waker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::Sender;
use keylane_source::{Commit, Position, QueueId};

use super::pull::Pulled;
use super::queue::Turn;
use crate::Error;
use crate::client::{Listen, Route};
use crate::wire::body::{self, Connections, MessageQueue};
use crate::wire::{Frame, code};

pub(crate) enum Incoming {
    Woken,
    /// The members of the group have changed.
    Notified,
    Disconnected {
        address: String,
    },
    /// An operator has moved the group's offsets; old brokers leave it to the members to follow.
    OffsetsMoved {
        offsets: Vec<(QueueId, Position)>,
    },
    Route {
        topic: String,
        answer: Result<Option<Route>, Error>,
    },
    Heartbeat {
        address: String,
        answer: Result<(), Error>,
    },
    Members {
        topic: String,
        address: String,
        answer: Result<Vec<String>, Error>,
    },
    Subscriptions {
        answer: Result<Connections, Error>,
    },
    LookedUp {
        queue: QueueId,
        look_up: LookUp,
        answer: Result<Option<Position>, Error>,
    },
    Sought {
        queue: QueueId,
        turn: Turn,
        answer: Result<Position, Error>,
    },
    Pulled {
        queue: QueueId,
        turn: Turn,
        sent: Instant,
        answer: Result<Pulled, Error>,
    },
    /// What a pull says that was sent to see whether somebody has moved the offset.
    Checked {
        queue: QueueId,
        turn: Turn,
        asked: Position,
        answer: Result<Pulled, Error>,
    },
    Committed {
        commit: Commit,
        answer: Result<(), Error>,
    },
    /// What the broker has of a commit that it has acknowledged.
    ReadBack {
        commit: Commit,
        answer: Result<Option<Position>, Error>,
    },
    Locked {
        queues: Vec<QueueId>,
        answer: Result<Vec<MessageQueue>, Error>,
    },
    Unlocked {
        queues: Vec<QueueId>,
        answer: Result<(), Error>,
    },
    Unregistered {
        answer: Result<(), Error>,
    },
}

/// Which look-up of a queue's offset it is. What an earlier one says is not to be believed: it was
/// asked for when somebody else could still move the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookUp {
    /// The first of a tenure, with which the engine is told of the queue.
    First(Turn),
    /// One that the engine has asked for.
    Again(Turn),
}

/// Takes in what brokers say unasked.
pub(crate) struct Ears {
    pub(crate) group: String,
    pub(crate) outbox: Sender<Incoming>,
}

impl Listen for Ears {
    fn request(&self, address: &str, frame: &Frame) -> bool {
        let incoming = match frame.code {
            code::NOTIFY_CONSUMER_IDS_CHANGED => Incoming::Notified,
            code::RESET_CONSUMER_CLIENT_OFFSET => match offsets_moved(&frame.body) {
                Ok(offsets) if frame.field("group") == Ok(&self.group) => {
                    Incoming::OffsetsMoved { offsets }
                }
                Ok(_) => return true,
                Err(error) => {
                    log::error!("{address}: an operator moved the group's offsets, but: {error}");
                    return false;
                }
            },
            // Meant for producers, and wants no answer.
            code::CHECK_TRANSACTION_STATE => return true,
            _ => return false,
        };
        // Nobody listens any more once the source is gone.
        let _ = self.outbox.send(incoming);
        true
    }

    fn disconnected(&self, address: &str) {
        let _ = self.outbox.send(Incoming::Disconnected { address: address.to_owned() });
    }
}

/// Reads `{"offsetTable":{{"brokerName":..,"queueId":..,"topic":..}:17,..}}`: a map whose keys are
/// objects, which is what the Java side writes and no JSON parser takes.
fn offsets_moved(body: &[u8]) -> Result<Vec<(QueueId, Position)>, crate::wire::WireError> {
    let error = |what: &str| crate::wire::WireError::new(format!("moved offsets: {what}"));
    let start = br#"{"offsetTable":{"#;
    let mut rest = body.strip_prefix(start).ok_or_else(|| error("no offsetTable"))?;
    let mut offsets = Vec::new();
    while rest.first() == Some(&b'{') {
        let end = rest.iter().position(|byte| *byte == b'}').ok_or_else(|| error("no end"))?;
        let (queue, after) = rest.split_at(end + 1);
        let queue: MessageQueue = body::from_json(queue)?;
        let number = after.strip_prefix(b":").ok_or_else(|| error("no offset"))?;
        let end = number.iter().position(|byte| b",}".contains(byte));
        let (number, after) = number.split_at(end.ok_or_else(|| error("no end"))?);
        let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
        let offset = number.and_then(Position::from_i64).ok_or_else(|| error("not an offset"))?;
        let index = u32::try_from(queue.queue_id).map_err(|_| error("not a queue"))?;
        offsets.push((QueueId::on_broker(&queue.topic, &queue.broker_name, index), offset));
        rest = after.strip_prefix(b",").unwrap_or(after);
    }
    Ok(offsets)
}

/// Ends a source's wait. A wake that is not taken yet counts for all that follow.
#[derive(Clone)]
pub(crate) struct Bell {
    pub(crate) rung: Arc<AtomicBool>,
    pub(crate) outbox: Sender<Incoming>,
}

impl Bell {
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            let _ = self.outbox.send(Incoming::Woken);
        }
    }

    /// Whether it was rung since it was last asked.
    pub(crate) fn take(&self) -> bool {
        self.rung.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_offsets_as_java_writes_them() {
        let body = br#"{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:5,{"brokerName":"a","queueId":1,"topic":"t"}:0}}"#;
        let queue = |index| QueueId::on_broker("t", "a", index);
        let at = |number| Position::new(number).unwrap();
        assert_eq!(offsets_moved(body).unwrap(), [(queue(0), at(5)), (queue(1), at(0))]);
        assert_eq!(offsets_moved(br#"{"offsetTable":{}}"#).unwrap(), []);
        for end in 1..body.len() - 3 {
            // A cut is an error, or leaves out what it cut off; it never panics.
            let _ = offsets_moved(&body[..end]);
        }
        let bad = br#"{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:-5}}"#;
        assert_eq!(offsets_moved(bad).unwrap_err().to_string(), "moved offsets: not an offset");
    }
}
