//! What all checkers found, in numbers and in words.

use std::collections::BTreeMap;
use std::fmt;

use keylane_source::{QueueId, Watermark};

use super::bounded::Gauge;
use super::checkers::{KeyCheckers, QueueCheckers};
use super::violation::{Findings, KEPT_IN_WORDS, Violation};
use super::{Guarantee, Moment, commits, exclusion, order, watermark};

/// What all checkers found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Distinct messages that reached the listener and succeeded.
    pub delivered: u64,
    /// Deliveries of a message after it had succeeded, with a reason or without.
    pub duplicates: u64,
    /// How often a lane's order was broken.
    pub order_violations: u64,
    /// How often two calls of a key overlapped.
    pub overlap_violations: u64,
    /// Messages that were never finished; see [`Moment`].
    pub lost: u64,
    /// Commits that passed something unfinished, went back, came too late, or were not where the
    /// next epoch began.
    pub commit_violations: u64,
    /// What the other guarantees found: duplicates without a reason, deliveries of what was never
    /// there, too much in flight, calls after the end.
    pub other_violations: u64,
    /// The most messages that were fetched and not finished at any time. 0 where fetches were not
    /// recorded.
    pub in_flight_max: u64,
    /// Whether every queue is committed to its end.
    pub committed: bool,
    /// Each queue, in order.
    pub queues: Vec<QueueVerdict>,
    /// The first of the violations, in words; all are counted above.
    pub violations: Vec<Violation>,
}

/// One queue of a verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueVerdict {
    /// Which one.
    pub queue: QueueId,
    /// Distinct messages that succeeded.
    pub delivered: u64,
    /// What is stored for the group, where that is known.
    pub committed: Option<Watermark>,
    /// The highest position that is known.
    pub end: u64,
}

impl Verdict {
    /// Whether nothing was broken and nothing is lost. At [`Moment::Drained`] that includes that
    /// every queue is committed to its end.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.lost == 0
    }

    /// Fails the test that is running, where something was broken.
    ///
    /// # Panics
    ///
    /// With the whole verdict, unless it [is clean](Self::is_clean).
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "guarantees are broken:\n{self}");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "delivered           {:>12}", self.delivered)?;
        writeln!(f, "duplicates          {:>12}", self.duplicates)?;
        writeln!(f, "lost                {:>12}", self.lost)?;
        writeln!(f, "order violations    {:>12}", self.order_violations)?;
        writeln!(f, "overlap violations  {:>12}", self.overlap_violations)?;
        writeln!(f, "commit violations   {:>12}", self.commit_violations)?;
        writeln!(f, "other violations    {:>12}", self.other_violations)?;
        writeln!(f, "in flight, at most  {:>12}", self.in_flight_max)?;
        writeln!(f, "all committed       {:>12}", if self.committed { "yes" } else { "no" })?;
        for QueueVerdict { queue, delivered, committed, end } in &self.queues {
            let committed = committed.map_or("-".to_owned(), |mark| mark.to_string());
            writeln!(f, "  {queue}: delivered {delivered}, committed {committed} of {end}")?;
        }
        self.violations.iter().try_for_each(|violation| writeln!(f, "{violation}"))
    }
}

/// Adds up what checkers found, each of some of the keys or queues.
pub(crate) struct VerdictBuilder {
    moment: Moment,
    findings: BTreeMap<&'static str, Findings>,
    queues: BTreeMap<QueueId, QueueVerdict>,
    duplicates: u64,
    lost: u64,
    committed: bool,
}

impl VerdictBuilder {
    pub(crate) fn new(moment: Moment) -> Self {
        let (findings, queues) = (BTreeMap::new(), BTreeMap::new());
        Self { moment, findings, queues, duplicates: 0, lost: 0, committed: true }
    }

    pub(crate) fn keys(&mut self, checkers: &KeyCheckers) {
        self.add(&checkers.order);
        self.add(&checkers.exclusion);
    }

    pub(crate) fn queues(&mut self, checkers: &QueueCheckers) {
        checkers.all().into_iter().for_each(|guarantee| self.add(guarantee));
        self.duplicates += checkers.duplicates.count();
        self.lost += checkers.lost(self.moment);
        for (queue, progress) in checkers.progress.queues() {
            self.committed &= progress.is_done;
            let verdict = self.queue(queue);
            (verdict.committed, verdict.end) = (progress.stored, progress.end);
        }
        for (queue, delivered) in checkers.duplicates.succeeded() {
            self.queue(queue).delivered = delivered;
        }
    }

    fn queue(&mut self, queue: QueueId) -> &mut QueueVerdict {
        let new = || QueueVerdict { queue, delivered: 0, committed: None, end: 0 };
        self.queues.entry(queue).or_insert_with(new)
    }

    fn add(&mut self, guarantee: &dyn Guarantee) {
        let found = guarantee.verify(self.moment);
        let name = found.guarantee;
        self.findings.entry(name).or_insert_with(|| Findings::new(name)).merge(found);
    }

    pub(crate) fn finish(self, gauge: &Gauge) -> Verdict {
        let count = |names: &[&str]| {
            let of = |name: &&str| self.findings.get(*name).map_or(0, |found| found.count);
            names.iter().map(of).sum::<u64>()
        };
        let order_violations = count(&[order::NAME]);
        let overlap_violations = count(&[exclusion::NAME]);
        let commit_violations = count(&[commits::NAME, watermark::NAME]);
        let all: u64 = self.findings.values().map(|found| found.count).sum();
        // Losses and missing commits have numbers of their own.
        let counted_elsewhere = self.lost + count(&[super::progress::NAME]);
        let other_violations = all
            - order_violations
            - overlap_violations
            - commit_violations
            - counted_elsewhere.min(all);
        let queues: Vec<_> = self.queues.into_values().collect();
        let in_words = self.findings.into_values().flat_map(|found| found.violations);
        Verdict {
            delivered: queues.iter().map(|queue| queue.delivered).sum(),
            duplicates: self.duplicates,
            order_violations,
            overlap_violations,
            lost: self.lost,
            commit_violations,
            other_violations,
            in_flight_max: gauge.most(),
            committed: self.committed,
            queues,
            violations: in_words.take(KEPT_IN_WORDS).collect(),
        }
    }
}
