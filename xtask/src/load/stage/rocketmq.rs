//! Messages in a topic of a RocketMQ broker, made for this run: one queue of the topic for each of
//! ours, the key as sharding key.

use std::thread;
use std::time::Instant;

use keylane_rocketmq::{Client, Config, Outgoing, RocketMqSource};
use keylane_source::{Offset, Position, QueueId, Source};

use super::broker::{address, produced_at, unique_name};
use super::{Producing, Stored, Writer};
use crate::flags::Broker;
use crate::load::consume::FETCH;
use crate::load::workload::Workload;
use crate::outcome::{Ended, Failure};

const VARIABLE: &str = "KEYLANE_ROCKETMQ";
const SHARDING_KEY: &str = "__SHARDINGKEY";
/// Messages and bytes that are sent to a queue in one request.
const BATCH: usize = 200;
const BATCH_BYTES: usize = 1 << 20;

/// A topic, and the group of the same name.
pub(in crate::load) struct RocketMqStage {
    server: String,
    client: Client,
    name: String,
    queues: Vec<QueueId>,
}

struct RocketMqWriter {
    client: Client,
    queues: Vec<QueueId>,
    batches: Vec<Vec<Outgoing>>,
    bytes: Vec<usize>,
}

fn failed(doing: &str) -> impl Fn(keylane_rocketmq::Error) -> Failure {
    move |error| Failure::other(format!("RocketMQ: {doing}"), error)
}

impl RocketMqStage {
    pub(super) fn open(workload: &Workload) -> Ended<Self> {
        let server = address(Broker::Rocketmq, VARIABLE)?;
        let client = Client::new([server.clone()]).map_err(failed("connect"))?;
        let name = unique_name();
        let wanted = u32::try_from(workload.queues.len()).unwrap_or(u32::MAX);
        let route = client.create_topic(&name, wanted).map_err(failed("create the topic"))?;
        let queues = route.readable().to_vec();
        if queues.len() != workload.queues.len() {
            return Err(Failure::Other(format!(
                "RocketMQ: the topic has {} queues instead of {wanted}: the cluster has more than \
                 one broker",
                queues.len()
            )));
        }
        Ok(Self { server, client, name, queues })
    }

    pub(super) fn writer(&self) -> Box<dyn Writer> {
        let count = self.queues.len();
        Box::new(RocketMqWriter {
            client: self.client.clone(),
            queues: self.queues.clone(),
            batches: vec![Vec::new(); count],
            bytes: vec![0; count],
        })
    }

    pub(super) fn source(&self) -> Ended<Box<dyn Source>> {
        let config = Config::new([self.server.clone()], self.name.clone())
            .subscribe(self.name.clone(), "*")
            .retries(false)
            .pull_messages(FETCH);
        let source = RocketMqSource::new(config).map_err(failed("join the group"))?;
        Ok(Box::new(source))
    }

    pub(super) fn stored(&self) -> Ended<Vec<Stored>> {
        let stored = |queue: &QueueId| {
            let queue = *queue;
            let end = self.client.max_offset(queue).map_err(failed("look up an end"))?;
            let committed = self.client.committed(&self.name, queue);
            let committed = committed.map_err(failed("look up an offset"))?;
            Ok(Stored { queue, committed, end: end.get() })
        };
        self.queues.iter().map(stored).collect()
    }
}

impl Writer for RocketMqWriter {
    fn write(mut self: Box<Self>, producing: &Producing<'_>, _there: Vec<u64>) -> Ended {
        let mut written = 0;
        producing.workload.each(|item| {
            if let Some(pace) = producing.pace {
                let wait = pace.due(written).saturating_duration_since(Instant::now());
                if !wait.is_zero() {
                    self.send_all(producing, written)?;
                    thread::sleep(wait);
                }
            }
            let index = item.queue as usize;
            let size = item.payload.len();
            let mut message = Outgoing::new(item.payload);
            if let Some(key) = &item.key {
                let key = std::str::from_utf8(key).map_err(|error| {
                    Failure::other("RocketMQ: its keys are text, and one here is not", error)
                })?;
                message = message.property(SHARDING_KEY, key);
            }
            self.batches[index].push(message);
            self.bytes[index] += size;
            written += 1;
            if self.batches[index].len() >= BATCH || self.bytes[index] >= BATCH_BYTES {
                self.send(index, producing, written)?;
                (producing.written)(written);
            }
            Ok(())
        })?;
        self.send_all(producing, written)?;
        (producing.written)(written);
        Ok(())
    }
}

impl RocketMqWriter {
    fn send_all(&mut self, producing: &Producing<'_>, written: u64) -> Ended {
        (0..self.queues.len()).try_for_each(|index| self.send(index, producing, written))
    }

    fn send(&mut self, index: usize, producing: &Producing<'_>, written: u64) -> Ended {
        let batch = std::mem::take(&mut self.batches[index]);
        self.bytes[index] = 0;
        if batch.is_empty() {
            return Ok(());
        }
        let at = produced_at(producing.pace, written.saturating_sub(1));
        let queue = self.queues[index];
        let sent = self.client.send_batch(queue, &batch).map_err(failed("send"))?;
        let first = Offset::new(sent.offset.get()).unwrap_or(Offset::MAX);
        let end = Position::new(first.get() + batch.len() as u64).unwrap_or(Position::ZERO);
        producing.recorder.produced_range(queue, first, end);
        producing.produced.note(queue, first, at);
        Ok(())
    }
}
