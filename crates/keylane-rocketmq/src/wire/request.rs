//! Requests, each built in one place.

use std::collections::BTreeMap;

use bytes::Bytes;
use keylane_source::{Position, QueueId};

use super::body::{self, HeartbeatData, LockBatch, MessageQueue};
use super::{code, compression, properties};
use crate::Outgoing;

/// A request, before it gets the number that its answer will carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) code: i32,
    pub(crate) one_way: bool,
    pub(crate) fields: BTreeMap<&'static str, String>,
    pub(crate) body: Bytes,
}

impl Request {
    fn new(code: i32) -> Self {
        Self { code, one_way: false, fields: BTreeMap::new(), body: Bytes::new() }
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.fields.insert(name, value.to_string());
        self
    }

    fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    fn of_queue(code: i32, queue: QueueId) -> Self {
        Self::new(code).with("topic", queue.topic()).with("queueId", queue.index())
    }
}

/// One pull of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pull<'a> {
    pub(crate) group: &'a str,
    pub(crate) queue: QueueId,
    pub(crate) from: Position,
    pub(crate) messages_max: usize,
    pub(crate) bytes_max: usize,
    /// How long the broker may hold the request while there is nothing; zero: it answers at once.
    pub(crate) hold_ms: u64,
    /// The tag filter as a subscription has it.
    pub(crate) expression: &'a str,
    pub(crate) subscription_version: i64,
}

/// May be held back until a message is there.
const SUSPEND: i32 = 0b10;
/// Carries its own subscription, so that it does not depend on a heartbeat that came before.
const SUBSCRIPTION: i32 = 0b100;

pub(crate) fn pull(pull: Pull<'_>) -> Request {
    let hold = if pull.hold_ms == 0 { 0 } else { SUSPEND };
    Request::of_queue(code::PULL_MESSAGE, pull.queue)
        .with("consumerGroup", pull.group)
        .with("queueOffset", pull.from.to_i64())
        .with("maxMsgNums", pull.messages_max.min(i32::MAX as usize))
        .with("maxMsgBytes", pull.bytes_max.min(i32::MAX as usize))
        .with("sysFlag", SUBSCRIPTION | hold)
        .with("commitOffset", 0)
        .with("suspendTimeoutMillis", pull.hold_ms)
        .with("subscription", pull.expression)
        .with("subVersion", pull.subscription_version)
        .with("expressionType", "TAG")
}

pub(crate) fn query_offset(group: &str, queue: QueueId) -> Request {
    Request::of_queue(code::QUERY_CONSUMER_OFFSET, queue)
        .with("consumerGroup", group)
        // Otherwise "none" is answered by 0 on topics that are young enough.
        .with("setZeroIfNotFound", false)
}

pub(crate) fn update_offset(group: &str, queue: QueueId, offset: i64) -> Request {
    Request::of_queue(code::UPDATE_CONSUMER_OFFSET, queue)
        .with("consumerGroup", group)
        .with("commitOffset", offset)
}

pub(crate) fn min_offset(queue: QueueId) -> Request {
    Request::of_queue(code::GET_MIN_OFFSET, queue)
}

pub(crate) fn max_offset(queue: QueueId) -> Request {
    Request::of_queue(code::GET_MAX_OFFSET, queue).with("committed", true)
}

pub(crate) fn search_offset(queue: QueueId, timestamp_ms: i64) -> Request {
    Request::of_queue(code::SEARCH_OFFSET_BY_TIMESTAMP, queue)
        .with("timestamp", timestamp_ms)
        .with("boundaryType", "LOWER")
}

pub(crate) fn route(topic: &str) -> Request {
    Request::new(code::GET_ROUTEINFO_BY_TOPIC)
        .with("topic", topic)
        .with("acceptStandardJsonOnly", true)
}

pub(crate) fn cluster() -> Request {
    Request::new(code::GET_BROKER_CLUSTER_INFO)
}

pub(crate) fn heartbeat(data: &HeartbeatData) -> Request {
    Request::new(code::HEART_BEAT).with_body(body::to_json(data))
}

pub(crate) fn unregister(client_id: &str, group: &str) -> Request {
    Request::new(code::UNREGISTER_CLIENT).with("clientID", client_id).with("consumerGroup", group)
}

pub(crate) fn members(group: &str) -> Request {
    Request::new(code::GET_CONSUMER_LIST_BY_GROUP).with("consumerGroup", group)
}

pub(crate) fn connections(group: &str) -> Request {
    Request::new(code::GET_CONSUMER_CONNECTION_LIST).with("consumerGroup", group)
}

pub(crate) fn lock(group: &str, client_id: &str, queues: &[QueueId]) -> Request {
    lock_batch(code::LOCK_BATCH_MQ, group, client_id, queues)
}

pub(crate) fn unlock(group: &str, client_id: &str, queues: &[QueueId]) -> Request {
    lock_batch(code::UNLOCK_BATCH_MQ, group, client_id, queues)
}

fn lock_batch(code: i32, group: &str, client_id: &str, queues: &[QueueId]) -> Request {
    let batch = LockBatch {
        group,
        client_id,
        only_this_broker: false,
        queues: queues.iter().copied().map(MessageQueue::from).collect(),
    };
    Request::new(code).with_body(body::to_json(&batch))
}

/// How often a message sent to a retry topic has been tried, and how often it may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tries {
    pub(crate) made: u32,
    pub(crate) max: u32,
}

/// One message to one queue; `None` leaves the choice to the broker. The queue must be writable.
pub(crate) fn send(
    group: &str,
    topic: &str,
    queue: Option<u32>,
    message: &Outgoing,
    tries: Option<Tries>,
    now_ms: i64,
) -> Request {
    let (body, flags) = compression::for_sending(&message.body);
    let request = send_header(code::SEND_MESSAGE_V2, group, topic, queue, now_ms)
        .with("f", flags)
        .with("h", message.flag)
        .with("i", properties::encode(&message.properties))
        .with("m", false)
        .with_body(body);
    match tries {
        None => request.with("j", 0),
        Some(tries) => request.with("j", tries.made).with("l", tries.max),
    }
}

/// Several messages to one queue, stored one behind the other.
pub(crate) fn send_batch(
    group: &str,
    topic: &str,
    queue: u32,
    messages: &[Outgoing],
    now_ms: i64,
) -> Result<Request, super::WireError> {
    let body = super::message::encode_batch(messages)?;
    Ok(send_header(code::SEND_BATCH_MESSAGE, group, topic, Some(queue), now_ms)
        .with("h", 0)
        .with("i", "")
        .with("j", 0)
        .with("m", true)
        .with_body(body))
}

fn send_header(code: i32, group: &str, topic: &str, queue: Option<u32>, now_ms: i64) -> Request {
    Request::new(code)
        .with("a", group)
        .with("b", topic)
        .with("c", "TBW102") // the template of topics that are created by a send; where allowed
        .with("d", 4) // and the number of queues of such a topic
        .with("e", queue.map_or(-1, i64::from))
        .with("f", 0)
        .with("g", now_ms)
        .with("k", false)
}

/// Gives a message back to the broker that stores it, by its place in the commit log.
pub(crate) fn send_back(group: &str, message: &crate::SendBack<'_>) -> Request {
    Request::new(code::CONSUMER_SEND_MSG_BACK)
        .with("offset", message.commit_log_offset)
        .with("group", group)
        .with("delayLevel", message.delay_level)
        .with("originMsgId", message.message_id)
        .with("originTopic", message.topic)
        .with("unitMode", false)
        .with("maxReconsumeTimes", message.reconsume_times_max)
}

pub(crate) fn create_topic(topic: &str, queues: u32) -> Request {
    Request::new(code::UPDATE_AND_CREATE_TOPIC)
        .with("topic", topic)
        .with("defaultTopic", "TBW102")
        .with("readQueueNums", queues)
        .with("writeQueueNums", queues)
        .with("perm", 6) // read and write
        .with("topicFilterType", "SINGLE_TAG")
        .with("topicSysFlag", 0)
        .with("order", false)
}
