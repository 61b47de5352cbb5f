//! Queues come and go.
//!
//! ```text
//! Assigned ─► (Locking ─►) LookingUp ─► Reading ─► Closing ─► fenced, last commit ─► release
//!                ▲               ▲         │ Reset, lock lost: fenced at once, a new epoch
//!                └───────────────┴─────────┘ Lost: fenced at once, no commit
//! ```
//!
//! A queue with a lock is looked up only after the lock is held: what was committed before could
//! still be moved by the lock's last owner.

use std::time::{Duration, Instant};

use keylane_source::{
    Committed, LockReply, QueueId, ResetCause, SeekTo, Source, SourceError, Watermark,
};

use super::coordinator::Coordinator;
use super::queue::{Closing, Left, Lock, Queue, Reading, Stage};
use super::tenure::{Phase, Tenure};
use crate::bug::bug;
use crate::config::OutOfRange;
use crate::observer::Event;
use crate::sync::removed;

/// How long after a refusal a lock is asked for again.
const LOCK_AGAIN: Duration = Duration::from_secs(1);

impl Coordinator {
    pub(super) fn assigned(
        &mut self,
        source: &mut dyn Source,
        id: QueueId,
        committed: Committed,
        now: Instant,
    ) {
        if self.slot(id).is_some() {
            self.lost(id); // The source did not say so; what comes now is another tenure.
        }
        let slot = self.slots.get(&id).copied().unwrap_or_else(|| self.make_slot(id));
        let before = std::mem::replace(&mut self.queues[slot], Queue::new(id));
        let Queue { dirty, unsettled, mut committer, .. } = before;
        committer.begin_epoch(None);
        let unread = Some((now, 0));
        self.queues[slot] = Queue { dirty, unsettled, committer, unread, ..Queue::new(id) };
        self.set_stage(slot, Stage::LookingUp { again_at: None, failures: 0 });
        self.undivided = true;
        if self.config.queue_locks && source.locks().is_some() {
            self.set_stage(slot, Stage::Locking { again_at: Some(now) });
        } else {
            self.looked_up(source, id, committed, now);
        }
    }

    fn make_slot(&mut self, id: QueueId) -> usize {
        let slot = self.queues.len();
        self.queues.push(Queue::new(id));
        self.slots.insert(id, slot);
        self.make_shard(slot);
        slot
    }

    pub(super) fn set_stage(&mut self, slot: usize, stage: Stage) {
        self.queues[slot].stage = stage;
        self.list_unsettled(slot);
    }

    fn list_unsettled(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.queues[slot].unsettled, true) {
            self.unsettled.push(slot);
        }
    }

    /// Divides the budget anew, if queues have come or gone.
    pub(super) fn divide_budget(&mut self) {
        if !std::mem::take(&mut self.undivided) {
            return;
        }
        let used = |queue: &Queue| queue.reading.as_ref().map_or_else(Default::default, |r| r.used);
        self.budget.divide(self.queues.iter().filter(|queue| queue.is_assigned()).map(used));
    }

    /// What was committed is known, or not.
    pub(super) fn looked_up(
        &mut self,
        source: &mut dyn Source,
        id: QueueId,
        committed: Committed,
        now: Instant,
    ) {
        let Some(slot) = self.slot(id) else { return };
        let Stage::LookingUp { failures, .. } = self.queues[slot].stage else { return };
        match committed {
            Committed::At { watermark, .. } => {
                let from = SeekTo::Position(watermark.into());
                self.begin(source, slot, from, Some(watermark));
            }
            Committed::Failed(_) if bug!("failed_look_up_is_none") => {
                self.begin(source, slot, self.config.start_from.into(), None);
            }
            Committed::None => self.begin(source, slot, self.config.start_from.into(), None),
            Committed::Failed(error) => self.look_up_failed(slot, error, failures + 1, now),
            other => {
                let error = SourceError::retryable(format!("unknown answer {other:?}"));
                self.look_up_failed(slot, error, failures + 1, now);
            }
        }
    }

    fn look_up_failed(&mut self, slot: usize, error: SourceError, failures: u32, now: Instant) {
        let again_in = self.config.failure.delay(failures, &mut self.random);
        self.set_stage(slot, Stage::LookingUp { again_at: Some(now + again_in), failures });
        let queue = self.queues[slot].id;
        self.shared.report_later(Event::LookUpFailed { queue, error, failures, again_in });
    }

    /// Starts an epoch.
    fn begin(
        &mut self,
        source: &mut dyn Source,
        slot: usize,
        from: SeekTo,
        acknowledged: Option<Watermark>,
    ) {
        self.epochs += 1;
        let queue = &mut self.queues[slot];
        let lock = queue.lock.and_then(|lock| lock.until);
        let tenure = Tenure::new(queue.id, self.epochs, slot, lock);
        queue.reading = Some(Reading::new(tenure, from, self.looks));
        queue.committer.begin_epoch(acknowledged);
        (queue.stage, queue.unread) = (Stage::Reading, None);
        let position = match from {
            SeekTo::Position(position) => Some(position),
            _ => None,
        };
        let (queue, epoch) = (queue.id, self.epochs);
        self.shared.report_later(Event::Started { queue, epoch, position });
        // Where it starts is to be committed, if that is not where the group was.
        self.mark_dirty(slot);
        source.seek(queue, from);
        if self.stopping.is_some() {
            return source.pause(queue); // Nothing more is admitted.
        }
        // A source may have kept the queue paused from before.
        source.resume(queue);
    }

    /// Ends an epoch: no call of it begins from now on. Returns the shards where something of the
    /// queue is under way, be it of an earlier epoch: it would reach into the next owner's time.
    fn end_epoch(&mut self, slot: usize, phase: Phase) -> Vec<usize> {
        let queue = &mut self.queues[slot];
        let epoch = queue.reading.as_mut().map(|reading| {
            if !removed!("end a tenure before its calls are looked for") {
                reading.tenure.move_to(phase);
            }
            let used = reading.used;
            if !bug!("revoke_keeps_budget") {
                self.budget.release(&mut reading.used, used.messages, used.bytes);
            }
            reading.drop_stash();
            reading.tenure.epoch
        });
        self.router.drop_ended(|tenure| Some(tenure.epoch) == epoch);
        let mut busy = Vec::new();
        for cell in &self.shards {
            let mut shard = cell.shard.lock();
            if let Some(epoch) = epoch {
                shard.end_tenure(epoch, queue.id);
            }
            if shard.busy_with(queue.id).is_some() {
                busy.push(cell.index);
            }
            drop(shard);
            cell.nudge();
        }
        if removed!("end a tenure before its calls are looked for")
            && let Some(reading) = &self.queues[slot].reading
        {
            reading.tenure.move_to(phase);
        }
        busy
    }

    /// The group takes the queue away.
    pub(super) fn revoking(&mut self, source: &mut dyn Source, id: QueueId, now: Instant) {
        let Some(slot) = self.slot(id) else {
            self.forget(id);
            return source.release(id); // A queue that failed, or that was never begun.
        };
        if matches!(self.queues[slot].stage, Stage::Closing(_)) {
            return;
        }
        self.shared.report_later(Event::Revoking { queue: id });
        // What came now would be thrown away.
        source.pause(id);
        let busy = self.end_epoch(slot, Phase::Closing);
        let until = now + self.config.revoke_timeout;
        self.set_stage(
            slot,
            Stage::Closing(Closing { until, busy, fenced: false, timed_out: false }),
        );
    }

    /// The queue is gone; somebody else may have it.
    pub(super) fn lost(&mut self, id: QueueId) {
        let Some(slot) = self.slot(id) else { return self.forget(id) };
        self.end_epoch(slot, Phase::Fenced);
        let unfinished = self.queues[slot].has_left().unfinished;
        self.gone(slot);
        self.shared.report_later(Event::Lost { queue: id, unfinished });
    }

    /// A queue that ended with an error is not ours any more, nor is its trouble.
    fn forget(&mut self, id: QueueId) {
        if let Some(&slot) = self.slots.get(&id) {
            self.queues[slot].stage = Stage::Gone;
        }
    }

    fn gone(&mut self, slot: usize) {
        let queue = &mut self.queues[slot];
        (queue.stage, queue.reading, queue.lock) = (Stage::Gone, None, None);
        self.undivided = true;
    }

    /// What was read is no longer the continuation of what comes.
    pub(super) fn reset(
        &mut self,
        source: &mut dyn Source,
        id: QueueId,
        cause: ResetCause,
        now: Instant,
    ) {
        let Some(slot) = self.slot(id) else { return };
        match &self.queues[slot].stage {
            Stage::Reading => {}
            Stage::Closing(_) => return self.reset_closing(slot, cause),
            _ => return, // It has not begun.
        }
        self.shared.report_later(Event::Reset { queue: id, cause: cause.clone() });
        let busy = self.end_epoch(slot, Phase::Fenced);
        match cause {
            ResetCause::OutOfRange { asked, begin, end } => match self.config.out_of_range {
                OutOfRange::Earliest => self.begin(source, slot, SeekTo::Position(begin), None),
                OutOfRange::Latest => self.begin(source, slot, SeekTo::Position(end), None),
                OutOfRange::Fail => {
                    let error = SourceError::fatal(format!(
                        "{id}: position {asked} is out of range, the broker has {begin} to {end}"
                    ));
                    self.fail_queue(source, slot, error, &busy);
                }
            },
            ResetCause::Moved { to } => {
                self.begin(source, slot, SeekTo::Position(to), Some(to.into()));
            }
            ResetCause::Recreated { begin } => {
                self.begin(source, slot, SeekTo::Position(begin.into()), None);
            }
            other => {
                // Unknown here: what was committed is the one thing to go by.
                log::warn!(target: "keylane", "{id}: unknown reset {other:?}");
                self.look_up_again(source, slot, now);
            }
        }
    }

    /// A queue at its end is not begun anew; but what it has finished is not to be committed over
    /// the reset.
    fn reset_closing(&mut self, slot: usize, cause: ResetCause) {
        let queue = &mut self.queues[slot];
        if let Some(reading) = &queue.reading {
            reading.tenure.move_to(Phase::Fenced);
            queue.end_reading_at_reset();
            self.shared.report_later(Event::Reset { queue: queue.id, cause });
        }
    }

    fn look_up_again(&mut self, source: &mut dyn Source, slot: usize, now: Instant) {
        self.queues[slot].end_reading_at_reset();
        self.queues[slot].unread = Some((now, 0));
        self.set_stage(slot, Stage::LookingUp { again_at: Some(now), failures: 0 });
        source.pause(self.queues[slot].id);
    }

    /// One queue has trouble.
    pub(super) fn queue_error(&mut self, source: &mut dyn Source, id: QueueId, error: SourceError) {
        let Some(slot) = self.slot(id) else { return };
        if error.is_retryable() {
            return self.shared.report_later(Event::QueueTrouble { queue: id, error });
        }
        let queue = &mut self.queues[slot];
        if matches!(queue.stage, Stage::Closing(_)) {
            // It is given back all the same, once what runs has returned: the group waits for that.
            if let Some(reading) = &queue.reading {
                reading.tenure.move_to(Phase::Fenced);
            }
            queue.end_reading();
            return self.shared.report_later(Event::QueueFailed { queue: id, error });
        }
        let busy = self.end_epoch(slot, Phase::Fenced);
        self.fail_queue(source, slot, error, &busy);
    }

    /// `busy`: the shards in which something of the queue is still running.
    fn fail_queue(
        &mut self,
        source: &mut dyn Source,
        slot: usize,
        error: SourceError,
        busy: &[usize],
    ) {
        let queue = &mut self.queues[slot];
        let id = queue.id;
        queue.stage = Stage::Failed(error.clone());
        queue.end_reading();
        // Somebody else may do better. Where something is still under way, the lock expires.
        let free = queue.lock.take().is_some() && busy.is_empty();
        if let Some(locks) = source.locks().filter(|_| free && !queue.committer.is_under_way()) {
            locks.release(&[id]);
        }
        self.undivided = true;
        source.pause(id);
        self.shared.report_later(Event::QueueFailed { queue: id, error });
    }

    /// A queue's lock was granted, refused or lost.
    pub(super) fn lock_reply(
        &mut self,
        source: &mut dyn Source,
        id: QueueId,
        reply: LockReply,
        now: Instant,
    ) {
        let Some(slot) = self.slot(id) else { return };
        let queue = &mut self.queues[slot];
        let locking = matches!(queue.stage, Stage::Locking { .. });
        if matches!(reply, LockReply::Lost) {
            queue.asks.void(now);
            return self.lock_lost(source, slot, now);
        }
        let Some(asked_at) = queue.asks.answered(now) else { return };
        if locking {
            // As long as it is not held, being asked for is all that there is to it.
            queue.lock = None;
        }
        match reply {
            LockReply::Held => self.lock_held(source, slot, asked_at, now),
            LockReply::Refused if locking => {
                self.set_stage(slot, Stage::Locking { again_at: Some(now + LOCK_AGAIN) });
                self.shared.report_later(Event::LockRefused { queue: id, error: None });
            }
            LockReply::Failed(error) => {
                if locking {
                    self.set_stage(slot, Stage::Locking { again_at: Some(now + LOCK_AGAIN) });
                }
                self.shared.report_later(Event::LockRefused { queue: id, error: Some(error) });
            }
            LockReply::Refused => self.lock_lost(source, slot, now),
            other => log::warn!(target: "keylane", "{id}: unknown lock reply {other:?}"),
        }
    }

    /// The lock is held, as of when it was asked for.
    fn lock_held(&mut self, source: &mut dyn Source, slot: usize, asked_at: Instant, now: Instant) {
        let Some(lease) = source.locks().map(|locks| locks.lease()) else { return };
        let queue = &mut self.queues[slot];
        let locking = matches!(queue.stage, Stage::Locking { .. });
        if asked_at + lease <= now {
            // Granted so long ago that it is over.
            if locking && !queue.asks.are_open() {
                self.set_stage(slot, Stage::Locking { again_at: Some(now) });
            }
            return;
        }
        if locking {
            let id = queue.id;
            queue.lock = Some(Lock::granted(lease, asked_at));
            self.set_stage(slot, Stage::LookingUp { again_at: None, failures: 0 });
            return source.look_up_committed(id);
        }
        let Some(lock) = &mut queue.lock else { return };
        *lock = Lock::granted(lease, asked_at);
        if let (Some(until), Some(reading)) = (lock.until, &queue.reading) {
            reading.tenure.renew(until);
        }
    }

    fn lock_lost(&mut self, source: &mut dyn Source, slot: usize, now: Instant) {
        self.end_epoch(slot, Phase::Fenced);
        let queue = &mut self.queues[slot];
        queue.end_reading();
        queue.lock = None;
        let id = queue.id;
        self.shared.report_later(Event::LockLost { queue: id });
        if matches!(self.queues[slot].stage, Stage::Closing(_)) {
            return; // Its end is under way, and has nothing left to commit.
        }
        // What came now would be thrown away.
        source.pause(id);
        self.queues[slot].unread.get_or_insert((now, 0));
        self.set_stage(slot, Stage::Locking { again_at: Some(now) });
    }

    /// Timers of queues that are locking, looking up or closing, and of locks that are held.
    pub(super) fn look_after_queues(&mut self, source: &mut dyn Source, now: Instant) {
        if self.unsettled.is_empty() {
            return;
        }
        // Before the shards are looked at: a call that ends after that look wakes this thread.
        if !removed!("attend before the shards are looked at") {
            self.shared.signals.attend(self.waits_for_calls());
        }
        let mut acquire = Vec::new();
        for slot in std::mem::take(&mut self.unsettled) {
            self.queues[slot].unsettled = false;
            self.look_after_lock(source, slot, &mut acquire, now);
            match &mut self.queues[slot].stage {
                Stage::Locking { again_at } if again_at.is_some_and(|at| at <= now) => {
                    *again_at = None;
                    acquire.push(slot);
                }
                Stage::LookingUp { again_at, .. } if again_at.is_some_and(|at| at <= now) => {
                    *again_at = None;
                    source.look_up_committed(self.queues[slot].id);
                }
                Stage::Closing(_) => self.look_after_closing(source, slot, now),
                _ => {}
            }
            let queue = &self.queues[slot];
            let settled = matches!(queue.stage, Stage::Reading | Stage::Gone | Stage::Failed(_));
            if !settled || queue.lock.is_some() {
                self.list_unsettled(slot);
            }
        }
        self.shared.signals.attend(self.waits_for_calls());
        self.acquire_locks(source, &acquire, now);
    }

    fn waits_for_calls(&self) -> bool {
        let closing = |&slot: &usize| matches!(self.queues[slot].stage, Stage::Closing(_));
        self.stopping.is_some() || self.unsettled.iter().any(closing)
    }

    fn look_after_lock(
        &mut self,
        source: &mut dyn Source,
        slot: usize,
        acquire: &mut Vec<usize>,
        now: Instant,
    ) {
        let queue = &mut self.queues[slot];
        let Some(lock) = queue.lock else { return };
        let expired = queue.reading.as_ref().is_some_and(|r| r.tenure.phase() == Phase::Expired);
        if lock.until.is_some_and(|until| now >= until) || expired {
            return self.lock_lost(source, slot, now);
        }
        if now >= lock.renew_at && queue.renews_lock() {
            acquire.push(slot);
        }
    }

    fn acquire_locks(&mut self, source: &mut dyn Source, slots: &[usize], now: Instant) {
        let Some(locks) = source.locks().filter(|_| !slots.is_empty()) else { return };
        let lease = locks.lease();
        let queues: Vec<_> = slots.iter().map(|&slot| self.queues[slot].id).collect();
        for &slot in slots {
            let queue = &mut self.queues[slot];
            Lock::ask(&mut queue.lock, lease, now);
            queue.asks.ask(lease, now);
        }
        locks.acquire(&queues);
    }

    /// A revoke: first what runs, then the last commit, then the release.
    fn look_after_closing(&mut self, source: &mut dyn Source, slot: usize, now: Instant) {
        let queue = &mut self.queues[slot];
        let Stage::Closing(closing) = &mut queue.stage else { return };
        let (id, shards) = (queue.id, &self.shards);
        closing.busy.retain(|&shard| shards[shard].shard.lock().busy_with(id).is_some());
        if !closing.busy.is_empty() && now < closing.until {
            return;
        }
        if !closing.fenced {
            closing.fenced = true;
            closing.timed_out = !closing.busy.is_empty();
            // The last commit has as long again as a short drain would have had.
            closing.until = closing.until.max(now) + self.config.revoke_timeout / 4;
            let busy = std::mem::take(&mut closing.busy);
            self.fence(slot, &busy);
            if bug!("commit_after_release") {
                source.release(self.queues[slot].id);
            }
        }
        self.commit(source, slot, now);
        let queue = &mut self.queues[slot];
        let watermark = queue.watermark();
        let stored = watermark.is_none_or(|watermark| !queue.committer.lags(watermark));
        let Stage::Closing(closing) = &queue.stage else { return };
        if !stored && now < closing.until {
            return;
        }
        // A call or a commit under way could still reach into the next owner's time.
        let free = !closing.timed_out && !queue.committer.is_under_way();
        let free = free || bug!("release_lock_under_call");
        let (id, locked) = (queue.id, queue.lock.is_some());
        let (Left { watermark, unfinished, .. }, committed) =
            (queue.has_left(), queue.committer.acknowledged());
        self.gone(slot);
        if let Some(locks) = source.locks().filter(|_| locked && free) {
            locks.release(&[id]);
        }
        source.release(id);
        self.shared.report_later(Event::Revoked { queue: id, watermark, committed, unfinished });
    }

    /// The bound has come, or everything has ended: nothing counts any more.
    fn fence(&self, slot: usize, busy: &[usize]) {
        let queue = &self.queues[slot];
        if let Some(reading) = &queue.reading {
            reading.tenure.move_to(Phase::Fenced);
        }
        for &shard in busy {
            let running = self.shards[shard].shard.lock().busy_with(queue.id);
            if let Some((offset, key)) = running {
                self.shared.report_later(Event::RevokeTimedOut {
                    queue: queue.id,
                    shard,
                    offset,
                    key,
                });
            }
        }
    }
}

impl Queue {
    /// When time alone changes something about the queue.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let stage = match &self.stage {
            Stage::Locking { again_at } | Stage::LookingUp { again_at, .. } => *again_at,
            Stage::Closing(closing) => {
                let commit = self.committer.next_due().filter(|_| closing.fenced);
                Some(commit.map_or(closing.until, |at| at.min(closing.until)))
            }
            Stage::Reading | Stage::Failed(_) | Stage::Gone => None,
        };
        stage.into_iter().chain(self.lock_due()).min()
    }
}
