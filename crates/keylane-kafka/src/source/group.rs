//! Queues that the group gives and takes.
//!
//! librdkafka asks (by an event) and waits for the answer; meanwhile its own threads keep the
//! session alive. Taking over is answered at once: forwarded, held still at the front door (paused
//! before it is assigned, so that nothing is fetched until the engine seeks), and told to the
//! engine once the group's commit is known. Giving back is answered when the engine has released every
//! queue that is taken, or when the bound has passed, whichever is first.
//!
//! While librdkafka waits for an answer it stops fetching for *all* queues of ours, also those that
//! stay, and starts them again where it believes that we are. Its belief is wrong behind an end of
//! partition (it counts the end as a message) and lags behind a read that is under way, so each
//! answer is preceded by a seek of the queues that stay to where they were really read to.

use std::time::Instant;

use keylane_source::{Position, QueueId, SourceError, SourceEvent};

use super::queues::{Phase, Queue};
use super::requests::SEEK_TIMEOUT;
use super::{KafkaSource, Topics};
use crate::native::{Code, Partition};

/// A revoke under way.
#[derive(Debug)]
pub(super) struct Revoke {
    /// What the group takes.
    taken: Vec<QueueId>,
    /// What the engine has not released yet.
    waiting: Vec<QueueId>,
    pub(super) deadline: Instant,
}

impl KafkaSource {
    /// Without a subscription nobody assigns: the first poll takes the partitions over.
    pub(super) fn take_fixed_partitions(&mut self) {
        if let Topics::Assign(partitions) = &self.options.topics {
            let queues = partitions.iter().map(|(topic, index)| QueueId::new(topic, *index));
            self.take_over(queues.collect());
        }
    }

    pub(super) fn on_assign(&mut self, partitions: &[Partition]) {
        self.take_over(partitions.iter().map(|partition| partition.queue).collect());
    }

    fn take_over(&mut self, queues: Vec<QueueId>) {
        for queue in &queues {
            // Before the assignment: librdkafka forwards what is not forwarded yet to the queue of
            // its events, where the batched read must not look.
            self.client.forward(*queue, true);
        }
        self.client.pause(&queues, true);
        self.expelled = false;
        self.hold_positions();
        let at: Vec<_> = queues.iter().map(|queue| (*queue, 0)).collect();
        if let Err(code) = self.client.assign(&at) {
            let text = format!("take over {}: {code}", shown(&queues));
            self.trouble.push_back(SourceError::retryable(text));
            return;
        }
        self.wake_fetchers();
        let asked: Vec<_> =
            queues.into_iter().map(|queue| (queue, self.queues.insert(queue))).collect();
        if !asked.is_empty() {
            self.ask_committed(asked, true);
        }
    }

    pub(super) fn on_revoke(&mut self, partitions: &[Partition], now: Instant) {
        let taken: Vec<_> = partitions.iter().map(|partition| partition.queue).collect();
        if self.gone() {
            self.lose(&taken);
            self.give_back(&taken);
            return;
        }
        let mut waiting = Vec::new();
        for queue in &taken {
            let Some(state) = self.queues.get_mut(*queue) else { continue };
            if state.phase == Phase::Open {
                state.phase = Phase::Revoking;
                state.drop_stash();
                waiting.push(*queue);
                self.told.push_back(SourceEvent::Revoking { queue: *queue });
            } else {
                // The engine has never had it, or has let it go.
                self.queues.remove(*queue);
            }
        }
        let deadline = now + self.options.revoke_bound;
        self.revoke = Some(Revoke { taken, waiting, deadline });
    }

    /// Ends the revoke once the engine has released everything, or may not be waited for.
    pub(super) fn serve_revoke(&mut self, now: Instant) {
        let Some(revoke) = &self.revoke else { return };
        let done = revoke.waiting.is_empty();
        // Committed before it was released: what was asked for goes out before the answer.
        let flushed = self.commits.is_empty();
        let over = now >= revoke.deadline || self.gone();
        if !(done && flushed || over) {
            return;
        }
        let Some(revoke) = self.revoke.take() else { return };
        self.lose(&revoke.waiting);
        self.give_back(&revoke.taken);
    }

    /// Whether what the group takes is somebody else's already (or nobody waits for it any more).
    fn gone(&self) -> bool {
        self.closed || self.expelled || self.client.assignment_lost()
    }

    pub(super) fn on_release(&mut self, queue: QueueId) {
        let Some(state) = self.queues.get_mut(queue) else { return };
        match state.phase {
            Phase::Revoking => {
                self.queues.remove(queue);
                if let Some(revoke) = &mut self.revoke {
                    revoke.waiting.retain(|waiting| *waiting != queue);
                }
            }
            Phase::Open => {
                state.phase = Phase::Released;
                state.drop_stash();
                state.seek = None;
                self.client.pause(&[queue], true);
            }
            Phase::LookingUp | Phase::Released => {}
        }
    }

    /// Tells the engine, which must not commit them any more.
    pub(super) fn lose(&mut self, queues: &[QueueId]) {
        for queue in queues {
            let known = self.queues.remove(*queue);
            let told = known.is_some_and(|s| matches!(s.phase, Phase::Open | Phase::Revoking));
            if told {
                self.told.push_back(SourceEvent::Lost { queue: *queue });
            }
        }
    }

    fn give_back(&mut self, queues: &[QueueId]) {
        self.hold_positions();
        if let Err(code) = self.client.unassign(queues) {
            let text = format!("give back {}: {code}", shown(queues));
            self.trouble.push_back(SourceError::retryable(text));
        }
        self.wake_fetchers();
    }

    /// Moves every queue that stays to where it was read to: see above.
    fn hold_positions(&mut self) {
        let read = |(queue, state): (QueueId, &Queue)| {
            let running = state.started && !state.broken && state.seek.is_none();
            let read = state.read.filter(|_| running && state.phase == Phase::Open);
            Some((queue, read?.to_i64()))
        };
        let moves: Vec<_> = self.queues.iter().filter_map(read).collect();
        if moves.is_empty() {
            return;
        }
        // Where it fails the queue is not being fetched, and a new assignment says where it starts.
        if let Err(code) = self.client.seek(&moves, SEEK_TIMEOUT) {
            log::warn!("kafka group {}: hold positions: {code}", self.options.group);
        }
    }

    /// After the answer librdkafka fetches again; its threads are to know at once.
    fn wake_fetchers(&mut self) {
        let running = self.queues.iter().filter(|(_, state)| state.started && !state.paused);
        let queues = running.map(|(queue, _)| queue).collect();
        self.ask_ends(queues);
    }

    /// Starts a queue anew inside the assignment: what revives one that librdkafka has stopped. The
    /// seek that follows completes it, since librdkafka ends the forwarding of what it stops.
    pub(super) fn reassign(&mut self, queue: QueueId, to: Position) -> Result<(), Code> {
        if self.client.is_incremental() {
            self.client.unassign(&[queue])?;
            return self.client.assign(&[(queue, to.to_i64())]);
        }
        // Eager: only the whole assignment can be given. The others go on where they were read to.
        let others = self.queues.iter().filter(|(other, _)| *other != queue);
        let mut all: Vec<_> = others.map(|(other, state)| (other, state.resume_at())).collect();
        all.push((queue, to));
        let offsets: Vec<_> = all.iter().map(|(queue, to)| (*queue, to.to_i64())).collect();
        self.client.assign(&offsets)?;
        for (other, at) in all {
            self.follow_with_seek(other, at);
        }
        Ok(())
    }
}

fn shown(queues: &[QueueId]) -> String {
    queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
