//! The rules of every source, against the brokers of this process, and against the real one that
//! `KEYLANE_ROCKETMQ` names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keylane_rocketmq::{Config, Outgoing, RocketMqSource};
use keylane_source::{FetchLimits, Offset, Position, QueueId, Source, SourceEvent, Watermark};
use keylane_testkit::conformance::{Capabilities, Capability, Fixture, Record};

use crate::broker::frame::Frame;
use crate::broker::{Cluster, Put, What};
use crate::real::Real;

/// What the group reads; a message with another tag leaves a hole.
const TAG: &str = "wanted";

/// What neither kind of broker has.
fn without_what_the_protocol_lacks() -> Capabilities {
    Capabilities::all()
        .without(Capability::Metadata, "an offset is stored without anything beside it")
        .without(Capability::BinaryKeys, "properties are text")
        .without(Capability::EmptyKeys, "a property without a value is left out")
        .without(Capability::NullPayloads, "every message has a body")
        .without(Capability::Headers, "properties are a map, and every message has some")
        .without(Capability::Timestamps, "a message's time is that of its storing")
}

fn config(name_server: &str, group: &str, topic: &str) -> Config {
    Config::new([name_server.to_owned()], group)
        .subscribe(topic, TAG)
        .retries(false)
        // So that an offset that an operator moves is noticed soon.
        .hold(Duration::from_millis(500))
}

fn key_of(record: &Record) -> Option<String> {
    record.key.as_ref().map(|key| String::from_utf8(key.to_vec()).unwrap())
}

/// A second member of the group, with the thread that polls it; it gives back what it is asked for.
struct Other {
    stop: Arc<AtomicBool>,
    member: Option<JoinHandle<()>>,
}

impl Other {
    fn join(mut source: RocketMqSource) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let member = std::thread::spawn(move || {
            let limits = FetchLimits { messages: 10, bytes: 1 << 20 };
            let mut events = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                _ = source.poll(limits, Duration::from_millis(20), &mut events);
                for event in events.drain(..) {
                    if let SourceEvent::Revoking { queue } = event {
                        source.release(queue);
                    }
                }
            }
        });
        Self { stop, member: Some(member) }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        _ = self.member.take().map(JoinHandle::join);
    }
}

mod in_process {
    use super::*;

    struct InProcess {
        cluster: Cluster,
        queues: u32,
        other: Option<Other>,
    }

    impl InProcess {
        fn key(queue: QueueId) -> (String, String, i32) {
            ("g".to_owned(), "t".to_owned(), i32::try_from(queue.index()).unwrap())
        }

        fn log<T>(&self, queue: QueueId, change: impl FnOnce(&mut crate::broker::Log) -> T) -> T {
            self.cluster.change(|state| {
                let broker = state.brokers.get_mut("a").unwrap();
                change(&mut broker.topics.get_mut("t").unwrap()[queue.index() as usize])
            })
        }

        fn member(&self, id: &str) -> RocketMqSource {
            let config = config(&self.cluster.name_server, "g", "t").client_id(id);
            RocketMqSource::new(config).unwrap()
        }
    }

    impl Fixture for InProcess {
        type Source = RocketMqSource;

        fn new(queues: u32) -> Self {
            let cluster = Cluster::start(&["a"]);
            cluster.topic("a", "t", queues as usize);
            Self { cluster, queues, other: None }
        }

        fn capabilities() -> Capabilities {
            without_what_the_protocol_lacks()
        }

        fn listening() -> (u32, Duration) {
            (10, Duration::from_millis(10))
        }

        fn queues(&self) -> Vec<QueueId> {
            (0..self.queues).map(|index| crate::member::queue("a", index)).collect()
        }

        fn produce(&mut self, queue: QueueId, record: Record) -> Offset {
            let mut put = Put::new(record.payload.clone().unwrap_or_default()).with("TAGS", TAG);
            if let Some(key) = key_of(&record) {
                put = put.with("KEYS", &key);
            }
            put.stored_ms = record.timestamp_ms.unwrap_or(1);
            Offset::from_i64(self.log(queue, |log| log.put(put))).unwrap()
        }

        fn source(&mut self) -> RocketMqSource {
            self.member("m1")
        }

        fn stored(&mut self, queue: QueueId) -> Option<Watermark> {
            let stored = self.cluster.committed("a", "g", "t", Self::key(queue).2);
            stored.and_then(Watermark::from_i64)
        }

        fn leave_hole(&mut self, queue: QueueId) -> Position {
            let offset = self.log(queue, |log| log.put(Put::new("x").with("TAGS", "unwanted")));
            Offset::from_i64(offset).unwrap().next()
        }

        fn trim(&mut self, queue: QueueId, begin: Position) {
            self.log(queue, |log| log.trim(begin.to_i64()));
        }

        fn fail_next_look_up(&mut self, _: QueueId) {
            self.cluster.fault("a", 14, 1, What::Refuse(1));
        }

        fn fail_next_commit(&mut self, _: QueueId) {
            self.cluster.fault("a", 15, 1, What::Refuse(1));
        }

        fn fall_silent(&mut self) {
            for code in 0..400 {
                self.cluster.fault("a", code, usize::MAX, What::Ignore);
            }
        }

        fn revoke_one(&mut self) {
            self.other = Some(Other::join(self.member("m2")));
        }

        fn lose_one(&mut self) {
            // The broker lists somebody else, however often it is told that the member lives.
            let stranger: fn(&mut Vec<u8>) = |body| {
                *body = br#"{"consumerIdList":["m9"]}"#.to_vec();
            };
            self.cluster.fault("a", 38, usize::MAX, What::Spoil(stranger));
            self.cluster.state().brokers["a"].notify("g");
        }

        fn move_offset(&mut self, queue: QueueId, to: Position) {
            self.cluster.change(|state| {
                let broker = state.brokers.get_mut("a").unwrap();
                broker.resets.insert(Self::key(queue), to.to_i64());
            });
        }

        fn lock_elsewhere(&mut self, queue: QueueId) {
            let lock = ("somebody else".to_owned(), Instant::now());
            self.cluster.change(|state| {
                let broker = state.brokers.get_mut("a").unwrap();
                broker.locks.retain(|_, (holder, _)| holder != "somebody else");
                broker.locks.insert(Self::key(queue), lock);
            });
        }

        fn is_locked(&mut self, queue: QueueId) -> bool {
            let state = self.cluster.state();
            state.brokers["a"]
                .locks
                .get(&Self::key(queue))
                .is_some_and(|(holder, _)| holder == "m1")
        }
    }

    keylane_testkit::source_conformance!(InProcess);
}

mod real_broker {
    use super::*;

    /// With no broker named there is nothing to test, and each test says so.
    struct RealBroker {
        real: Real,
        other: Option<Other>,
    }

    impl RealBroker {
        fn member(&self, id: &str) -> RocketMqSource {
            let config =
                config(&self.real.server, &self.real.group, &self.real.topic).client_id(id);
            RocketMqSource::new(config).unwrap()
        }

        /// In a batch, as a broker takes no empty body outside of one.
        fn put(&self, queue: QueueId, message: Outgoing) -> Offset {
            let sent = self.real.client.send_batch(queue, &[message]).unwrap();
            Offset::new(sent.offset.get()).unwrap()
        }

        fn ask(&self, code: i32, client: &str, queue: QueueId) -> bool {
            let queue = serde_json::json!({"topic": queue.topic(), "queueId": queue.index(),
                "brokerName": queue.broker()});
            let body = serde_json::json!({"consumerGroup": self.real.group, "clientId": client,
                "onlyThisBroker": false, "mqSet": [queue]});
            let answer = self.real.ask(&Frame::request(code).with_body(body.to_string()));
            assert_eq!(answer.code, 0, "{answer:?}");
            code == 41 && !answer.json()["lockOKMQSet"].as_array().unwrap().is_empty()
        }
    }

    impl Fixture for RealBroker {
        type Source = RocketMqSource;

        fn new(queues: u32) -> Self {
            let real = crate::real::real("conformance", queues);
            Self { real: real.unwrap(), other: None }
        }

        fn capabilities() -> Capabilities {
            let all = without_what_the_protocol_lacks()
                .without(Capability::SeekByTime, "messages cannot be stored at a time of choice")
                .without(Capability::Trim, "a real broker removes whole files only")
                .without(Capability::FailLookUps, "no fault can be injected into a real broker")
                .without(Capability::FailCommits, "no fault can be injected into a real broker")
                .without(Capability::Silence, "no fault can be injected into a real broker")
                .without(Capability::Lose, "no fault can be injected into a real broker");
            match crate::real::is_before_5() {
                // To the start of the queue: `real::positions_that_do_not_exist_...`
                true => all.without(Capability::MoveOffset, "4.9 moves offsets by time only"),
                false => all,
            }
        }

        fn without_a_commit() -> Option<Watermark> {
            crate::real::is_before_5().then_some(Watermark::ZERO)
        }

        fn listening() -> (u32, Duration) {
            (10, Duration::from_millis(20))
        }

        fn queues(&self) -> Vec<QueueId> {
            self.real.route.readable().to_vec()
        }

        fn produce(&mut self, queue: QueueId, record: Record) -> Offset {
            let mut message = Outgoing::new(record.payload.clone().unwrap_or_default()).tag(TAG);
            if let Some(key) = key_of(&record) {
                message = message.key(key);
            }
            self.put(queue, message)
        }

        fn source(&mut self) -> RocketMqSource {
            self.member("m1")
        }

        fn stored(&mut self, queue: QueueId) -> Option<Watermark> {
            self.real.client.committed(&self.real.group, queue).unwrap()
        }

        fn leave_hole(&mut self, queue: QueueId) -> Position {
            self.put(queue, Outgoing::new("x").tag("unwanted")).next()
        }

        fn revoke_one(&mut self) {
            self.other = Some(Other::join(self.member("m2")));
        }

        fn move_offset(&mut self, queue: QueueId, to: Position) {
            let request = Frame::request(222)
                .with("topic", &self.real.topic)
                .with("group", &self.real.group)
                .with("timestamp", 0)
                .with("isForce", true)
                .with("queueId", queue.index())
                .with("offset", to.to_i64());
            let answer = self.real.ask(&request);
            assert_eq!(answer.code, 0, "{answer:?}");
        }

        fn lock_elsewhere(&mut self, queue: QueueId) {
            for known in self.queues() {
                self.ask(42, "somebody else", known);
            }
            self.ask(42, "m1", queue);
            assert!(self.ask(41, "somebody else", queue));
        }

        fn is_locked(&mut self, queue: QueueId) -> bool {
            // Whoever asks and is refused knows that somebody has it.
            let free = self.ask(41, "who asks", queue);
            self.ask(42, "who asks", queue);
            !free
        }
    }

    macro_rules! with_a_broker {
        ($rule:ident, $fixture:ty) => {
            #[test]
            fn $rule() {
                if crate::real::is_there(stringify!($rule)) {
                    keylane_testkit::conformance::rules::$rule::<$fixture>();
                }
            }
        };
    }
    keylane_testkit::for_each_source_rule!(with_a_broker, RealBroker);
}
