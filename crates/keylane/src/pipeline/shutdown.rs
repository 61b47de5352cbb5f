//! The end of a consumer, in order (G8). Each step is what the next one relies on:
//!
//! 1. **Nothing more is admitted.** Queues are paused at the source, stashes and overflow are
//!    dropped: what was never handed to a shard comes again after a restart.
//! 2. **Draining.** The shards handle what is in their channels and end; lanes in back-off are
//!    dropped. Polling goes on: the group must not throw us out before we have committed.
//! 3. **Settling**, when all shards have ended, a listener has asked for the stop, or a reserve
//!    before the deadline: no call begins any more, those that run still count, and what is finished
//!    is committed until everything is stored or the deadline comes.
//! 4. **Closing.** All tenures are fenced, and what is not stored is committed a last time. Then the
//!    source is closed, whatever that commit's fate.

use std::time::{Duration, Instant};

use keylane_source::{Source, SourceError, SourceEvent};

use super::coordinator::{Coordinator, Step};
use super::queue::{Left, Queue, Stage};
use super::shared::{GateState, StopAsked};
use super::tenure::Phase;
use crate::bug::bug;
use crate::error::Error;
use crate::observer::Event;
use crate::report::{Abandoned, QueueReport, StopReport};
use crate::sync::removed;

/// How often a stop looks around when nothing wakes it.
const LOOK: Duration = Duration::from_millis(20);
/// What closing the source may take beyond the deadline.
const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// A stop under way.
#[derive(Debug)]
pub(crate) struct Stopping {
    began_at: Instant,
    deadline: Instant,
    /// How long that was when it was asked for.
    allowed: Duration,
    settling: bool,
    abandoned: Vec<Abandoned>,
}

impl Stopping {
    /// Up to a tenth of the time, at most a second, is kept for the commit.
    fn drain_until(&self) -> Instant {
        self.deadline - (self.allowed / 10).min(Duration::from_secs(1))
    }
}

impl Coordinator {
    /// Begins and carries on a stop, if one was asked for.
    pub(super) fn step_stopping(&mut self, source: &mut dyn Source, now: Instant) -> Option<Step> {
        let asked = self.shared.stop_asked()?;
        match &mut self.stopping {
            // A later stop may be more urgent.
            Some(stopping) => {
                (stopping.deadline, stopping.allowed) = (asked.deadline, asked.allowed);
            }
            None => self.begin_stopping(source, asked, now),
        }
        let ended =
            self.shards.iter().all(|cell| cell.has_exited() || bug!("commit_before_shards"));
        let idle = ended && !self.shards.iter().any(|cell| cell.shard.lock().has_outside());
        let stopping = self.stopping.as_mut()?;
        // A listener's stop closes the gate itself, also while the shards are draining.
        let closed = self.shared.gate.state() == GateState::Closed;
        if !stopping.settling && (idle || closed || now >= stopping.drain_until()) {
            stopping.settling = true;
            self.shared.gate.move_to(GateState::Closed);
            self.shards.iter().for_each(|cell| cell.nudge());
        }
        let (settling, deadline) = (stopping.settling, stopping.deadline);
        if !settling {
            return Some(Step::Poll(LOOK));
        }
        for slot in 0..self.queues.len() {
            self.commit(source, slot, now);
        }
        // A source that has failed for good answers commits while it is closed, if at all.
        let stored =
            self.fatal.is_some() || (0..self.queues.len()).all(|slot| self.is_stored(slot));
        if (idle && stored) || now >= deadline {
            self.close_all(source, now);
            let left = deadline.saturating_duration_since(now);
            return Some(Step::Close(left + CLOSE_GRACE));
        }
        Some(Step::Poll(LOOK))
    }

    fn begin_stopping(
        &mut self,
        source: &mut dyn Source,
        StopAsked { reason, deadline, allowed }: StopAsked,
        now: Instant,
    ) {
        self.shared.report_later(Event::Stopping { reason });
        for queue in &mut self.queues {
            let Some(reading) = &mut queue.reading else { continue };
            source.pause(queue.id);
            reading.drop_stash();
        }
        self.router.drop_ended(|_| true);
        self.shared.signals.attend(true);
        self.shared.gate.move_to(GateState::Draining);
        for cell in &self.shards {
            cell.shard.lock().drain();
            if !removed!("ring when the gate moves") {
                cell.nudge();
            }
        }
        let (settling, abandoned) = (false, Vec::new());
        self.stopping = Some(Stopping { began_at: now, deadline, allowed, settling, abandoned });
    }

    fn is_stored(&mut self, slot: usize) -> bool {
        let queue = &mut self.queues[slot];
        let watermark = queue.watermark();
        watermark.is_none_or(|watermark| !queue.committer.lags(watermark))
    }

    /// Nothing counts any more; what is finished and not stored is sent a last time.
    fn close_all(&mut self, source: &mut dyn Source, now: Instant) {
        let abandoned: Vec<_> =
            self.shards.iter().flat_map(|cell| cell.shard.lock().abandoned(now)).collect();
        for slot in 0..self.queues.len() {
            if let Some(reading) = &self.queues[slot].reading {
                reading.tenure.move_to(Phase::Fenced);
            }
            let queue = &mut self.queues[slot];
            let watermark = queue.watermark();
            if let Some(watermark) = watermark.filter(|mark| queue.committer.lags(*mark)) {
                queue.committer.hurry(watermark);
                self.commit(source, slot, now);
            }
        }
        if let Some(locks) = source.locks() {
            // A queue with a call or a commit under way keeps its lock until it expires.
            let free: Vec<_> = self
                .queues
                .iter()
                .filter(|queue| queue.lock.is_some() && !queue.committer.is_under_way())
                .filter(|queue| abandoned.iter().all(|left| left.queue != queue.id))
                .map(|queue| queue.id)
                .collect();
            if !free.is_empty() {
                locks.release(&free);
            }
        }
        if let Some(stopping) = &mut self.stopping {
            stopping.abandoned = abandoned;
        }
        self.shared.close_letters();
    }

    /// What the source has reported while it was closed: of that, only commits still matter.
    pub(crate) fn take_last_answers(&mut self, events: Vec<SourceEvent>, now: Instant) {
        for event in events {
            if let SourceEvent::CommitResult { commit, result } = event {
                self.committed(&commit, result, now);
            }
        }
    }

    /// How it ended; after the source was closed and its last answers were taken in.
    pub(crate) fn result(
        &mut self,
        closed: Result<(), SourceError>,
        now: Instant,
    ) -> Result<StopReport, Error> {
        let Some(stopping) = self.stopping.take() else {
            return Err(Error::internal("closed without a stop".to_owned(), StopReport::default()));
        };
        let mut queues: Vec<_> = self.queues.iter_mut().filter_map(queue_report).collect();
        queues.sort_by_key(|report| report.queue);
        let report = StopReport {
            unfinished: queues.iter().map(|queue| queue.unfinished).sum(),
            queues,
            abandoned: stopping.abandoned,
            close_error: closed.err().map(|error| error.to_string()),
            took: now.saturating_duration_since(stopping.began_at),
        };
        self.shared.report_later(Event::Stopped { summary: report.to_string() });
        if let Some(what) = self.shared.failed() {
            return Err(Error::internal(what, report));
        }
        if let Some(error) = self.fatal.take() {
            return Err(Error::source_failed(error, report));
        }
        if let Some(reason) = self.shared.stopped_by_listener() {
            return Err(Error::stopped_by_listener(reason, report));
        }
        if !report.abandoned.is_empty() {
            return Err(Error::deadline(stopping.allowed, report));
        }
        if !report.all_committed() {
            return Err(Error::final_commit(report));
        }
        Ok(report)
    }
}

/// How a queue that is ours ended.
fn queue_report(queue: &mut Queue) -> Option<QueueReport> {
    let not_read = match &queue.stage {
        Stage::Gone => return None,
        Stage::Reading | Stage::Closing(_) => None,
        Stage::Locking { .. } | Stage::LookingUp { .. } => {
            queue.waits_for().map(|(what, _)| format!("it waited for {what}"))
        }
        Stage::Failed(error) => Some(format!("it had ended: {error}")),
    };
    let Left { watermark, unfinished, finished_above } = queue.has_left();
    // What a queue has finished that waits to be read again is not ours to commit.
    let waits = matches!(queue.stage, Stage::Locking { .. } | Stage::LookingUp { .. });
    let lags = !waits && watermark.is_some_and(|watermark| queue.committer.lags(watermark));
    let commit_error = lags.then(|| match (queue.committer.last_error(), &queue.stage) {
        (Some(error), _) => error.to_string(),
        (None, Stage::Failed(_)) => "the queue ended before".to_owned(),
        (None, _) => "not answered before the source was closed".to_owned(),
    });
    Some(QueueReport {
        queue: queue.id,
        watermark,
        committed: queue.committer.acknowledged(),
        unfinished,
        finished_above,
        commit_error,
        not_read,
    })
}
