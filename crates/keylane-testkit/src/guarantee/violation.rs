//! What a checker found.

use std::fmt;

use keylane_source::{Offset, QueueId};

use super::lane::Lane;

/// How many violations of one guarantee are kept in words; all are counted.
pub const KEPT_IN_WORDS: usize = 20;

/// One broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The name of the guarantee.
    pub guarantee: &'static str,
    /// Where, unless it concerns all queues.
    pub queue: Option<QueueId>,
    /// Which message or position.
    pub offset: Option<u64>,
    /// Its lane, where that matters.
    pub lane: Option<Lane>,
    /// What happened.
    pub happened: String,
    /// What would have been right.
    pub allowed: String,
}

impl Violation {
    pub(crate) fn new(happened: impl Into<String>, allowed: impl Into<String>) -> Self {
        let (happened, allowed) = (happened.into(), allowed.into());
        Self { guarantee: "", queue: None, offset: None, lane: None, happened, allowed }
    }

    pub(crate) fn at(mut self, queue: QueueId, offset: impl Into<u64>) -> Self {
        (self.queue, self.offset) = (Some(queue), Some(offset.into()));
        self
    }

    pub(crate) fn of(mut self, queue: QueueId, offset: Offset, lane: &Lane) -> Self {
        self.lane = Some(lane.clone());
        self.at(queue, offset.get())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.guarantee)?;
        if let Some(queue) = self.queue {
            write!(f, " {queue}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " at {offset}")?;
        }
        if let Some(lane) = &self.lane {
            write!(f, ", {lane}")?;
        }
        write!(f, ": {} (allowed: {})", self.happened, self.allowed)
    }
}

/// What one guarantee found: how often it was broken, and the first times in words.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Findings {
    /// The name of the guarantee.
    pub guarantee: &'static str,
    /// How often it was broken.
    pub count: u64,
    /// The first [`KEPT_IN_WORDS`] of them.
    pub violations: Vec<Violation>,
}

impl Findings {
    pub(crate) fn new(guarantee: &'static str) -> Self {
        Self { guarantee, count: 0, violations: Vec::new() }
    }

    /// Counts one, and words it while there is room.
    pub(crate) fn add(&mut self, violation: impl FnOnce() -> Violation) {
        self.count += 1;
        if self.violations.len() < KEPT_IN_WORDS {
            self.violations.push(Violation { guarantee: self.guarantee, ..violation() });
        }
    }

    /// Takes in what another checker of the same guarantee found.
    pub(crate) fn merge(&mut self, other: Self) {
        debug_assert_eq!(self.guarantee, other.guarantee);
        self.count += other.count;
        self.violations.extend(other.violations);
        self.violations.truncate(KEPT_IN_WORDS);
    }
}
