//! Feeds the guarantees from many threads.
//!
//! A [`Recorder`] is given to whatever sees something: the listener says when a call begins and
//! what came of it, [`Recorded`] wraps the source and says what was read and committed,
//! [`RecordedSink`] says which dead letters are stored, the producer says what there is. At the end
//! [`Recorder::verdict`] has everything that was broken.
//!
//! ```
//! use keylane_source::{Message, Offset, QueueId};
//! use keylane_testkit::guarantee::{Outcome, Scope};
//! use keylane_testkit::recorder::Recorder;
//!
//! let recorder = Recorder::new(Scope::key());
//! let listener = |message: &Message| {
//!     let call = recorder.begin(message, 0, 1);
//!     // ... the work; a panic here counts as a failure
//!     call.settle(Outcome::Done);
//! };
//! let message = |n| Message::new(QueueId::new("orders", 0),
//! Offset::new(n).unwrap()).with_key("a"); listener(&message(0));
//! listener(&message(2));
//! listener(&message(1)); // too late
//! assert_eq!(recorder.verdict_so_far().order_violations, 1);
//! ```
//!
//! # Cost, and what makes it so
//!
//! Checkers of keys are split by key into many parts, checkers of queues by queue; each part has a
//! lock of its own, held for a few table look-ups. A call takes the lock of its queue's part and of
//! its key's part, twice each. State is kept per key and per queue, never per message: sets of
//! offsets are compressed bitmaps.
//!
//! # What is exact
//!
//! A call's interval is recorded from inside the call, so that two recorded intervals that overlap
//! did overlap. A message's finish is recorded before the engine hears of it, so that a later
//! delivery or commit finds it recorded. The epoch of a call is the one that its queue has when the
//! call is recorded.

use std::collections::HashMap;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ahash::RandomState;
use keylane_source::{Message, Offset, Position, QueueId};
use parking_lot::{Mutex, MutexGuard};

use crate::guarantee::bounded::Gauge;
use crate::guarantee::{
    CallId, Delivered, Epoch, Event, KeyCheckers, Lane, MemberId, Moment, Outcome, QueueCheckers,
    Scope, Settled, Verdict, VerdictBuilder,
};
use crate::journal::Journal;

mod call;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use call::Item;
pub use call::{Call, Later};
pub use sink::RecordedSink;
pub use source::{Recorded, Recording};

/// How many parts keys are split into: many threads, rarely two in one part.
const KEY_PARTS: usize = 64;
/// How many parts queues are split into, by their index.
const QUEUE_PARTS: usize = 16;

/// Takes notes from many threads; see the [module](self). Clones are the same recorder.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
    member: Arc<Member>,
}

struct Shared {
    scope: Scope,
    calls: AtomicU64,
    members: AtomicU32,
    keys: Vec<Mutex<KeyCheckers>>,
    queues: Vec<Mutex<QueuePart>>,
    gauge: Arc<Gauge>,
    /// Where all is written, too.
    journal: Option<Journal>,
}

/// The consumer that this handle speaks for.
struct Member {
    id: MemberId,
    has_crashed: AtomicBool,
}

#[derive(Default)]
struct QueuePart {
    checkers: QueueCheckers,
    epochs: HashMap<QueueId, Epoch, RandomState>,
}

impl Recorder {
    /// A recorder of one consumer, whose order and exclusion hold in this scope.
    pub fn new(scope: Scope) -> Self {
        Self::build(scope, None, None)
    }

    /// A recorder of the one member in this process, that also writes everything to a journal, from
    /// which another process can judge the whole group. No two processes may have the same number;
    /// [others](Self::another_member) in this one have the numbers behind it.
    ///
    /// # Panics
    ///
    /// Later, whenever the journal cannot be written.
    pub fn journaled(scope: Scope, member: MemberId, journal: &Journal) -> Self {
        Self::build(scope, None, Some((member, journal.clone())))
    }

    /// One that also checks that at most so many messages are fetched and not finished: the budget
    /// plus one fetch for each queue.
    pub fn with_in_flight_limit(scope: Scope, messages: u64) -> Self {
        Self::build(scope, Some(messages), None)
    }

    fn build(
        scope: Scope,
        in_flight_limit: Option<u64>,
        journal: Option<(MemberId, Journal)>,
    ) -> Self {
        let gauge = Arc::<Gauge>::default();
        let part = || {
            let checkers = QueueCheckers::new(in_flight_limit, Arc::clone(&gauge));
            Mutex::new(QueuePart { checkers, ..QueuePart::default() })
        };
        let (first, journal) = journal.unzip();
        let shared = Shared {
            scope,
            calls: AtomicU64::new(1),
            members: AtomicU32::new(first.map_or(0, |member| member.0)),
            keys: std::iter::repeat_with(Mutex::default).take(KEY_PARTS).collect(),
            queues: std::iter::repeat_with(part).take(QUEUE_PARTS).collect(),
            gauge,
            journal,
        };
        Self::of_new_member(Arc::new(shared))
    }

    fn of_new_member(shared: Arc<Shared>) -> Self {
        let id = MemberId(shared.members.fetch_add(1, Ordering::Relaxed));
        Self { shared, member: Arc::new(Member { id, has_crashed: AtomicBool::new(false) }) }
    }

    /// A handle for another consumer of the same group. Its listener and its source need the same
    /// one.
    #[must_use]
    pub fn another_member(&self) -> Self {
        Self::of_new_member(Arc::clone(&self.shared))
    }

    /// Says that this consumer is gone, as after `kill -9`: its calls are no more, and whatever
    /// this handle and its clones still say is not listened to. Gives the handle for its successor.
    #[must_use]
    pub fn crash(&self) -> Self {
        self.member.has_crashed.store(true, Ordering::Release);
        let crashed = Event::Crashed { member: self.member.id };
        self.write(&crashed);
        self.spread(&crashed);
        self.another_member()
    }

    fn closing(&self) {
        self.note(&Event::Closing { member: self.member.id });
    }

    /// Says that this consumer has stopped: no call of it may begin any more. [`Recorded`] says so
    /// itself when it is closed.
    pub fn stopped(&self) {
        self.note(&Event::Stopped { member: self.member.id });
    }

    /// This message is in its queue and must be delivered.
    pub fn produced(&self, queue: QueueId, offset: Offset) {
        self.produced_range(queue, offset, offset.next());
    }

    /// These messages are in their queue and must be delivered: all offsets from `first` on, below
    /// `end`.
    pub fn produced_range(&self, queue: QueueId, first: Offset, end: Position) {
        self.note(&Event::Produced { queue, first, end });
    }

    /// A listener call with this message begins, on this shard; `attempt` counts from 1, 0 is
    /// unknown.
    pub fn begin(&self, message: &Message, shard: usize, attempt: u32) -> Call {
        self.begin_call(std::iter::once(message), shard, attempt)
    }

    /// A listener call with these messages begins, in this order.
    pub fn begin_batch<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Message>,
        shard: usize,
    ) -> Call {
        self.begin_call(messages.into_iter(), shard, 0)
    }

    fn begin_call<'a>(
        &self,
        messages: impl Iterator<Item = &'a Message>,
        shard: usize,
        attempt: u32,
    ) -> Call {
        let id = CallId(self.shared.calls.fetch_add(1, Ordering::Relaxed));
        let mut queues = QueueLock::new(&self.shared);
        let item = |message: &Message| {
            let (queue, offset) = (message.queue(), message.offset());
            let lane = self.shared.scope.lane(message);
            let part = queues.part(queue);
            let epoch = part.epochs.get(&queue).copied().unwrap_or_default();
            let item = Item { queue, epoch, offset, lane };
            if self.is_heard() {
                let delivered = self.delivered(id, &item, shard, attempt);
                self.write(&delivered);
                part.checkers.observe(&delivered);
            }
            item
        };
        let items = messages.map(item).collect();
        drop(queues);
        let call = Call::new(self.clone(), id, items);
        for item in call.items() {
            self.note_key(item, &self.delivered(id, item, shard, attempt));
        }
        call
    }

    fn delivered<'a>(&self, call: CallId, item: &'a Item, shard: usize, attempt: u32) -> Event<'a> {
        let Item { queue, epoch, offset, ref lane } = *item;
        let member = self.member.id;
        Event::Delivered(Delivered { member, call, queue, epoch, offset, lane, shard, attempt })
    }

    /// Ends a call with one outcome for all its messages.
    pub fn settle(&self, call: Call, outcome: Outcome) {
        call.settle(outcome);
    }

    fn settle_items<'a>(
        &self,
        call: Option<CallId>,
        settled: impl Iterator<Item = (&'a Item, Outcome)> + Clone,
    ) {
        let member = self.member.id;
        let event = |(item, outcome): (&'a Item, Outcome)| {
            let Item { queue, epoch, offset, ref lane } = *item;
            Event::Settled(Settled { member, call, queue, epoch, offset, lane, outcome })
        };
        let mut queues = QueueLock::new(&self.shared);
        if self.is_heard() {
            for (item, outcome) in settled.clone() {
                let settled = event((item, outcome));
                let part = queues.part(item.queue);
                self.write(&settled);
                part.checkers.observe(&settled);
            }
        }
        drop(queues);
        for (item, outcome) in settled {
            self.note_key(item, &event((item, outcome)));
        }
    }

    /// A message whose call is over, and which is not finished yet: held for a manual commit, or on
    /// its way to the dead letters.
    pub fn later(&self, message: &Message) -> Later {
        let (queue, offset) = (message.queue(), message.offset());
        let epoch = self.epoch(queue);
        let lane = self.shared.scope.lane(message);
        Later::new(self.clone(), Item { queue, epoch, offset, lane })
    }

    /// Declares that these messages are given back (rollback, suspend): they come again, in order,
    /// before any other of their lanes.
    pub fn rewound<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) {
        let mut lanes: Vec<(QueueId, Lane, Vec<Offset>)> = Vec::new();
        for message in messages {
            let (queue, lane) = (message.queue(), self.shared.scope.lane(message));
            let same = lanes.iter_mut().find(|(q, l, _)| *q == queue && *l == lane);
            match same {
                Some((_, _, offsets)) => offsets.push(message.offset()),
                None => lanes.push((queue, lane, vec![message.offset()])),
            }
        }
        for (queue, lane, mut offsets) in lanes {
            offsets.sort_unstable();
            self.note(&Event::Rewound { queue, lane: &lane, offsets: &offsets });
        }
    }

    /// The epoch that the queue has now.
    pub fn epoch(&self, queue: QueueId) -> Epoch {
        self.queue_part(queue).epochs.get(&queue).copied().unwrap_or_default()
    }

    /// Takes note of an event as it is: for replaying what another process has written to its
    /// [journal](crate::journal).
    pub fn note(&self, event: &Event<'_>) {
        if !self.is_heard() {
            return;
        }
        self.write(event);
        match event {
            Event::Closing { .. } => {}
            Event::Crashed { .. } | Event::Stopped { .. } => self.spread(event),
            Event::Assigned { queue, epoch, .. } => {
                let mut part = self.queue_part(*queue);
                part.epochs.insert(*queue, *epoch);
                part.checkers.observe(event);
            }
            Event::Produced { queue, .. }
            | Event::Fetched { queue, .. }
            | Event::Committed { queue, .. }
            | Event::Revoked { queue, .. }
            | Event::Lost { queue, .. }
            | Event::Reset { queue, .. } => self.queue_part(*queue).checkers.observe(event),
            Event::Delivered(Delivered { queue, lane, .. })
            | Event::Settled(Settled { queue, lane, .. })
            | Event::Rewound { queue, lane, .. } => {
                self.queue_part(*queue).checkers.observe(event);
                self.note_lane(*queue, lane, event);
            }
        }
    }

    /// Begins the queue's next epoch.
    fn begin_epoch(
        &self,
        queue: QueueId,
        found: crate::guarantee::Found,
        start: Option<Position>,
    ) -> Epoch {
        let epoch = Epoch(self.epoch(queue).0 + 1);
        self.note(&Event::Assigned { member: self.member.id, queue, epoch, found, start });
        epoch
    }

    /// What was found, after a run that was to finish everything; see [`Moment::Drained`].
    pub fn verdict(&self) -> Verdict {
        self.verdict_at(Moment::Drained)
    }

    /// What was found so far, or after a run that was cut off; see [`Moment::Running`].
    pub fn verdict_so_far(&self) -> Verdict {
        self.verdict_at(Moment::Running)
    }

    fn verdict_at(&self, moment: Moment) -> Verdict {
        let mut builder = VerdictBuilder::new(moment);
        self.shared.keys.iter().for_each(|part| builder.keys(&part.lock()));
        self.shared.queues.iter().for_each(|part| builder.queues(&part.lock().checkers));
        builder.finish(&self.shared.gauge)
    }

    fn is_heard(&self) -> bool {
        !self.member.has_crashed.load(Ordering::Acquire)
    }

    fn queue_part(&self, queue: QueueId) -> MutexGuard<'_, QueuePart> {
        self.shared.queues[part_of(queue)].lock()
    }

    fn note_key(&self, item: &Item, event: &Event<'_>) {
        if self.is_heard() {
            self.note_lane(item.queue, &item.lane, event);
        }
    }

    fn note_lane(&self, queue: QueueId, lane: &Lane, event: &Event<'_>) {
        if let Some(id) = lane.in_process(queue) {
            self.shared.keys[id.part(KEY_PARTS)].lock().observe(event);
        }
    }

    fn write(&self, event: &Event<'_>) {
        if let Some(journal) = &self.shared.journal {
            journal.write(self.member.id, event);
        }
    }

    /// Tells every part.
    fn spread(&self, event: &Event<'_>) {
        self.shared.keys.iter().for_each(|part| part.lock().observe(event));
        self.shared.queues.iter().for_each(|part| part.lock().checkers.observe(event));
    }
}

// What a panicking listener leaves behind is a call, and that has failed; the checkers behind the
// locks do not run the listener's code.
impl UnwindSafe for Recorder {}
impl RefUnwindSafe for Recorder {}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("scope", &self.shared.scope)
            .field("member", &self.member.id)
            .finish_non_exhaustive()
    }
}

fn part_of(queue: QueueId) -> usize {
    queue.index() as usize % QUEUE_PARTS
}

/// Holds the lock of one part, as long as the next message belongs to it too.
struct QueueLock<'a> {
    shared: &'a Shared,
    held: Option<(usize, MutexGuard<'a, QueuePart>)>,
}

impl<'a> QueueLock<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, held: None }
    }

    fn part(&mut self, queue: QueueId) -> &mut QueuePart {
        let index = part_of(queue);
        let (_, guard) = match self.held.take() {
            Some(held) if held.0 == index => self.held.insert(held),
            other => {
                // Never two at a time: the old one goes before the new one is taken.
                drop(other);
                self.held.insert((index, self.shared.queues[index].lock()))
            }
        };
        guard
    }
}
