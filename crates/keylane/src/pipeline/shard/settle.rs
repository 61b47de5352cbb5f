//! What becomes of messages after a call, a ticket or a dead letter.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{DeadLetterReason, SourceError};

use super::call::{Call, Verdict, Verdicts};
use super::effects::{Effects, LetterId};
use super::lane::{Held, LaneState, Letter};
use super::{Outside, Shard};
use crate::bug::bug;
use crate::config::Exhausted;
use crate::observer::Event;
use crate::outcome::Handled;
use crate::pipeline::chunk::{Extra, LaneId, Run};
use crate::pipeline::retry::Next;
use crate::pipeline::tenure::{Phase, Tenure};
use crate::pipeline::tracker::Finished;
use crate::report::ShownKey;
use crate::ticket::TicketId;

/// A failed attempt.
pub(super) struct Failure {
    pub(super) error: Arc<str>,
    pub(super) asked: Option<Duration>,
    pub(super) panicked: bool,
}

impl Shard {
    /// The call that [`next_call`](Self::next_call) began has returned.
    pub(crate) fn settle(
        &mut self,
        call: &mut Arc<Call>,
        verdicts: &mut Verdicts,
        now: Instant,
        out: &mut Effects,
    ) {
        let running = self.running.take().expect("a call was running");
        let took = now.saturating_duration_since(running.since);
        drop(running);
        let call = Arc::get_mut(call).expect("the shard has given its share back");
        self.stats.ended(took);
        self.set_pace(call.len(), took);
        if let Some((error, panicked)) = verdicts.whole.take() {
            let (shard, messages) = (self.settings.index, call.len());
            self.stats.panicked(panicked);
            out.events.push(Event::BatchFailed {
                shard,
                messages,
                error: error.to_string(),
                panicked,
            });
        }
        if verdicts.all_done() {
            self.finish_all(call, out);
        } else {
            self.settle_each(call, verdicts, now, out);
        }
        for lane in std::mem::take(&mut self.in_call) {
            self.lanes.settled(&lane);
        }
        // Whoever settled a ticket of this call that the call did not promise, settled nothing.
        self.stats.stale += self.early.len() as u64;
        self.early.clear();
        call.clear();
        verdicts.clear();
    }

    fn finish_all(&mut self, call: &Call, out: &mut Effects) {
        let mut index = 0;
        for run in &call.runs {
            let mut finished = Finished::default();
            let (mut n, mut bytes) = (run.len as u64, 0);
            for _ in 0..run.len {
                finished.add(&run.page, call.tags[index].bit());
                bytes += call.messages[index].size() as u64;
                n -= u64::from(bug!("retry_keeps_budget") && call.tags[index].tried() > 0);
                index += 1;
            }
            self.finish_run(run, finished, n, bytes, out);
        }
        self.stats.succeeded += call.len() as u64;
    }

    /// Publishes what a run's messages have come to: bits first, then the budget.
    fn finish_run(
        &mut self,
        run: &Run,
        mut finished: Finished,
        n: u64,
        bytes: u64,
        out: &mut Effects,
    ) {
        if n == 0 {
            return;
        }
        if run.tenure.phase() == Phase::Fenced {
            return self.note_stale(&run.tenure, n, out);
        }
        finished.flush(&run.page);
        out.finished += n;
        if run.tenure.finish(n, bytes) {
            out.noted.push(run.tenure.slot);
        }
    }

    fn note_stale(&mut self, tenure: &Tenure, messages: u64, out: &mut Effects) {
        self.stats.stale += messages;
        out.events.push(Event::StaleCompletions { queue: tenure.queue, messages });
    }

    fn settle_each(
        &mut self,
        call: &mut Call,
        verdicts: &mut Verdicts,
        now: Instant,
        out: &mut Effects,
    ) {
        let mut index = 0;
        let mut returned = Vec::new();
        for run in std::mem::take(&mut call.runs) {
            let mut finished = Finished::default();
            let (mut n, mut bytes) = (0, 0);
            for _ in 0..run.len {
                let verdict = verdicts.take(index);
                let message = &call.messages[index];
                let tag = &mut call.tags[index];
                match verdict {
                    Verdict::Done => self.stats.succeeded += 1,
                    Verdict::Skip(reason) => {
                        self.skipped(&Held::peek(message, tag, &run), reason, out)
                    }
                    unfinished => {
                        let mut held = Held::new(message, tag.take(), &run);
                        match unfinished {
                            Verdict::Returned { alone } => {
                                held.alone = alone;
                                returned.push(held);
                            }
                            Verdict::FailedToo => {
                                held.tag.count_attempt();
                                self.stats.failed += 1;
                                returned.push(held);
                            }
                            unfinished => self.hold(held, unfinished, now, out),
                        }
                        index += 1;
                        continue;
                    }
                }
                finished.add(&run.page, tag.bit());
                n += 1;
                bytes += message.size() as u64;
                index += 1;
            }
            self.finish_run(&run, finished, n, bytes, out);
        }
        // From the newest to the oldest, each in front of the one before: what a call gives back is
        // older than all that waits.
        for held in returned.into_iter().rev() {
            self.take_back(held);
        }
    }

    fn take_back(&mut self, held: Held) {
        if held.tenure.phase() != Phase::Open {
            return;
        }
        let id = held.tag.lane(&held.message, &held.tenure);
        if let Some(held) = self.lanes.unpark(&id, held) {
            self.front.push_front(held);
        }
    }

    /// A message of a call that is not finished.
    fn hold(&mut self, held: Held, verdict: Verdict, now: Instant, out: &mut Effects) {
        let id = held.tag.lane(&held.message, &held.tenure);
        if let Verdict::Deferred(ticket) = verdict {
            return self.defer(ticket, id, held, now, out);
        }
        if let Verdict::Stop(reason) = verdict {
            return self.stop(id, held, reason, out);
        }
        let phase = held.tenure.phase();
        match verdict {
            Verdict::Keep | Verdict::Commit if phase == Phase::Fenced => {
                self.note_stale(&held.tenure, 1, out);
            }
            // A queue that is being taken away waits for its call, and what that commits counts.
            Verdict::Keep if !bug!("kept_is_finished") => {
                self.lanes.entry(&id).kept.push(held);
                self.mark_in_call(&id);
            }
            Verdict::Keep | Verdict::Commit => {
                let kept = std::mem::take(&mut self.lanes.entry(&id).kept);
                self.stats.succeeded += kept.len() as u64 + 1;
                kept.into_iter().chain([held]).for_each(|held| self.finish_one(&held, out));
                self.mark_in_call(&id);
            }
            // Its queue has ended: it stays unfinished, and comes again elsewhere.
            _ if phase != Phase::Open => {}
            Verdict::Rollback(_) if self.draining => self.stop_lane(&id),
            Verdict::Rollback(delay) => {
                let lane = self.lanes.entry(&id);
                let from = if bug!("rollback_leaves_kept") { lane.kept.len() } else { 0 };
                let mut all: Vec<Held> = lane.kept.drain(from..).chain([held]).collect();
                let first = all.remove(0);
                all.into_iter().rev().for_each(|held| lane.rest.push_front(held));
                self.lanes.hold_until(&id, first, now + delay, None);
            }
            verdict => self.resolve(id, held, verdict, now, out),
        }
    }

    fn mark_in_call(&mut self, id: &LaneId) {
        if !self.in_call.contains(id) {
            self.in_call.push(id.clone());
        }
    }

    fn defer(&mut self, ticket: TicketId, id: LaneId, held: Held, now: Instant, out: &mut Effects) {
        if held.tenure.phase() == Phase::Open {
            self.lanes.entry(&id).state = LaneState::Outside;
        }
        match self.early.remove(&ticket) {
            Some(handled) => self.settle_outside(id, held, handled, now, out),
            None => {
                self.lanes.open_key(&id.name);
                self.tickets.insert(ticket, Outside { lane: id, held, since: now });
            }
        }
    }

    /// A ticket was settled, by whichever thread.
    pub(crate) fn settle_ticket(
        &mut self,
        ticket: TicketId,
        handled: Handled,
        now: Instant,
        out: &mut Effects,
    ) {
        if let Some(Outside { lane, held, .. }) = self.tickets.remove(&ticket) {
            self.lanes.close_key(&lane.name);
            self.settle_outside(lane, held, handled, now, out);
        } else if self.running.is_some() {
            // Perhaps its call has yet to return.
            self.early.insert(ticket, handled);
        } else {
            self.stats.stale += 1;
        }
    }

    fn settle_outside(
        &mut self,
        lane: LaneId,
        held: Held,
        handled: Handled,
        now: Instant,
        out: &mut Effects,
    ) {
        let verdict = match Verdict::of(handled) {
            Verdict::Deferred(_) => {
                Verdict::failed("a ticket cannot be settled by deferring", None)
            }
            verdict => verdict,
        };
        self.resolve(lane, held, verdict, now, out);
    }

    /// The dead-letter sink has reported.
    pub(crate) fn settle_letter(
        &mut self,
        id: LetterId,
        result: Result<(), SourceError>,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some((Outside { lane, held, .. }, mut letter)) = self.letters.remove(&id) else {
            return;
        };
        let (queue, offset) = (held.tenure.queue, held.message.offset());
        let key = self.shown_key(&held);
        match result {
            Ok(()) => {
                let (attempts, reason) = (held.attempts(), letter.reason.to_string());
                out.events.push(Event::DeadLettered { queue, offset, key, attempts, reason });
                self.stats.dead_lettered += 1;
                self.finish_one(&held, out);
                self.release(&lane);
            }
            Err(error) => {
                letter.failures = letter.failures.saturating_add(1);
                let again_in = self.settings.failure.delay(letter.failures, &mut self.random);
                out.events.push(Event::DeadLetterFailed { queue, offset, key, error, again_in });
                match held.tenure.phase() {
                    Phase::Open if self.draining => self.stop_lane(&lane),
                    Phase::Open => {
                        self.lanes.hold_until(&lane, held, now + again_in, Some(letter));
                    }
                    _ => {} // Its lane went with the tenure.
                }
            }
        }
    }

    /// Carries out a verdict over a message that holds its lane.
    fn resolve(
        &mut self,
        id: LaneId,
        held: Held,
        verdict: Verdict,
        now: Instant,
        out: &mut Effects,
    ) {
        match verdict {
            Verdict::Done => {
                self.stats.succeeded += 1;
                self.finish_one(&held, out);
                self.release(&id);
            }
            Verdict::Skip(reason) => {
                self.skipped(&held, reason, out);
                self.finish_one(&held, out);
                self.release(&id);
            }
            Verdict::Failed { error, asked, panicked } => {
                self.fail(id, held, Failure { error, asked, panicked }, now, out);
            }
            Verdict::DeadLetter(reason) => self.give_up(id, held, reason, now, out),
            Verdict::Stop(reason) => self.stop(id, held, reason, out),
            Verdict::Deferred(_)
            | Verdict::Returned { .. }
            | Verdict::FailedToo
            | Verdict::Keep
            | Verdict::Commit
            | Verdict::Rollback(_) => unreachable!("only of messages in a call"),
        }
    }

    /// Counts a failed attempt, and decides what follows.
    pub(super) fn fail(
        &mut self,
        id: LaneId,
        mut held: Held,
        failure: Failure,
        now: Instant,
        out: &mut Effects,
    ) {
        let Failure { error, asked, panicked } = failure;
        held.tag.count_attempt();
        held.alone = false;
        held.tag.extra.get_or_insert_with(|| Box::new(Extra::default())).error =
            Some(Arc::clone(&error));
        self.stats.failed += 1;
        self.stats.panicked(panicked);
        let next = self.settings.failure.next(held.attempts(), asked, &mut self.random);
        let ends = self.draining || held.tenure.phase() != Phase::Open;
        let again_in = match next {
            Next::Again(delay) if !ends => Some(delay),
            Next::Again(_) | Next::Exhausted => None,
        };
        out.events.push(Event::Failed {
            queue: held.tenure.queue,
            offset: held.message.offset(),
            key: self.shown_key(&held),
            shard: self.settings.index,
            attempts: held.attempts(),
            error: error.to_string(),
            panicked,
            again_in,
        });
        match again_in {
            _ if held.tenure.phase() != Phase::Open => {}
            None if matches!(next, Next::Again(_)) => self.stop_lane(&id),
            Some(delay) => self.lanes.hold_until(&id, held, now + delay, None),
            None => self.exhaust(id, held, error, now, out),
        }
    }

    /// A message has been tried as often as it may.
    pub(super) fn exhaust(
        &mut self,
        id: LaneId,
        held: Held,
        error: Arc<str>,
        now: Instant,
        out: &mut Effects,
    ) {
        match self.settings.failure.exhausted {
            Exhausted::DeadLetter => {
                let reason = DeadLetterReason::AttemptsExhausted(error);
                self.give_up(id, held, reason, now, out);
            }
            Exhausted::Skip => {
                self.skipped(&held, format!("attempts exhausted, last error: {error}"), out);
                self.finish_one(&held, out);
                self.release(&id);
            }
            Exhausted::Stop => {
                self.stop(id, held, format!("attempts exhausted, last error: {error}"), out);
            }
        }
    }

    fn give_up(
        &mut self,
        id: LaneId,
        held: Held,
        reason: DeadLetterReason,
        now: Instant,
        out: &mut Effects,
    ) {
        if !self.settings.has_sink {
            let error = format!("{reason}, but there is no dead-letter sink").into();
            // The policy cannot ask for a sink that is not there, so this cannot come back here.
            return self.fail(id, held, Failure { error, asked: None, panicked: false }, now, out);
        }
        if held.tenure.phase() == Phase::Open {
            self.send_letter(id, held, Letter { reason, failures: 0 }, now, out);
        }
    }

    fn stop(&mut self, id: LaneId, held: Held, reason: String, out: &mut Effects) {
        let (queue, offset) = (held.tenure.queue, held.message.offset());
        let key = self.shown_key(&held);
        out.stop = Some(format!("{queue} offset {offset}, key {key}: {reason}"));
        if held.tenure.phase() != Phase::Open {
            return;
        }
        let lane = self.lanes.entry(&id);
        lane.head = Some(held);
        lane.state = LaneState::Stopped;
    }

    /// Nothing of this lane is called any more: a message of it was dropped.
    fn stop_lane(&mut self, id: &LaneId) {
        let lane = self.lanes.entry(id);
        lane.rest.clear();
        lane.state = LaneState::Stopped;
    }

    /// The lane's head is finished: the others may follow.
    pub(super) fn release(&mut self, id: &LaneId) {
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.state = LaneState::Running;
            self.lanes.settled(id);
        }
    }

    fn finish_one(&mut self, held: &Held, out: &mut Effects) {
        let mut finished = Finished::default();
        finished.add(&held.page, held.tag.bit());
        let run = Run { tenure: Arc::clone(&held.tenure), page: Arc::clone(&held.page), len: 1 };
        self.finish_run(&run, finished, 1, held.message.size() as u64, out);
    }

    fn skipped(&mut self, held: &Held, reason: String, out: &mut Effects) {
        self.stats.skipped += 1;
        out.events.push(Event::Skipped {
            queue: held.tenure.queue,
            offset: held.message.offset(),
            key: self.shown_key(held),
            attempts: held.attempts(),
            reason,
        });
    }

    pub(super) fn shown_key(&self, held: &Held) -> ShownKey {
        ShownKey::new(held.message.key_bytes(), self.settings.hide_keys)
    }
}
