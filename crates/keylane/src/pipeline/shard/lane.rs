//! What is held back in a shard, lane by lane. Nothing here exists while nothing is held back.

#[cfg(feature = "sim")]
mod audit;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use keylane_source::{DeadLetterReason, Message};

use crate::bug::bug;
use crate::pipeline::chunk::{LaneId, LaneName, Run, Tag};
use crate::pipeline::tenure::{Phase, Tenure};
use crate::pipeline::tracker::Page;

/// A message that is kept for longer than a call: detached, so that it does not keep its fetch's
/// buffer alive.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) message: Message,
    pub(crate) tag: Tag,
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) page: Arc<Page>,
    /// Comes in a call of its own: its last call failed without saying where.
    pub(super) alone: bool,
}

impl Held {
    pub(super) fn new(message: &Message, tag: Tag, run: &Run) -> Self {
        let (tenure, page) = (Arc::clone(&run.tenure), Arc::clone(&run.page));
        Self { message: message.detach(), tag, tenure, page, alone: false }
    }

    /// For a message that is finished, and only has to be named.
    pub(super) fn peek(message: &Message, tag: &Tag, run: &Run) -> Self {
        let (tenure, page) = (Arc::clone(&run.tenure), Arc::clone(&run.page));
        Self { message: message.clone(), tag: tag.without_extra(), tenure, page, alone: false }
    }

    /// Attempts that have failed, earlier processes included.
    pub(crate) fn attempts(&self) -> u32 {
        self.message.attempts().saturating_add(self.tag.tried())
    }
}

/// The messages of a lane, in order: kept, head, rest.
#[derive(Debug)]
pub(super) struct Lane {
    /// Succeeded, and waiting for the listener's commit.
    pub(super) kept: Vec<Held>,
    /// What has to be finished before the rest; absent while it is in a call, a ticket or a letter.
    pub(super) head: Option<Held>,
    pub(super) rest: VecDeque<Held>,
    pub(super) state: LaneState,
}

#[derive(Debug)]
pub(super) enum LaneState {
    /// Its first message is the next to be called; the lane stands in `ready`.
    Ready,
    /// Some of its messages are in the running call.
    Running,
    /// Its head waits for this time.
    BackingOff(Instant),
    /// Its head waits for this time to be sent to the sink again.
    Resending(Instant, Letter),
    /// Its head is a ticket's or the sink's.
    Outside,
    /// Waits for a ticket of the same key in another queue.
    Behind,
    /// Has kept messages and nothing to do.
    Idle,
    /// Its head asked for the consumer to stop.
    Stopped,
}

/// A dead letter under way.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub(super) reason: DeadLetterReason,
    /// How often the sink has failed to take it.
    pub(super) failures: u32,
}

/// All lanes of a shard that hold something back.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: HashMap<LaneId, Lane>,
    /// Lanes in [`LaneState::Ready`], in the order in which they became so.
    ready: VecDeque<LaneId>,
    /// Lanes that wait for a time; the number makes equal times different.
    timers: BTreeMap<(Instant, u64), LaneId>,
    timers_made: u64,
    /// Keys with an open ticket, and the lanes that wait for it to be settled.
    open: HashMap<LaneName, Vec<LaneId>>,
}

impl Lanes {
    /// Whether nothing at all is held back.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.open.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    pub(super) fn get_mut(&mut self, id: &LaneId) -> Option<&mut Lane> {
        self.lanes.get_mut(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&LaneId, &Lane)> {
        self.lanes.iter()
    }

    /// The lane, made if there is none.
    pub(super) fn entry(&mut self, id: &LaneId) -> &mut Lane {
        if !self.lanes.contains_key(id) {
            let id = LaneId { name: id.name.detach(), ..*id };
            let (rest, state) = (VecDeque::new(), LaneState::Running);
            self.lanes.insert(id, Lane { kept: Vec::new(), head: None, rest, state });
        }
        self.lanes.get_mut(id).expect("it was just put there")
    }

    /// Whether a message of this lane has to wait, and cannot join a call.
    pub(super) fn holds(&self, id: &LaneId) -> bool {
        self.lanes.contains_key(id) || self.open.contains_key(&id.name)
    }

    /// Puts a message behind the others of its lane. The lane must [hold](Self::holds).
    pub(super) fn park(&mut self, id: &LaneId, held: Held) {
        match self.lanes.get_mut(id) {
            Some(lane) => {
                lane.rest.push_back(held);
                if matches!(lane.state, LaneState::Idle) {
                    self.make_ready(id);
                }
            }
            None => {
                debug_assert!(self.open.contains_key(&id.name), "nothing holds {id:?}");
                let lane = self.entry(id);
                lane.rest.push_back(held);
                self.wait_for_ticket(id);
            }
        }
    }

    /// Puts a message that a call gave back in front of the others of its lane, if there is one.
    pub(super) fn unpark(&mut self, id: &LaneId, held: Held) -> Option<Held> {
        match self.lanes.get_mut(id) {
            Some(Lane { state: LaneState::Stopped, .. }) => None,
            Some(lane) => {
                lane.rest.push_front(held);
                // What stood before it in its call may have been given up meanwhile.
                if matches!(lane.state, LaneState::Idle) {
                    self.make_ready(id);
                }
                None
            }
            None if self.open.contains_key(&id.name) => {
                self.park(id, held);
                None
            }
            None => Some(held),
        }
    }

    pub(super) fn make_ready(&mut self, id: &LaneId) {
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.state = LaneState::Ready;
            self.ready.push_back(id.clone());
        }
    }

    fn wait_for_ticket(&mut self, id: &LaneId) {
        if let (Some(waiting), Some(lane)) = (self.open.get_mut(&id.name), self.lanes.get_mut(id)) {
            lane.state = LaneState::Behind;
            waiting.push(id.clone());
        }
    }

    /// Sets the lane's head, and lets it wait until `due`.
    pub(super) fn hold_until(
        &mut self,
        id: &LaneId,
        head: Held,
        due: Instant,
        letter: Option<Letter>,
    ) {
        self.timers_made += 1;
        let lane = self.entry(id);
        debug_assert!(lane.head.is_none(), "the head of {id:?} would be forgotten");
        lane.head = Some(head);
        lane.state = match letter {
            None => LaneState::BackingOff(due),
            Some(letter) => LaneState::Resending(due, letter),
        };
        self.timers.insert((due, self.timers_made), id.clone());
    }

    /// The next lane whose time has come. Lanes that were dropped since are passed over.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<LaneId> {
        loop {
            let first = self.timers.first_entry()?;
            if first.key().0 > now {
                return None;
            }
            let (due, _) = *first.key();
            let id = first.remove();
            let waits = self.lanes.get(&id).is_some_and(|lane| match &lane.state {
                LaneState::BackingOff(at) | LaneState::Resending(at, _) => *at == due,
                _ => false,
            });
            if waits {
                return Some(id);
            }
        }
    }

    /// When the next lane's time comes.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((due, _), _)| *due)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next lane whose first message may be called.
    pub(super) fn pop_ready(&mut self) -> Option<LaneId> {
        while let Some(id) = self.ready.pop_front() {
            if !self.lanes.get(&id).is_some_and(|lane| matches!(lane.state, LaneState::Ready)) {
                continue;
            }
            if self.open.contains_key(&id.name) {
                self.wait_for_ticket(&id);
                continue;
            }
            return Some(id);
        }
        None
    }

    /// The messages of the lane that were in a call are finished: the rest may follow.
    pub(super) fn settled(&mut self, id: &LaneId) {
        let Some(lane) = self.lanes.get(id) else { return };
        if !matches!(lane.state, LaneState::Running) {
            return;
        }
        if lane.head.is_some() || !lane.rest.is_empty() {
            self.make_ready(id);
        } else if lane.kept.first().is_none_or(|held| held.tenure.phase() != Phase::Open) {
            self.lanes.remove(id);
        } else if let Some(lane) = self.lanes.get_mut(id) {
            lane.state = LaneState::Idle;
        }
    }

    pub(super) fn open_key(&mut self, name: &LaneName) {
        if !bug!("ticket_leaves_key_open") {
            self.open.entry(name.detach()).or_default();
        }
    }

    /// The ticket of this key is settled: lanes of other queues that waited for it may go on.
    pub(super) fn close_key(&mut self, name: &LaneName) {
        for id in self.open.remove(name).unwrap_or_default() {
            let waits = |lane: &Lane| matches!(lane.state, LaneState::Behind);
            if self.lanes.get(&id).is_some_and(waits) {
                self.make_ready(&id);
            }
        }
    }

    /// Nothing waits for a time any more, nor does anything come after what did: each such lane
    /// drops its messages and closes.
    pub(super) fn stop_waiting(&mut self) {
        self.timers.clear();
        for lane in self.lanes.values_mut() {
            if matches!(lane.state, LaneState::BackingOff(_) | LaneState::Resending(..)) {
                (lane.head, lane.state) = (None, LaneState::Stopped);
                lane.rest.clear();
            }
        }
    }

    /// Drops the lanes that `ended` names: their messages stay unfinished. What a lane has kept
    /// stays until its call has returned, which may commit it.
    pub(super) fn drop_where(&mut self, ended: impl Fn(&LaneId) -> bool) {
        self.lanes.retain(|id, lane| {
            if !ended(id) {
                return true;
            }
            (lane.head, lane.rest) = (None, VecDeque::new());
            matches!(lane.state, LaneState::Running) && !lane.kept.is_empty()
        });
        self.ready.retain(|id| !ended(id));
        self.timers.retain(|_, id| !ended(id));
        self.open.values_mut().for_each(|waiting| waiting.retain(|id| !ended(id)));
    }
}
