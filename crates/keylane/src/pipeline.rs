//! The pipeline: above the line what a message meets, below it what steers. In the order in which a
//! message meets them, the modules stand in `ARCHITECTURE.md`.
//!
//! ```text
//! source ─► puller ─► router ─► channels ─► worker(shard) ─► listener
//!              ▲         │ registers               │ done / failed
//!              │ budget  ▼                         ▼
//!              └────── tracker ◄───────────────────┘ ─► committer ─► source
//! ```

mod budget;
mod cell;
mod chunk;
mod commits;
mod committer;
mod mode;
mod pool;
mod puller;
mod retry;
mod router;
mod runner;
mod shard;
mod tracker;
mod worker;
// ── control plane ──
mod assignment;
#[cfg(feature = "sim")]
mod audit;
mod coordinator;
mod inspect;
mod queue;
mod shared;
mod shutdown;
mod tenure;
mod threads;
mod watch;

pub(crate) use cell::ShardCell;
pub(crate) use chunk::Run;
pub(crate) use coordinator::Coordinator;
pub(crate) use pool::SLICE;
pub(crate) use runner::is_waited_for;
pub(crate) use shard::{Call, Verdict, Verdicts};
pub(crate) use shared::Shared;
pub(crate) use threads::{Crew, Threads};
#[cfg(loom)]
pub(crate) use {
    cell::Inbox,
    chunk::{Collected, Route, Tag},
    pool::run as run_task,
    shared::GateState,
    tenure::Tenure,
    threads::run_source,
    tracker::{Finished, Tracker},
};
#[cfg(feature = "sim")]
pub(crate) use {
    coordinator::Step,
    mode::needs_pool,
    pool::{Look, Pool, Task},
    runner::Runner,
    shard::Next,
    shared::{Posted, panic_text},
    threads::{Parts, send_letter},
    worker::Worker,
};

/// The number of things that are in memory.
fn in_memory(count: u64) -> usize {
    usize::try_from(count).expect("what is in memory can be counted")
}

/// For the benchmarks of single parts.
#[cfg(feature = "bench")]
pub(crate) mod inside {
    pub(crate) use super::committer::Committer;
    pub(crate) use super::retry::Random;
    pub(crate) use super::shard::Next;
    pub(crate) use super::threads::Parts;
    pub(crate) use super::tracker::{Finished, Tracker};
    pub(crate) use super::worker::Worker;
}
