//! RocketMQ: Java's orderly consumer beside Keylane in both of its ordered modes, all of them with
//! the broker's queue locks, one message a call, and otherwise what each has for defaults.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use keylane_rocketmq::{Client, Config, Error, Outgoing, RocketMqSource};
use keylane_source::{Message, Offset, Source};

use super::report::OURS;
use super::{Arena, Entry, Setting, contest, unique_name};
use crate::flags::{Broker, Mode};
use crate::outcome::{Ended, Failure};

const JAVA: &str = "Java, MessageListenerOrderly";
const MODES: [Mode; 2] = [Mode::QueueLocked, Mode::KeySharded];
/// The same for all: many more than there are queues.
const THREADS: u32 = 64;
const KEYS: u32 = 10_000;
/// Messages that are sent in one request.
const BATCH: usize = 500;

pub(super) struct RocketMq {
    address: String,
    client: Client,
    /// What was written already, by queues and messages.
    topics: HashMap<(u32, u64), String>,
}

fn failed(doing: &str) -> impl Fn(Error) -> Failure {
    move |error| Failure::other(format!("RocketMQ: {doing}"), error)
}

/// The contest at this name server.
pub(super) fn open(address: &str) -> Ended<RocketMq> {
    let client = Client::new([address]).map_err(failed("connect"))?;
    Ok(RocketMq { address: address.to_owned(), client, topics: HashMap::new() })
}

/// A member of the group, as Keylane takes part.
pub(super) fn source(address: &str, topic: &str, group: &str) -> Ended<Box<dyn Source>> {
    let config = Config::new([address], group).subscribe(topic, "*");
    Ok(Box::new(RocketMqSource::new(config).map_err(failed("join the group"))?))
}

impl Arena for RocketMq {
    fn settings(&self, quick: bool) -> Vec<Setting> {
        let mut settings = Vec::new();
        for work in [Duration::ZERO, Duration::from_millis(1)] {
            for queues in [4, 16] {
                // About ten seconds of whoever is slowest.
                let messages = match work {
                    Duration::ZERO => 1_000_000,
                    _ => 8_000 * u64::from(queues),
                };
                let messages = if quick { messages / 10 } else { messages };
                let (keys, skew, threads) = (KEYS, 0.0, THREADS);
                settings.push(Setting { queues, keys, skew, threads, work, messages });
            }
        }
        settings
    }

    fn topic(&mut self, setting: &Setting) -> Ended<String> {
        let written = (setting.queues, setting.messages);
        if let Some(topic) = self.topics.get(&written) {
            return Ok(topic.clone());
        }
        let topic = unique_name("t");
        self.write(&topic, setting)?;
        self.topics.insert(written, topic.clone());
        Ok(topic)
    }

    fn contestants(&self, _: &Setting) -> Vec<String> {
        let ours = MODES.map(|mode| format!("{OURS}, {}", contest::mode_name(mode)));
        [JAVA.to_owned()].into_iter().chain(ours).collect()
    }

    fn command(&self, contestant: &str, entry: &Entry<'_>, class_path: &str) -> Command {
        let ours = MODES.into_iter().find(|mode| contestant.ends_with(&contest::mode_name(*mode)));
        if let Some(mode) = ours {
            return contest::keylane(Broker::Rocketmq, &self.address, mode, entry);
        }
        let Entry { setting, topic, group, within } = entry;
        let mut java = Command::new("java");
        // Its logs would go into the user's own folder.
        let home = crate::ci::target_folder().join("peers");
        java.arg(format!("-Duser.home={}", home.display()));
        java.args(["-cp", class_path, "peer.OrderlyPeer", &self.address, topic, group]);
        java.args([setting.messages.to_string(), setting.threads.to_string()]);
        java.args([setting.work.as_micros().to_string(), within.as_secs().to_string()]);
        java
    }
}

impl RocketMq {
    fn write(&self, topic: &str, setting: &Setting) -> Ended {
        let route = self.client.create_topic(topic, setting.queues);
        let route = route.map_err(failed("create the topic"))?;
        let workload = contest::workload(setting, topic);
        for queue in route.readable() {
            let mut messages = (0..workload.messages_of(queue.index()))
                .filter_map(Offset::new)
                .map(|offset| outgoing(&workload.message(*queue, offset)))
                .peekable();
            while messages.peek().is_some() {
                let batch: Vec<Outgoing> = messages.by_ref().take(BATCH).collect();
                self.client.send_batch(*queue, &batch).map_err(failed("send"))?;
            }
        }
        Ok(())
    }
}

fn outgoing(message: &Message) -> Outgoing {
    let key = String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned();
    Outgoing::new(message.payload_bytes().cloned().unwrap_or_default()).key(key)
}
