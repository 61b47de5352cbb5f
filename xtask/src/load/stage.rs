//! Where a run's messages are: written there first, then consumed from there.
//!
//! One variant and one file per kind of source. A broker's stands behind a feature of this crate, so
//! that nobody compiles a client that he does not use; naming such a source builds this program
//! again, with its feature.

#[cfg(any(feature = "kafka", feature = "rocketmq"))]
mod broker;
#[cfg(feature = "kafka")]
mod kafka;
mod log;
mod memory;
#[cfg(feature = "rocketmq")]
mod rocketmq;

use std::sync::Arc;

use keylane_source::{QueueId, Source, Watermark};
use keylane_testkit::recorder::Recorder;
use keylane_testkit::tap::Tap;

use super::pace::{Pace, Paced};
use super::plan::{Plan, RunPlan};
use super::timeline::Timeline;
use super::workload::Workload;
use crate::flags::SourceKind;
use crate::outcome::Ended;

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
    #[cfg(feature = "kafka")]
    Kafka(kafka::KafkaStage),
    #[cfg(feature = "rocketmq")]
    RocketMq(rocketmq::RocketMqStage),
}

/// Writes messages, from any thread.
pub(super) trait Writer: Send {
    /// Writes the workload, less what each queue has already, by its index.
    fn write(self: Box<Self>, producing: &Producing<'_>, there: Vec<u64>) -> Ended;
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
            #[cfg(feature = "kafka")]
            SourceKind::Kafka => Ok(Self::Kafka(kafka::KafkaStage::open(workload)?)),
            #[cfg(feature = "rocketmq")]
            SourceKind::Rocketmq => Ok(Self::RocketMq(rocketmq::RocketMqStage::open(workload)?)),
            #[cfg(not(all(feature = "kafka", feature = "rocketmq")))]
            missing => Err(build_with(missing)),
        }
    }

    /// Whether messages can be produced while they are consumed; where not, the source is paced.
    pub(super) fn produces_alongside(&self) -> bool {
        !matches!(self, Self::Memory(_))
    }

    /// How often one poll may bring the same queue. Memory brings up to eight fetches a poll, of
    /// whichever queues have something.
    pub(super) fn fetches_of_a_queue(&self) -> usize {
        match self {
            Self::Memory(_) => 8,
            _ => 1,
        }
    }

    /// Writes what is not there yet.
    pub(super) fn produce(&mut self, producing: &Producing<'_>) -> Ended {
        match self {
            Self::Memory(stage) => stage.produce(producing),
            Self::Log(stage) => stage.produce(producing),
            #[cfg(feature = "kafka")]
            Self::Kafka(stage) => stage.writer()?.write(producing, Vec::new()),
            #[cfg(feature = "rocketmq")]
            Self::RocketMq(stage) => stage.writer().write(producing, Vec::new()),
        }
    }

    /// Writes from another thread, where messages can be produced while they are consumed.
    pub(super) fn writer(&self) -> Ended<Option<Box<dyn Writer>>> {
        match self {
            Self::Memory(_) => Ok(None),
            Self::Log(stage) => Ok(Some(stage.writer())),
            #[cfg(feature = "kafka")]
            Self::Kafka(stage) => Ok(Some(stage.writer()?)),
            #[cfg(feature = "rocketmq")]
            Self::RocketMq(stage) => Ok(Some(stage.writer())),
        }
    }

    /// A source for one consumer.
    pub(super) fn source(&self) -> Ended<Box<dyn Source>> {
        match self {
            Self::Memory(stage) => stage.source(),
            Self::Log(stage) => stage.source(),
            #[cfg(feature = "kafka")]
            Self::Kafka(stage) => stage.source(),
            #[cfg(feature = "rocketmq")]
            Self::RocketMq(stage) => stage.source(),
        }
    }

    /// What is there and what is committed, by queue index: read from the store, not from the
    /// engine.
    pub(super) fn stored(&self) -> Ended<Vec<Stored>> {
        match self {
            Self::Memory(stage) => Ok(stage.stored()),
            Self::Log(stage) => stage.stored(),
            #[cfg(feature = "kafka")]
            Self::Kafka(stage) => stage.stored(),
            #[cfg(feature = "rocketmq")]
            Self::RocketMq(stage) => stage.stored(),
        }
    }
}

/// Replaces this program by one that has the source's client. Returns only when that failed.
#[cfg(not(all(feature = "kafka", feature = "rocketmq")))]
fn build_with(source: SourceKind) -> crate::outcome::Failure {
    use std::os::unix::process::CommandExt;

    let feature = super::plan::name(source);
    crate::outcome::say(&format!("building the client of {feature}: this takes a while, once"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.args(["run", "--quiet", "--release", "--package", "xtask", "--features", &feature]);
    command.arg("--manifest-path").arg(crate::ci::root().join("Cargo.toml"));
    command.arg("--").args(std::env::args_os().skip(1));
    crate::outcome::Failure::other("run cargo again", command.exec())
}

/// A paced source tells itself when its messages came.
pub(super) fn paced(
    source: Box<dyn Source>,
    pace: Pace,
    produced: &Arc<Timeline>,
) -> Box<dyn Source> {
    Box::new(Paced::new(pace, Arc::clone(produced)).on(source))
}
