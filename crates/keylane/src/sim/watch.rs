//! Feeds the guarantees of the test kit with what is seen from outside: what the broker has, what
//! listeners were given and said, what was committed.
//!
//! A group has one owner of a queue at a time, but a member that was thrown out does not know at
//! once. Its calls go on meanwhile, and nothing promises more about them than that they exclude
//! each other inside their process: of them only [`Exclusion`] hears.

use std::collections::BTreeMap;

use keylane_source::{QueueId, Watermark};
use keylane_testkit::guarantee::{
    CallId, CommitStep, Epoch, Event, Findings, Found, Guarantee, Lane, Moment, Scope,
    at_least_once::AtLeastOnce, bounded::Bounded, commits::Commits, duplicates::Duplicates,
    exclusion::Exclusion, order::Order, progress::Progress, shutdown::Shutdown,
    watermark::WatermarkRule,
};

/// See the module's description.
pub(super) struct Watch {
    scope: Scope,
    exclusion: Exclusion,
    /// Those whose findings cost nothing to ask for.
    quick: Vec<Box<dyn Guarantee + Send>>,
    /// Those that have to add up.
    slow: Vec<Box<dyn Guarantee + Send>>,
    epochs: BTreeMap<QueueId, Epoch>,
    calls: u64,
}

impl Watch {
    pub(super) fn new(scope: Scope, in_flight_limit: u64) -> Self {
        Self {
            scope,
            exclusion: Exclusion::default(),
            quick: vec![
                Box::new(Order::default()),
                Box::new(WatermarkRule::default()),
                Box::new(Commits::default()),
                Box::new(Bounded::new(Some(in_flight_limit), std::sync::Arc::default())),
                Box::new(Shutdown::default()),
                Box::new(Duplicates::default()),
            ],
            slow: vec![Box::new(AtLeastOnce::default()), Box::new(Progress::default())],
            epochs: BTreeMap::new(),
            calls: 0,
        }
    }

    pub(super) fn lane(&self, message: &keylane_source::Message) -> Lane {
        self.scope.lane(message)
    }

    pub(super) fn next_call(&mut self) -> CallId {
        self.calls += 1;
        CallId(self.calls)
    }

    /// The epoch of the queue that began last.
    pub(super) fn epoch(&self, queue: QueueId) -> Epoch {
        self.epochs.get(&queue).copied().unwrap_or_default()
    }

    pub(super) fn next_epoch(&mut self, queue: QueueId) -> Epoch {
        let epoch = self.epochs.entry(queue).or_default();
        epoch.0 += 1;
        *epoch
    }

    pub(super) fn observe(&mut self, event: &Event<'_>) {
        self.exclusion.observe(event);
        self.quick.iter_mut().chain(&mut self.slow).for_each(|all| all.observe(event));
    }

    /// An epoch begins where the look-up said; `since`: what was stored after it. The watchers are
    /// told in that order.
    pub(super) fn begin_epoch(&mut self, assigned: &Event<'_>, since: Option<Watermark>) {
        let Event::Assigned { queue, epoch, found, .. } = *assigned else { return };
        let stored = |watermark| {
            let step = CommitStep::Stored;
            Event::Committed { queue, epoch, watermark, step }
        };
        if let (Some(_), Found::At(watermark)) = (since, found) {
            self.observe(&stored(watermark));
        }
        self.observe(assigned);
        if let Some(watermark) = since {
            self.observe(&stored(watermark));
        }
    }

    /// Of a member that the group has thrown out.
    pub(super) fn observe_outsider(&mut self, event: &Event<'_>) {
        self.exclusion.observe(event);
    }

    /// The first broken promise that can be seen without adding up.
    pub(super) fn broken(&self) -> Option<String> {
        let quick = self.quick.iter().map(|guarantee| guarantee.verify(Moment::Running));
        let all = std::iter::once(self.exclusion.verify(Moment::Running)).chain(quick);
        all.filter(|found| found.count > 0).map(in_words).next()
    }

    /// Everything that is broken at this moment.
    pub(super) fn all_broken(&self, moment: Moment) -> Option<String> {
        let slow = self.slow.iter().map(|guarantee| guarantee.verify(moment));
        let slow = slow.filter(|found| found.count > 0).map(in_words).next();
        self.broken().or(slow)
    }
}

fn in_words(found: Findings) -> String {
    let mut all: Vec<_> = found.violations.iter().map(ToString::to_string).collect();
    all.sort_unstable(); // Their order may depend on a map's.
    all.truncate(5);
    format!("{} ({} times): {}", found.guarantee, found.count, all.join("; "))
}
