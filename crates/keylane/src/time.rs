//! The only place that reads the clock: everything else is given `now`, so that a simulator can
//! give it a time of its own.

use std::time::Instant;

/// Where "now" comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock;

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the one place that may")]
    pub(crate) fn now(self) -> Instant {
        #[cfg(feature = "sim")]
        if let Some(now) = VIRTUAL.get() {
            return now;
        }
        Instant::now()
    }

    /// What this thread takes for the time from now on: the simulator is one thread, whose time
    /// stands still while a step runs. `None`: the time of the system.
    #[cfg(feature = "sim")]
    pub(crate) fn set_virtual(self, now: Option<Instant>) {
        VIRTUAL.set(now);
    }
}

#[cfg(feature = "sim")]
thread_local! {
    static VIRTUAL: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}
