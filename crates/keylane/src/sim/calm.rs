//! The end of a run: the faults stop, and everything has to be handled, committed and given back.

use std::time::Instant;

use super::broker::BrokerQueue;
use super::plan::SECOND;
use super::process::Process;
use super::worker::SimWorker;
use super::world::World;
use super::{Phase, Progress, Simulation};
use crate::config::OutOfRange;

impl Simulation {
    /// The faults end: what hangs returns, whoever is away comes back.
    pub(super) fn calm_down(&mut self, now: Instant) {
        let shared = std::sync::Arc::clone(&self.world);
        let mut guard = shared.lock();
        let world = &mut *guard;
        world.trace.line(|| "the faults end".to_owned());
        world.calm = true;
        self.phase = Phase::Calm(Progress::of(world));
        let soon = now + SECOND;
        for ticket in &mut world.tickets {
            ticket.due = Some(ticket.due.map_or(soon, |due| due.min(soon)));
        }
        for sent in &mut world.broker.commits {
            sent.at = sent.at.min(soon);
            sent.answer = sent.answer.map(|(stored, at)| (stored, at.min(soon)));
        }
        for at in &mut self.agenda.starts {
            *at = (*at).min(soon);
        }
        for slot in 0..world.broker.queues.len() {
            self.mend_queue(world, slot);
        }
        drop(guard);
        for process in &mut self.processes {
            process.sink.hurry(soon);
            process.shared.gate.pause(false);
            process.coordinator.shards().iter().for_each(|cell| cell.nudge());
        }
    }

    /// What the group has stored for a queue has to lie within it; and a queue that a process has
    /// given up on begins anew.
    pub(super) fn mend_queue(&mut self, world: &mut World, slot: usize) {
        let now = world.now;
        let queue = &mut world.broker.queues[slot];
        let begin = queue.begin;
        let is_outside = queue.stored.is_some_and(|stored| stored.get() < begin);
        if is_outside {
            queue.move_offset(begin);
            self.tell_reset(world, slot);
        }
        let may_have_failed = world.plan.options.out_of_range == OutOfRange::Fail
            || world.plan.faults.queue_fails_for_good > 0.0
            // What an orderly listener has kept is committed by nobody: it comes again elsewhere.
            || world.plan.orderly.is_some_and(|manual| manual > 0.0);
        let queue = &mut world.broker.queues[slot];
        if queue.owner.is_none() {
            queue.assign_at = Some(now);
        } else if may_have_failed || world.random.chance(0.3) {
            self.ask_back(world, slot);
        }
    }

    /// Whether everything was handled and committed.
    pub(super) fn is_drained(&mut self) -> bool {
        let world = self.world.lock();
        let nothing_comes = self.agenda.left_to_produce == 0
            && self.agenda.starts.is_empty()
            && world.tickets.is_empty()
            && world.broker.commits.is_empty()
            && world.broker.queues.iter().all(|queue| queue.untold.is_none());
        let all_wait = |process: &Process| {
            let left = process.shared.has_notes() || process.has_letters();
            let waiting = process.workers.iter().all(SimWorker::is_waiting);
            process.waits_for_source() && process.source.has_heard_all() && waiting && !left
        };
        nothing_comes
            && self.processes.iter().all(all_wait)
            && world.broker.queues.iter().all(|queue| self.is_committed(queue))
    }

    fn is_committed(&self, queue: &BrokerQueue) -> bool {
        let owner = self.processes.iter().find(|process| Some(process.member) == queue.owner);
        let Some(owner) = owner else { return false };
        let last = queue.log.last().map_or(0, |record| record.offset + 1);
        let is_stored = queue.stored.is_some_and(|stored| stored.get() >= last);
        // Begun behind the last message: there is nothing to commit until there is another.
        let is_unread = last == 0 || owner.coordinator.has_read_nothing(queue.id);
        is_stored || (is_unread && owner.source.has_read(queue.id, queue.end))
    }

    /// Everything goes on after the faults: each queue gets messages once more. One that begins at
    /// its end needs them for the watchers to see where that was. Returns whether there was any.
    pub(super) fn top_up(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.topped_up, true);
        let shared = std::sync::Arc::clone(&self.world);
        let world = &mut *shared.lock();
        let mut any = false;
        for slot in 0..world.broker.queues.len() {
            let id = world.broker.queues[slot].id;
            let unread = |process: &Process| process.coordinator.has_read_nothing(id);
            if first || self.processes.iter().any(unread) {
                let count = world.random.between(1, 3);
                world.produce(slot, count);
                any = true;
            }
        }
        any
    }

    /// What holds everything up, in words.
    pub(super) fn holding(&mut self) -> String {
        let now = self.world.lock().now;
        let mut words: Vec<String> = Vec::new();
        for process in &mut self.processes {
            let all = process.coordinator.holding(now);
            words.extend(all.iter().map(|one| format!("{:?}: {one}", process.member)));
        }
        let world = self.world.lock();
        for queue in world.broker.queues.iter().filter(|queue| !self.is_committed(queue)) {
            let BrokerQueue { id, stored, end, owner, .. } = queue;
            words.push(format!("{id} is committed at {stored:?} of {end}, owner {owner:?}"));
        }
        let untold = world.broker.queues.iter().filter(|queue| queue.untold.is_some());
        words.extend(untold.map(|queue| format!("{} has an untold reset", queue.id)));
        words.push(format!(
            "{} tickets, {} commits, {} starts, {} to produce",
            world.tickets.len(),
            world.broker.commits.len(),
            self.agenda.starts.len(),
            self.agenda.left_to_produce
        ));
        words.join("; ")
    }

    /// Nothing is left anywhere; then every process stops.
    pub(super) fn stop_all(&mut self) {
        let mut wrong = None;
        for process in &mut self.processes {
            if let Err(left) = process.coordinator.audit_end() {
                wrong.get_or_insert(format!("{:?}: {left}", process.member));
            }
        }
        if let Some(wrong) = wrong {
            self.world.lock().wrong(wrong);
        }
        self.phase = Phase::Stopping;
        self.processes.iter_mut().for_each(|process| process.stop(30 * SECOND));
    }
}
