//! Which messages the next call gets.

use std::time::Instant;

use super::Shard;
use super::call::Call;
use super::effects::Effects;
use super::lane::{Held, Lane, LaneState};
use super::settle::Failure;
use crate::pipeline::chunk::{Chunk, Entry, LaneId, Route, Run};

impl Shard {
    pub(super) fn fill(&mut self, now: Instant, call: &mut Call, out: &mut Effects) {
        // Lanes that are due at once, again and again, would otherwise keep the others waiting for
        // ever.
        let pending_first = std::mem::take(&mut self.pending_first);
        if self.fill_from_front(now, call, out) {
            return;
        }
        if pending_first {
            self.fill_from_pending(now, call, out);
        }
        let joins_nothing = self.settings.one_lane && !call.is_empty();
        if !joins_nothing && self.fill_from_lanes(now, call, out) {
            self.pending_first = !self.pending.is_empty();
            return;
        }
        if !pending_first {
            self.fill_from_pending(now, call, out);
        }
    }

    /// Returns whether the call is complete.
    fn fill_from_front(&mut self, now: Instant, call: &mut Call, out: &mut Effects) -> bool {
        while call.len() < self.pace {
            let Some(held) = self.front.pop_front() else { return false };
            let joins = self.joins(call, || held.tag.lane(&held.message, &held.tenure));
            if !joins || (held.alone && !call.is_empty()) {
                self.front.push_front(held);
                return true;
            }
            let alone = held.alone;
            self.admit_held(held, now, call, out);
            if alone && !call.is_empty() {
                return true;
            }
        }
        true
    }

    /// Returns whether the call is complete.
    fn fill_from_lanes(&mut self, now: Instant, call: &mut Call, out: &mut Effects) -> bool {
        while call.len() < self.pace {
            let Some(id) = self.lanes.pop_ready() else { return false };
            if self.fill_from_lane(&id, now, call, out) {
                return true;
            }
        }
        true
    }

    fn fill_from_lane(
        &mut self,
        id: &LaneId,
        now: Instant,
        call: &mut Call,
        out: &mut Effects,
    ) -> bool {
        let (mut began, mut complete) = (false, false);
        while call.len() < self.pace {
            let Some(lane) = self.lanes.get_mut(id) else { break };
            lane.state = LaneState::Running;
            let Some(held) = lane.head.take().or_else(|| lane.rest.pop_front()) else { break };
            if !held.tenure.admits(now) {
                continue;
            }
            let uncallable = self.is_uncallable(&held);
            if (held.alone && !call.is_empty()) || (uncallable && began) {
                complete = held.alone;
                self.lanes.unpark(id, held);
                break;
            }
            if uncallable {
                self.fail_uncalled(id, held, now, out);
                return false;
            }
            // What has failed before goes without those behind it: should it fail again, they would
            // have been called for nothing.
            let last = held.alone || held.tag.tried() > 0;
            complete = held.alone;
            call.push_held(held);
            began = true;
            if last {
                break;
            }
        }
        if began {
            self.in_call.push(id.clone());
            complete |= self.settings.one_lane;
        } else {
            self.lanes.settled(id);
        }
        complete
    }

    fn fill_from_pending(&mut self, now: Instant, call: &mut Call, out: &mut Effects) {
        while call.len() < self.pace {
            let Some(mut chunk) = self.pending.pop_front() else { return };
            let before = chunk.len();
            let pulled_at = chunk.pulled_at;
            let complete = self.fill_from_chunk(&mut chunk, now, call, out);
            self.pending_messages -= before - chunk.len();
            self.stats.handed_off(now.saturating_duration_since(pulled_at), before - chunk.len());
            if chunk.len() > 0 {
                self.pending.push_front(chunk);
            }
            if complete {
                return;
            }
        }
    }

    /// Returns whether the call is complete.
    fn fill_from_chunk(
        &mut self,
        chunk: &mut Chunk,
        now: Instant,
        call: &mut Call,
        out: &mut Effects,
    ) -> bool {
        while call.len() < self.pace {
            let Some(mut run) = chunk.take_run() else { return false };
            if !run.tenure.admits(now) {
                chunk.take(run.len).for_each(drop);
                continue;
            }
            if self.lanes.is_empty() && chunk.callable && !self.settings.one_lane {
                let taken = run.len.min(self.pace - call.len());
                call.append(chunk.take(taken), taken, &run);
                run.len -= taken;
            } else {
                self.fill_one_by_one(chunk, &mut run, now, call, out);
            }
            if run.len > 0 {
                chunk.return_run(run);
                return true;
            }
        }
        true
    }

    /// Takes entries of a run as long as they may join the call.
    fn fill_one_by_one(
        &mut self,
        chunk: &mut Chunk,
        run: &mut Run,
        now: Instant,
        call: &mut Call,
        out: &mut Effects,
    ) {
        while run.len > 0 && call.len() < self.pace {
            let Some(Entry { message, tag }) = chunk.first() else { return };
            if !self.joins(call, || tag.lane(message, &run.tenure)) {
                return;
            }
            let Some(entry) = chunk.take(1).next() else { return };
            run.len -= 1;
            self.admit(entry, run, now, call, out);
        }
    }

    /// Whether a message of this lane may join the call, as far as the listener cares.
    fn joins(&self, call: &Call, lane: impl FnOnce() -> LaneId) -> bool {
        !self.settings.one_lane || call.is_empty() || call.lane(0) == lane()
    }

    /// Into the call, unless its lane is held back. The usual case touches no map.
    fn admit(&mut self, entry: Entry, run: &Run, now: Instant, call: &mut Call, out: &mut Effects) {
        let Entry { message, tag } = entry;
        let plain = tag.route() != Route::Unroutable;
        if plain && self.lanes.is_empty() {
            return call.push(Entry { message, tag }, run);
        }
        let id = tag.lane(&message, &run.tenure);
        if self.lanes.holds(&id) {
            return self.park(&id, Held::new(&message, tag, run));
        }
        if !plain {
            return self.admit_uncallable(id, Held::new(&message, tag, run), now, call, out);
        }
        call.push(Entry { message, tag }, run);
    }

    /// A message that can only fail does so once it is the first of its lane, and not before.
    fn admit_uncallable(
        &mut self,
        id: LaneId,
        held: Held,
        now: Instant,
        call: &Call,
        out: &mut Effects,
    ) {
        if (0..call.len()).any(|index| call.lane(index) == id) {
            self.lanes.entry(&id).rest.push_back(held);
            self.in_call.push(id);
        } else {
            self.fail_uncalled(&id, held, now, out);
        }
    }

    fn admit_held(&mut self, held: Held, now: Instant, call: &mut Call, out: &mut Effects) {
        if !held.tenure.admits(now) {
            return;
        }
        let id = held.tag.lane(&held.message, &held.tenure);
        if self.lanes.holds(&id) {
            self.park(&id, held);
        } else if self.is_uncallable(&held) {
            self.admit_uncallable(id, held, now, call, out);
        } else {
            call.push_held(held);
        }
    }

    pub(super) fn park(&mut self, id: &LaneId, held: Held) {
        let stopped = |lane: &mut Lane| matches!(lane.state, LaneState::Stopped);
        // Behind something that will not be tried again before the end: neither will it.
        if !self.lanes.get_mut(id).is_some_and(stopped) {
            self.lanes.park(id, held);
        }
    }

    /// A message that no listener is to see: it could not be routed, or it has failed together with
    /// others as often as it may.
    fn is_uncallable(&self, held: &Held) -> bool {
        held.tag.route() == Route::Unroutable || (held.tag.tried() > 0 && self.is_exhausted(held))
    }

    fn is_exhausted(&self, held: &Held) -> bool {
        self.settings.failure.limit().is_some_and(|limit| held.attempts() >= limit.get())
    }

    fn fail_uncalled(&mut self, id: &LaneId, held: Held, now: Instant, out: &mut Effects) {
        let error = held.tag.last_error().cloned();
        if held.tag.route() == Route::Unroutable {
            let error = error.unwrap_or_else(|| "the routing function failed".into());
            let failure = Failure { error, asked: None, panicked: false };
            self.fail(id.clone(), held, failure, now, out);
        } else {
            let error =
                error.unwrap_or_else(|| "failed together with the messages before it".into());
            self.exhaust(id.clone(), held, error, now, out);
        }
    }
}
