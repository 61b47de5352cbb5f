//! The source over messages in memory keeps every rule that it can.

use keylane_source::{Message, Offset, QueueId, Watermark};

use crate::conformance::{Capabilities, Capability, Fixture, Record};
use crate::memory::{MemorySource, MemoryTopic};

/// Messages are collected until the first source is made.
struct Memory {
    queues: Vec<(QueueId, Vec<Message>)>,
    topic: Option<MemoryTopic>,
}

impl Fixture for Memory {
    type Source = MemorySource;

    fn new(queues: u32) -> Self {
        let queue = |index| (QueueId::new("memory", index), Vec::new());
        Self { queues: (0..queues).map(queue).collect(), topic: None }
    }

    fn capabilities() -> Capabilities {
        let finite = "its messages are there from the start";
        let alone = "it is alone: no broker, no group";
        Capabilities::all()
            .without(Capability::ProduceLate, finite)
            .without(Capability::Holes, finite)
            .without(Capability::Trim, finite)
            .without(Capability::Metadata, "it keeps a number a queue")
            .without(Capability::FailLookUps, alone)
            .without(Capability::FailCommits, alone)
            .without(Capability::Silence, alone)
            .without(Capability::Revoke, alone)
            .without(Capability::Lose, alone)
            .without(Capability::MoveOffset, alone)
            .without(Capability::Locks, alone)
    }

    fn queues(&self) -> Vec<QueueId> {
        self.queues.iter().map(|(queue, _)| *queue).collect()
    }

    fn produce(&mut self, queue: QueueId, record: Record) -> Offset {
        assert!(self.topic.is_none(), "too late to produce");
        let (_, messages) = &mut self.queues[queue.index() as usize];
        let offset = Offset::new(messages.len() as u64).unwrap();
        messages.push(record.write_to(Message::new(queue, offset)));
        offset
    }

    fn source(&mut self) -> MemorySource {
        let queues = &self.queues;
        self.topic.get_or_insert_with(|| MemoryTopic::from_queues(queues.clone())).source()
    }

    fn stored(&mut self, queue: QueueId) -> Option<Watermark> {
        self.topic.as_ref()?.committed(queue)
    }
}

crate::source_conformance!(Memory);
