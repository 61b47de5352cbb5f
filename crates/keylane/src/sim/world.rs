//! What surrounds the processes: time, chance, the broker, the watchers, and a desk for each
//! process on which its listeners, its source and its observer leave their notes.
//!
//! The engine calls into this from inside its steps, so the world is behind a mutex that is never
//! held while the engine is called.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{Commit, Message, Offset, QueueId, ResetCause};
use keylane_testkit::guarantee::{
    CallId, CommitStep, Delivered, Epoch, Event, Lane, MemberId, Moment, Outcome, Settled,
};
use parking_lot::Mutex;

use super::broker::{Broker, position};
use super::orderly::{Kept, Then};
use super::plan::Plan;
use super::random::Random;
use super::watch::Watch;
use crate::ticket::Ticket;

/// How many lines of what happened are kept.
const KEPT_LINES: usize = 20_000;

/// After how long the engine takes a commit for failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How many queues there are at most.
pub(super) const MOST_QUEUES: usize = 8;

pub(super) type SharedWorld = Arc<Mutex<World>>;

/// See the module's description.
pub(super) struct World {
    pub(super) plan: Arc<Plan>,
    pub(super) random: Random,
    pub(super) start: Instant,
    pub(super) now: Instant,
    /// The faults have ended.
    pub(super) calm: bool,
    /// Time that passed although somebody could go on, and when.
    lost_time: Vec<(Instant, Duration)>,
    pub(super) broker: Broker,
    pub(super) watch: Watch,
    /// By the number of the process.
    pub(super) desks: Vec<Desk>,
    pub(super) tickets: Vec<OpenTicket>,
    pub(super) violation: Option<String>,
    pub(super) produced: u64,
    pub(super) delivered: u64,
    pub(super) trace: Trace,
}

/// What is noted about one process.
#[derive(Default)]
pub(super) struct Desk {
    /// It was killed: what still comes from it is not heard.
    pub(super) is_dead: bool,
    /// It was asked to stop.
    pub(super) is_stopping: bool,
    /// The engine's epochs, and what they are in the whole group.
    epochs: HashMap<u64, Tenure>,
    /// The engine's epoch of each queue that began last.
    pub(super) current: HashMap<QueueId, u64>,
    /// How many epochs the engine has begun: each begins with one seek.
    begun: u64,
    /// The commits that are not answered.
    asked: HashMap<QueueId, Asked>,
    /// The messages that have failed, as they were delivered last.
    failed: HashMap<(QueueId, Offset), Item>,
    /// The call that each shard is in.
    pub(super) calls: HashMap<usize, RunningCall>,
    /// The epoch and the attempt of each message of the call that is about to begin: an orderly
    /// listener is not told.
    pub(super) announced: Vec<(u64, u32)>,
    pub(super) kept: Kept,
}

/// An epoch of a process, as the group sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tenure {
    pub(super) queue: QueueId,
    pub(super) epoch: Epoch,
    /// In which step it began.
    pub(super) begun_at: u64,
    pub(super) generation: u64,
    pub(super) incarnation: u64,
    /// It began after the group had taken the queue away: nothing was announced.
    pub(super) is_outsider: bool,
    /// A call ran longer than the bound of its revoke.
    pub(super) timed_out: bool,
}

/// A commit that is not answered.
struct Asked {
    commit: Commit,
    at: Instant,
    /// In which epoch, where the watchers know of it.
    epoch: Option<Epoch>,
}

/// A listener call that has not returned.
pub(super) struct RunningCall {
    pub(super) id: CallId,
    pub(super) items: Vec<Item>,
    /// What the listener says of each; `None`: a ticket will.
    pub(super) says: Vec<Option<Outcome>>,
    /// What follows for the rest of the lane.
    pub(super) then: Then,
    /// When it returns; `None`: not before the faults end.
    pub(super) until: Option<Instant>,
}

/// A message of a call.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) queue: QueueId,
    pub(super) offset: Offset,
    pub(super) lane: Lane,
    /// The engine's.
    pub(super) epoch: u64,
}

/// A ticket that somebody holds.
pub(super) struct OpenTicket {
    pub(super) ticket: Ticket,
    pub(super) member: MemberId,
    pub(super) shard: usize,
    pub(super) call: CallId,
    pub(super) item: Item,
    /// `None`: not before the faults end.
    pub(super) due: Option<Instant>,
}

impl World {
    pub(super) fn new(plan: Arc<Plan>, random: Random, start: Instant, in_words: bool) -> Self {
        let options = &plan.options;
        // The budget, and what fetches bring beyond it, also while a queue is at its end and all of
        // it is thrown away: roughly. What the engine has in flight is checked to the message.
        let fetch = 4 * super::source::HUGE * options.fetch_max + 5;
        let limit = 2 * options.in_flight_max + MOST_QUEUES * (fetch + 1);
        let watch = Watch::new(plan.scope(), (limit * plan.processes) as u64);
        let broker = Broker::new(plan.queues);
        Self {
            plan,
            random,
            start,
            now: start,
            calm: false,
            lost_time: Vec::new(),
            broker,
            watch,
            desks: Vec::new(),
            tickets: Vec::new(),
            violation: None,
            produced: 0,
            delivered: 0,
            trace: Trace::new(in_words),
        }
    }

    /// Time passes.
    pub(super) fn advance(&mut self, to: Instant) {
        self.now = self.now.max(to);
        self.trace.now = self.now - self.start;
        crate::time::Clock.set_virtual(Some(self.now));
    }

    /// Time passes although somebody could go on.
    pub(super) fn lose_time(&mut self, time: Duration) {
        self.lost_time.push((self.now, time));
        self.advance(self.now + time);
    }

    pub(super) fn lost_time_since(&self, since: Instant) -> Duration {
        self.lost_time.iter().filter(|(at, _)| *at >= since).map(|(_, time)| *time).sum()
    }

    pub(super) fn desk(&mut self, member: MemberId) -> &mut Desk {
        &mut self.desks[member.0 as usize]
    }

    /// Notes the first thing that is wrong.
    pub(super) fn wrong(&mut self, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(what.into());
        }
    }

    /// With this probability, while there are faults.
    pub(super) fn fault(&mut self, probability: f64) -> bool {
        probability > 0.0 && !self.calm && self.random.chance(probability)
    }

    pub(super) fn latency(&mut self) -> Duration {
        let (shortest, longest) = self.plan.latency;
        self.random.time(shortest, longest)
    }

    /// Adds messages to a queue, and says so.
    pub(super) fn produce(&mut self, slot: usize, count: u64) {
        let plan = Arc::clone(&self.plan);
        let queue = &mut self.broker.queues[slot];
        let from = queue.produce(count, &plan, &mut self.random);
        self.produced += count;
        self.trace.line(|| format!("produce {} up to {}", queue.id, queue.end));
        if !matches!(queue.untold, Some(ResetCause::Recreated { .. })) {
            self.announce_produced(slot, from);
        }
    }

    fn announce_produced(&mut self, slot: usize, from: usize) {
        let queue = &self.broker.queues[slot];
        for (first, end) in queue.runs(from) {
            let (first, end) = (Offset::new(first).expect("small"), position(end));
            self.watch.observe(&Event::Produced { queue: queue.id, first, end });
        }
    }

    /// The owner hears of a reset, or there is no owner that could.
    pub(super) fn announce_reset(&mut self, slot: usize) {
        let queue = &mut self.broker.queues[slot];
        let Some(cause) = queue.untold.take() else { return };
        let (queue, epoch) = (queue.id, self.watch.epoch(queue.id));
        self.watch.observe(&Event::Reset { queue, epoch, cause: &cause });
        if matches!(cause, ResetCause::Recreated { .. }) {
            self.announce_produced(slot, 0);
        }
    }

    /// The engine begins its next epoch: notes what that is in the whole group.
    pub(super) fn begins(&mut self, member: MemberId, queue: QueueId, tenure: Tenure) {
        let desk = self.desk(member);
        desk.begun += 1;
        desk.epochs.insert(desk.begun, tenure);
        desk.current.insert(queue, desk.begun);
    }

    /// The engine says that it has begun an epoch.
    pub(super) fn started(&mut self, member: MemberId, queue: QueueId, epoch: u64) {
        if self.tenure(member, epoch).is_none_or(|tenure| tenure.queue != queue) {
            self.wrong(format!("{queue}: epoch {epoch} was reported, and never began"));
        }
    }

    pub(super) fn tenure(&self, member: MemberId, epoch: u64) -> Option<Tenure> {
        self.desks[member.0 as usize].epochs.get(&epoch).copied()
    }

    /// The tenure of a queue that began last in this process.
    pub(super) fn current(&self, member: MemberId, queue: QueueId) -> Option<Tenure> {
        let epoch = *self.desks[member.0 as usize].current.get(&queue)?;
        self.tenure(member, epoch)
    }

    /// Whether the group has given the queue to somebody else since, or it is another one by now.
    pub(super) fn is_outsider(&mut self, queue: QueueId, tenure: Tenure) -> bool {
        let generation = self.broker.queue(queue).generation;
        tenure.is_outsider || generation != tenure.generation || self.is_gone(queue, tenure)
    }

    /// Whether the topic is another one by now, and the watchers know.
    fn is_gone(&mut self, queue: QueueId, tenure: Tenure) -> bool {
        let queue = self.broker.queue(queue);
        queue.incarnation != tenure.incarnation
            && !matches!(queue.untold, Some(ResetCause::Recreated { .. }))
    }

    /// A call begins with this message. Returns what it is called in notes.
    pub(super) fn deliver(
        &mut self,
        member: MemberId,
        call: CallId,
        (message, epoch): (&Message, u64),
        shard: usize,
        attempt: u32,
    ) -> Item {
        let (queue, offset) = (message.queue(), message.offset());
        let item = Item { queue, offset, lane: self.watch.lane(message), epoch };
        self.trace.add(offset.get() ^ epoch << 40 ^ u64::from(queue.index()) << 56);
        let Some(tenure) = self.tenure(member, epoch) else {
            self.wrong(format!(
                "{queue} {offset} is delivered in epoch {epoch}, which never began"
            ));
            return item;
        };
        self.delivered += 1;
        let delivered = Event::Delivered(Delivered {
            member,
            call,
            queue,
            epoch: tenure.epoch,
            offset,
            lane: &item.lane,
            shard,
            attempt,
        });
        if self.is_outsider(queue, tenure) || tenure.timed_out {
            self.watch.observe_outsider(&delivered);
        } else {
            self.watch.observe(&delivered);
        }
        item
    }

    /// What became of a message; `call` is over for it, where there is one.
    pub(super) fn settle(
        &mut self,
        member: MemberId,
        call: Option<CallId>,
        item: &Item,
        outcome: Outcome,
    ) {
        if self.desk(member).is_dead {
            return;
        }
        self.trace.add(item.offset.get() ^ (outcome as u64) << 50);
        let Item { queue, offset, ref lane, epoch } = *item;
        if outcome == Outcome::Failed {
            self.desk(member).failed.insert((queue, offset), item.clone());
        }
        let Some(tenure) = self.tenure(member, epoch) else { return };
        let epoch = tenure.epoch;
        let settled = Settled { member, call, queue, epoch, offset, lane, outcome };
        // A message of a topic that is gone says nothing about its successor's.
        let is_gone = self.is_gone(queue, tenure);
        if is_gone {
            self.watch.observe_outsider(&Event::Settled(settled));
        } else {
            self.watch.observe(&Event::Settled(settled));
        }
    }

    /// The engine gives a message up, in the epoch that is open.
    pub(super) fn given_up(&mut self, member: MemberId, queue: QueueId, offset: Offset) {
        let desk = self.desk(member);
        let Some(&epoch) = desk.current.get(&queue) else { return };
        let failed = desk.failed.remove(&(queue, offset)).filter(|item| item.epoch == epoch);
        // What could not be routed was never delivered, and is in nobody's way.
        let item = failed.unwrap_or(Item { queue, offset, lane: Lane::Free, epoch });
        self.settle(member, None, &item, Outcome::GivenUp);
    }

    /// The engine asks for a commit. Returns the epoch, where the watchers know of it: only of an
    /// owner a commit is expected to make sense.
    pub(super) fn asks(&mut self, member: MemberId, commit: &Commit) -> Option<Epoch> {
        let (queue, watermark) = (commit.queue, commit.watermark);
        self.trace.line(|| format!("{member:?} commits {queue} at {watermark}"));
        self.trace.add(watermark.get());
        if let Some(before) = self.desk(member).asked.remove(&queue) {
            // Half a minute without an answer counts as one; and at the end of a stop the last
            // commit may be sent behind one that is outdated.
            let is_old = self.now.saturating_duration_since(before.at) >= ANSWER_TIMEOUT;
            if !is_old && !self.desk(member).is_stopping {
                self.wrong(format!("{queue}: a commit at {watermark} before the last is answered"));
            }
            self.stores(&before.commit, before.epoch, false);
        }
        let tenure = self.current(member, queue);
        let heard = tenure.filter(|tenure| !self.is_outsider(queue, *tenure));
        let epoch = heard.map(|tenure| tenure.epoch);
        let asked = Asked { commit: commit.clone(), epoch, at: self.now };
        self.desk(member).asked.insert(queue, asked);
        if let Some(epoch) = epoch {
            let step = CommitStep::Asked;
            self.watch.observe(&Event::Committed { queue, epoch, watermark, step });
        }
        epoch
    }

    /// The broker has stored a commit, or has not: the watchers hear the truth at once.
    pub(super) fn stores(&mut self, commit: &Commit, epoch: Option<Epoch>, is_stored: bool) {
        let (queue, watermark) = (commit.queue, commit.watermark);
        let Some(epoch) = epoch else { return };
        let step = if is_stored { CommitStep::Stored } else { CommitStep::Failed };
        self.watch.observe(&Event::Committed { queue, epoch, watermark, step });
    }

    /// The engine hears what became of a commit.
    pub(super) fn answers(&mut self, member: MemberId, commit: &Commit) {
        self.trace.line(|| {
            format!("{member:?} hears of its commit of {} at {}", commit.queue, commit.watermark)
        });
        let asked = &mut self.desk(member).asked;
        if asked.get(&commit.queue).is_some_and(|asked| asked.commit.tag == commit.tag) {
            asked.remove(&commit.queue);
        }
    }

    /// The engine has ended the queue's epoch, since its lock is gone.
    pub(super) fn lock_lost(&mut self, member: MemberId, queue: QueueId) {
        let Some(tenure) = self.current(member, queue) else { return };
        // It may have begun the next one in the same step.
        if tenure.begun_at < self.trace.steps() && !self.is_outsider(queue, tenure) {
            let epoch = tenure.epoch;
            self.watch.observe(&Event::Lost { queue, epoch });
        }
    }

    /// A call of this queue runs longer than the bound of its revoke.
    pub(super) fn timed_out(&mut self, member: MemberId, queue: QueueId) {
        let desk = self.desk(member);
        let epoch = desk.current.get(&queue).copied();
        if let Some(tenure) = epoch.and_then(|epoch| desk.epochs.get_mut(&epoch)) {
            tenure.timed_out = true;
        }
    }

    /// What of this queue still runs in a process, in words.
    pub(super) fn runs(&self, member: MemberId, queue: QueueId) -> Option<String> {
        let of_queue = |item: &&Item| item.queue == queue;
        let calls = &self.desks[member.0 as usize].calls;
        let call =
            calls.values().flat_map(|call| &call.items).filter(of_queue).min_by_key(|i| i.offset);
        if let Some(item) = call {
            return Some(format!("a call with {} runs", item.offset));
        }
        let tickets = self.tickets.iter().filter(|ticket| ticket.member == member);
        let ticket = tickets.map(|ticket| &ticket.item).find(of_queue)?;
        Some(format!("a ticket of {} is open", ticket.offset))
    }

    /// Everything that is broken at this moment.
    pub(super) fn verify(&mut self, moment: Moment) {
        if let Some(broken) = self.watch.all_broken(moment) {
            self.wrong(broken);
        }
    }
}

/// What happened, as a number that tells two runs apart, and in words where somebody wants to read.
#[derive(Debug)]
pub(super) struct Trace {
    digest: u64,
    steps: u64,
    /// Since the beginning.
    now: Duration,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    pub(super) fn new(in_words: bool) -> Self {
        Self {
            digest: 0xCBF2_9CE4_8422_2325,
            steps: 0,
            now: Duration::ZERO,
            lines: in_words.then(VecDeque::new),
        }
    }

    pub(super) fn add(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x100_0000_01B3).rotate_left(17);
    }

    pub(super) fn step(&mut self) {
        self.steps += 1;
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn line(&mut self, line: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else { return };
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        let time = self.now.as_secs_f64();
        lines.push_back(format!("{:>7} {time:>12.6} {}", self.steps, line()));
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.map(Vec::from).unwrap_or_default()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}
