//! What holds between any two steps, and what must not hold when everybody waits: for the simulator,
//! which asks after each step. Nothing here changes anything.

use std::time::Instant;

use keylane_source::{QueueId, Watermark};

use super::budget::Used;
use super::cell::ShardCell;
use super::coordinator::{Coordinator, SCARCE};
use super::queue::{Queue, Stage};
use super::shared::{GateState, Posted};
use super::tenure::Phase;
use super::tracker::Tracker;

/// The first thing that is wrong, in words.
pub(crate) type Audited = Result<(), String>;

/// `Err` with these words unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)*) => {
        if !$holds {
            return Err(format!($($words)*));
        }
    };
}
pub(super) use ensure;

impl Coordinator {
    /// The invariants; `deep` asks also for those that cost more than a step.
    pub(crate) fn audit(&self, deep: bool) -> Audited {
        self.audit_budget()?;
        self.queues.iter().try_for_each(|queue| self.audit_queue(queue))?;
        let counters = &self.counters;
        let taken = counters.admitted + counters.repeated;
        ensure!(counters.pulled >= taken, "{taken} were taken of {} pulled", counters.pulled);
        self.router.audit()?;
        if deep {
            self.audit_shards()?;
        }
        Ok(())
    }

    /// G5: what is in flight is what the budget says, and within it.
    fn audit_budget(&self) -> Audited {
        let all = self.queues.iter().filter_map(|queue| Some(queue.reading.as_ref()?.used));
        let add = |sum: Used, used: Used| Used {
            messages: sum.messages + used.messages,
            bytes: sum.bytes + used.bytes,
        };
        let (total, sum) = (self.budget.total(), all.fold(Used::default(), add));
        ensure!(total == sum, "the budget says {total:?}, its queues use {sum:?}");
        let queues = self.queues.iter().filter(|queue| queue.is_assigned()).count();
        let most = self.config.in_flight_max + queues.saturating_sub(1);
        ensure!(total.messages <= most, "{} messages in flight, {most} allowed", total.messages);
        Ok(())
    }

    fn audit_queue(&self, queue: &Queue) -> Audited {
        let Queue { id, .. } = queue;
        if self.stopping.is_some() {
            return Ok(()); // What waited was dropped.
        }
        let Some(reading) =
            queue.reading.as_ref().filter(|_| matches!(queue.stage, Stage::Reading))
        else {
            return Ok(());
        };
        let waits = reading.stash.len() > 0;
        ensure!(waits == reading.paused, "{id}: stash {waits}, paused {}", reading.paused);
        let most = self.config.queue_max();
        let used = reading.used.messages;
        ensure!(used <= most, "{id}: {used} messages in flight, {most} allowed");
        let Some(tracker) = &reading.tracker else { return Ok(()) };
        let (messages, _) = reading.tenure.finished();
        let unseen = messages - reading.seen.0;
        let unfinished = tracker.unfinished();
        ensure!(
            used as u64 == unfinished + unseen,
            "{id}: the budget has {used} messages, but {unfinished} are unfinished and {unseen} \
             were finished since"
        );
        let (span, most) = (tracker.span(), self.config.span_max);
        ensure!(span <= most, "{id}: a span of {span}, {most} allowed");
        Ok(())
    }

    /// G3: whatever is in flight is somewhere.
    fn audit_shards(&self) -> Audited {
        let mut there = self.router.in_hand() as u64;
        let mut stops = self.shared.stop_asked().is_some();
        for cell in &self.shards {
            let shard = cell.shard.lock();
            let index = cell.index;
            shard.audit().map_err(|wrong| format!("shard {index}: {wrong}"))?;
            there += shard.messages() as u64;
            stops |= shard.has_stopped();
        }
        let readings = self.queues.iter().filter_map(|queue| queue.reading.as_ref());
        // What has ended may have been dropped.
        let open = readings.filter(|reading| reading.tenure.phase() == Phase::Open);
        let trackers = open.filter_map(|reading| reading.tracker.as_ref());
        let unfinished: u64 = trackers.map(Tracker::unfinished).sum();
        ensure!(
            stops || there >= unfinished,
            "{unfinished} messages are unfinished, but only {there} can be found"
        );
        Ok(())
    }

    /// The watermark of each queue that is read, with its epoch.
    pub(crate) fn watermarks(&mut self) -> impl Iterator<Item = (QueueId, u64, Watermark)> {
        self.queues.iter_mut().filter_map(|queue| {
            let epoch = queue.reading.as_ref()?.tenure.epoch;
            Some((queue.id, epoch, queue.watermark()?))
        })
    }

    /// Whether the queue is read, and has brought nothing so far.
    pub(crate) fn has_read_nothing(&self, queue: QueueId) -> bool {
        let reading = self.slots.get(&queue).and_then(|&slot| self.queues[slot].reading.as_ref());
        reading.is_some_and(|reading| reading.tracker.is_none())
    }

    /// When the source thread waits for the source and all shards for messages or for time, nothing
    /// may be left that somebody could go on with: a wake-up was lost. `waits` says which shards
    /// wait; the source thread does `until` then.
    pub(crate) fn audit_rest(
        &self,
        now: Instant,
        until: Instant,
        waits: impl Fn(&ShardCell) -> bool,
    ) -> Audited {
        self.router.audit_rest()?;
        let admits = self.shared.gate.admits();
        for cell in self.shards.iter().filter(|cell| admits && waits(cell)) {
            let (shard, index) = (cell.shard.lock(), cell.index);
            let forgotten = shard.is_forgotten(now);
            ensure!(!forgotten, "shard {index} waits, though it has something to call");
        }
        let over = self.shared.gate.state() == GateState::Closed;
        let late = self.shards.iter().find(|cell| over && waits(cell));
        if let Some(cell) = late {
            return Err(format!("shard {} waits, though nothing will come", cell.index));
        }
        for queue in &self.queues {
            let Stage::Closing(closing) = &queue.stage else { continue };
            let busy = closing
                .busy
                .iter()
                .any(|&shard| self.shards[shard].shard.lock().busy_with(queue.id).is_some());
            ensure!(busy || closing.fenced, "{} ends, and waits for no call", queue.id);
        }
        let all_wait = self.shards.iter().all(|cell| waits(cell));
        let freed = all_wait && self.shared.has_notes() && !self.stashed.is_empty();
        let soon = until <= now + SCARCE;
        ensure!(!freed || soon, "budget is free, messages wait for it, and nobody was woken");
        Ok(())
    }

    /// After everything was handled: nothing is left.
    pub(crate) fn audit_end(&self) -> Audited {
        self.audit(true)?;
        let total = self.budget.total();
        ensure!(total == Used::default(), "{total:?} in flight, though everything is finished");
        ensure!(self.router.in_hand() == 0, "{} messages wait to be sent", self.router.in_hand());
        for cell in &self.shards {
            let (shard, index) = (cell.shard.lock(), cell.index);
            let (lanes, messages) = (shard.lanes_held(), shard.messages());
            ensure!(
                lanes == 0,
                "shard {index} holds {lanes} lanes back: {:?}",
                shard.backing_off()
            );
            ensure!(messages == 0, "shard {index} has {messages} messages");
        }
        Ok(())
    }
}

impl Posted {
    /// The epoch of the letter's message; `None` when nobody waits for it any more.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.cell.shard.lock().epoch_of_letter(self.id)
    }
}
