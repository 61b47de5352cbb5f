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
    /// Makes all messages at once: they cannot be added to later.
    pub(super) fn produce(&mut self, producing: &Producing<'_>) -> Ended {
        let workload = producing.workload;
        self.queues = u32::try_from(workload.queues.len()).unwrap_or(u32::MAX);
        let mut messages = Vec::with_capacity(usize::try_from(workload.messages).unwrap_or(0));
        let mut ends: HashMap<u32, Offset> = HashMap::new();
        let start = Instant::now();
        workload.each(|item| {
            let next = ends.entry(item.queue).or_insert(Offset::ZERO);
            let offset = *next;
            *next = Offset::new(offset.get() + 1).unwrap_or(Offset::MAX);
            let queue = QueueId::new(TOPIC, item.queue);
            let message = Message::new(queue, offset).with_payload(item.payload);
            messages.push(match item.key {
                Some(key) => message.with_key(key),
                None => message,
            });
            if messages.len().is_multiple_of(1_024) {
                (producing.written)(messages.len() as u64);
            }
            Ok(())
        })?;
        (producing.written)(messages.len() as u64);
        for (index, end) in ends {
            let queue = QueueId::new(TOPIC, index);
            producing.recorder.produced_range(queue, Offset::ZERO, Position::from(end));
            if producing.pace.is_none() {
                producing.produced.note(queue, Offset::ZERO, start);
            }
        }
        self.topic = Some(MemoryTopic::from_messages(messages));
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
