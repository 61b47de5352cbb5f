//! The only place that reads the clock: everything else is given `now`, so that a simulator can
//! give it a time of its own.

use std::time::Instant;

/// Where "now" comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock;

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the one place that may")]
    pub(crate) fn now(self) -> Instant {
        Instant::now()
    }
}
