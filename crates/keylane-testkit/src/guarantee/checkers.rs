//! All guarantees together, for one thread; and the two halves of which a recorder has many.

use std::sync::Arc;

use super::at_least_once::AtLeastOnce;
use super::bounded::{Bounded, Gauge};
use super::commits::Commits;
use super::duplicates::Duplicates;
use super::event::Event;
use super::exclusion::Exclusion;
use super::order::Order;
use super::progress::Progress;
use super::shutdown::Shutdown;
use super::verdict::{Verdict, VerdictBuilder};
use super::watermark::WatermarkRule;
use super::{Guarantee, Moment};

/// Every guarantee of this module, fed by one thread: for simulators and replayed logs.
///
/// ```
/// use keylane_source::{Offset, Position, QueueId};
/// use keylane_testkit::guarantee::{Checkers, Event, Moment};
///
/// let mut checkers = Checkers::new();
/// checkers.observe(&Event::Produced {
///     queue: QueueId::new("orders", 0),
///     first: Offset::ZERO,
///     end: Position::new(3).unwrap(),
/// });
/// let verdict = checkers.verdict(Moment::Drained);
/// assert_eq!(verdict.lost, 3);
/// assert!(!verdict.is_clean());
/// ```
#[derive(Debug, Default)]
pub struct Checkers {
    keys: KeyCheckers,
    queues: QueueCheckers,
    gauge: Arc<Gauge>,
}

impl Checkers {
    /// Checkers that have seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checkers that also check how many messages are in flight; see
    /// [`bounded`](super::bounded).
    pub fn with_in_flight_limit(messages: u64) -> Self {
        let gauge = Arc::<Gauge>::default();
        let queues = QueueCheckers::new(Some(messages), Arc::clone(&gauge));
        Self { keys: KeyCheckers::default(), queues, gauge }
    }

    /// Takes note of what happened.
    pub fn observe(&mut self, event: &Event<'_>) {
        self.keys.observe(event);
        self.queues.observe(event);
    }

    /// What all of them found.
    pub fn verdict(&self, moment: Moment) -> Verdict {
        let mut builder = VerdictBuilder::new(moment);
        builder.keys(&self.keys);
        builder.queues(&self.queues);
        builder.finish(&self.gauge)
    }
}

/// What is checked for keys: told what concerns some of the keys, and of crashes.
#[derive(Debug, Default)]
pub(crate) struct KeyCheckers {
    pub(super) order: Order,
    pub(super) exclusion: Exclusion,
}

impl KeyCheckers {
    pub(crate) fn observe(&mut self, event: &Event<'_>) {
        self.order.observe(event);
        self.exclusion.observe(event);
    }
}

/// What is checked for queues: told what concerns some of the queues, and of crashes and stops.
#[derive(Debug, Default)]
pub(crate) struct QueueCheckers {
    pub(super) at_least_once: AtLeastOnce,
    pub(super) watermark: WatermarkRule,
    pub(super) commits: Commits,
    pub(super) progress: Progress,
    pub(super) bounded: Bounded,
    pub(super) shutdown: Shutdown,
    pub(super) duplicates: Duplicates,
}

impl QueueCheckers {
    pub(crate) fn new(in_flight_limit: Option<u64>, gauge: Arc<Gauge>) -> Self {
        Self { bounded: Bounded::new(in_flight_limit, gauge), ..Self::default() }
    }

    pub(crate) fn observe(&mut self, event: &Event<'_>) {
        self.at_least_once.observe(event);
        self.watermark.observe(event);
        self.commits.observe(event);
        self.progress.observe(event);
        self.bounded.observe(event);
        self.shutdown.observe(event);
        self.duplicates.observe(event);
    }

    pub(super) fn all(&self) -> [&dyn Guarantee; 7] {
        [
            &self.at_least_once,
            &self.watermark,
            &self.commits,
            &self.progress,
            &self.bounded,
            &self.shutdown,
            &self.duplicates,
        ]
    }

    pub(super) fn lost(&self, moment: Moment) -> u64 {
        self.at_least_once.lost(moment)
    }
}
