//! The scripted source keeps every rule, optional ones included.

use std::time::Duration;

use keylane_source::{Offset, Position, QueueId, ResetCause, SourceError, Watermark};

use crate::conformance::{Capabilities, Fixture, Record};
use crate::script::{LockAnswer, Script, ScriptedSource};

pub(super) struct Scripted {
    pub(super) script: Script,
    queues: Vec<QueueId>,
}

impl Fixture for Scripted {
    type Source = ScriptedSource;

    fn new(queues: u32) -> Self {
        let queues: Vec<_> = (0..queues).map(|index| QueueId::new("scripted", index)).collect();
        let script = Script::new().with_locks(Duration::from_secs(30));
        queues.iter().for_each(|queue| script.assign(*queue));
        Self { script, queues }
    }

    fn capabilities() -> Capabilities {
        Capabilities::all()
    }

    fn queues(&self) -> Vec<QueueId> {
        self.queues.clone()
    }

    fn produce(&mut self, queue: QueueId, record: Record) -> Offset {
        self.script.produce_with(queue, |message| record.write_to(message))
    }

    fn source(&mut self) -> ScriptedSource {
        // A member that has left the group has no queues to hand on.
        for queue in &self.queues {
            if !self.script.look(|state| state.is_assigned(*queue)) {
                self.script.assign(*queue);
            }
        }
        self.script.source()
    }

    fn stored(&mut self, queue: QueueId) -> Option<Watermark> {
        self.script.look(|state| state.committed(queue))
    }

    fn leave_hole(&mut self, queue: QueueId) -> Position {
        self.script.hole(queue, 3);
        self.script.look(|state| state.end(queue))
    }

    fn trim(&mut self, queue: QueueId, begin: Position) {
        self.script.trim(queue, begin);
    }

    fn fail_next_look_up(&mut self, queue: QueueId) {
        self.script.fail_look_ups(queue, 1);
    }

    fn fail_next_commit(&mut self, _: QueueId) {
        self.script.fail_commits(1, &SourceError::retryable("scripted failure"));
    }

    fn fall_silent(&mut self) {
        self.script.hold_commits();
    }

    fn revoke_one(&mut self) {
        self.script.begin_revoke(self.queues[0]);
    }

    fn lose_one(&mut self) {
        self.script.lose(self.queues[1]);
    }

    fn move_offset(&mut self, queue: QueueId, to: Position) {
        self.script.reset(queue, ResetCause::Moved { to });
    }

    fn lock_elsewhere(&mut self, queue: QueueId) {
        self.script.answer_locks(queue, LockAnswer::Refuse);
    }

    fn is_locked(&mut self, queue: QueueId) -> bool {
        self.script.look(|state| state.is_locked(queue))
    }
}

crate::source_conformance!(Scripted);
