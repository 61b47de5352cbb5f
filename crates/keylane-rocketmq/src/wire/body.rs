//! Bodies that are JSON: what a heartbeat says, what a name server knows, what is to be locked.

use std::collections::BTreeMap;

use bytes::Bytes;
use keylane_source::QueueId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::read::WireError;

/// A body as JSON. The types of this file have string keys only, so that it cannot fail.
pub(crate) fn to_json(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).map(Bytes::from).unwrap_or_default()
}

/// Reads JSON, and what the Java side takes for JSON: maps whose keys are numbers come without
/// quotes in some bodies of every version, and in all bodies of old ones.
pub(crate) fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(body)
        .or_else(|_| serde_json::from_slice(&quote_keys(body)))
        .map_err(|error| WireError::new(format!("body: {error}")))
}

/// The same text with quotes around keys that are numbers.
fn quote_keys(json: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(json.len() + 16);
    let (mut in_string, mut escaped, mut key_may_begin) = (false, false, false);
    let mut rest = json;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if !in_string && key_may_begin && digits > 0 && rest.get(digits) == Some(&b':') {
            quoted.push(b'"');
            quoted.extend_from_slice(&rest[..digits]);
            quoted.push(b'"');
            (rest, key_may_begin) = (&rest[digits..], false);
            continue;
        }
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else {
            in_string = byte == b'"';
            key_may_begin = matches!(byte, b'{' | b',');
        }
        quoted.push(byte);
        rest = after;
    }
    quoted
}

/// What the members of a group tell every broker: who they are and what they read.
#[derive(Debug, Serialize)]
pub(crate) struct HeartbeatData {
    #[serde(rename = "clientID")]
    pub(crate) client_id: String,
    #[serde(rename = "producerDataSet")]
    pub(crate) producers: [(); 0],
    #[serde(rename = "consumerDataSet")]
    pub(crate) consumers: Vec<ConsumerData>,
    /// Not zero would announce the second form of heartbeats, which leaves subscriptions out.
    #[serde(rename = "heartbeatFingerprint")]
    pub(crate) fingerprint: i32,
    #[serde(rename = "withoutSub")]
    pub(crate) without_subscriptions: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConsumerData {
    pub(crate) group_name: String,
    pub(crate) consume_type: &'static str,
    pub(crate) message_model: &'static str,
    pub(crate) consume_from_where: &'static str,
    pub(crate) unit_mode: bool,
    pub(crate) subscription_data_set: Vec<SubscriptionData>,
}

/// What a group reads of one topic. Also what a broker believes that the group reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SubscriptionData {
    pub(crate) topic: String,
    #[serde(default)]
    pub(crate) sub_string: String,
    #[serde(default)]
    pub(crate) tags_set: Vec<String>,
    #[serde(default)]
    pub(crate) code_set: Vec<i32>,
    #[serde(default)]
    pub(crate) sub_version: i64,
    #[serde(default)]
    pub(crate) expression_type: String,
    #[serde(default)]
    pub(crate) class_filter_mode: bool,
}

/// A queue in the protocol's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MessageQueue {
    pub(crate) topic: String,
    pub(crate) broker_name: String,
    pub(crate) queue_id: i32,
}

impl From<QueueId> for MessageQueue {
    fn from(queue: QueueId) -> Self {
        Self {
            topic: queue.topic().to_owned(),
            broker_name: queue.broker().unwrap_or_default().to_owned(),
            queue_id: i32::try_from(queue.index()).unwrap_or(i32::MAX),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct LockBatch<'a> {
    #[serde(rename = "consumerGroup")]
    pub(crate) group: &'a str,
    #[serde(rename = "clientId")]
    pub(crate) client_id: &'a str,
    #[serde(rename = "onlyThisBroker")]
    pub(crate) only_this_broker: bool,
    #[serde(rename = "mqSet")]
    pub(crate) queues: Vec<MessageQueue>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Locked {
    #[serde(rename = "lockOKMQSet")]
    pub(crate) queues: Vec<MessageQueue>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Members {
    #[serde(rename = "consumerIdList")]
    pub(crate) client_ids: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Connections {
    #[serde(rename = "subscriptionTable", default)]
    pub(crate) subscriptions: BTreeMap<String, SubscriptionData>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RouteData {
    #[serde(default)]
    pub(crate) queue_datas: Vec<QueueData>,
    #[serde(default)]
    pub(crate) broker_datas: Vec<BrokerData>,
    /// Static topics, whose queues move between brokers. Not supported.
    #[serde(default)]
    pub(crate) topic_queue_mapping_by_broker: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueueData {
    pub(crate) broker_name: String,
    pub(crate) read_queue_nums: i32,
    pub(crate) write_queue_nums: i32,
    pub(crate) perm: i32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BrokerData {
    pub(crate) broker_name: String,
    /// Address by broker id; "0" is the master.
    #[serde(default)]
    pub(crate) broker_addrs: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cluster {
    #[serde(default)]
    pub(crate) broker_addr_table: BTreeMap<String, BrokerData>,
}

/// What Java calls a string's `hashCode`: over its UTF-16 units. Brokers compare tags by it.
pub(crate) fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        // "TagA".hashCode() and a string beyond the first plane, computed with Java 17.
        assert_eq!(java_hash("TagA"), 2_598_919);
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("😀"), 1_772_899);
    }

    #[test]
    fn a_heartbeat_has_the_members_that_brokers_look_for() {
        let data = HeartbeatData {
            client_id: "c".into(),
            producers: [],
            consumers: vec![ConsumerData {
                group_name: "g".into(),
                consume_type: "CONSUME_PASSIVELY",
                message_model: "CLUSTERING",
                consume_from_where: "CONSUME_FROM_FIRST_OFFSET",
                unit_mode: false,
                subscription_data_set: Vec::new(),
            }],
            fingerprint: 0,
            without_subscriptions: false,
        };
        let json = r#"{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g",
            "consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
            "consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","unitMode":false,
            "subscriptionDataSet":[]}],"heartbeatFingerprint":0,"withoutSub":false}"#;
        let expected: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&to_json(&data)).unwrap(), expected);
    }

    #[test]
    fn keys_that_are_numbers_are_quoted_and_nothing_else_is() {
        let quoted = |json: &str| String::from_utf8(quote_keys(json.as_bytes())).unwrap();
        assert_eq!(quoted(r#"{0:"h:1",12:{3:[1,2]}}"#), r#"{"0":"h:1","12":{"3":[1,2]}}"#);
        for same in [r#"{"0":"a,1:b{2:c"}"#, r#"{"a\",1:\"":[1,2,{"b":3}]}"#, "[1,2]", "{1", "{,:"]
        {
            assert_eq!(quoted(same), same);
        }
    }

    #[test]
    fn the_cluster_as_version_5_3_3_writes_it() {
        let json = br#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911"},
            "brokerName":"broker-a","cluster":"DefaultCluster"}},
            "clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#;
        let cluster: Cluster = from_json(json).unwrap();
        assert_eq!(cluster.broker_addr_table["broker-a"].broker_addrs["0"], "127.0.0.1:10911");
    }

    #[test]
    fn a_route_may_lack_what_newer_brokers_added() {
        let json = br#"{"brokerDatas":[{"brokerAddrs":{"0":"h:1","1":"h:2"},"brokerName":"a"}],
            "queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"writeQueueNums":4}]}"#;
        let route: RouteData = from_json(json).unwrap();
        assert_eq!(route.broker_datas[0].broker_addrs["0"], "h:1");
        assert_eq!(route.queue_datas[0].read_queue_nums, 4);
        assert!(route.topic_queue_mapping_by_broker.is_none());
    }
}
