//! The shard against a naive model: offers, calls, failures, tickets, revokes and time in any order.
//! What the model says: which messages may be called, whether any has to be, what is finished, and
//! what was given back to the budget.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::tests::{MS, Rig};
use super::*;
use crate::outcome::Outcome;
use crate::pipeline::tenure::Phase;

const KEYS: [&str; 3] = ["a", "b", "c"];
const BATCH: usize = 4;

/// One thing that happens; what it chooses from is reduced to what there is.
#[derive(Debug, Clone)]
enum Action {
    Offer {
        queue: usize,
        keys: Vec<usize>,
    },
    /// A call; each answer 0 fails, 1 is deferred, others succeed. Perhaps a queue is revoked while
    /// it runs.
    Call {
        answers: [u8; BATCH],
        revoked: Option<(usize, bool)>,
    },
    Ticket {
        which: usize,
        succeeds: bool,
    },
    Revoke {
        queue: usize,
        fenced: bool,
    },
    Wait {
        ms: u32,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let keys = prop::collection::vec(0..KEYS.len(), 1..6);
    let answers = || prop::array::uniform4(0..8_u8);
    prop_oneof![
        4 => (0..2_usize, keys).prop_map(|(queue, keys)| Action::Offer { queue, keys }),
        6 => answers().prop_map(|answers| Action::Call { answers, revoked: None }),
        1 => (answers(), 0..2_usize, any::<bool>()).prop_map(|(answers, queue, fenced)| {
            Action::Call { answers, revoked: Some((queue, fenced)) }
        }),
        3 => (0..8_usize, any::<bool>())
            .prop_map(|(which, succeeds)| Action::Ticket { which, succeeds }),
        1 => (0..2_usize, any::<bool>())
            .prop_map(|(queue, fenced)| Action::Revoke { queue, fenced }),
        2 => (1..400_u32).prop_map(|ms| Action::Wait { ms }),
    ]
}

/// A message by epoch and offset: epochs belong to one queue.
type Id = (u64, u64);

#[derive(Debug, Clone)]
struct Waiting {
    offset: u64,
    failed: u32,
}

/// The messages of one lane that are not finished, oldest first.
#[derive(Debug, Default)]
struct LaneModel {
    waiting: VecDeque<Waiting>,
    /// When the first one may be called.
    due: Option<Instant>,
    /// The first one is a ticket's.
    is_outside: bool,
}

#[derive(Debug)]
struct Model {
    /// Of open tenures, by epoch and key.
    lanes: BTreeMap<(u64, usize), LaneModel>,
    /// The epoch of each queue, and how it ended, of all that there were.
    epochs: [u64; 2],
    ended: BTreeMap<u64, Phase>,
    registered: BTreeMap<u64, u64>,
    finished: BTreeMap<u64, BTreeSet<u64>>,
    /// Ticket, message, key.
    tickets: Vec<(u64, Id, usize)>,
}

impl Model {
    fn phase(&self, epoch: u64) -> Phase {
        self.ended.get(&epoch).copied().unwrap_or(Phase::Open)
    }

    fn is_key_open(&self, key: usize) -> bool {
        self.tickets.iter().any(|(.., of)| *of == key)
    }

    /// Whether the first message of some lane may be called now.
    fn has_callable(&self, now: Instant) -> bool {
        self.lanes.iter().any(|((_, key), lane)| {
            let due = lane.due.is_none_or(|due| due <= now);
            !lane.waiting.is_empty() && !lane.is_outside && due && !self.is_key_open(*key)
        })
    }

    fn succeed(&mut self, (epoch, offset): Id, key: usize) {
        if self.phase(epoch) != Phase::Fenced {
            self.finished.entry(epoch).or_default().insert(offset);
        }
        if let Some(lane) = self.lanes.get_mut(&(epoch, key)) {
            assert_eq!(lane.waiting.pop_front().map(|first| first.offset), Some(offset));
            (lane.due, lane.is_outside) = (None, false);
        }
    }

    fn fail(&mut self, (epoch, offset): Id, key: usize, now: Instant) {
        let Some(lane) = self.lanes.get_mut(&(epoch, key)) else { return };
        let first = lane.waiting.front_mut().unwrap();
        assert_eq!(first.offset, offset);
        first.failed += 1;
        // The rig's policy: 100 ms, doubling up to a second.
        lane.due = Some(now + (100 * MS * 2_u32.pow(first.failed - 1)).min(1_000 * MS));
        lane.is_outside = false;
    }

    fn watermark(&self, epoch: u64) -> u64 {
        let finished = self.finished.get(&epoch);
        let is_done = |offset: &u64| finished.is_some_and(|finished| finished.contains(offset));
        let registered = self.registered.get(&epoch).copied().unwrap_or(0);
        (0..registered).find(|offset| !is_done(offset)).unwrap_or(registered)
    }
}

struct Both {
    rig: Rig,
    model: Model,
    tickets_made: u64,
    epochs_made: u64,
}

impl Both {
    fn new() -> Self {
        let model = Model {
            lanes: BTreeMap::new(),
            epochs: [1, 2],
            ended: BTreeMap::new(),
            registered: BTreeMap::new(),
            finished: BTreeMap::new(),
            tickets: Vec::new(),
        };
        Self { rig: Rig::new(BATCH), model, tickets_made: 0, epochs_made: 2 }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Offer { queue, keys } => self.offer(queue, &keys),
            Action::Call { answers, revoked } => drop(self.call(&answers, revoked)),
            Action::Ticket { which, succeeds } => self.ticket(which, succeeds),
            Action::Revoke { queue, fenced } => {
                self.revoke(queue, fenced);
                self.begin_again(queue);
            }
            Action::Wait { ms } => self.rig.now += ms * MS,
        }
        for queue in 0..2 {
            let epoch = self.model.epochs[queue];
            let finished = self.model.finished.get(&epoch).map_or(0, BTreeSet::len) as u64;
            assert_eq!(self.rig.watermark(queue), self.model.watermark(epoch), "queue {queue}");
            assert_eq!(self.rig.finished(queue), finished, "given back, queue {queue}");
        }
    }

    fn offer(&mut self, queue: usize, keys: &[usize]) {
        let names: Vec<_> = keys.iter().map(|key| KEYS[*key]).collect();
        self.rig.offer(queue, &names);
        let epoch = self.model.epochs[queue];
        let next = self.model.registered.entry(epoch).or_default();
        for key in keys {
            let waiting = Waiting { offset: *next, failed: 0 };
            self.model.lanes.entry((epoch, *key)).or_default().waiting.push_back(waiting);
            *next += 1;
        }
    }

    /// Returns how many messages the call had.
    fn call(&mut self, answers: &[u8], revoked: Option<(usize, bool)>) -> usize {
        let called = self.rig.next();
        let now = self.rig.now;
        if called.is_empty() {
            assert!(!self.model.has_callable(now), "nothing is called of {:?}", self.model);
            return 0;
        }
        self.check_order(&called);
        let epochs = self.model.epochs;
        if let Some((queue, fenced)) = revoked {
            self.revoke(queue, fenced);
        }
        let (mut held, mut open) = (BTreeSet::new(), BTreeSet::new());
        for (index, (queue, offset)) in called.iter().enumerate() {
            let id = (epochs[*queue as usize], *offset);
            let key = self.key_at(index);
            let admits = self.rig.verdicts.admits(&self.rig.call, index);
            assert_eq!(admits, !held.contains(&(id.0, key)) && !open.contains(&key));
            if !admits {
                held.insert((id.0, key));
                continue;
            }
            let verdict = match answers[index % answers.len()] {
                0 => {
                    held.insert((id.0, key));
                    self.model.fail(id, key, now);
                    Verdict::failed("no", None)
                }
                1 => {
                    held.insert((id.0, key));
                    open.insert(key);
                    self.tickets_made += 1;
                    self.model.tickets.push((self.tickets_made, id, key));
                    if let Some(lane) = self.model.lanes.get_mut(&(id.0, key)) {
                        lane.is_outside = true;
                    }
                    Verdict::Deferred(TicketId(self.tickets_made))
                }
                _ => {
                    self.model.succeed(id, key);
                    Verdict::Done
                }
            };
            self.rig.verdicts.decide(&self.rig.call, index, verdict);
        }
        self.rig.settle();
        if let Some((queue, _)) = revoked {
            self.begin_again(queue);
        }
        called.len()
    }

    /// Each lane's messages are its first ones, and the lane may be called.
    fn check_order(&self, called: &[(u32, u64)]) {
        let mut taken: BTreeMap<(u64, usize), usize> = BTreeMap::new();
        for (index, (queue, offset)) in called.iter().enumerate() {
            let (epoch, key) = (self.model.epochs[*queue as usize], self.key_at(index));
            assert!(!self.model.is_key_open(key), "called beside its ticket: {:?}", self.model);
            let lane = self.model.lanes.get(&(epoch, key)).expect("of an open tenure");
            let place = taken.entry((epoch, key)).or_default();
            let expected = lane.waiting.get(*place).map(|waiting| waiting.offset);
            assert_eq!(expected, Some(*offset), "order of {}: {:?}", KEYS[key], self.model);
            assert!(lane.due.is_none_or(|due| due <= self.rig.now), "called before it is due");
            *place += 1;
        }
    }

    fn key_at(&self, index: usize) -> usize {
        let key = self.rig.call.messages[index].key().unwrap();
        KEYS.iter().position(|known| known.as_bytes() == key).unwrap()
    }

    fn ticket(&mut self, which: usize, succeeds: bool) {
        if self.model.tickets.is_empty() {
            return;
        }
        let which = which % self.model.tickets.len();
        let (ticket, id, key) = self.model.tickets.remove(which);
        if succeeds {
            self.rig.settle_ticket(ticket, Ok(Outcome::Done));
            self.model.succeed(id, key);
        } else {
            self.rig.settle_ticket(ticket, Err("no".into()));
            self.model.fail(id, key, self.rig.now);
        }
    }

    /// The first half of a revoke: what waits is dropped.
    fn revoke(&mut self, queue: usize, fenced: bool) {
        let epoch = self.model.epochs[queue];
        let phase = if fenced { Phase::Fenced } else { Phase::Closing };
        self.rig.end(queue, phase);
        self.model.ended.insert(epoch, phase);
        self.model.lanes.retain(|(of, _), _| *of != epoch);
    }

    /// The second half: the queue comes back, with nothing.
    fn begin_again(&mut self, queue: usize) {
        let epoch = self.model.epochs[queue];
        assert_eq!(self.rig.watermark(queue), self.model.watermark(epoch), "of the tenure's end");
        self.epochs_made += 1;
        self.model.epochs[queue] = self.epochs_made;
        self.rig.begin_again(queue, self.epochs_made);
    }
}

proptest! {
    #[test]
    fn agrees_with_a_naive_model(actions in prop::collection::vec(action(), 1..120)) {
        let mut both = Both::new();
        for action in actions {
            both.act(action);
        }
        // At last everything succeeds, and nothing is forgotten.
        loop {
            both.act(Action::Ticket { which: 0, succeeds: true });
            both.act(Action::Wait { ms: 1_000 });
            let called = both.call(&[2; BATCH], None);
            if called == 0 && both.model.tickets.is_empty() {
                break;
            }
        }
        for queue in 0..2 {
            let epoch = both.model.epochs[queue];
            let registered = both.model.registered.get(&epoch).copied().unwrap_or(0);
            prop_assert_eq!(both.rig.watermark(queue), registered);
        }
        prop_assert!(both.rig.shard.is_drained());
        prop_assert_eq!(both.rig.shard.lanes_held(), 0);
    }
}
