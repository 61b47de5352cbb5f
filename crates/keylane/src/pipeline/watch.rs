//! Looks once a second for what does not move: calls and tickets that do not end, queues that are
//! held back. Nothing is interrupted; somebody is told.

use std::time::{Duration, Instant};

use super::coordinator::{Coordinator, TICK};
use super::shard::Watched;
use crate::observer::{Event, HeldBy};
use crate::report::{HoldingState, ShownKey};

/// What was seen of each shard the last time.
#[derive(Debug)]
pub(crate) struct Watch {
    next_at: Instant,
    shards: Vec<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// What is being looked at, and since when.
    call: Option<(Watched, Instant)>,
    reported: bool,
    /// The oldest ticket that has been open for too long.
    ticket: Option<String>,
    tickets_reported_at: Option<Instant>,
}

impl Watch {
    pub(crate) fn new(now: Instant) -> Self {
        Self { next_at: now + TICK, shards: Vec::new() }
    }

    pub(crate) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Calls that have been running for too long, in words.
    pub(crate) fn stalled(&self) -> impl Iterator<Item = String> {
        let tickets = self.shards.iter().filter_map(|seen| seen.ticket.clone());
        let stalled = self.shards.iter().enumerate().filter(|(_, seen)| seen.reported);
        let calls = stalled.filter_map(|(shard, seen)| {
            let (Watched { queue, offset, key, .. }, _) = seen.call.as_ref()?;
            Some(format!(
                "the call for {queue} offset {offset}, key {key}, on shard {shard} does not return"
            ))
        });
        calls.chain(tickets)
    }
}

impl Seen {
    /// How long the same message has been looked at, when that is too long and was not reported.
    fn look(
        &mut self,
        watched: Option<Watched>,
        now: Instant,
        after: Duration,
    ) -> Option<Duration> {
        match (&self.call, watched) {
            (Some((seen, since)), Some(watched)) if *seen == watched => {
                let running_for = now.saturating_duration_since(*since);
                let stalls = running_for >= after && !self.reported;
                self.reported |= stalls;
                stalls.then_some(running_for)
            }
            (_, watched) => {
                self.call = watched.map(|watched| (watched, now));
                self.reported = false;
                None
            }
        }
    }
}

impl Coordinator {
    pub(super) fn watch_shards(&mut self, now: Instant) {
        if now < self.watch.next_at {
            return;
        }
        // Sampling: a call is seen at most a tick after it began, so twice the tick must not exceed
        // what counts as a stall.
        let after = self.config.stall_after;
        self.watch.next_at = now + TICK.min(after / 2).max(Duration::from_millis(1));
        self.watch.shards.resize_with(self.shards.len(), Seen::default);
        for (seen, cell) in self.watch.shards.iter_mut().zip(&self.shards) {
            let shard = cell.shard.lock();
            let watched = shard.watched();
            let ticket = shard.old_tickets(now, after).max_by_key(|old| old.3);
            drop(shard);
            seen.ticket = ticket.as_ref().map(|(queue, offset, key, _)| {
                format!("the ticket for {queue} offset {offset}, key {key}, is not settled")
            });
            let due = seen.tickets_reported_at.is_none_or(|at| now >= at + after);
            let shard = cell.index;
            if let Some(running_for) = seen.look(watched, now, after)
                && let Some((Watched { queue, offset, key, .. }, _)) = seen.call.clone()
            {
                self.shared.report_later(Event::Stalled { queue, offset, key, shard, running_for });
            }
            if let Some((queue, offset, key, running_for)) = ticket.filter(|_| due) {
                seen.tickets_reported_at = Some(now);
                self.shared.report_later(Event::Stalled { queue, offset, key, shard, running_for });
            }
        }
        self.watch_queues(now);
        self.watch_unread(now);
    }

    /// A queue that is ours and is not read, for too long; perhaps the source never answers.
    fn watch_unread(&mut self, now: Instant) {
        let after = self.config.stall_after;
        for &slot in &self.unsettled {
            let queue = &mut self.queues[slot];
            let Some((waits_for, since)) = queue.waits_for() else { continue };
            let Some((_, told)) = &mut queue.unread else { continue };
            let waiting = now.saturating_duration_since(since);
            if waiting >= after.saturating_mul(told.saturating_add(1)) {
                *told += 1;
                let queue = queue.id;
                self.shared.report_later(Event::NotRead { queue, waits_for, waiting });
            }
        }
    }

    /// A queue that has been held back since the last look, by the same message: an event names it.
    fn watch_queues(&mut self, now: Instant) {
        let tick = TICK.min(self.config.stall_after);
        for &slot in &self.stashed {
            let queue = &mut self.queues[slot];
            let Some(reading) = &mut queue.reading else { continue };
            let Some(tracker) = &mut reading.tracker else { continue };
            let full = !tracker.has_room(self.config.span_max);
            let first = tracker.first_unfinished();
            if first.is_none() && reading.used.messages > 0 {
                continue; // All of it was finished just now, and its budget comes back next.
            }
            let (since, reported) = *reading.held.get_or_insert((now, false));
            let is_new = first.as_ref().is_some_and(|first| first.registered_at > since);
            if reported || now < since + tick || is_new {
                continue;
            }
            reading.held = Some((since, true));
            let Some(first) = first else {
                // What has nothing in flight may have any message that there is room for.
                let Some(message) = reading.stash.as_slice().first() else { continue };
                let key = Some(ShownKey::new(message.key_bytes(), self.config.hide_keys));
                let (queue, by, offset) = (queue.id, HeldBy::Size, message.offset());
                self.shared.report_later(Event::Held { queue, by, offset, key });
                continue;
            };
            let (epoch, offset) = (reading.tenure.epoch, first.offset);
            let found = match self.mode.shard_of(slot, first.way) {
                Some(shard) => self.shards[shard].shard.lock().find(epoch, offset),
                None => self.shards.iter().find_map(|cell| cell.shard.lock().find(epoch, offset)),
            };
            let kept = found.as_ref().is_some_and(|held| held.state == HoldingState::Uncommitted);
            let by = match full {
                _ if kept => HeldBy::Uncommitted,
                true => HeldBy::Span,
                false => HeldBy::Budget,
            };
            let key = found.map(|held| held.key);
            self.shared.report_later(Event::Held { queue: queue.id, by, offset, key });
        }
    }
}
