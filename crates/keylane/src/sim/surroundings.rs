//! What happens around the processes: the broker looks at commits and hands queues to members,
//! messages are produced, tickets are settled; and everything that goes wrong without anybody's
//! asking.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::LockReply;

use super::Simulation;
use super::broker::BrokerQueue;
use super::listener::TicketAnswer;
use super::plan::{MS, SECOND};
use super::process::Process;
use super::source::News;
use super::world::{MOST_QUEUES, OpenTicket, World};

/// How long after its last heartbeat a process is taken for dead.
const SESSION: (Duration, Duration) = (SECOND, Duration::from_secs(10));

/// Times at which something happens by itself.
pub(super) struct Agenda {
    pub(super) produce_at: Instant,
    pub(super) left_to_produce: u64,
    /// The next fault of the surroundings.
    pub(super) trouble_at: Instant,
    pub(super) starts: Vec<Instant>,
}

impl Simulation {
    /// When the surroundings have something to do.
    pub(super) fn next_due(&self, world: &World) -> Option<Instant> {
        let Agenda { produce_at, left_to_produce, trouble_at, .. } = self.agenda;
        let produces = (left_to_produce > 0).then_some(produce_at);
        let trouble = (!world.calm).then_some(trouble_at);
        let tickets = world.tickets.iter().filter_map(|ticket| ticket.due).min();
        let due = [produces, trouble, tickets, world.broker.next_due()].into_iter().flatten();
        due.chain(self.agenda.starts.iter().copied()).min()
    }

    /// Does one thing that is due.
    pub(super) fn step_surroundings(&mut self) {
        let shared = Arc::clone(&self.world);
        let mut world = shared.lock();
        let now = world.now;
        if let Some(sent) = world.broker.take_due_commit(now) {
            return self.look_at_commit(&mut world, &sent);
        }
        if let Some(slot) = due_slot(&world, |queue| queue.give_back_until) {
            world.broker.queues[slot].give_back_until = None;
            return self.take_away(&mut world, slot);
        }
        if let Some(slot) = due_slot(&world, |queue| queue.assign_at) {
            return self.assign(&mut world, slot);
        }
        let due = |ticket: &OpenTicket| ticket.due.is_some_and(|due| due <= now);
        if let Some(index) = world.tickets.iter().position(due) {
            let ticket = world.tickets.swap_remove(index);
            let answer = TicketAnswer::draw(&mut world);
            settle_ticket(&mut world, &ticket, answer);
            drop(world);
            return answer.settle(ticket.ticket);
        }
        if let Some(index) = self.agenda.starts.iter().position(|at| *at <= now) {
            self.agenda.starts.swap_remove(index);
            drop(world);
            return self.processes.push(Process::start(&self.world));
        }
        if self.agenda.left_to_produce > 0 && self.agenda.produce_at <= now {
            return self.produce(&mut world);
        }
        self.agenda.trouble_at = now + world.random.time(MS, 4 * SECOND).min(self.trouble_pause);
        drop(world);
        self.trouble();
    }

    fn look_at_commit(&mut self, world: &mut World, sent: &super::broker::SentCommit) {
        let queue = world.broker.queue(sent.commit.queue);
        let accepted = queue.accepts(sent);
        let is_stored = accepted && sent.is_stored;
        if is_stored {
            queue.stored = Some(sent.commit.watermark);
            queue.stores += 1;
        }
        let is_outside = sent.commit.watermark.get() < queue.begin;
        world.stores(&sent.commit, sent.epoch, is_stored);
        if is_stored && is_outside && world.calm {
            self.mend_queue(world, world.broker.slot(sent.commit.queue));
        }
        let Some((stored, at)) = sent.answer else { return };
        if let Some(process) = self.member(sent.member) {
            let (commit, stored) = (sent.commit.clone(), stored && accepted);
            process.source.tell(at, News::Answer { commit, stored });
        }
    }

    /// The group's patience with a member is over, or it takes the queue without asking.
    fn take_away(&mut self, world: &mut World, slot: usize) {
        let at = world.now + world.latency();
        let queue = &mut world.broker.queues[slot];
        let Some(owner) = queue.owner.take() else { return };
        (queue.give_back_until, queue.assign_at) = (None, Some(at));
        let news = News::Lost { queue: queue.id, generation: queue.generation };
        world.trace.line(|| format!("the group takes {} from {owner:?}", queue.id));
        // The member may hear of it long after.
        let at = world.now + world.random.time(Duration::from_micros(1), SECOND);
        if let Some(process) = self.member(owner) {
            process.source.tell(at, news);
        }
    }

    fn assign(&mut self, world: &mut World, slot: usize) {
        let again_at = world.now + world.random.time(MS, SECOND);
        let queue = &mut world.broker.queues[slot];
        let members: Vec<_> = self.processes.iter_mut().filter(|p| p.is_member()).collect();
        if members.is_empty() {
            return queue.assign_at = Some(again_at);
        }
        let chosen = world.random.index(members.len());
        let process = members.into_iter().nth(chosen).expect("it is below their number");
        queue.assign_at = None;
        queue.owner = Some(process.member);
        queue.generation += 1;
        let news = News::Assigned { queue: queue.id, generation: queue.generation };
        world.trace.line(|| format!("the group gives {} to {:?}", queue.id, process.member));
        process.source.tell(world.now, news);
        world.announce_reset(slot);
    }

    fn produce(&mut self, world: &mut World) {
        let most = self.agenda.left_to_produce.min(world.random.pick(&[1, 5, 40, 200]));
        let count = world.random.between(1, most);
        let slot = world.random.index(world.broker.queues.len());
        world.produce(slot, count);
        self.agenda.left_to_produce -= count;
        let pause = world.random.time(Duration::from_micros(1), self.produce_pause);
        self.agenda.produce_at = world.now + pause;
    }

    /// One fault of the surroundings, perhaps.
    fn trouble(&mut self) {
        let shared = Arc::clone(&self.world);
        let mut guard = shared.lock();
        let world = &mut *guard;
        let plan = Arc::clone(&world.plan);
        let faults = &plan.faults;
        let slot = world.random.index(world.broker.queues.len());
        let some_process = world.random.index(self.processes.len().max(1));
        match () {
            () if world.fault(faults.moves) => self.ask_back(world, slot),
            () if world.fault(faults.loses) => self.take_away(world, slot),
            () if world.fault(faults.lock_lost) => self.take_lock(world, slot),
            () if world.fault(faults.truncates) => truncate(world, slot),
            () if world.fault(faults.offset_moved) => self.move_offset(world, slot),
            () if world.fault(faults.recreated) => self.recreate(world, slot),
            () if world.fault(faults.queue_trouble) => self.trouble_queue(world, slot, false),
            () if world.fault(faults.queue_fails_for_good) => self.trouble_queue(world, slot, true),
            () if world.fault(faults.grows) && world.broker.queues.len() < MOST_QUEUES => {
                world.broker.grow();
                let slot = world.broker.queues.len() - 1;
                world.broker.queues[slot].assign_at = Some(world.now);
            }
            () if world.fault(faults.jumps) => {
                let jump = world.random.time(SECOND, 300 * SECOND);
                world.trace.line(|| format!("the clock jumps by {jump:?}"));
                world.lose_time(jump);
            }
            () if self.processes.is_empty() => {}
            () if world.fault(faults.expels) => self.expel(world, some_process),
            () if world.fault(faults.pauses) => {
                let (pauses, process) = (world.random.chance(0.5), &self.processes[some_process]);
                drop(guard);
                process.shared.gate.pause(pauses);
                if !pauses {
                    process.coordinator.shards().iter().for_each(|cell| cell.nudge());
                }
            }
            () if world.fault(faults.stops) => {
                let deadline = world.random.time(10 * MS, 30 * SECOND);
                drop(guard);
                self.processes[some_process].stop(deadline);
            }
            () if world.fault(faults.crashes) => {
                drop(guard);
                self.crash(some_process);
            }
            () => {}
        }
    }

    pub(super) fn ask_back(&mut self, world: &mut World, slot: usize) {
        let (shortest, longest) = world.plan.patience;
        let patience = world.random.time(shortest, longest);
        let until = world.now + patience;
        let queue = &mut world.broker.queues[slot];
        let Some(owner) = queue.owner.filter(|_| queue.give_back_until.is_none()) else { return };
        queue.give_back_until = Some(until);
        let news = News::Revoking { queue: queue.id, generation: queue.generation };
        world.trace.line(|| format!("the group wants {} back from {owner:?}", queue.id));
        let now = world.now;
        if let Some(process) = self.member(owner) {
            process.source.tell(now, news);
        }
    }

    fn take_lock(&mut self, world: &mut World, slot: usize) {
        let now = world.now;
        let queue = &mut world.broker.queues[slot];
        let Some(holder) = queue.holder(now) else { return };
        queue.lock = None;
        queue.lock_taken_from.push(holder);
        let id = queue.id;
        world.trace.line(|| format!("the lock of {id} is taken from {holder:?}"));
        let at = now + world.latency();
        if let Some(process) = self.member(holder) {
            process.source.tell(at, News::Lock { queue: id, reply: LockReply::Lost });
        }
    }

    fn move_offset(&mut self, world: &mut World, slot: usize) {
        let queue = &mut world.broker.queues[slot];
        if queue.untold.is_some() {
            return;
        }
        let to = world.random.between(queue.begin, queue.end);
        queue.move_offset(to);
        self.tell_reset(world, slot);
    }

    fn recreate(&mut self, world: &mut World, slot: usize) {
        let queue = &mut world.broker.queues[slot];
        if queue.untold.is_some() {
            return;
        }
        queue.recreate();
        self.tell_reset(world, slot);
    }

    /// Tells the owner; the next one, if there is none, finds it out.
    pub(super) fn tell_reset(&mut self, world: &mut World, slot: usize) {
        let at = world.now + world.latency();
        let queue = &world.broker.queues[slot];
        let (id, owner) = (queue.id, queue.owner);
        world.trace.line(|| format!("{id} is reset: {:?}", queue.untold));
        if let Some(process) = owner.and_then(|owner| self.member(owner)) {
            process.source.tell(at, News::Reset { queue: id });
        }
    }

    fn trouble_queue(&mut self, world: &mut World, slot: usize, is_fatal: bool) {
        let (queue, now) = (&world.broker.queues[slot], world.now);
        let (id, owner) = (queue.id, queue.owner);
        if let Some(process) = owner.and_then(|owner| self.member(owner)) {
            process.source.tell(now, News::Trouble { queue: id, is_fatal });
        }
    }

    /// The group takes a member for dead that is not.
    fn expel(&mut self, world: &mut World, process: usize) {
        let member = self.processes[process].member;
        for slot in 0..world.broker.queues.len() {
            if world.broker.queues[slot].owner == Some(member) {
                self.take_away(world, slot);
            }
        }
    }

    /// `kill -9`.
    fn crash(&mut self, process: usize) {
        let mut process = self.processes.swap_remove(process);
        let mut world = self.world.lock();
        let member = process.member;
        world.trace.line(|| format!("{member:?} is killed"));
        let pause = world.random.time(SESSION.0, SESSION.1);
        process.source.leave(&mut world, pause);
        world.desk(member).is_dead = true;
        let event = keylane_testkit::guarantee::Event::Crashed { member };
        world.watch.observe(&event);
        let of_it = |ticket: &OpenTicket| ticket.member == member;
        let gone: Vec<_> = {
            let (gone, kept) = std::mem::take(&mut world.tickets).into_iter().partition(of_it);
            world.tickets = kept;
            gone
        };
        let start_at = world.now + world.random.time(MS, 5 * SECOND);
        drop(world);
        // Dropped, they report to a consumer that is no more.
        drop((gone, process));
        self.agenda.starts.push(start_at);
    }

    /// The process of this member, while it takes part.
    pub(super) fn member(
        &mut self,
        member: keylane_testkit::guarantee::MemberId,
    ) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.member == member && process.is_member())
    }
}

/// A queue for which this time has come.
fn due_slot(world: &World, at: impl Fn(&BrokerQueue) -> Option<Instant>) -> Option<usize> {
    world.broker.queues.iter().position(|queue| at(queue).is_some_and(|at| at <= world.now))
}

/// Tells the watchers what becomes of a ticket's message, before the engine hears of it.
fn settle_ticket(world: &mut World, ticket: &OpenTicket, answer: TicketAnswer) {
    let OpenTicket { member, shard, call, ref item, .. } = *ticket;
    world.trace.line(|| format!("{member:?} ticket of call {} {item:?}: {answer:?}", call.0));
    let desk = world.desk(member);
    match desk.calls.get_mut(&shard).filter(|running| running.id == call) {
        // The call itself has not returned: until it does, it runs.
        Some(running) => running.says[0] = Some(answer.says()),
        None => world.settle(member, Some(call), item, answer.says()),
    }
}

fn truncate(world: &mut World, slot: usize) {
    let queue = &mut world.broker.queues[slot];
    let begin = world.random.between(queue.begin, queue.end);
    world.trace.line(|| format!("{} is cut off below {begin}", queue.id));
    queue.truncate(begin);
}
