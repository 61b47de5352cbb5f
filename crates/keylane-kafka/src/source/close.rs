//! The end: commits first, then the group, then whatever is left; each within its share of time.

use std::time::{Duration, Instant};

use keylane_source::{SourceError, SourceEvent};

use super::KafkaSource;

/// How much of the time is kept for leaving the group, at most.
const LEAVE_MAX: Duration = Duration::from_secs(1);

impl KafkaSource {
    pub(super) fn close_within(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        if self.closed {
            return Ok(());
        }
        let deadline = Instant::now() + timeout;
        self.wait_for_commits(deadline - (timeout / 4).min(LEAVE_MAX));
        // From here on every revoke is answered at once.
        self.closed = true;
        self.fail_commits();
        let left = self.leave(deadline);
        // Queues that are still open are the engine's to forget: it asked for the end.
        self.told.retain(|event| matches!(event, SourceEvent::CommitResult { .. }));
        events.extend(self.told.drain(..));
        left
    }

    fn wait_for_commits(&mut self, deadline: Instant) {
        loop {
            let now = Instant::now();
            self.serve_events(now);
            self.serve_replies(now);
            self.serve_revoke(now);
            self.send_requests(now);
            if !self.commits_under_way() || now >= deadline {
                return;
            }
            let timer = self.next_timer().map_or(deadline, |timer| timer.min(deadline));
            self.signal.wait_until(timer);
            // A wake is of no use any more, and would keep the wait from waiting.
            self.signal.take_woken();
        }
    }

    fn leave(&mut self, deadline: Instant) -> Result<(), SourceError> {
        let group = self.options.group.clone();
        let failed = |text: &dyn std::fmt::Display| {
            SourceError::retryable(format!("leave group {group}: {text}"))
        };
        self.client.begin_close().map_err(|code| failed(&code))?;
        // An unanswered revoke would hold the leaving up.
        if let Some(revoke) = &mut self.revoke {
            revoke.deadline = Instant::now();
        }
        loop {
            let now = Instant::now();
            self.serve_revoke(now);
            self.serve_events(now);
            if self.client.is_closed() {
                return Ok(());
            }
            if now >= deadline {
                return Err(failed(&"not done in time; the session will run out"));
            }
            // The last step of librdkafka's close raises no queue's flag: look again soon.
            self.signal.wait_until(deadline.min(now + Duration::from_millis(10)));
            self.signal.take_woken();
        }
    }
}
