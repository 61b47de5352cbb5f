//! The only place that reads the clock: everything else is given `now`, so that a simulator can
//! give it a time of its own.

use std::time::{Duration, Instant};

/// The longest time that anybody waits: a hundred years. A user may name a longer one, and means
/// "for ever"; added to an instant, it would be none.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

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
