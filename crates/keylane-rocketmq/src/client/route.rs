//! Where a topic's queues are.

use std::collections::BTreeMap;

use keylane_source::QueueId;

use crate::wire::body::RouteData;

/// A topic's queues, and the brokers that hold them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    readable: Vec<QueueId>,
    writable: Vec<QueueId>,
    masters: BTreeMap<String, String>,
}

const READABLE: i32 = 0b100;
const WRITABLE: i32 = 0b010;
/// The most queues that a topic may have on one broker; the number is somebody else's.
const QUEUES_MAX: i32 = 100_000;

impl Route {
    pub(crate) fn new(topic: &str, data: RouteData) -> Self {
        let mut masters = BTreeMap::new();
        for broker in data.broker_datas {
            if let Some(master) = broker.broker_addrs.get("0") {
                masters.insert(broker.broker_name, master.clone());
            }
        }
        let (mut readable, mut writable) = (Vec::new(), Vec::new());
        for queues in data.queue_datas {
            let queue = |index| QueueId::on_broker(topic, &queues.broker_name, index);
            let indices = |count: i32| 0..count.clamp(0, QUEUES_MAX).unsigned_abs();
            if queues.perm & READABLE != 0 {
                readable.extend(indices(queues.read_queue_nums).map(queue));
            }
            if queues.perm & WRITABLE != 0 {
                writable.extend(indices(queues.write_queue_nums).map(queue));
            }
        }
        for queues in [&mut readable, &mut writable] {
            queues.sort();
            queues.dedup();
        }
        Self { readable, writable, masters }
    }

    /// The queues that can be read, by broker and index.
    pub fn readable(&self) -> &[QueueId] {
        &self.readable
    }

    /// The queues that can be written to, by broker and index.
    pub fn writable(&self) -> &[QueueId] {
        &self.writable
    }

    /// The address of a broker's master, where it has one.
    pub fn master(&self, broker: &str) -> Option<&str> {
        self.masters.get(broker).map(String::as_str)
    }

    /// The masters: names and addresses.
    pub fn masters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.masters.iter().map(|(name, address)| (&name[..], &address[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::body::from_json;

    #[test]
    fn permissions_and_missing_masters() {
        let json = br#"{"brokerDatas":[
                {"brokerAddrs":{"0":"h:1","1":"h:2"},"brokerName":"a"},
                {"brokerAddrs":{"1":"h:3"},"brokerName":"b"}],
            "queueDatas":[
                {"brokerName":"b","perm":4,"readQueueNums":1,"writeQueueNums":7},
                {"brokerName":"a","perm":6,"readQueueNums":2,"writeQueueNums":1},
                {"brokerName":"c","perm":2,"readQueueNums":9,"writeQueueNums":-1}]}"#;
        let route = Route::new("t", from_json(json).unwrap());
        let queue = |broker, index| QueueId::on_broker("t", broker, index);
        assert_eq!(route.readable(), [queue("a", 0), queue("a", 1), queue("b", 0)]);
        assert_eq!(route.writable(), [queue("a", 0)]);
        assert_eq!((route.master("a"), route.master("b")), (Some("h:1"), None));
        assert_eq!(route.masters().collect::<Vec<_>>(), [("a", "h:1")]);
    }
}
