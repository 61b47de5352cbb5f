//! Where each queue stands. A state machine: no I/O, no clock, no librdkafka.
//!
//! # Invariants
//!
//! 1. What was read and not yet given out waits in `stash`, in order; nothing overtakes it. While a
//!    queue is paused or its stash is not empty its partition is not forwarded, so that the stash
//!    holds at most what had been forwarded before.
//! 2. A message is given out once it was asked for with a seek, below `Revoking`, and never twice.
//! 3. A queue is in `ready` exactly once while it has something to give out and may.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use keylane_source::{FetchLimits, Message, Position, QueueId, SeekTo};

/// Tells one tenure of a queue from the next, for answers that come late.
pub(crate) type Tenure = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Ours; the engine does not know yet, because the group's commit is being looked up.
    LookingUp,
    /// The engine has it.
    Open,
    /// The engine is finishing it.
    Revoking,
    /// The engine gave it up on its own; the group still counts it as ours.
    Released,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) tenure: Tenure,
    pub(crate) phase: Phase,
    /// A seek that librdkafka has not carried out yet.
    pub(crate) seek: Option<SeekTo>,
    /// Whether librdkafka fetches it: since the first seek.
    pub(crate) started: bool,
    /// librdkafka has given up fetching (outside the range): a seek alone does not revive it.
    pub(crate) broken: bool,
    pub(crate) paused: bool,
    pub(crate) forwarded: bool,
    /// Where the last seek went.
    pub(crate) moved_to: Position,
    /// Behind the last message read from librdkafka, or the end that it reported.
    pub(crate) read: Option<Position>,
    /// The position that was given out last.
    told: Option<Position>,
    stash: VecDeque<Message>,
    stash_bytes: usize,
    /// A position is to be told, though there is no message.
    news: bool,
    in_ready: bool,
}

/// What one queue gives out at a time.
#[derive(Debug)]
pub(crate) struct Portion {
    pub(crate) messages: Vec<Message>,
    pub(crate) position: Position,
}

#[derive(Debug, Default)]
pub(crate) struct Queues {
    all: HashMap<QueueId, Queue>,
    ready: VecDeque<QueueId>,
    tenures: Tenure,
}

impl Queues {
    pub(crate) fn get(&self, queue: QueueId) -> Option<&Queue> {
        self.all.get(&queue)
    }

    pub(crate) fn get_mut(&mut self, queue: QueueId) -> Option<&mut Queue> {
        self.all.get_mut(&queue)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.all.iter().map(|(queue, state)| (*queue, state))
    }

    /// A new tenure; whatever was left of an old one is forgotten.
    pub(crate) fn insert(&mut self, queue: QueueId) -> Tenure {
        self.remove(queue);
        self.tenures += 1;
        let state = Queue {
            tenure: self.tenures,
            phase: Phase::LookingUp,
            seek: None,
            started: false,
            broken: false,
            paused: false,
            forwarded: true,
            moved_to: Position::ZERO,
            read: None,
            told: None,
            stash: VecDeque::new(),
            stash_bytes: 0,
            news: false,
            in_ready: false,
        };
        self.all.insert(queue, state);
        self.tenures
    }

    pub(crate) fn remove(&mut self, queue: QueueId) -> Option<Queue> {
        self.ready.retain(|ready| *ready != queue);
        self.all.remove(&queue)
    }

    /// Notes what was read. Dropped where the queue is not (or not any more) being read.
    pub(crate) fn read(&mut self, queue: QueueId, messages: Vec<Message>, end: Option<i64>) {
        let Some(state) = self.all.get_mut(&queue) else { return };
        if state.phase != Phase::Open || !state.started || state.seek.is_some() {
            return;
        }
        state.push(messages);
        if let Some(end) = end.and_then(Position::from_i64) {
            state.read = state.read.max(Some(end));
            state.news = state.read != state.told;
        }
        self.note_ready(queue);
    }

    /// Puts the queue in line if it has something to give out and may.
    pub(crate) fn note_ready(&mut self, queue: QueueId) {
        let Some(state) = self.all.get_mut(&queue) else { return };
        if state.may_give() && !state.in_ready {
            state.in_ready = true;
            self.ready.push_back(queue);
        }
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// One portion of each queue that is in line; those with more stay in line.
    pub(crate) fn give(&mut self, limits: FetchLimits, mut to: impl FnMut(QueueId, Portion)) {
        for _ in 0..self.ready.len() {
            let Some(queue) = self.ready.pop_front() else { return };
            let Entry::Occupied(mut entry) = self.all.entry(queue) else { continue };
            let state = entry.get_mut();
            state.in_ready = false;
            if !state.may_give() {
                continue;
            }
            if let Some(portion) = state.take(limits) {
                to(queue, portion);
            }
            self.note_ready(queue);
        }
    }
}

impl Queue {
    fn may_give(&self) -> bool {
        let something = self.news || !self.stash.is_empty();
        something && !self.paused && self.phase == Phase::Open
    }

    /// Whether the partition should be forwarded to the queue that is read.
    pub(crate) fn wants_forward(&self) -> bool {
        !self.paused && self.stash.is_empty()
    }

    /// Where librdkafka has to go on, were it to start anew.
    pub(crate) fn resume_at(&self) -> Position {
        self.read.unwrap_or(self.moved_to)
    }

    /// Forgets what was read and not given out: before a seek, and when it is not ours any more.
    pub(crate) fn drop_stash(&mut self) {
        self.stash = VecDeque::new();
        self.stash_bytes = 0;
        self.news = false;
        (self.read, self.told) = (None, None);
    }

    fn push(&mut self, messages: Vec<Message>) {
        let Some(last) = messages.last() else { return };
        self.read = Some(last.offset().next());
        self.stash_bytes += messages.iter().map(Message::size).sum::<usize>();
        if self.stash.is_empty() {
            // The usual case: the vector that was read is the vector that is given out.
            self.stash = VecDeque::from(messages);
        } else {
            self.stash.extend(messages);
        }
    }

    fn take(&mut self, limits: FetchLimits) -> Option<Portion> {
        let all = self.stash.len() <= limits.messages && self.stash_bytes <= limits.bytes;
        let messages: Vec<Message> = if all {
            self.stash_bytes = 0;
            Vec::from(std::mem::take(&mut self.stash))
        } else {
            let count = self.fitting(limits);
            self.stash.drain(..count).collect()
        };
        if !all {
            self.stash_bytes -= messages.iter().map(Message::size).sum::<usize>();
        }
        let position = if self.stash.is_empty() {
            self.news = false;
            self.read
        } else {
            messages.last().map(|last| last.offset().next())
        };
        self.told = position;
        Some(Portion { messages, position: position? })
    }

    /// How many messages fit: at least one, whatever its size.
    fn fitting(&self, limits: FetchLimits) -> usize {
        let mut bytes = 0;
        let fits = |message: &&Message| {
            bytes += message.size();
            bytes <= limits.bytes
        };
        self.stash.iter().take(limits.messages).take_while(fits).count().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keylane_source::Offset;

    const ALL: FetchLimits = FetchLimits { messages: 1_000, bytes: 1 << 20 };

    fn queue() -> QueueId {
        QueueId::new("t", 0)
    }

    fn messages(offsets: std::ops::Range<u64>) -> Vec<Message> {
        let one = |n| Message::new(queue(), Offset::new(n).unwrap()).with_payload("0123456789");
        offsets.map(one).collect()
    }

    /// A queue that the engine has started.
    fn started() -> Queues {
        let mut queues = Queues::default();
        queues.insert(queue());
        let state = queues.get_mut(queue()).unwrap();
        (state.phase, state.started) = (Phase::Open, true);
        queues
    }

    fn given(queues: &mut Queues, limits: FetchLimits) -> Vec<(Vec<u64>, u64)> {
        let mut all = Vec::new();
        queues.give(limits, |_, portion| {
            let offsets = portion.messages.iter().map(|m| m.offset().get()).collect();
            all.push((offsets, portion.position.get()));
        });
        all
    }

    #[test]
    fn portions_keep_to_the_limits_and_to_the_order() {
        let mut queues = started();
        queues.read(queue(), messages(0..5), Some(9));
        let two = FetchLimits { messages: 2, bytes: 1_000 };
        assert_eq!(given(&mut queues, two), [(vec![0, 1], 2)]);
        assert!(!queues.get(queue()).unwrap().wants_forward());
        queues.read(queue(), messages(9..10), None);
        let fifteen_bytes = FetchLimits { messages: 9, bytes: 15 };
        assert_eq!(given(&mut queues, fifteen_bytes), [(vec![2], 3)]);
        let no_bytes = FetchLimits { messages: 9, bytes: 0 };
        assert_eq!(given(&mut queues, no_bytes), [(vec![3], 4)]);
        assert_eq!(given(&mut queues, ALL), [(vec![4, 9], 10)]);
        assert_eq!(given(&mut queues, ALL), []);
        assert!(queues.get(queue()).unwrap().wants_forward());
    }

    #[test]
    fn an_end_is_told_once_and_passes_trailing_holes() {
        let mut queues = started();
        queues.read(queue(), messages(0..1), Some(7));
        assert_eq!(given(&mut queues, ALL), [(vec![0], 7)]);
        queues.read(queue(), Vec::new(), Some(8));
        assert_eq!(given(&mut queues, ALL), [(vec![], 8)]);
        assert_eq!(given(&mut queues, ALL), []);
        // An end that brings nothing new is not told.
        queues.read(queue(), Vec::new(), Some(8));
        assert_eq!(given(&mut queues, ALL), []);
    }

    #[test]
    fn a_paused_queue_gives_nothing_and_loses_nothing() {
        let mut queues = started();
        queues.read(queue(), messages(0..2), None);
        queues.get_mut(queue()).unwrap().paused = true;
        assert_eq!(given(&mut queues, ALL), []);
        queues.read(queue(), messages(2..3), None);
        assert!(!queues.has_ready());
        queues.get_mut(queue()).unwrap().paused = false;
        queues.note_ready(queue());
        assert_eq!(given(&mut queues, ALL), [(vec![0, 1, 2], 3)]);
    }

    #[test]
    fn nothing_is_noted_before_the_seek_or_from_revoking_on() {
        for (phase, started, seek) in [
            (Phase::LookingUp, true, None),
            (Phase::Open, false, None),
            (Phase::Open, true, Some(SeekTo::Latest)),
            (Phase::Revoking, true, None),
            (Phase::Released, true, None),
        ] {
            let mut queues = Queues::default();
            queues.insert(queue());
            let state = queues.get_mut(queue()).unwrap();
            (state.phase, state.started, state.seek) = (phase, started, seek);
            queues.read(queue(), messages(0..2), Some(2));
            assert!(!queues.has_ready(), "{phase:?} {started} {seek:?}");
            assert_eq!(given(&mut queues, ALL), []);
        }
    }

    #[test]
    fn a_new_tenure_starts_empty() {
        let mut queues = started();
        let first = queues.get(queue()).unwrap().tenure;
        queues.read(queue(), messages(0..2), None);
        let second = queues.insert(queue());
        assert_ne!(first, second);
        assert!(!queues.has_ready());
        assert_eq!(queues.get(queue()).unwrap().read, None);
    }
}
