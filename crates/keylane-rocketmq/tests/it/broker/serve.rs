//! What is answered to each request.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::frame::Frame;
use super::store::{Log, Put};
use super::{Broker, Shared, State};

type Key = (String, String, i32);

impl Shared {
    /// `None`: no answer, as the broker went down meanwhile.
    pub(super) fn answer(&self, name: &str, connection: u64, request: &Frame) -> Option<Frame> {
        if request.code == 11 {
            return self.pull(name, request);
        }
        let mut state = self.lock();
        if name.is_empty() {
            return Some(name_server(&state, request));
        }
        let lease = state.lock_lease;
        let broker = state.brokers.get_mut(name)?;
        let answer = match request.code {
            14 => broker.query_offset(request),
            15 => broker.update_offset(request),
            17 => broker.create_topic(request),
            29..=31 => broker.offset_of(request),
            34 => broker.heartbeat(request, connection),
            35 => broker.unregister(request),
            36 => Frame::answer(0),
            38 => broker.list_members(request),
            41 => broker.lock(request, lease, name),
            42 => broker.unlock(request),
            203 => broker.list_subscriptions(request),
            310 => broker.send(request),
            320 => broker.send_batch(request),
            _ => Frame::answer(3),
        };
        drop(state);
        self.changed.notify_all();
        Some(answer)
    }

    fn pull(&self, name: &str, request: &Frame) -> Option<Frame> {
        let hold = Duration::from_millis(request.number("suspendTimeoutMillis").unsigned_abs());
        let until = Instant::now() + hold;
        let holds = request.number("sysFlag") & 2 != 0;
        let mut state = self.lock();
        let mut answer = state.brokers.get_mut(name).filter(|broker| broker.up)?.pull(request);
        while answer.code == 19 && holds {
            let now = Instant::now();
            if now >= until {
                break;
            }
            state = self.wait(state, until - now);
            let broker = state.brokers.get_mut(name).filter(|broker| broker.up)?;
            // As Apache's: an offset that is moved meanwhile does not end the hold.
            if broker.has_more(request) || Instant::now() >= until {
                answer = broker.pull(request);
            }
        }
        Some(answer)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap().0
    }
}

fn name_server(state: &State, request: &Frame) -> Frame {
    if request.code == 106 {
        let brokers: BTreeMap<&String, Value> = state
            .brokers
            .iter()
            .map(|(name, broker)| {
                (name, json!({"brokerName": name, "brokerAddrs": {"0": broker.address}}))
            })
            .collect();
        return Frame::answer(0).with_body(json!({"brokerAddrTable": brokers}).to_string());
    }
    let topic = &request.fields["topic"];
    let with_topic = state.brokers.iter().filter(|(_, broker)| broker.topics.contains_key(topic));
    let (mut queues, mut brokers) = (Vec::new(), Vec::new());
    for (name, broker) in with_topic {
        let count = broker.topics[topic].len();
        queues.push(json!({"brokerName": name, "readQueueNums": count,
            "writeQueueNums": count, "perm": 6, "topicSysFlag": 0}));
        brokers.push(json!({"cluster": "c", "brokerName": name,
            "brokerAddrs": {"0": broker.address}}));
    }
    if queues.is_empty() {
        return Frame::answer(17);
    }
    let route = json!({"queueDatas": queues, "brokerDatas": brokers, "filterServerTable": {}});
    Frame::answer(0).with_body(route.to_string())
}

fn key(request: &Frame) -> Key {
    let queue = i32::try_from(request.number("queueId")).unwrap();
    (request.fields["consumerGroup"].clone(), request.fields["topic"].clone(), queue)
}

impl Broker {
    fn log(&mut self, topic: &str, queue: i32) -> Option<&mut Log> {
        self.topics.get_mut(topic)?.get_mut(usize::try_from(queue).ok()?)
    }

    /// Whether there are messages behind what a held pull asks for.
    fn has_more(&mut self, request: &Frame) -> bool {
        let (_, topic, queue) = key(request);
        let asked = request.number("queueOffset");
        self.log(&topic, queue).is_none_or(|log| !(log.first..=asked).contains(&log.end()))
    }

    fn pull(&mut self, request: &Frame) -> Frame {
        let key = key(request);
        let reset = self.resets.remove(&key);
        let Some(log) = self.log(&key.1, key.2) else { return Frame::answer(17) };
        let asked = request.number("queueOffset");
        let expression = &request.fields["subscription"];
        let tags = expression.split("||").map(str::trim).filter(|tag| *tag != "*");
        let tags: Vec<&str> = tags.collect();
        let answer = |code, next: i64, log: &Log| {
            Frame::answer(code)
                .with("nextBeginOffset", next)
                .with("minOffset", log.first)
                .with("maxOffset", log.end())
                .with("suggestWhichBrokerId", 0)
        };
        if let Some(to) = reset {
            return answer(21, to, log);
        }
        if asked < log.first {
            return answer(21, log.first, log);
        }
        if asked > log.end() {
            return answer(21, log.end(), log);
        }
        let max = usize::try_from(request.number("maxMsgNums")).unwrap();
        let (bytes, next) = log.read(&key.1, key.2, asked, max, &tags);
        match (bytes.is_empty(), next == asked) {
            (true, true) => answer(19, asked, log),
            (true, false) => answer(20, next, log),
            _ => answer(0, next, log).with_body(bytes),
        }
    }

    fn query_offset(&self, request: &Frame) -> Frame {
        match self.offsets.get(&key(request)) {
            Some(offset) => Frame::answer(0).with("offset", offset),
            None => Frame::answer(22),
        }
    }

    fn update_offset(&mut self, request: &Frame) -> Frame {
        self.offsets.insert(key(request), request.number("commitOffset"));
        Frame::answer(0)
    }

    fn offset_of(&mut self, request: &Frame) -> Frame {
        let queue = i32::try_from(request.number("queueId")).unwrap();
        let Some(log) = self.log(&request.fields["topic"], queue) else { return Frame::answer(17) };
        let offset = match request.code {
            30 => log.end(),
            31 => log.first,
            _ => {
                let wanted = request.number("timestamp");
                let at =
                    |put: &Option<Put>| put.as_ref().is_some_and(|put| put.stored_ms >= wanted);
                let index = log.messages.iter().position(at).unwrap_or(log.messages.len());
                log.first + i64::try_from(index).unwrap()
            }
        };
        Frame::answer(0).with("offset", offset)
    }

    fn create_topic(&mut self, request: &Frame) -> Frame {
        let queues = usize::try_from(request.number("readQueueNums")).unwrap();
        let logs = self.topics.entry(request.fields["topic"].clone()).or_default();
        logs.resize(queues, Log::default());
        Frame::answer(0)
    }

    fn heartbeat(&mut self, request: &Frame, connection: u64) -> Frame {
        let data = request.json();
        let id = data["clientID"].as_str().unwrap();
        for consumer in data["consumerDataSet"].as_array().unwrap() {
            let group = consumer["groupName"].as_str().unwrap();
            self.topics.entry(format!("%RETRY%{group}")).or_insert_with(|| vec![Log::default()]);
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let subscriptions = consumer["subscriptionDataSet"].as_array().unwrap();
            let table: BTreeMap<String, String> =
                subscriptions.iter().map(|s| (text(&s["topic"]), text(&s["subString"]))).collect();
            let changed = self.subscriptions.insert(group.to_owned(), table.clone()) != Some(table);
            let members = self.members.entry(group.to_owned()).or_default();
            if members.insert(id.to_owned(), connection).is_none() || changed {
                self.notify(group);
            }
        }
        Frame::answer(0)
    }

    fn unregister(&mut self, request: &Frame) -> Frame {
        let group = &request.fields["consumerGroup"];
        if let Some(members) = self.members.get_mut(group) {
            members.remove(&request.fields["clientID"]);
        }
        self.notify(group);
        Frame::answer(0)
    }

    fn list_members(&self, request: &Frame) -> Frame {
        match self.members.get(&request.fields["consumerGroup"]) {
            Some(members) if !members.is_empty() => {
                let ids: Vec<&String> = members.keys().collect();
                Frame::answer(0).with_body(json!({"consumerIdList": ids}).to_string())
            }
            _ => Frame::answer(1),
        }
    }

    fn list_subscriptions(&self, request: &Frame) -> Frame {
        let table = self.subscriptions.get(&request.fields["consumerGroup"]);
        let table: BTreeMap<&String, Value> = table
            .into_iter()
            .flatten()
            .map(|(topic, expression)| (topic, json!({"topic": topic, "subString": expression})))
            .collect();
        Frame::answer(0).with_body(json!({"subscriptionTable": table}).to_string())
    }

    fn lock(&mut self, request: &Frame, lease: Duration, name: &str) -> Frame {
        let (now, mut granted) = (Instant::now(), Vec::new());
        for (client, key, queue) in lock_requests(request) {
            assert_eq!(queue["brokerName"], name);
            let held = self.locks.get(&key);
            if held.is_none_or(|(holder, since)| *holder == client || *since + lease <= now) {
                self.locks.insert(key, (client, now));
                granted.push(queue);
            }
        }
        Frame::answer(0).with_body(json!({"lockOKMQSet": granted}).to_string())
    }

    fn unlock(&mut self, request: &Frame) -> Frame {
        for (client, key, _) in lock_requests(request) {
            if self.locks.get(&key).is_some_and(|(holder, _)| *holder == client) {
                self.locks.remove(&key);
            }
        }
        Frame::answer(0)
    }

    fn send(&mut self, request: &Frame) -> Frame {
        let number = |name: &str| request.fields.get(name).and_then(|n| n.parse::<i32>().ok());
        if request.body.is_empty() {
            return Frame::answer(1); // a null pointer in the real one
        }
        let mut topic = request.fields["b"].clone();
        let tries = number("j").unwrap_or(0);
        if let Some(group) = topic.strip_prefix("%RETRY%").map(str::to_owned)
            && number("l").is_some_and(|max| tries > max)
        {
            topic = format!("%DLQ%{group}");
            self.topics.entry(topic.clone()).or_insert_with(|| vec![Log::default()]);
        }
        let put = Put {
            body: request.body.clone(),
            flags: number("f").unwrap(),
            properties: request.fields["i"].clone(),
            reconsume_times: tries,
            stored_ms: request.number("g"),
        };
        self.stored(&topic, number("e").unwrap().max(0), vec![put])
    }

    fn send_batch(&mut self, request: &Frame) -> Frame {
        let (mut rest, mut puts) = (&request.body[..], Vec::new());
        while !rest.is_empty() {
            let word =
                |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
            let (total, body) = (word(0), word(16));
            puts.push(Put {
                body: rest[20..20 + body].to_vec(),
                properties: String::from_utf8(rest[22 + body..total].to_vec()).unwrap(),
                stored_ms: request.number("g"),
                ..Put::default()
            });
            rest = &rest[total..];
        }
        let queue = i32::try_from(request.number("e")).unwrap();
        self.stored(&request.fields["b"], queue, puts)
    }

    fn stored(&mut self, topic: &str, queue: i32, puts: Vec<Put>) -> Frame {
        let Some(log) = self.log(topic, queue) else { return Frame::answer(17) };
        let first = log.end();
        puts.into_iter().for_each(|put| {
            log.put(put);
        });
        Frame::answer(0).with("msgId", "ID").with("queueId", queue).with("queueOffset", first)
    }
}

fn lock_requests(request: &Frame) -> Vec<(String, Key, Value)> {
    let body = request.json();
    assert!(body["onlyThisBroker"].is_boolean());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (group, client) = (text(&body["consumerGroup"]), text(&body["clientId"]));
    let queues = body["mqSet"].as_array().unwrap().iter();
    queues
        .map(|queue| {
            let index = i32::try_from(queue["queueId"].as_i64().unwrap()).unwrap();
            (client.clone(), (group.clone(), text(&queue["topic"]), index), queue.clone())
        })
        .collect()
}
