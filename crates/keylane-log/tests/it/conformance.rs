//! The suite that every source must pass.

#![expect(clippy::unwrap_used, reason = "this is part of the tests")]

use keylane_log::{Log, LogSource};
use keylane_source::{Offset, Position, QueueId, Source, Watermark};
use keylane_testkit::conformance::{Capabilities, Capability, Fixture, Record};
use keylane_testkit::source_conformance;
use tempfile::TempDir;

use crate::support::{PATIENCE, assigned, commit};

struct LogFixture {
    log: Log,
    queues: u32,
    _folder: TempDir,
}

impl Fixture for LogFixture {
    type Source = LogSource;

    fn new(queues: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::open(folder.path()).unwrap();
        log.create_topic("t", queues).unwrap();
        Self { log, queues, _folder: folder }
    }

    fn capabilities() -> Capabilities {
        let one_member = "a group has one member, which has every queue";
        Capabilities::all()
            .without(Capability::Holes, "every offset holds a record")
            .without(Capability::Revoke, one_member)
            .without(Capability::Lose, one_member)
            .without(Capability::Locks, one_member)
            .without(Capability::FailLookUps, "only damage does that: src/store/tests.rs")
            .without(Capability::FailCommits, "only a failed write does that, and ends the log")
            .without(Capability::Silence, "there is no network")
    }

    fn queues(&self) -> Vec<QueueId> {
        (0..self.queues).map(|index| QueueId::new("t", index)).collect()
    }

    fn produce(&mut self, queue: QueueId, record: Record) -> Offset {
        let headers: Vec<_> = record.headers.iter().map(|(n, v)| (&n[..], v.as_deref())).collect();
        let mut ours = keylane_log::Record::new().to_queue(queue.index()).with_headers(&headers);
        if let Some(key) = &record.key {
            ours = ours.with_key(key);
        }
        if let Some(payload) = &record.payload {
            ours = ours.with_payload(payload);
        }
        if let Some(timestamp_ms) = record.timestamp_ms {
            ours = ours.with_timestamp_ms(timestamp_ms);
        }
        let (at, offset) = self.log.producer("t").unwrap().send(&ours).unwrap();
        assert_eq!(at, queue);
        offset
    }

    fn source(&mut self) -> LogSource {
        self.log.source("t", "group").unwrap()
    }

    fn stored(&mut self, queue: QueueId) -> Option<Watermark> {
        let groups = self.log.groups("t").unwrap();
        let group = groups.iter().find(|group| group.group == "group")?;
        group.queues[queue.index() as usize].committed
    }

    fn trim(&mut self, queue: QueueId, begin: Position) {
        let mut other = self.log.source("t", "other").unwrap();
        assigned(&mut other);
        commit(&mut other, queue, begin.get(), "").unwrap();
        other.close(PATIENCE, &mut Vec::new()).unwrap();
        self.log.trim("t").unwrap();
    }

    fn move_offset(&mut self, queue: QueueId, to: Position) {
        self.log.move_offset("group", queue, to).unwrap();
    }
}

source_conformance!(LogFixture);
