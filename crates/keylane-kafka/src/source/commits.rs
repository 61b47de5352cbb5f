//! Commits: all of a round in one request, each answered, none for a queue that is not ours.
//!
//! A commit that the coordinator refuses because the group is being rebalanced is sent again, for a
//! while: that is when a revoked queue's last commit comes, and the refusal passes.

use std::time::{Duration, Instant};

use keylane_source::{Commit, SourceError, SourceEvent};

use super::KafkaSource;
use super::queues::{Phase, Tenure};
use super::requests::Request;
use crate::native::{Code, Partition, Tag};

/// When a commit that a rebalance has refused is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How often, before it is given up as failed.
const AGAIN_MAX: u32 = 20;

/// A commit that is not answered yet.
#[derive(Debug)]
pub(super) struct Pending {
    commit: Commit,
    /// The queue's tenure when it was asked for; none where the queue was not the engine's.
    tenure: Option<Tenure>,
    /// How often it has been refused.
    refused: u32,
}

impl KafkaSource {
    pub(super) fn ask_commit(&mut self, commit: Commit) {
        let state = self.queues.get(commit.queue);
        let known = state.filter(|state| state.phase != Phase::LookingUp);
        let tenure = known.map(|state| state.tenure);
        self.commits.push(Pending { commit, tenure, refused: 0 });
    }

    pub(super) fn send_commits(&mut self, now: Instant) {
        if self.commits_again_at.is_some_and(|at| now >= at) {
            self.commits_again_at = None;
            self.commits.append(&mut self.refused);
        }
        if self.commits.is_empty() {
            return;
        }
        let mut send = Vec::new();
        for pending in std::mem::take(&mut self.commits) {
            let current = self.queues.get(pending.commit.queue).map(|state| state.tenure);
            if pending.tenure.is_some() && pending.tenure == current {
                send.push(pending);
            } else {
                // Somebody else's by now: a broker might store it all the same, once we are a
                // member again, and move the group back.
                self.answer(pending.commit, Err(&"the queue is not this member's any more"));
            }
        }
        if send.is_empty() {
            return;
        }
        let offset = |Pending { commit, .. }: &Pending| {
            (commit.queue, commit.watermark.to_i64(), commit.metadata.clone())
        };
        let offsets: Vec<_> = send.iter().map(offset).collect();
        let tag = self.note(Request::Commits(send));
        if let Err(code) = self.client.commit(offsets.into_iter(), tag) {
            self.on_stored(tag, Err(code), &[], now);
        }
    }

    pub(super) fn on_stored(
        &mut self,
        tag: Tag,
        whole: Result<(), Code>,
        partitions: &[Partition],
        now: Instant,
    ) {
        let Some(Request::Commits(commits)) = self.requests.remove(&tag) else { return };
        for mut pending in commits {
            let one = partitions.iter().find(|one| one.queue == pending.commit.queue);
            match one.map_or(whole, |one| whole.and(one.accepted())) {
                Ok(()) => self.answer(pending.commit, Ok(())),
                Err(Code::REBALANCING) if pending.refused < AGAIN_MAX => {
                    pending.refused += 1;
                    self.refused.push(pending);
                    self.commits_again_at.get_or_insert(now + AGAIN_AFTER);
                }
                Err(code) => self.answer(pending.commit, Err(&code)),
            }
        }
    }

    fn answer(&mut self, commit: Commit, result: Result<(), &dyn std::fmt::Display>) {
        let result = result.map_err(|reason| {
            SourceError::retryable(format!(
                "commit {} at {} for group {}: {reason}",
                commit.queue, commit.watermark, self.options.group
            ))
        });
        self.told.push_back(SourceEvent::CommitResult { commit, result });
    }

    pub(super) fn commits_under_way(&self) -> bool {
        let commits = |request: &Request| matches!(request, Request::Commits(_));
        let waiting = !self.commits.is_empty() || !self.refused.is_empty();
        waiting || self.requests.values().any(commits)
    }

    /// Commits that will not be answered any more are answered so.
    pub(super) fn fail_commits(&mut self) {
        let mut open = std::mem::take(&mut self.commits);
        open.append(&mut self.refused);
        for request in std::mem::take(&mut self.requests).into_values() {
            if let Request::Commits(commits) = request {
                open.extend(commits);
            }
        }
        for pending in open {
            self.answer(pending.commit, Err(&"no answer before the source was closed"));
        }
    }
}
