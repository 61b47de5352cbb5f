//! Where a run's messages are: written there first, then consumed from there.
//!
//! One variant per kind of source. A broker's source adds a variant, a file beside `stage/log.rs`,
//! and a feature of this crate, so that nobody compiles a client that he does not use.

mod log;
mod memory;

use std::sync::Arc;

use keylane_source::{QueueId, Source, Watermark};
use keylane_testkit::recorder::Recorder;

use super::pace::Pace;
use super::plan::{Plan, RunPlan};
use super::timeline::Timeline;
use super::workload::Workload;
use crate::flags::SourceKind;
use crate::outcome::{Ended, Failure};

/// What takes part in producing, beside the messages.
pub(super) struct Producing<'a> {
    pub(super) workload: &'a Workload,
    /// Is told which messages there are.
    pub(super) recorder: &'a Recorder,
    /// Is told when they came.
    pub(super) produced: &'a Timeline,
    /// When each is due; at once where there is none.
    pub(super) pace: Option<Pace>,
    /// Is told how many were written.
    pub(super) written: &'a (dyn Fn(u64) + Sync),
}

/// Where the messages are.
pub(super) enum Stage {
    Memory(memory::MemoryStage),
    Log(log::LogStage),
}

/// What the store itself says of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) queue: QueueId,
    pub(super) committed: Option<Watermark>,
    pub(super) end: u64,
}

impl Stage {
    /// Prepares the place.
    pub(super) fn open(plan: &Plan, run: RunPlan, workload: &Workload) -> Ended<Self> {
        match plan.source {
            SourceKind::Memory => Ok(Self::Memory(memory::MemoryStage::default())),
            SourceKind::Log => Ok(Self::Log(log::LogStage::open(plan, run, workload)?)),
            SourceKind::Kafka | SourceKind::Rocketmq => Err(Failure::usage(format!(
                "--source {}: not wired up yet",
                super::plan::name(plan.source)
            ))),
        }
    }

    /// Whether messages can be produced while they are consumed; where not, the source is paced.
    pub(super) fn produces_alongside(&self) -> bool {
        matches!(self, Self::Log(_))
    }

    /// How often one poll may bring the same queue. Memory brings up to eight fetches a poll, of
    /// whichever queues have something.
    pub(super) fn fetches_of_a_queue(&self) -> usize {
        match self {
            Self::Memory(_) => 8,
            Self::Log(_) => 1,
        }
    }

    /// Writes what is not there yet.
    pub(super) fn produce(&mut self, producing: &Producing<'_>) -> Ended {
        match self {
            Self::Memory(stage) => stage.produce(producing),
            Self::Log(stage) => stage.produce(producing),
        }
    }

    /// Writes from another thread, where messages can be produced while they are consumed.
    pub(super) fn writer(&self) -> Option<log::Writer> {
        match self {
            Self::Memory(_) => None,
            Self::Log(stage) => Some(stage.writer()),
        }
    }

    /// A source for one consumer.
    pub(super) fn source(&self) -> Ended<Box<dyn Source>> {
        match self {
            Self::Memory(stage) => stage.source(),
            Self::Log(stage) => stage.source(),
        }
    }

    /// What is there and what is committed, by queue index: read from the store, not from the
    /// engine.
    pub(super) fn stored(&self) -> Ended<Vec<Stored>> {
        match self {
            Self::Memory(stage) => Ok(stage.stored()),
            Self::Log(stage) => stage.stored(),
        }
    }
}

/// A paced source tells itself when its messages came.
pub(super) fn paced(
    source: Box<dyn Source>,
    pace: Pace,
    produced: &Arc<Timeline>,
) -> Box<dyn Source> {
    Box::new(super::pace::Paced::new(source, pace, Arc::clone(produced)))
}
