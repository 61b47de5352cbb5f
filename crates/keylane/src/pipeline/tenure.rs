//! One tenure of a queue, from its assignment to the end of its revocation: what the source thread
//! and the shards share about it.
//!
//! Its identity is the `Arc`: a queue that comes back gets a new tenure, tracker and pages, so
//! nothing that a listener finishes late can touch what came after. Who writes what:
//!
//! | field | written by | read by |
//! | --- | --- | --- |
//! | phase | source thread; a shard that finds the queue's lock expired | shards, before a call |
//! | finished messages and bytes | shards, only ever growing | source thread |
//! | noted | shards set it, the source thread clears it | both |
//! | lock | source thread | shards, before a call |
//!
//! **A call and the end of a tenure** meet at the shard's mutex: the shard reads `phase` under it
//! before a call begins and notes the call there; the source thread writes `phase`, then takes the
//! mutex of each shard. Either the shard's turn comes first, and the source thread sees the call; or
//! it comes second, and the shard sees the phase. No call begins unseen.

use std::time::Instant;

use keylane_source::QueueId;

use crate::bug::bug;
use crate::sync::{AtomicBool, AtomicU8, AtomicU64, Mutex, Ordering, removed};

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Tenure {
    pub(crate) queue: QueueId,
    /// Different for each tenure of any queue; larger for the later one.
    pub(crate) epoch: u64,
    /// Where the source thread keeps the queue.
    pub(crate) slot: usize,
    phase: AtomicU8,
    /// Until when the queue's lock may be trusted, for sources that have locks.
    lock: Option<Mutex<Instant>>,
    done: Done,
}

/// Written by every shard: on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Done {
    messages: AtomicU64,
    bytes: AtomicU64,
    noted: AtomicBool,
}

/// How a tenure ends. It only ever moves down this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Calls may begin.
    Open = 0,
    /// The queue's lock ran out before it was renewed: no call begins.
    Expired = 1,
    /// No call begins; what runs is awaited, and counts.
    Closing = 2,
    /// Nothing counts any more.
    Fenced = 3,
}

impl Tenure {
    pub(crate) fn new(queue: QueueId, epoch: u64, slot: usize, lock: Option<Instant>) -> Self {
        let (phase, lock) = (AtomicU8::new(Phase::Open as u8), lock.map(Mutex::new));
        Self { queue, epoch, slot, phase, lock, done: Done::default() }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Open,
            1 => Phase::Expired,
            2 => Phase::Closing,
            _ => Phase::Fenced,
        }
    }

    /// Whether calls may begin, as far as is known without asking the clock.
    pub(crate) fn is_open(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == Phase::Open as u8
    }

    /// Moves on to `phase`; never back.
    pub(crate) fn move_to(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    /// Whether a call may begin now. To be asked under the shard's mutex. A lock found expired ends
    /// the tenure for good: what another shard may have skipped must not be passed by a renewal.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let asks = !bug!("skip_epoch_check") && !removed!("a call asks for its tenure");
        if asks && self.phase() != Phase::Open {
            return false;
        }
        match &self.lock {
            Some(until) if *until.lock() <= now && !bug!("trust_expired_lock") => {
                self.move_to(Phase::Expired);
                false
            }
            _ => true,
        }
    }

    /// Prolongs the lock.
    pub(crate) fn renew(&self, until: Instant) {
        if let Some(lock) = &self.lock {
            let mut lock = lock.lock();
            *lock = until.max(*lock);
        }
    }

    /// Counts messages that leave the budget. True when this is the first since the source thread
    /// looked: then it has to be told.
    pub(crate) fn finish(&self, messages: u64, bytes: u64) -> bool {
        self.done.messages.fetch_add(messages, Ordering::Relaxed);
        self.done.bytes.fetch_add(bytes, Ordering::Relaxed);
        // AcqRel: pairs with `looked`. If the flag was still set, the source thread has yet to take
        // it, and sees the two additions above when it does.
        !self.done.noted.swap(true, Ordering::AcqRel)
    }

    /// The messages and bytes finished so far.
    #[cfg(feature = "sim")]
    pub(crate) fn finished(&self) -> (u64, u64) {
        (self.done.messages.load(Ordering::Relaxed), self.done.bytes.load(Ordering::Relaxed))
    }

    /// Clears the note and returns the messages and bytes finished so far.
    pub(crate) fn looked(&self) -> (u64, u64) {
        let order = if removed!("order the note") { Ordering::Relaxed } else { Ordering::AcqRel };
        self.done.noted.swap(false, order);
        (self.done.messages.load(Ordering::Relaxed), self.done.bytes.load(Ordering::Relaxed))
    }
}
