//! One queue of this member: where it stands, what is asked for, what waits to be given out. No
//! thread, no clock, no I/O.
//!
//! ```text
//! looking up ──► waiting ──seek──► seeking ──► reading ──► revoking
//!                   ▲                             │
//!                   └──── reset, out of range ────┘
//! ```
//!
//! Invariants:
//!
//! 1. One pull at a time is under way, and none while something waits to be given out: a queue
//!    holds at most one answer that the engine has not taken.
//! 2. Each seek, reset and look-up takes a new *turn*; an answer of an older one changes nothing.
//! 3. Nothing is given out unless the queue is reading and not paused.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use keylane_source::{
    Committed, EndOffset, Fetch, FetchLimits, Message, Position, QueueId, ResetCause, SourceError,
    SourceEvent,
};

use super::pull::{Found, Gaps, Pulled};
use crate::Error;
use crate::wire::code::answer;

/// After a failure: this long, then twice as long, and so on up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(3);
/// A broker that asks for less is asked again after this.
const FLOW_CONTROL: Duration = Duration::from_millis(20);
/// An answer without news and without waiting; a broker that is set not to hold pulls gives them.
const IDLE: Duration = Duration::from_millis(100);

/// Tells the answers to a queue's requests from those of an earlier seek or tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    turn: Turn,
    phase: Phase,
    /// The newest look-up that the engine has asked for, until it is answered.
    look_up: Option<Turn>,
    paused: bool,
    /// Stands in the list of queues that may have something to give out.
    pub(crate) listed: bool,
}

#[derive(Debug)]
enum Phase {
    /// What the group has committed is asked for; the engine does not know of the queue yet.
    LookingUp,
    /// The engine knows of it, and has not (yet, or again) said where to read.
    Waiting,
    /// Where that is, is asked for. `retry_at`: after a failure.
    Seeking {
        retry: Retry,
    },
    Reading(Reading),
    /// Until the engine releases it.
    Revoking,
}

#[derive(Debug)]
struct Reading {
    /// Where the next pull reads.
    next: Position,
    /// Where the engine stands: behind what it was given.
    given: Position,
    end: EndOffset,
    gaps: Gaps,
    waiting: VecDeque<Message>,
    /// Something is to be given out: messages, or a position alone.
    news: bool,
    pulling: bool,
    /// The next pull is to be answered at once: the queue's end is not known.
    first: bool,
    retry: Retry,
    check: Check,
}

/// Whether the offset was moved is asked for beside the pulls, which brokers hold.
#[derive(Debug, Default)]
struct Check {
    /// When the broker has last said where the queue is read.
    heard: Option<Instant>,
    /// When it is looked at next.
    at: Option<Instant>,
    under_way: bool,
}

/// When to try again, and how long to wait after the next failure.
#[derive(Debug, Default)]
struct Retry {
    at: Option<Instant>,
    failures: u32,
}

impl Retry {
    fn failed(&mut self, now: Instant) -> Instant {
        let wait = RETRY_FIRST * 2u32.saturating_pow(self.failures.min(10));
        self.failures += 1;
        self.wait_until(now + wait.min(RETRY_LONGEST))
    }

    fn wait_until(&mut self, at: Instant) -> Instant {
        self.at = Some(at);
        at
    }

    fn is_due(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| at <= now)
    }
}

/// A pull to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PullPlan {
    pub(crate) from: Position,
    /// Whether the broker may hold it back.
    pub(crate) hold: bool,
    pub(crate) gaps: Gaps,
    pub(crate) turn: Turn,
    /// It is sent only to see whether the offset was moved.
    pub(crate) is_check: bool,
}

/// What follows from an answer.
#[derive(Debug)]
pub(crate) enum Next {
    /// The next pull, and what waits to be given out.
    Go,
    /// The same, at this time.
    At(Instant),
    /// The engine has to know, and nothing is read until it seeks.
    Stop(SourceEvent),
    /// The engine has to know, and it is tried again at this time.
    Trouble(SourceEvent, Instant),
    /// The answer is to a question that nobody asks any more.
    Stale,
}

impl Queue {
    /// A queue that has just been allocated; what the group has committed is asked for.
    pub(crate) fn new(id: QueueId, turn: Turn) -> Self {
        let phase = Phase::LookingUp;
        Self { id, turn, phase, look_up: None, paused: false, listed: false }
    }

    pub(crate) fn turn(&self) -> Turn {
        self.turn
    }

    pub(crate) fn is_revoking(&self) -> bool {
        matches!(self.phase, Phase::Revoking)
    }

    /// Whether the engine has been told of the queue.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(self.phase, Phase::LookingUp)
    }

    /// The first look-up has been answered, well or not: the engine is told of the queue.
    pub(crate) fn assigned(&mut self, turn: Turn, committed: Committed) -> Option<SourceEvent> {
        if self.turn != turn || self.is_known() {
            return None;
        }
        self.phase = Phase::Waiting;
        Some(SourceEvent::Assigned { queue: self.id, committed })
    }

    /// The engine asks what was committed.
    pub(crate) fn looks_up(&mut self, turn: Turn) {
        self.look_up = Some(turn);
    }

    /// That was answered, well or not. Only the newest answer counts.
    pub(crate) fn looked_up(&mut self, turn: Turn, committed: Committed) -> Option<SourceEvent> {
        if self.look_up != Some(turn) || !self.is_known() || self.is_revoking() {
            return None;
        }
        self.look_up = None;
        Some(SourceEvent::LookedUp { queue: self.id, committed })
    }

    /// Reads from here on. What waits to be given out is dropped.
    pub(crate) fn read_from(&mut self, turn: Turn, position: Position) {
        self.turn = turn;
        self.phase = Phase::Reading(Reading {
            next: position,
            given: position,
            end: EndOffset::Unknown,
            gaps: Gaps::AskAgain,
            waiting: VecDeque::new(),
            news: false,
            pulling: false,
            first: true,
            retry: Retry::default(),
            check: Check::default(),
        });
    }

    /// Reads from a place that has to be asked for first.
    pub(crate) fn seek(&mut self, turn: Turn) {
        self.turn = turn;
        self.phase = Phase::Seeking { retry: Retry::default() };
    }

    /// The place could not be found out.
    pub(crate) fn seek_failed(&mut self, turn: Turn, error: SourceError, now: Instant) -> Next {
        match &mut self.phase {
            Phase::Seeking { retry } if self.turn == turn => {
                let at = retry.failed(now);
                Next::Trouble(SourceEvent::QueueError { queue: self.id, error }, at)
            }
            _ => Next::Stale,
        }
    }

    /// Whether the seek is (still) waiting to be tried again, and its time has come.
    pub(crate) fn seek_is_due(&mut self, now: Instant) -> bool {
        match &mut self.phase {
            Phase::Seeking { retry } => retry.at.take_if(|at| *at <= now).is_some(),
            _ => false,
        }
    }

    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    pub(crate) fn resume(&mut self) {
        self.paused = false;
    }

    /// Ends reading until the engine has released the queue. Messages that wait are dropped.
    pub(crate) fn revoke(&mut self, turn: Turn) -> SourceEvent {
        self.turn = turn;
        self.phase = Phase::Revoking;
        SourceEvent::Revoking { queue: self.id }
    }

    /// The group's offset was moved by somebody: nothing is read until the engine seeks.
    pub(crate) fn moved(&mut self, turn: Turn, to: Position) -> Option<SourceEvent> {
        if !matches!(self.phase, Phase::Reading(_) | Phase::Seeking { .. }) {
            return None;
        }
        self.turn = turn;
        self.phase = Phase::Waiting;
        Some(SourceEvent::Reset { queue: self.id, cause: ResetCause::Moved { to } })
    }

    /// The pull to be sent now, if one is due; it counts as under way from now on.
    pub(crate) fn plan_pull(&mut self, now: Instant) -> Option<PullPlan> {
        let Phase::Reading(reading) = &mut self.phase else { return None };
        if self.paused || reading.pulling || reading.news || !reading.retry.is_due(now) {
            return None;
        }
        reading.pulling = true;
        reading.retry.at = None;
        let Reading { next: from, gaps, first, .. } = *reading;
        Some(PullPlan { from, hold: !first, gaps, turn: self.turn, is_check: false })
    }

    /// A pull that asks whether the offset was moved, if nothing has said so for `every`: the queue
    /// is paused, or the broker holds its pull, and does not look at the offset meanwhile. And when
    /// to look at this next, where that is not known already.
    pub(crate) fn plan_check(
        &mut self,
        every: Duration,
        now: Instant,
    ) -> (Option<PullPlan>, Option<Instant>) {
        let Phase::Reading(Reading { next, gaps, check, .. }) = &mut self.phase else {
            return (None, None);
        };
        if check.at.is_some_and(|at| now < at) {
            return (None, None);
        }
        let due = *check.heard.get_or_insert(now) + every;
        let plan = (now >= due && !check.under_way).then(|| {
            check.under_way = true;
            let (from, gaps, turn) = (*next, *gaps, self.turn);
            PullPlan { from, hold: false, gaps, turn, is_check: true }
        });
        let again_at = if now < due { due } else { now + every };
        check.at = Some(again_at);
        (plan, Some(again_at))
    }

    /// A check was answered. Messages are left to the pulls, and so is trouble.
    pub(crate) fn checked(
        &mut self,
        turn: Turn,
        asked: Position,
        answer: Result<Pulled, Error>,
        now: Instant,
    ) -> Option<SourceEvent> {
        let Phase::Reading(reading) = &mut self.phase else { return None };
        if self.turn != turn {
            return None;
        }
        reading.check.under_way = false;
        match answer {
            Ok(pulled) => {
                reading.check.heard = Some(now);
                let Pulled::Moved { to, begin, end } = pulled else { return None };
                let cause = moved(asked, to, begin, end);
                if matches!(cause, ResetCause::OutOfRange { .. }) && asked != reading.next {
                    return None; // Read on meanwhile.
                }
                self.phase = Phase::Waiting;
                Some(SourceEvent::Reset { queue: self.id, cause })
            }
            Err(error) => {
                log::debug!("look whether the offset of {} was moved: {error}", self.id);
                None
            }
        }
    }

    /// A pull was answered. `waited`: how long the answer took.
    pub(crate) fn pulled(
        &mut self,
        turn: Turn,
        answer: Result<Pulled, Error>,
        waited: Duration,
        now: Instant,
    ) -> Next {
        if self.turn != turn {
            return Next::Stale;
        }
        let Phase::Reading(reading) = &mut self.phase else { return Next::Stale };
        reading.pulling = false;
        if answer.is_ok() {
            reading.check.heard = Some(now);
        }
        match answer {
            Ok(Pulled::Found(found)) => {
                reading.found(found);
                Next::Go
            }
            Ok(Pulled::Nothing { position, end }) => {
                if reading.nothing(position, end) || waited >= IDLE {
                    return Next::Go;
                }
                Next::At(reading.retry.wait_until(now + IDLE))
            }
            Ok(Pulled::Moved { to, begin, end }) => {
                let cause = moved(reading.next, to, begin, end);
                self.phase = Phase::Waiting;
                Next::Stop(SourceEvent::Reset { queue: self.id, cause })
            }
            Err(error) if error.code() == Some(answer::FLOW_CONTROL) => {
                Next::At(reading.retry.wait_until(now + FLOW_CONTROL))
            }
            Err(error) => {
                let error = error.doing(format_args!("pull {} at {}", self.id, reading.next));
                let at = reading.retry.failed(now);
                let error = SourceError::from(error);
                Next::Trouble(SourceEvent::QueueError { queue: self.id, error }, at)
            }
        }
    }

    /// The broker is there again: what failed need not wait any longer.
    pub(crate) fn retry_now(&mut self, now: Instant) {
        let (Phase::Seeking { retry } | Phase::Reading(Reading { retry, .. })) = &mut self.phase
        else {
            return;
        };
        if let Some(at) = &mut retry.at {
            *at = now.min(*at);
        }
    }

    /// Something can be given out.
    pub(crate) fn has_news(&self) -> bool {
        matches!(&self.phase, Phase::Reading(reading) if reading.news) && !self.paused
    }

    /// Gives out what waits, as much as the limits allow.
    pub(crate) fn give(&mut self, limits: FetchLimits) -> Option<SourceEvent> {
        if !self.has_news() {
            return None;
        }
        let Phase::Reading(reading) = &mut self.phase else { return None };
        let messages = reading.take(limits);
        let position = match reading.waiting.front() {
            Some(message) => message.offset().into(),
            None => reading.next,
        };
        reading.news = !reading.waiting.is_empty();
        let end = reading.end;
        if messages.is_empty() && position == reading.given {
            return Some(SourceEvent::End { queue: self.id, end });
        }
        reading.given = position;
        Some(SourceEvent::Fetched(Fetch { queue: self.id, messages, position, end }))
    }
}

/// Why a position cannot be read from.
fn moved(asked: Position, to: Position, begin: Position, end: Position) -> ResetCause {
    if asked < begin || asked > end {
        ResetCause::OutOfRange { asked, begin, end }
    } else {
        ResetCause::Moved { to }
    }
}

impl Reading {
    fn found(&mut self, found: Found) {
        let same = self.next == found.position && found.messages.is_empty();
        self.news = !same || self.end != found.end;
        (self.next, self.end, self.gaps) = (found.position, found.end, found.gaps);
        self.waiting = found.messages.into();
        self.succeeded();
    }

    /// Whether that is news for the next pull: the position has moved, or the end is known now.
    fn nothing(&mut self, position: Position, end: EndOffset) -> bool {
        let moved = self.next != position;
        self.news = moved || self.end != end;
        (self.next, self.end) = (position, end);
        let first = self.first;
        self.succeeded();
        moved || first
    }

    fn succeeded(&mut self) {
        self.first = false;
        self.retry = Retry::default();
    }

    fn take(&mut self, limits: FetchLimits) -> Vec<Message> {
        let (mut count, mut bytes) = (0, 0usize);
        for message in self.waiting.iter().take(limits.messages.max(1)) {
            bytes = bytes.saturating_add(message.size());
            if count > 0 && bytes > limits.bytes {
                break;
            }
            count += 1;
        }
        if count == self.waiting.len() {
            return std::mem::take(&mut self.waiting).into();
        }
        self.waiting.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests;
