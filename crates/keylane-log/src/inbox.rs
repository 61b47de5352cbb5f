//! Where other threads leave word for a source: queues that grew, results of commits, offsets that
//! somebody moved, wake-ups.
//!
//! Everything is under one mutex, and whoever leaves something notifies the condition variable, so
//! that no wake-up is lost: the source looks under the same mutex before it waits.

use std::sync::Arc;
use std::time::Instant;

use keylane_source::{Position, SourceEvent};
use parking_lot::{Condvar, Mutex};

#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) group: Arc<str>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Queues that grew, each once.
    grown: Vec<u32>,
    is_grown: Vec<bool>,
    results: Vec<SourceEvent>,
    /// Queues whose committed offset somebody is about to move, or has moved. The source must not
    /// commit them before it has learned of it: it would undo the move.
    moving: Vec<u32>,
    moved: Vec<(u32, Position)>,
    woken: bool,
}

/// What a source takes out.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    pub(crate) grown: Vec<u32>,
    pub(crate) moved: Vec<(u32, Position)>,
    pub(crate) woken: bool,
}

impl Inbox {
    pub(crate) fn new(group: &Arc<str>, queues: usize) -> Self {
        let state = State {
            grown: Vec::new(),
            is_grown: vec![false; queues],
            results: Vec::new(),
            moving: Vec::new(),
            moved: Vec::new(),
            woken: false,
        };
        Self { group: Arc::clone(group), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// These queues have a new end.
    pub(crate) fn grown(&self, queues: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        for queue in queues {
            if !std::mem::replace(&mut state.is_grown[queue as usize], true) {
                state.grown.push(queue);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn result(&self, result: SourceEvent) {
        self.state.lock().results.push(result);
        self.changed.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.state.lock().woken = true;
        self.changed.notify_one();
    }

    /// From here until the source has learned of the move it may not commit this queue.
    pub(crate) fn moving(&self, queue: u32) {
        self.state.lock().moving.push(queue);
    }

    /// The committed offset of this queue was moved; or, without a position, it was not after all.
    pub(crate) fn moved(&self, queue: u32, to: Option<Position>) {
        let mut state = self.state.lock();
        match to {
            Some(to) => state.moved.push((queue, to)),
            None => {
                if let Some(at) = state.moving.iter().position(|moving| *moving == queue) {
                    state.moving.swap_remove(at);
                }
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn is_moving(&self, queue: u32) -> bool {
        self.state.lock().moving.contains(&queue)
    }

    /// Takes what was left, the results into `events`.
    pub(crate) fn take(&self, events: &mut Vec<SourceEvent>) -> Letters {
        let mut state = self.state.lock();
        events.append(&mut state.results);
        let letters = Letters {
            grown: std::mem::take(&mut state.grown),
            moved: std::mem::take(&mut state.moved),
            woken: std::mem::take(&mut state.woken),
        };
        letters.grown.iter().for_each(|queue| state.is_grown[*queue as usize] = false);
        for (queue, _) in &letters.moved {
            if let Some(at) = state.moving.iter().position(|moving| moving == queue) {
                state.moving.swap_remove(at);
            }
        }
        letters
    }

    /// Waits until something was left, or until `deadline`. False: it was the deadline.
    pub(crate) fn wait(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.woken
            && state.grown.is_empty()
            && state.moved.is_empty()
            && state.results.is_empty()
        {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }
}
