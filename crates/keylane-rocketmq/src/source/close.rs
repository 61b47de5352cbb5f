//! Leaving: commits are answered, then locks are given back, then the group is left, then the
//! connections end. Each step has its time; none keeps the next one from being tried.

use std::time::{Duration, Instant};

use keylane_source::{SourceError, SourceEvent};

use super::{Member, after};
use crate::source::incoming::Incoming;

/// What is kept of the time for leaving the group and ending connections.
const RESERVE_MAX: Duration = Duration::from_secs(1);

impl Member {
    pub(super) fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let start = Instant::now();
        let deadline = after(start, timeout);
        let reserve = (timeout / 2).min(RESERVE_MAX);
        let mut undone = Vec::new();
        self.closing = true;
        self.run_lock_calls();
        self.wait_for_commits_and_locks(deadline - reserve);
        undone.extend(
            self.committing.keys().map(|queue| format!("the commit of {queue} is not answered")),
        );
        if self.locks.is_giving_back() {
            undone.push("locks are not given back; they expire at their brokers".to_owned());
        }
        undone.extend(self.leave(deadline - reserve / 4));
        if let Err(error) = self.client.close(deadline) {
            undone.push(error.to_string());
        }
        // The end of the connections has answered whatever was still open.
        while let Ok(incoming) = self.inbox.try_recv() {
            self.handle(incoming, Instant::now());
        }
        self.events.retain(|event| {
            matches!(event, SourceEvent::CommitResult { .. } | SourceEvent::Lock { .. })
        });
        events.extend(self.events.drain(..));
        if undone.is_empty() {
            return Ok(());
        }
        undone.sort();
        Err(SourceError::retryable(format!(
            "close member {} of group {}: {}",
            self.client_id,
            self.config.group,
            undone.join("; ")
        )))
    }

    fn wait_for_commits_and_locks(&mut self, deadline: Instant) {
        loop {
            while let Ok(incoming) = self.inbox.try_recv() {
                self.handle(incoming, Instant::now());
            }
            self.give_back_locks();
            let done = self.committing.is_empty() && !self.locks.is_giving_back();
            if done || Instant::now() >= deadline {
                return;
            }
            if let Ok(incoming) = self.inbox.recv_deadline(deadline) {
                self.handle(incoming, Instant::now());
            }
        }
    }

    /// Leaves the group at every broker; says where it could not.
    fn leave(&mut self, deadline: Instant) -> Vec<String> {
        let brokers: Vec<String> = self.group.brokers().map(str::to_owned).collect();
        for address in &brokers {
            self.ask_unregister(address);
        }
        let (mut waiting, mut failures) = (brokers.len(), Vec::new());
        while waiting > 0 {
            match self.inbox.recv_deadline(deadline) {
                Ok(Incoming::Unregistered { answer }) => {
                    waiting -= 1;
                    failures.extend(answer.err().map(|error| format!("leave the group: {error}")));
                }
                Ok(incoming) => self.handle(incoming, Instant::now()),
                Err(_) => {
                    failures.push(format!("{waiting} brokers did not answer that it has left"));
                    break;
                }
            }
        }
        failures
    }
}
