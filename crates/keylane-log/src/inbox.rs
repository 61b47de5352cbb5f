//! Where other threads leave word for a source: queues that grew, results of commits, wake-ups.
//!
//! Everything is under one mutex, and whoever leaves something notifies the condition variable, so
//! that no wake-up is lost: the source looks under the same mutex before it waits.

use std::time::Instant;

use keylane_source::SourceEvent;
use parking_lot::{Condvar, Mutex};

#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Queues that grew, each once.
    grown: Vec<u32>,
    is_grown: Vec<bool>,
    results: Vec<SourceEvent>,
    woken: bool,
}

impl Inbox {
    pub(crate) fn new(queues: usize) -> Self {
        let state = State {
            grown: Vec::new(),
            is_grown: vec![false; queues],
            results: Vec::new(),
            woken: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
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

    /// Takes what was left: results into `events`, grown queues into `grown`. True if woken since
    /// the last time.
    pub(crate) fn take(&self, grown: &mut Vec<u32>, events: &mut Vec<SourceEvent>) -> bool {
        let mut state = self.state.lock();
        events.append(&mut state.results);
        for queue in state.grown.drain(..).collect::<Vec<_>>() {
            state.is_grown[queue as usize] = false;
            grown.push(queue);
        }
        std::mem::take(&mut state.woken)
    }

    /// Waits until something was left, or until `deadline`. False: it was the deadline.
    pub(crate) fn wait(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.woken && state.grown.is_empty() && state.results.is_empty() {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }
}
