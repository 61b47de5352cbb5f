//! Where `poll` sleeps: librdkafka says that a queue is no longer empty, the engine says "return".
//!
//! Neither is ever lost: a flag that is raised while nobody waits ends the next wait at once.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(crate) struct Signal {
    flags: Mutex<Flags>,
    raised: Condvar,
}

#[derive(Debug, Default)]
struct Flags {
    /// One of librdkafka's queues has become non-empty.
    activity: bool,
    /// The engine wants `poll` to return.
    woken: bool,
}

impl Signal {
    /// Called by librdkafka's threads: never waits, never calls librdkafka.
    pub(crate) fn activity(&self) {
        self.flags.lock().activity = true;
        self.raised.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.flags.lock().woken = true;
        self.raised.notify_one();
    }

    /// Whether the engine has asked to return since the last call.
    pub(crate) fn take_woken(&self) -> bool {
        std::mem::take(&mut self.flags.lock().woken)
    }

    /// Waits for activity or a wake, at most until then. Takes the activity, leaves the wake.
    pub(crate) fn wait_until(&self, deadline: Instant) {
        let mut flags = self.flags.lock();
        while !flags.activity && !flags.woken {
            if self.raised.wait_until(&mut flags, deadline).timed_out() {
                break;
            }
        }
        flags.activity = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flag_raised_before_the_wait_ends_it() {
        let signal = Signal::default();
        let far = Instant::now() + Duration::from_secs(3600);
        signal.activity();
        signal.wait_until(far);
        signal.wake();
        signal.wait_until(far);
        assert!(signal.take_woken());
        assert!(!signal.take_woken());
    }
}
