//! Which messages of a queue are finished, and how far the finished ones reach without a gap.
//!
//! One [`Tracker`] per queue and epoch. The source thread owns it, registers messages in order of
//! offset and reads the watermark; the shards finish messages in any order, through the [`Page`]s
//! that travel with the chunks.
//!
//! ```text
//! registered  0 1 2 3 4 5 6 7 8 9 …           numbers ("seq"), without holes, whatever the offsets
//! pages       [1 1 1 0 1 1 0 0 0 0]           one bit each, set by whoever finishes the message
//!                    ▲ low        ▲ next      span = next - low
//! runs        seq 0 → offset 700, seq 5 → offset 9_000_000_000      (a hole costs one run)
//! ```
//!
//! Invariants:
//!
//! 1. *Every bit below `low` is set, the bit at `low` is not* (or `low == next`). Bits are only ever
//!    set, so a `low` once computed stays a lower bound: the watermark never falls.
//! 2. *The watermark is the offset registered as `low`*, or the position when all is finished. It
//!    is therefore never above an unfinished message, and it passes holes (G3, G4).
//! 3. *A bit at or above `next` is never set*: a page reaches the shards with the message it
//!    belongs to, after `next` has passed it.
//! 4. *Nothing here depends on how far apart offsets lie*, nor on how far completions run ahead: a
//!    page is 512 messages, and is let go when its last one is finished.
//!
//! An epoch's end needs no check in here: the next one has a tracker and pages of its own, so a
//! late completion sets a bit that nobody reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use keylane_source::{Offset, Position, Watermark};

use super::in_memory;
use crate::bug::bug;

mod page;

pub(crate) use page::{Finished, PAGE_MESSAGES, Page};

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Tracker {
    pages: VecDeque<Arc<Page>>,
    /// The seq of the first page's first bit.
    pages_start: u64,
    runs: VecDeque<Run>,
    /// The router's way for each registered message from `low` on: two bytes that make it possible
    /// to say which thread a stalled queue waits for.
    ways: VecDeque<u16>,
    low: u64,
    next: u64,
    /// The next offset to read: where the watermark goes when everything is finished.
    position: Position,
}

/// Messages registered one after the other at offsets without a hole, in one pull.
#[derive(Debug)]
struct Run {
    seq: u64,
    offset: Offset,
    registered_at: Instant,
}

/// The message that holds a watermark back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unfinished {
    pub(crate) offset: Offset,
    pub(crate) way: u16,
    pub(crate) registered_at: Instant,
}

impl Tracker {
    /// A tracker for a queue that is read from `position` on.
    pub(crate) fn new(position: Position) -> Self {
        Self {
            pages: VecDeque::new(),
            pages_start: 0,
            runs: VecDeque::new(),
            ways: VecDeque::new(),
            low: 0,
            next: 0,
            position,
        }
    }

    /// The next offset that may be registered: what lies below has been, or holds no message.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// Notes a message that is about to take this way; returns its bit in the
    /// [`page`](Self::page). `offset` must not be below [`position`](Self::position).
    pub(crate) fn register(&mut self, offset: Offset, way: usize, now: Instant) -> u16 {
        assert!(Position::from(offset) >= self.position, "{offset} was registered before");
        let seq = self.next;
        let continues = self.runs.back().is_some_and(|run| {
            run.registered_at == now && offset.get() - run.offset.get() == seq - run.seq
        });
        if !continues {
            self.runs.push_back(Run { seq, offset, registered_at: now });
        }
        let bit = in_memory(seq - self.pages_start);
        if bit == self.pages.len() * PAGE_MESSAGES {
            self.pages.push_back(Arc::default());
        }
        // Where there are more than 65,536, nobody asks.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        self.ways.push_back(way as u16);
        self.next = seq + 1;
        self.position = offset.next();
        #[expect(clippy::cast_possible_truncation, reason = "a page has 512 bits")]
        let bit = (bit % PAGE_MESSAGES) as u16;
        bit
    }

    /// The page of the message registered last.
    pub(crate) fn page(&self) -> &Arc<Page> {
        self.pages.back().expect("a message was registered, and none is finished before it is sent")
    }

    /// How many messages fit into the page that the next one will be in.
    pub(crate) fn left_in_page(&self) -> usize {
        PAGE_MESSAGES - in_memory(self.next - self.pages_start) % PAGE_MESSAGES
    }

    /// Moves the position behind offsets that hold no message (never back).
    pub(crate) fn skip_to(&mut self, position: Position) {
        self.position = self.position.max(position);
    }

    /// Everything below is finished. Looks at what has been finished since the last call.
    pub(crate) fn watermark(&mut self) -> Watermark {
        self.advance();
        match self.first_unfinished().filter(|_| !bug!("commit_highest")) {
            None => self.position.into(),
            Some(unfinished) => Position::from(unfinished.offset).into(),
        }
    }

    /// How many registered messages lie between the watermark and the newest one, as of the last
    /// look.
    pub(crate) fn span(&self) -> u64 {
        self.next - self.low
    }

    /// Whether the span is below `max`. Looks anew only when it seems not to be.
    pub(crate) fn has_room(&mut self, max: u64) -> bool {
        if self.span() >= max {
            self.advance();
        }
        self.span() < max
    }

    /// The message at the watermark, as of the last look.
    pub(crate) fn first_unfinished(&self) -> Option<Unfinished> {
        let run = self.runs.front().filter(|_| self.low < self.next)?;
        let offset = Offset::new(run.offset.get() + (self.low - run.seq))?;
        let way = *self.ways.front()?;
        Some(Unfinished { offset, way, registered_at: run.registered_at })
    }

    /// How many registered messages are not finished. Costs a look at each page.
    pub(crate) fn unfinished(&self) -> u64 {
        let finished: u64 = self.pages.iter().map(|page| page.count()).sum();
        self.next - self.pages_start - finished
    }

    /// Finds `low` anew and lets go of what lies below it.
    fn advance(&mut self) {
        let low = self.low;
        while let Some(page) = self.pages.front() {
            let end = self.pages_start + page.leading() as u64;
            self.low = self.low.max(end);
            if end < self.pages_start + PAGE_MESSAGES as u64 {
                break;
            }
            self.pages.pop_front();
            self.pages_start += PAGE_MESSAGES as u64;
        }
        debug_assert!(self.low <= self.next, "a bit was set for a message never registered");
        self.ways.drain(..in_memory(self.low - low));
        while self.runs.get(1).is_some_and(|run| run.seq <= self.low) {
            self.runs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
