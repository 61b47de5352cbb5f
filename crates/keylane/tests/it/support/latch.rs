//! A door that is closed until somebody opens it.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::PATIENCE;

/// Those who [pass](Self::pass) wait until it is [open](Self::open). Clones are the same latch.
#[derive(Clone, Default)]
pub(crate) struct Latch(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    is_open: bool,
    arrived: usize,
}

impl Latch {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Lets everybody pass, from now on.
    pub(crate) fn open(&self) {
        self.0.0.lock().is_open = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open. As long as the test lives, that may take for ever: a listener that
    /// never returns is made of this.
    pub(crate) fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock();
        state.arrived += 1;
        changed.notify_all();
        while !state.is_open {
            changed.wait(&mut state);
        }
    }

    /// Waits until this many have come to the door, whether or not they have passed.
    #[track_caller]
    pub(crate) fn wait_for_arrivals(&self, arrivals: usize) {
        let (state, changed) = &*self.0;
        let mut state = state.lock();
        while state.arrived < arrivals {
            let late = changed.wait_for(&mut state, PATIENCE).timed_out();
            let arrived = state.arrived;
            assert!(!late || arrived >= arrivals, "{arrived} of {arrivals} came to the latch");
        }
    }
}
