//! The pipeline. Its modules stand in the order in which a message meets them; below the line, what
//! steers it.
//!
//! ```text
//! source ─► puller ─► router ─► channels ─► worker(shard) ─► listener
//!              ▲         │ registers               │ done / failed
//!              │ budget  ▼                         ▼
//!              └────── tracker ◄───────────────────┘ ─► committer ─► source
//! ```

mod budget;
mod chunk;
mod commits;
mod committer;
mod puller;
mod retry;
mod router;
mod shard;
mod tracker;
mod runner;
mod worker;
// ── control plane ──
mod assignment;
mod coordinator;
mod inspect;
mod queue;
mod shared;
mod shutdown;
mod tenure;
mod threads;
mod watch;

pub(crate) use coordinator::Coordinator;
pub(crate) use shard::{Call, Verdict, Verdicts};
pub(crate) use shared::{ShardCell, Shared};
pub(crate) use threads::Threads;
pub(crate) use runner::is_in_listener;
