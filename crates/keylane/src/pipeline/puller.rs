//! Admits what was pulled: into the budget, the tracker and the router.

use std::sync::Arc;
use std::time::Instant;
use std::vec::IntoIter;

use keylane_source::{Fetch, Message, Position, Source};

use super::budget::{Budget, Used};
use super::coordinator::{Coordinator, Counters};
use super::mode::Target;
use super::queue::Stage;
use super::router::Router;
use super::tenure::Tenure;
use super::tracker::Tracker;
use crate::bug::bug;

impl Coordinator {
    /// Takes what a fetch brought. Nothing is refused: what there is no budget for waits in the
    /// queue's stash, and the queue is paused at the source until it has gone.
    pub(super) fn fetched(&mut self, source: &mut dyn Source, fetch: Fetch, now: Instant) {
        let Some(slot) = self.slot(fetch.queue) else { return };
        let queue = &mut self.queues[slot];
        if !matches!(queue.stage, Stage::Reading) || self.stopping.is_some() {
            return; // It is not registered, so it is not lost: it comes again.
        }
        let Some(reading) = &mut queue.reading else { return };
        if reading.begun_in == self.looks && !bug!("take_fetch_from_before_seek") {
            return; // Reported before the seek: it is not what follows from there.
        }
        queue.end = fetch.end;
        self.counters.pulled += fetch.messages.len() as u64;
        let first = fetch.messages.first().map_or(fetch.position, |first| first.offset().into());
        reading.tracker.get_or_insert_with(|| Tracker::new(first));
        let was_empty = reading.stash.len() == 0;
        if was_empty {
            reading.stash = fetch.messages.into_iter();
        } else {
            let all: Vec<_> = reading.stash.by_ref().chain(fetch.messages).collect();
            reading.stash = all.into_iter();
        }
        reading.stash_position = reading.stash_position.max(fetch.position);
        self.admit(source, slot, now);
        self.mark_dirty(slot);
        self.after_admission(source, slot, was_empty);
    }

    /// Gives each queue with a stash its turn, not always in the same order.
    pub(super) fn admit_stashed(&mut self, source: &mut dyn Source, now: Instant) {
        if self.stashed.is_empty() || self.stopping.is_some() {
            return;
        }
        self.turn = (self.turn + 1) % self.stashed.len();
        self.stashed.rotate_left(self.turn);
        for slot in std::mem::take(&mut self.stashed) {
            if self.queues[slot].reading.as_ref().is_none_or(|reading| reading.stash.len() == 0) {
                continue;
            }
            self.admit(source, slot, now);
            self.after_admission(source, slot, true);
        }
    }

    /// Admits messages of a queue's stash, in order, as long as they fit. Once nothing is left in it,
    /// its vector goes back to the source.
    fn admit(&mut self, source: &mut dyn Source, slot: usize, now: Instant) {
        self.divide_budget();
        let Some(reading) = &mut self.queues[slot].reading else { return };
        let Some(tracker) = &mut reading.tracker else { return };
        let mut admission = Admission {
            tenure: &reading.tenure,
            stash: &mut reading.stash,
            used: &mut reading.used,
            tracker,
            budget: &mut self.budget,
            router: &mut self.router,
            counters: &mut self.counters,
            span_max: self.config.span_max,
            now,
            emptied: Vec::new(),
        };
        self.mode.admit(slot, &mut admission);
        if admission.emptied.capacity() > 0 {
            source.recycle(admission.emptied);
        }
        if reading.stash.len() == 0 || bug!("position_before_stash") {
            tracker.skip_to(reading.stash_position);
        }
        let total = self.budget.total();
        self.counters.in_flight_max = self.counters.in_flight_max.max(total.messages);
        self.counters.in_flight_bytes_max = self.counters.in_flight_bytes_max.max(total.bytes);
    }

    /// Pauses or resumes the queue at the source, as its stash says; `list` it if it has one.
    fn after_admission(&mut self, source: &mut dyn Source, slot: usize, list: bool) {
        let queue = &mut self.queues[slot];
        let Some(reading) = &mut queue.reading else { return };
        let stashed = reading.stash.len() > 0;
        if stashed && list {
            self.stashed.push(slot);
        }
        if stashed != reading.paused {
            reading.paused = stashed;
            if stashed {
                source.pause(queue.id);
            } else {
                source.resume(queue.id);
                reading.held = None;
            }
        }
    }
}

/// What it takes to admit the messages of one queue.
pub(crate) struct Admission<'a> {
    tenure: &'a Arc<Tenure>,
    stash: &'a mut IntoIter<Message>,
    used: &'a mut Used,
    tracker: &'a mut Tracker,
    budget: &'a mut Budget,
    router: &'a mut Router,
    counters: &'a mut Counters,
    span_max: u64,
    now: Instant,
    /// The stash's vector, once all that was in it is admitted.
    emptied: Vec<Message>,
}

impl Admission<'_> {
    /// Admits messages from the front of the stash, as long as budget and span allow.
    pub(super) fn run(&mut self, mut target: impl FnMut(&Message) -> Target) {
        loop {
            let placed = self.place(&mut target);
            self.counters.admitted += placed as u64;
            if placed == 0 {
                return;
            }
            let (tenure, page, now) = (self.tenure, self.tracker.page(), self.now);
            if placed < self.stash.len() {
                self.router.collect(self.stash.by_ref().take(placed), tenure, page, now);
            } else {
                let all = std::mem::take(self.stash);
                self.emptied = self.router.collect(all, tenure, page, now);
            }
        }
    }

    /// Gives messages at the front of the stash their places in the tracker and their ways; returns
    /// how many. They are moved afterwards, all at once: looking at a message and moving it costs
    /// less apart than together.
    fn place(&mut self, target: &mut impl FnMut(&Message) -> Target) -> usize {
        while self.stash.as_slice().first().is_some_and(|message| is_behind(self.tracker, message))
        {
            self.counters.repeated += 1;
            self.stash.next();
        }
        let mut granting = self.budget.granting(self.used);
        let mut placed = 0;
        for message in self.stash.as_slice().iter().take(self.tracker.left_in_page()) {
            if is_behind(self.tracker, message)
                || !self.tracker.has_room(self.span_max)
                || !granting.admit(message.size())
            {
                break;
            }
            let target = target(message);
            let bit = self.tracker.register(message.offset(), target.way, self.now);
            self.router.place(target, bit);
            placed += 1;
        }
        placed
    }
}

/// Whether the message was registered before, or lies where the queue is not read any more.
fn is_behind(tracker: &Tracker, message: &Message) -> bool {
    Position::from(message.offset()) < tracker.position()
}
