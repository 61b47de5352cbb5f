//! Listeners that do whatever a listener may do. What a call does happens at its beginning; then it
//! takes its time to return, while everything else goes on.

use std::time::{Duration, Instant};

use keylane_source::{Message, QueueId};
use keylane_testkit::guarantee::{MemberId, Outcome as Said};

use super::orderly::Then;
use super::plan::SECOND;
use super::world::{Item, OpenTicket, RunningCall, SharedWorld, World};
use crate::config::Exhausted;
use crate::listener::{Batch, BatchListener, Context, Factory, IntoListener, Listener, listen};
use crate::outcome::{BatchHandled, BatchOutcome, Handled, Outcome};

/// The reason that skipped messages have.
pub(super) const SKIPPED: &str = "the simulation skips it";

/// Makes the listeners of a process.
pub(super) fn factory(world: &SharedWorld, member: MemberId) -> Factory {
    let (per_message, orderly) = {
        let plan = &world.lock().plan;
        (plan.per_message, plan.orderly.is_some())
    };
    let world = world.clone();
    let make = move |shard| SimListener { world: world.clone(), member, shard };
    if orderly {
        listen::per_shard_orderly(make).into_factory()
    } else if per_message {
        listen::per_shard(make).into_factory()
    } else {
        listen::per_shard_batches(make).into_factory()
    }
}

/// One instance per shard.
pub(super) struct SimListener {
    pub(super) world: SharedWorld,
    pub(super) member: MemberId,
    pub(super) shard: usize,
}

/// What a listener does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Done,
    Fail,
    Panic,
    Retry,
    RetryAfter(Duration),
    Skip,
    DeadLetter,
    Stop,
    Ticket,
}

impl Answer {
    fn draw(world: &mut World, may_defer: bool) -> Self {
        let plan = std::sync::Arc::clone(&world.plan);
        let faults = &plan.faults;
        match () {
            () if may_defer && world.fault(faults.ticket) => Self::Ticket,
            () if world.fault(faults.fail) => Self::Fail,
            () if world.fault(faults.panic) => Self::Panic,
            () if world.fault(faults.retry_after) && world.random.chance(0.5) => Self::Retry,
            () if world.fault(faults.retry_after) => {
                Self::RetryAfter(world.random.time(Duration::from_micros(1), SECOND))
            }
            () if world.fault(faults.skip) => Self::Skip,
            () if world.fault(faults.dead_letter) => Self::DeadLetter,
            () if world.fault(faults.stop_outcome) => Self::Stop,
            () => Self::Done,
        }
    }

    /// What the watchers are told; `None`: nothing before the ticket is settled.
    fn says(self) -> Option<Said> {
        match self {
            Self::Done => Some(Said::Done),
            Self::Skip => Some(Said::Skipped),
            Self::Ticket => None,
            _ => Some(Said::Failed),
        }
    }

    fn handled(self) -> Handled {
        match self {
            Self::Done | Self::Ticket => Ok(Outcome::Done),
            Self::Fail => Err("the simulation fails".into()),
            Self::Panic => panic_quietly(),
            Self::Retry => Ok(Outcome::Retry),
            Self::RetryAfter(delay) => Ok(Outcome::RetryAfter(delay)),
            Self::Skip => Ok(Outcome::Skip(SKIPPED.to_owned())),
            Self::DeadLetter => Ok(Outcome::DeadLetter("the simulation gives up".to_owned())),
            Self::Stop => Ok(Outcome::Stop("the simulation stops".to_owned())),
        }
    }
}

/// A panic that the process's hook does not print.
pub(super) fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("the simulation panics"))
}

/// When a call returns that begins now; `None`: not before the faults end.
pub(super) fn returns_at(world: &mut World) -> Option<Instant> {
    let plan = std::sync::Arc::clone(&world.plan);
    if world.fault(plan.faults.hang) {
        return None;
    }
    let (shortest, longest) = plan.call;
    let factor = if world.fault(plan.faults.slow) { 100 } else { 1 };
    Some(world.now + world.random.time(shortest, longest) * factor)
}

impl Listener for SimListener {
    fn on_message(&mut self, message: &Message, context: &mut Context<'_>) -> Handled {
        let mut world = self.world.lock();
        let id = world.watch.next_call();
        let (epoch, attempt) = (context.epoch(), context.attempt());
        let item = world.deliver(self.member, id, (message, epoch), self.shard, attempt);
        let gives_in = context.is_cancelled() && world.random.chance(0.3);
        let answer = if gives_in { Answer::Fail } else { Answer::draw(&mut world, true) };
        let until = returns_at(&mut world);
        world.trace.line(|| {
            format!("{:?} shard {} call {} {item:?}: {answer:?}", self.member, self.shard, id.0)
        });
        let (items, says) = (vec![item.clone()], vec![answer.says()]);
        let call = RunningCall { id, items, says, then: Then::Nothing, until };
        world.desk(self.member).calls.insert(self.shard, call);
        drop(world);
        if answer != Answer::Ticket {
            return answer.handled();
        }
        let (ticket, outcome) = context.defer();
        let mut world = self.world.lock();
        let plan = std::sync::Arc::clone(&world.plan);
        let late =
            if world.fault(plan.faults.ticket_late) { 120 * SECOND } else { plan.call.1 * 4 };
        let due = Some(world.now + world.random.time(Duration::from_micros(1), late));
        let (member, shard, call) = (self.member, self.shard, id);
        world.tickets.push(OpenTicket { ticket, member, shard, call, item, due });
        Ok(outcome)
    }

    fn on_revoked(&mut self, _queue: QueueId) {
        panic_sometimes(&self.world);
    }

    fn on_stop(&mut self) {
        panic_sometimes(&self.world);
    }
}

/// Hooks may panic as well.
pub(super) fn panic_sometimes(world: &SharedWorld) {
    let panics = {
        let mut world = world.lock();
        let probability = world.plan.faults.panic;
        world.fault(probability)
    };
    if panics {
        panic_quietly();
    }
}

impl BatchListener for SimListener {
    fn on_batch(&mut self, batch: &Batch<'_>) -> BatchHandled {
        let mut world = self.world.lock();
        let id = world.watch.next_call();
        let mut items = Vec::with_capacity(batch.len());
        for (index, message) in batch.iter().enumerate() {
            let (epoch, attempt) = (batch.epoch(index), batch.attempt(index));
            items.push(world.deliver(self.member, id, (message, epoch), self.shard, attempt));
        }
        let answer = BatchAnswer::draw(&mut world, batch.len());
        let says = answer.says(&items).into_iter().map(Some).collect();
        let until = returns_at(&mut world);
        world.trace.line(|| {
            let offsets: Vec<_> = items.iter().map(|i| (i.queue.index(), i.offset.get())).collect();
            format!("{:?} shard {} call {} {offsets:?}: {answer:?}", self.member, self.shard, id.0)
        });
        let call = RunningCall { id, items, says, then: Then::Nothing, until };
        world.desk(self.member).calls.insert(self.shard, call);
        drop(world);
        answer.handled()
    }

    fn on_revoked(&mut self, _queue: QueueId) {
        panic_sometimes(&self.world);
    }

    fn on_stop(&mut self) {
        panic_sometimes(&self.world);
    }
}

/// What a listener does with a batch.
#[derive(Debug)]
enum BatchAnswer {
    Done,
    /// It fails, or panics, without saying where.
    Whole {
        panics: bool,
    },
    DoneThrough(usize),
    FailedAt(usize),
    Each(Vec<Answer>),
    /// So many answers, or an index that is not there: a failure without saying where.
    TooFew(usize),
    Outside(usize),
}

impl BatchAnswer {
    fn draw(world: &mut World, length: usize) -> Self {
        let plan = std::sync::Arc::clone(&world.plan);
        let faults = &plan.faults;
        match () {
            () if world.fault(faults.absurd_batch) && world.random.chance(0.5) => {
                Self::TooFew(length - 1)
            }
            () if world.fault(faults.absurd_batch) => Self::Outside(length),
            () if world.fault(faults.partial_batch) => {
                Self::DoneThrough(world.random.index(length))
            }
            () if world.fault(faults.fail) && world.random.chance(0.5) => {
                Self::FailedAt(world.random.index(length))
            }
            () if world.fault(faults.fail) => Self::Whole { panics: false },
            () if world.fault(faults.panic) => Self::Whole { panics: true },
            () if world.random.chance(0.5) => {
                let draw = |world: &mut World| match Answer::draw(world, false) {
                    Answer::Panic => Answer::Fail,
                    answer => answer,
                };
                Self::Each((0..length).map(|_| draw(world)).collect())
            }
            () => Self::Done,
        }
    }

    /// What counts of each message.
    fn says(&self, items: &[Item]) -> Vec<Said> {
        let done_below = |end: usize| {
            let said = |index| if index < end { Said::Done } else { Said::Failed };
            (0..items.len()).map(said).collect()
        };
        match self {
            Self::Done => done_below(items.len()),
            Self::Whole { .. } | Self::TooFew(_) | Self::Outside(_) => done_below(0),
            Self::DoneThrough(index) => done_below(index + 1),
            Self::FailedAt(index) => done_below(*index),
            Self::Each(answers) => {
                let mut says: Vec<Said> = Vec::with_capacity(items.len());
                for (index, answer) in answers.iter().enumerate() {
                    let said = answer.says().unwrap_or(Said::Failed);
                    let same = |(before, said): (&Item, &Said)| {
                        let item = &items[index];
                        let is_free = item.lane == keylane_testkit::guarantee::Lane::Free;
                        let lanes = (before.queue, &before.lane) == (item.queue, &item.lane);
                        lanes && !is_free && !said.frees_the_lane()
                    };
                    let is_behind = items.iter().zip(&says).any(same);
                    says.push(if is_behind { Said::Ignored } else { said });
                }
                says
            }
        }
    }

    fn handled(self) -> BatchHandled {
        let error = || "the simulation fails".into();
        match self {
            Self::Done => Ok(BatchOutcome::Done),
            Self::Whole { panics: true } => panic_quietly(),
            Self::Whole { panics: false } => Err(error()),
            Self::DoneThrough(index) => Ok(BatchOutcome::DoneThrough(index)),
            Self::Outside(index) => Ok(BatchOutcome::DoneThrough(index)),
            Self::FailedAt(index) => Ok(BatchOutcome::FailedAt { index, error: error() }),
            Self::Each(answers) => {
                Ok(BatchOutcome::Each(answers.into_iter().map(Answer::handled).collect()))
            }
            Self::TooFew(length) => {
                Ok(BatchOutcome::Each((0..length).map(|_| Ok(Outcome::Done)).collect()))
            }
        }
    }
}

/// What the holder of a ticket does with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TicketAnswer(Answer);

impl TicketAnswer {
    pub(super) fn draw(world: &mut World) -> Self {
        let dropped = world.plan.faults.ticket_dropped;
        if world.fault(dropped) {
            return Self(Answer::Ticket);
        }
        Self(match Answer::draw(world, false) {
            Answer::Panic => Answer::Fail,
            answer => answer,
        })
    }

    pub(super) fn says(self) -> Said {
        self.0.says().unwrap_or(Said::Failed)
    }

    pub(super) fn settle(self, ticket: crate::Ticket) {
        match self.0 {
            Answer::Ticket => drop(ticket),
            answer => ticket.settle(answer.handled()),
        }
    }
}

/// Whether the policy gives messages up without asking the listener.
pub(super) fn policy_skips(world: &World) -> bool {
    let policy = &world.plan.options.failure;
    policy.attempts_max.is_some() && policy.exhausted == Exhausted::Skip
}
