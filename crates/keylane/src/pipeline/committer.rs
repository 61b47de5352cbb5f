//! When which watermark of a queue is committed. One [`Committer`] per assigned queue, on the
//! source thread.
//!
//! Invariants: *one commit under way at most*, that of an earlier epoch included; *inside an epoch
//! committed watermarks only rise*; a value that the broker has acknowledged is not sent again; a
//! commit that failed, was refused or was never answered is repeated (with the newest watermark)
//! whether or not messages come.

use std::time::{Duration, Instant};

use keylane_source::{Commit, CommitTag, QueueId, SourceError, Watermark};

use super::retry::Random;
use crate::bug::bug;
use crate::config::FailurePolicy;

/// After this long without an answer a commit counts as failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Committer {
    queue: QueueId,
    /// The highest watermark that the broker has acknowledged, or had at the start.
    acknowledged: Option<Watermark>,
    under_way: Option<(Commit, Instant)>,
    /// The one under way is of an epoch that is over. Its answer says nothing about this one, but
    /// what is sent before that could be stored before it.
    is_of_the_past: bool,
    /// Not before this time, after a failure.
    again_at: Option<Instant>,
    failures: u32,
    last_error: Option<SourceError>,
}

/// What an answer means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Of a commit that nobody waits for any more.
    Late,
    Stored,
    /// Stored, after failures.
    Recovered,
    /// So often in a row.
    Failed(u32),
}

impl Committer {
    pub(crate) fn new(queue: QueueId, acknowledged: Option<Watermark>) -> Self {
        Self {
            queue,
            acknowledged,
            under_way: None,
            is_of_the_past: false,
            again_at: None,
            failures: 0,
            last_error: None,
        }
    }

    /// A new epoch begins, of which this is acknowledged.
    pub(crate) fn begin_epoch(&mut self, acknowledged: Option<Watermark>) {
        let under_way = self.under_way.take().filter(|_| !bug!("forget_old_commit"));
        let is_of_the_past = under_way.is_some();
        *self = Self { under_way, is_of_the_past, ..Self::new(self.queue, acknowledged) };
    }

    /// The commit to send now, if there is one.
    pub(crate) fn next(
        &mut self,
        watermark: Watermark,
        tag: CommitTag,
        now: Instant,
    ) -> Option<Commit> {
        let waits = self.again_at.is_some_and(|at| now < at);
        let busy = self.under_way.is_some() && !bug!("second_commit");
        if busy || waits || !self.lags(watermark) {
            return None;
        }
        let commit = Commit { queue: self.queue, watermark, metadata: String::new(), tag };
        self.under_way = Some((commit.clone(), now));
        self.again_at = None;
        Some(commit)
    }

    /// Whether this watermark has yet to be acknowledged.
    pub(crate) fn lags(&self, watermark: Watermark) -> bool {
        self.acknowledged.is_none_or(|acknowledged| watermark > acknowledged)
    }

    /// The broker has answered.
    pub(crate) fn answer(
        &mut self,
        commit: &Commit,
        result: Result<(), SourceError>,
        now: Instant,
        (policy, random): (&FailurePolicy, &mut Random),
    ) -> Answer {
        if self.under_way.as_ref().is_none_or(|(sent, _)| sent.tag != commit.tag) {
            return Answer::Late;
        }
        self.under_way = None;
        if std::mem::take(&mut self.is_of_the_past) {
            return Answer::Late;
        }
        match result {
            Ok(()) => {
                let failed_before = std::mem::take(&mut self.failures) > 0;
                self.last_error = None;
                self.acknowledged = self.acknowledged.max(Some(commit.watermark));
                if failed_before { Answer::Recovered } else { Answer::Stored }
            }
            Err(error) => {
                if bug!("failed_commit_counts") {
                    self.acknowledged = self.acknowledged.max(Some(commit.watermark));
                }
                self.failures = self.failures.saturating_add(1);
                self.last_error = Some(error);
                self.again_at = Some(now + policy.delay(self.failures, random));
                Answer::Failed(self.failures)
            }
        }
    }

    /// A commit that has been under way for too long: it counts as failed, its answer as late.
    pub(crate) fn unanswered(&self, now: Instant) -> Option<Commit> {
        let (commit, sent_at) = self.under_way.as_ref()?;
        (now.saturating_duration_since(*sent_at) >= ANSWER_TIMEOUT).then(|| commit.clone())
    }

    /// Whether a commit was sent that is not answered: it may be stored at any moment.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Forgets the back-off, and a commit under way that is outdated: the last chance has come.
    pub(crate) fn hurry(&mut self, watermark: Watermark) {
        self.again_at = None;
        let outdated = |sent: &Commit| self.is_of_the_past || sent.watermark < watermark;
        self.under_way = self.under_way.take().filter(|(sent, _)| !outdated(sent));
        self.is_of_the_past = false;
    }

    /// When time alone makes something due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.again_at
            .or_else(|| self.under_way.as_ref().map(|(_, sent_at)| *sent_at + ANSWER_TIMEOUT))
    }

    pub(crate) fn acknowledged(&self) -> Option<Watermark> {
        self.acknowledged
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn last_error(&self) -> Option<&SourceError> {
        self.last_error.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watermark(n: u64) -> Watermark {
        Watermark::new(n).unwrap()
    }

    fn committer(acknowledged: Option<u64>) -> Committer {
        Committer::new(QueueId::new("commits", 0), acknowledged.map(watermark))
    }

    fn answer(committer: &mut Committer, commit: &Commit, ok: bool, now: Instant) -> Answer {
        let result = if ok { Ok(()) } else { Err(SourceError::retryable("refused")) };
        let policy = FailurePolicy::default().jitter(0.0);
        committer.answer(commit, result, now, (&policy, &mut Random::new(1)))
    }

    #[test]
    fn one_at_a_time_and_the_newest_follows() {
        let now = crate::time::Clock.now();
        let mut committer = committer(Some(5));
        assert_eq!(committer.next(watermark(5), CommitTag(1), now), None);
        let first = committer.next(watermark(7), CommitTag(2), now).unwrap();
        assert_eq!(committer.next(watermark(9), CommitTag(3), now), None);
        assert_eq!(answer(&mut committer, &first, true, now), Answer::Stored);
        let second = committer.next(watermark(12), CommitTag(4), now).unwrap();
        assert_eq!(second.watermark, watermark(12));
    }

    #[test]
    fn a_failure_is_repeated_after_a_back_off_without_new_messages() {
        let now = crate::time::Clock.now();
        let mut committer = committer(None);
        let first = committer.next(watermark(7), CommitTag(1), now).unwrap();
        assert_eq!(answer(&mut committer, &first, false, now), Answer::Failed(1));
        assert_eq!(committer.next(watermark(7), CommitTag(2), now), None);
        let later = committer.next_due().unwrap();
        assert_eq!(later, now + Duration::from_millis(100));
        let again = committer.next(watermark(7), CommitTag(3), later).unwrap();
        assert_eq!(answer(&mut committer, &again, true, later), Answer::Recovered);
        assert_eq!(committer.acknowledged(), Some(watermark(7)));
    }

    #[test]
    fn a_new_epoch_waits_for_the_answer_to_the_old_ones_commit() {
        let now = crate::time::Clock.now();
        let mut committer = committer(None);
        let old = committer.next(watermark(7), CommitTag(1), now).unwrap();
        committer.begin_epoch(None);
        assert!(committer.is_under_way());
        assert_eq!(committer.next(watermark(3), CommitTag(2), now), None);
        assert_eq!(answer(&mut committer, &old, true, now), Answer::Late);
        assert_eq!(committer.acknowledged(), None, "it was the old epoch's");
        assert_eq!(
            committer.next(watermark(3), CommitTag(3), now).unwrap().watermark,
            watermark(3)
        );
    }

    #[test]
    fn a_late_answer_changes_nothing() {
        let now = crate::time::Clock.now();
        let mut committer = committer(None);
        let first = committer.next(watermark(7), CommitTag(1), now).unwrap();
        let later = now + ANSWER_TIMEOUT;
        assert_eq!(committer.unanswered(now), None);
        assert_eq!(committer.unanswered(later), Some(first.clone()));
        assert_eq!(answer(&mut committer, &first, false, later), Answer::Failed(1));
        assert_eq!(answer(&mut committer, &first, true, later), Answer::Late);
        assert_eq!(committer.acknowledged(), None);
    }
}
