//! Messages in memory: nothing but the engine.

use std::collections::HashMap;
use std::time::Instant;

use keylane_source::{Message, Offset, Position, QueueId, Source};
use keylane_testkit::memory::MemoryTopic;

use super::{Producing, Stored};
use crate::outcome::{Ended, Failure};

const TOPIC: &str = "load";

/// A topic, once it was produced.
#[derive(Default)]
pub(in crate::load) struct MemoryStage {
    topic: Option<MemoryTopic>,
    queues: u32,
}

impl MemoryStage {
    /// All messages at once: they cannot be added to later. Made-up ones are made when they are
    /// read, and take no memory.
    pub(super) fn produce(&mut self, producing: &Producing<'_>) -> Ended {
        let workload = producing.workload;
        self.queues = u32::try_from(workload.queues.len()).unwrap_or(u32::MAX);
        let topic = match workload.made_up(TOPIC) {
            Some(made_up) => made_up.topic(),
            None => read(producing)?,
        };
        let start = Instant::now();
        for queue in topic.queues() {
            let end = topic.end(queue).unwrap_or(Position::ZERO);
            producing.recorder.produced_range(queue, Offset::ZERO, end);
            if producing.pace.is_none() {
                producing.produced.note(queue, Offset::ZERO, start);
            }
        }
        self.topic = Some(topic);
        Ok(())
    }

    pub(super) fn source(&self) -> Ended<Box<dyn Source>> {
        match &self.topic {
            Some(topic) => Ok(Box::new(topic.source())),
            None => Err(Failure::Other("nothing was produced".to_owned())),
        }
    }

    pub(super) fn stored(&self) -> Vec<Stored> {
        let stored = |index| {
            let queue = QueueId::new(TOPIC, index);
            let topic = self.topic.as_ref();
            let committed = topic.and_then(|topic| topic.committed(queue));
            let end = topic.and_then(|topic| topic.end(queue)).map_or(0, Position::get);
            Stored { queue, committed, end }
        };
        (0..self.queues).map(stored).collect()
    }
}

/// The messages of a file.
fn read(producing: &Producing<'_>) -> Ended<MemoryTopic> {
    let workload = producing.workload;
    let mut messages = Vec::with_capacity(usize::try_from(workload.messages).unwrap_or(0));
    let mut ends: HashMap<u32, Offset> = HashMap::new();
    workload.each(|item| {
        let next = ends.entry(item.queue).or_insert(Offset::ZERO);
        let offset = *next;
        *next = Offset::new(offset.get() + 1).unwrap_or(Offset::MAX);
        let message = Message::new(QueueId::new(TOPIC, item.queue), offset);
        let message = message.with_payload(item.payload);
        messages.push(match item.key {
            Some(key) => message.with_key(key),
            None => message,
        });
        if messages.len().is_multiple_of(1_024) {
            (producing.written)(messages.len() as u64);
        }
        Ok(())
    })?;
    Ok(MemoryTopic::from_messages(messages))
}
