//! The broker that all processes of the group share: logs with holes, who owns which queue, what is
//! stored for the group, and locks that expire. It knows nothing of the engine.

use std::collections::BTreeMap;
use std::time::Instant;

use keylane_source::{Commit, Message, Offset, Position, QueueId, ResetCause, Watermark};
use keylane_testkit::guarantee::{Epoch, MemberId};

use super::plan::Plan;
use super::random::Random;

/// See the module's description.
pub(super) struct Broker {
    pub(super) queues: Vec<BrokerQueue>,
    /// Commits on their way, in the order in which they were sent.
    pub(super) commits: Vec<SentCommit>,
    slots: BTreeMap<QueueId, usize>,
}

/// A queue as the broker has it.
pub(super) struct BrokerQueue {
    pub(super) id: QueueId,
    /// Ascending; an offset that is missing holds no message.
    pub(super) log: Vec<Record>,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) stored: Option<Watermark>,
    /// How often something was stored.
    pub(super) stores: u64,
    pub(super) owner: Option<MemberId>,
    /// Counts assignments: a member with an older number is not the owner any more.
    pub(super) generation: u64,
    /// Counts resets: a commit from before is refused.
    pub(super) fence: u64,
    /// Counts topics of this name.
    pub(super) incarnation: u64,
    /// It is to be given back until then.
    pub(super) give_back_until: Option<Instant>,
    /// It has no owner and gets one then.
    pub(super) assign_at: Option<Instant>,
    pub(super) lock: Option<(MemberId, Instant)>,
    /// From whom the broker has taken the lock, each until it asks for it again.
    pub(super) lock_taken_from: Vec<MemberId>,
    /// A reset that the owner has not been told of.
    pub(super) untold: Option<ResetCause>,
}

/// A message, in few bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) offset: u64,
    pub(super) key: Key,
    pub(super) size: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Key {
    None,
    Empty,
    Nth(usize),
}

/// A commit that the broker has yet to look at.
pub(super) struct SentCommit {
    pub(super) member: MemberId,
    pub(super) commit: Commit,
    pub(super) generation: u64,
    pub(super) fence: u64,
    /// In which epoch it was asked for, where the watchers know of that.
    pub(super) epoch: Option<Epoch>,
    /// When the broker looks at it.
    pub(super) at: Instant,
    /// Whether it is stored, if the sender may commit.
    pub(super) is_stored: bool,
    /// What the sender hears then, and when; `None`: nothing.
    pub(super) answer: Option<(bool, Instant)>,
}

impl Broker {
    pub(super) fn new(queues: usize) -> Self {
        let mut broker = Self { queues: Vec::new(), commits: Vec::new(), slots: BTreeMap::new() };
        (0..queues).for_each(|_| broker.grow());
        broker
    }

    /// Adds a queue.
    pub(super) fn grow(&mut self) {
        let index = u32::try_from(self.queues.len()).expect("there are few queues");
        let id = QueueId::new("sim", index);
        self.slots.insert(id, self.queues.len());
        self.queues.push(BrokerQueue::new(id));
    }

    pub(super) fn slot(&self, queue: QueueId) -> usize {
        self.slots[&queue]
    }

    pub(super) fn queue(&mut self, queue: QueueId) -> &mut BrokerQueue {
        let slot = self.slots[&queue];
        &mut self.queues[slot]
    }

    /// When the broker has to do something by itself.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let queues = self.queues.iter().flat_map(|q| [q.give_back_until, q.assign_at]).flatten();
        queues.chain(self.commits.iter().map(|sent| sent.at)).min()
    }

    /// The next commit whose time has come, in the order in which they were sent.
    pub(super) fn take_due_commit(&mut self, now: Instant) -> Option<SentCommit> {
        let due = self.commits.iter().position(|sent| sent.at <= now)?;
        Some(self.commits.remove(due))
    }
}

impl BrokerQueue {
    fn new(id: QueueId) -> Self {
        Self {
            id,
            log: Vec::new(),
            begin: 0,
            end: 0,
            stored: None,
            stores: 0,
            owner: None,
            generation: 0,
            fence: 0,
            incarnation: 0,
            give_back_until: None,
            assign_at: None,
            lock: None,
            lock_taken_from: Vec::new(),
            untold: None,
        }
    }

    /// Whether a commit of this sender counts.
    pub(super) fn accepts(&self, sent: &SentCommit) -> bool {
        self.owner == Some(sent.member)
            && self.generation == sent.generation
            && self.fence == sent.fence
    }

    /// Who holds the lock at this time.
    pub(super) fn holder(&self, now: Instant) -> Option<MemberId> {
        self.lock.filter(|(_, until)| *until > now).map(|(holder, _)| holder)
    }

    /// The first record at or behind this offset, as an index into the log.
    pub(super) fn seek(&self, offset: u64) -> usize {
        self.log.partition_point(|record| record.offset < offset)
    }

    /// Appends messages, with holes between them. Returns where the new ones begin in the log.
    pub(super) fn produce(&mut self, count: u64, plan: &Plan, random: &mut Random) -> usize {
        let before = self.log.len();
        for _ in 0..count {
            while random.chance(plan.hole) {
                self.end += random.between(1, 3);
            }
            let key = match () {
                () if random.chance(plan.no_key) => Key::None,
                () if random.chance(plan.empty_key) => Key::Empty,
                () if random.chance(plan.hot_key) => Key::Nth(0),
                () => Key::Nth(random.index(plan.keys.len())),
            };
            let size = random.index(plan.payload_max + 1);
            self.log.push(Record { offset: self.end, key, size });
            self.end += 1;
        }
        before
    }

    /// The offsets from this place of the log on, as runs without a hole.
    pub(super) fn runs(&self, from: usize) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for record in &self.log[from..] {
            match runs.last_mut() {
                Some((_, end)) if *end == record.offset => *end += 1,
                _ => runs.push((record.offset, record.offset + 1)),
            }
        }
        runs
    }

    /// Retention: what lies before this position is gone.
    pub(super) fn truncate(&mut self, begin: u64) {
        self.begin = self.begin.max(begin);
        let gone = self.seek(self.begin);
        self.log.drain(..gone);
    }

    /// The topic is deleted and created again, empty.
    pub(super) fn recreate(&mut self) {
        (self.begin, self.end, self.stored) = (0, 0, None);
        self.log.clear();
        self.fence += 1;
        self.incarnation += 1;
        self.untold = Some(ResetCause::Recreated { begin: Offset::ZERO });
    }

    /// An operator moves the group's offset.
    pub(super) fn move_offset(&mut self, to: u64) {
        let to = position(to);
        self.stored = Some(to.into());
        self.fence += 1;
        self.untold = Some(ResetCause::Moved { to });
    }

    pub(super) fn message(&self, record: Record, plan: &Plan) -> Message {
        static ZEROS: [u8; 4_096] = [0; 4_096];
        let offset = Offset::new(record.offset).expect("offsets are small here");
        let message = Message::new(self.id, offset)
            .with_payload(bytes::Bytes::from_static(&ZEROS[..record.size.min(ZEROS.len())]));
        match record.key {
            Key::None => message,
            Key::Empty => message.with_key(""),
            Key::Nth(key) => message.with_key(plan.keys[key].clone()),
        }
    }
}

pub(super) fn position(position: u64) -> Position {
    Position::new(position).expect("offsets are small here")
}
