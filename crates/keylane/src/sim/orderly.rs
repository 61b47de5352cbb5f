//! A listener in RocketMQ's shape: every status, with and without auto-commit, and what each means
//! for messages that were kept by earlier calls.

use std::collections::HashMap;
use std::time::Duration;

use keylane_source::{Message, Offset, QueueId};
use keylane_testkit::guarantee::{Event, Lane, MemberId, Outcome as Said};

use super::listener::{SimListener, panic_quietly, panic_sometimes, returns_at};
use super::plan::SECOND;
use super::world::{Item, RunningCall, World};
use crate::listener::{OrderlyContext, OrderlyListener, OrderlyStatus};

/// What a call means for its lane, beside what it says of its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    /// Its messages are kept, until a later call commits them or gives them back.
    Keeps,
    /// What was kept is finished.
    Commits,
    /// What was kept comes again, and its own messages behind it.
    GivesBack,
}

/// Messages that listeners have handled and not committed, of each lane of an epoch.
pub(super) type Kept = HashMap<(u64, Lane), Vec<Item>>;

/// What the listener does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Status(OrderlyStatus),
    Panic,
}

impl Answer {
    fn draw(world: &mut World) -> Self {
        let plan = std::sync::Arc::clone(&world.plan);
        let faults = &plan.faults;
        match () {
            () if world.fault(faults.fail) => {
                Self::Status(OrderlyStatus::SuspendCurrentQueueAMoment)
            }
            () if world.fault(faults.panic) => Self::Panic,
            () if world.fault(faults.rollback) => Self::Status(OrderlyStatus::Rollback),
            () if world.random.chance(0.3) => Self::Status(OrderlyStatus::Commit),
            () => Self::Status(OrderlyStatus::Success),
        }
    }

    /// What the watchers are told of each message, and what follows.
    fn says(self, auto_commit: bool) -> (Said, Then) {
        match self {
            Self::Status(OrderlyStatus::Success) if !auto_commit => (Said::Held, Then::Keeps),
            Self::Status(OrderlyStatus::Success | OrderlyStatus::Commit) => {
                (Said::Done, Then::Commits)
            }
            Self::Status(OrderlyStatus::Rollback) => (Said::Failed, Then::GivesBack),
            Self::Status(OrderlyStatus::SuspendCurrentQueueAMoment) | Self::Panic => {
                (Said::Failed, Then::Nothing)
            }
        }
    }
}

impl OrderlyListener for SimListener {
    fn consume(&mut self, messages: &[Message], context: &mut OrderlyContext) -> OrderlyStatus {
        let mut world = self.world.lock();
        let id = world.watch.next_call();
        let announced = std::mem::take(&mut world.desk(self.member).announced);
        if announced.len() != messages.len() || announced[0].1 != context.attempt() {
            world.wrong(format!("{announced:?} was announced, {} messages came", messages.len()));
        }
        let mut items = Vec::with_capacity(messages.len());
        for (message, (epoch, attempt)) in messages.iter().zip(announced) {
            items.push(world.deliver(self.member, id, (message, epoch), self.shard, attempt));
        }
        let other = |item: &Item| (item.epoch, &item.lane) != (items[0].epoch, &items[0].lane);
        let alone = items[0].lane == Lane::Free && items.len() > 1;
        if alone || items.iter().any(other) {
            world.wrong(format!("a call of several lanes: {items:?}"));
        }
        let manual = world.plan.orderly.unwrap_or_default();
        let auto_commit = !world.fault(manual);
        let answer = Answer::draw(&mut world);
        context.set_auto_commit(auto_commit);
        if world.random.chance(0.5) {
            let suspend = world.random.time(Duration::from_micros(1), SECOND);
            context.set_suspend_current_queue_time(suspend);
        }
        let (said, then) = answer.says(auto_commit);
        let until = returns_at(&mut world);
        world.trace.line(|| {
            let offsets: Vec<_> = items.iter().map(|item| item.offset.get()).collect();
            let Item { queue, lane, .. } = &items[0];
            let (member, shard, id) = (self.member, self.shard, id.0);
            let call = format!("{member:?} shard {shard} call {id} {queue} {lane:?} {offsets:?}");
            format!("{call}: {answer:?}, auto-commit {auto_commit}")
        });
        let says = vec![Some(said); items.len()];
        let call = RunningCall { id, items, says, then, until };
        world.desk(self.member).calls.insert(self.shard, call);
        drop(world);
        match answer {
            Answer::Status(status) => status,
            Answer::Panic => panic_quietly(),
        }
    }

    fn on_revoked(&mut self, _queue: QueueId) {
        panic_sometimes(&self.world);
    }

    fn on_stop(&mut self) {
        panic_sometimes(&self.world);
    }
}

impl World {
    /// A call has returned, and was settled: what follows for what its lane has kept.
    pub(super) fn follow_up(&mut self, member: MemberId, call: &RunningCall) {
        let Some(first) = call.items.first() else { return };
        let key = (first.epoch, first.lane.clone());
        let kept = &mut self.desk(member).kept;
        match call.then {
            Then::Nothing => {}
            // A message that waits for nobody has a lane of its own, which has no later call.
            Then::Keeps if first.lane == Lane::Free => {}
            Then::Keeps => kept.entry(key).or_default().extend(call.items.iter().cloned()),
            Then::Commits => {
                for item in kept.remove(&key).unwrap_or_default() {
                    self.settle(member, None, &item, Said::Done);
                }
            }
            Then::GivesBack => {
                let kept = kept.remove(&key).unwrap_or_default();
                let offsets = kept.iter().chain(&call.items).map(|item| item.offset).collect();
                self.give_back(member, first, offsets);
            }
        }
    }

    /// Declares a rewind, unless the epoch is over: then everything comes again anyway.
    fn give_back(&mut self, member: MemberId, first: &Item, offsets: Vec<Offset>) {
        let Some(tenure) = self.tenure(member, first.epoch) else { return };
        let (queue, lane) = (first.queue, &first.lane);
        let is_over = self.watch.epoch(queue) != tenure.epoch || self.is_outsider(queue, tenure);
        if self.desk(member).is_dead || is_over {
            return;
        }
        self.watch.observe(&Event::Rewound { queue, lane, offsets: &offsets });
    }
}
