//! One shard: the messages that wait for one thread, and what is held back among them. A state
//! machine without thread, clock or I/O: [`offer`](Shard::offer) chunks, ask for the
//! [`next_call`](Shard::next_call), run it anywhere, [`settle`](Shard::settle) it.
//!
//! ```text
//! offer ─► pending ──────────────┐
//!            │ lane held back    ▼
//!            ▼                  call ─► done: bits in the page, budget given back
//!          lanes ── due, ready ─►│  └─► failed: its lane, until it is due
//!          front ── come again ─►┘  └─► ticket, dead letter: outside, until they report
//! ```
//!
//! Why order holds (G1): the messages of a lane stand, from oldest to newest, in *a call, ticket or
//! letter*, then in *front*, then in *the lane*, then in *pending*; each step takes the oldest of
//! the earlier place first:
//!
//! 1. A message enters a call only when nothing of its lane is held back ([`Lanes::holds`]), or as
//!    the first of its lane. While a lane exists, messages from `front` and `pending` are parked at
//!    its end.
//! 2. `front` is empty before `pending` is looked at, and is filled only when a call returns
//!    messages, which are older than all that is pending.
//! 3. In a call, a message is not looked at (or its answer ignored) when an earlier one of its lane
//!    was not finished: [`Verdicts`].
//! 4. There is one call at a time, and a ticket's key is closed to all lanes of that name until it
//!    is settled, whichever queue or epoch they belong to (G2).
//!
//! Why nothing is forgotten (G3): a message leaves this module by a set bit, or because its tenure
//! has ended or the shard drains; then its bit stays clear and the watermark below it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{DeadLetter, QueueId};

#[cfg(feature = "sim")]
mod audit;
mod call;
mod effects;
mod fill;
mod inspect;
mod lane;
mod settle;
mod stats;

pub(crate) use call::{Call, Verdict, Verdicts};
pub(crate) use effects::{Effects, LetterId};
pub(crate) use inspect::Watched;
pub(crate) use stats::ShardStats;

use self::lane::{Held, Lanes, Letter};
use super::chunk::{Chunk, LaneId};
use super::retry::Random;
use crate::bug::bug;
use crate::config::{Config, FailurePolicy};
use crate::listener::Factory;
use crate::outcome::Handled;
use crate::ticket::TicketId;

/// What a shard has to know of the options.
#[derive(Debug, Clone)]
pub(crate) struct ShardSettings {
    pub(crate) index: usize,
    pub(crate) batch_max: usize,
    /// The listener handles one message at a time: how many a call gets is ours to decide.
    pub(crate) per_message: bool,
    pub(crate) linger: Duration,
    pub(crate) failure: FailurePolicy,
    pub(crate) has_sink: bool,
    pub(crate) hide_keys: bool,
    /// A call gets messages of one lane only.
    pub(crate) one_lane: bool,
    pub(crate) seed: u64,
}

impl ShardSettings {
    pub(crate) fn new(config: &Config, index: usize, has_sink: bool, factory: &Factory) -> Self {
        Self {
            index,
            batch_max: config.batch_max,
            per_message: factory.per_message,
            linger: config.linger,
            failure: config.failure,
            has_sink,
            hide_keys: config.hide_keys,
            one_lane: factory.one_lane,
            seed: config.seed.wrapping_add(index as u64),
        }
    }
}

/// See [`Shard::set_pace`].
const CALL_TARGET: Duration = Duration::from_micros(500);

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Shard {
    settings: ShardSettings,
    pending: VecDeque<Chunk>,
    pending_messages: usize,
    /// Since when a batch has been waiting to become full.
    lingering_since: Option<Instant>,
    /// The last call had no room for what is pending: lanes are not looked at before it again.
    pending_first: bool,
    /// What a call gave back without an answer.
    front: VecDeque<Held>,
    lanes: Lanes,
    /// The lanes that have messages in the running call.
    in_call: Vec<LaneId>,
    running: Option<Running>,
    /// How many messages the next call gets at most.
    pace: usize,
    calls: u64,
    tickets: HashMap<TicketId, Outside>,
    /// Tickets settled before their call returned.
    early: HashMap<TicketId, Handled>,
    letters: HashMap<LetterId, (Outside, Letter)>,
    letters_made: u64,
    /// Queues whose end the listener has not been told of.
    revoked: VecDeque<QueueId>,
    draining: bool,
    random: Random,
    stats: ShardStats,
}

/// A call that a listener is in.
#[derive(Debug)]
struct Running {
    call: Arc<Call>,
    since: Instant,
    number: u64,
}

/// A message that is neither here nor in a call: a ticket or the sink will report on it.
#[derive(Debug)]
struct Outside {
    lane: LaneId,
    held: Held,
    since: Instant,
}

/// What a shard's thread is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Run the call.
    Call,
    /// Nothing, until something is offered or this time comes.
    Wait(Option<Instant>),
}

impl Shard {
    pub(crate) fn new(settings: ShardSettings) -> Self {
        Self {
            random: Random::new(settings.seed),
            pace: if settings.per_message { 1 } else { settings.batch_max },
            settings,
            pending: VecDeque::new(),
            pending_messages: 0,
            lingering_since: None,
            pending_first: false,
            front: VecDeque::new(),
            lanes: Lanes::default(),
            in_call: Vec::new(),
            running: None,
            calls: 0,
            tickets: HashMap::new(),
            early: HashMap::new(),
            letters: HashMap::new(),
            letters_made: 0,
            revoked: VecDeque::new(),
            draining: false,
            stats: ShardStats::default(),
        }
    }

    /// Takes messages in.
    pub(crate) fn offer(&mut self, chunk: Chunk) {
        self.pending_messages += chunk.len();
        self.pending.push_back(chunk);
    }

    /// How many more messages a call could take.
    pub(crate) fn room(&self) -> usize {
        self.pace.saturating_sub(self.pending_messages)
    }

    /// A call settles as a whole, so one of many slow messages would commit late, and be repeated
    /// from its beginning after a crash. Where the listener does not care how many there are, a call
    /// gets as many as it handles in about [`CALL_TARGET`]: one, if each takes longer.
    fn set_pace(&mut self, messages: usize, took: Duration) {
        if !self.settings.per_message {
            return;
        }
        let each = took.as_nanos() / messages.max(1) as u128;
        let fitting = CALL_TARGET.as_nanos().checked_div(each).unwrap_or(u128::MAX);
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        // Step by step: one call says little about the next, since its thread may have had to wait.
        let near = fitting.clamp(self.pace / 2, self.pace * 2);
        self.pace = near.clamp(1, self.settings.batch_max);
    }

    /// Puts the messages of the next call into `call` and notes that it begins; nobody else may hold
    /// `call`.
    pub(crate) fn next_call(
        &mut self,
        now: Instant,
        call: &mut Arc<Call>,
        out: &mut Effects,
    ) -> Next {
        debug_assert!(self.running.is_none(), "one call at a time");
        self.wake_lanes(now, out);
        if let Some(until) = self.lingers(now) {
            // A lane's time may come before.
            return Next::Wait(Some(self.lanes.next_due().map_or(until, |due| due.min(until))));
        }
        let filled = Arc::get_mut(call).expect("the last call was settled");
        filled.clear();
        self.fill(now, filled, out);
        while filled.is_empty() && self.lanes.has_ready() {
            // What was pending went to lanes that had nothing to do.
            self.fill(now, filled, out);
        }
        if filled.is_empty() {
            return Next::Wait(self.lanes.next_due());
        }
        self.lingering_since = None;
        self.calls += 1;
        self.stats.began(filled.len());
        self.running = Some(Running { call: Arc::clone(call), since: now, number: self.calls });
        Next::Call
    }

    /// Lanes whose time has come: they may be called, or their letter is sent again.
    fn wake_lanes(&mut self, now: Instant, out: &mut Effects) {
        while let Some(id) = self.lanes.pop_due(now) {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            let resending = matches!(lane.state, lane::LaneState::Resending(..));
            if !resending {
                self.lanes.make_ready(&id);
                continue;
            }
            let state = std::mem::replace(&mut lane.state, lane::LaneState::Outside);
            if let (lane::LaneState::Resending(_, letter), Some(held)) = (state, lane.head.take()) {
                self.send_letter(id, held, letter, now, out);
            }
        }
    }

    /// Whether a batch that is not full waits for more, and until when.
    fn lingers(&mut self, now: Instant) -> Option<Instant> {
        if !self.may_linger() {
            return None;
        }
        let until = *self.lingering_since.get_or_insert(now) + self.settings.linger;
        (now < until).then_some(until)
    }

    fn may_linger(&self) -> bool {
        let full = self.pending_messages >= self.settings.batch_max;
        let others = !self.front.is_empty() || self.lanes.has_ready();
        let some = self.pending_messages > 0 && !full;
        some && !others && !self.settings.linger.is_zero() && !self.draining
    }

    /// Hands a message to the sink; its lane waits.
    fn send_letter(
        &mut self,
        lane: LaneId,
        held: Held,
        letter: Letter,
        now: Instant,
        out: &mut Effects,
    ) {
        self.letters_made += 1;
        let id = LetterId(self.letters_made);
        let dead = DeadLetter::new(held.message.clone(), held.attempts(), letter.reason.clone());
        out.letters.push((id, dead));
        self.lanes.entry(&lane).state = lane::LaneState::Outside;
        if bug!("release_lane_early") {
            self.release(&lane);
        }
        self.letters.insert(id, (Outside { lane, held, since: now }, letter));
    }

    /// A tenure has ended: what it holds back here is dropped, and the listener is told. (What is
    /// pending is dropped when its turn comes.)
    pub(crate) fn end_tenure(&mut self, epoch: u64, queue: QueueId) {
        self.lanes.drop_where(|id| id.epoch == epoch);
        self.front.retain(|held| held.tenure.epoch != epoch);
        self.revoked.push_back(queue);
    }

    /// Whether the listener has to be told of the end of a queue.
    pub(crate) fn has_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// The next queue whose end the listener has to be told of.
    pub(crate) fn next_revoked(&mut self) -> Option<QueueId> {
        self.revoked.pop_front()
    }

    /// From now on what fails or waits is dropped, not tried again: the consumer stops.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.lanes.stop_waiting();
    }

    /// Whether somebody should look for a call, or tell the listener something, who has seen that
    /// there is nothing to do until then.
    pub(crate) fn has_work(&self, now: Instant, until: Option<Instant>) -> bool {
        let sooner = |due| until.is_none_or(|until| due < until);
        if self.lanes.next_due().is_some_and(sooner) {
            return true;
        }
        let since = self.lingering_since.filter(|_| self.may_linger());
        let lingers = since.is_some_and(|since| now < since + self.settings.linger);
        (!self.pending.is_empty() && !lingers)
            || !self.front.is_empty()
            || self.lanes.has_ready()
            || !self.revoked.is_empty()
    }

    /// Whether there is nothing left to call or to wait for.
    pub(crate) fn is_drained(&self) -> bool {
        self.running.is_none()
            && self.pending.is_empty()
            && self.front.is_empty()
            && !self.lanes.has_ready()
            && self.tickets.is_empty()
            && self.letters.is_empty()
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_model;
#[cfg(test)]
mod tests_orderly;
