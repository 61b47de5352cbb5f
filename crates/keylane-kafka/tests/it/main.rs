//! The source, the sink and the producer against librdkafka's mock cluster, in this process.
//!
//! What the mock cannot do (transactions that abort, compaction, partitions that are added) is in
//! `real_broker.rs`, and with the engine on top in `engine.rs`: both need a broker and say so where
//! there is none; `tls.rs` too, with the feature `tls` alone. `cargo xtask integration kafka` starts
//! one and runs everything.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

mod broker_restart;
mod cluster;
mod commit;
mod conformance;
mod dead_letters;
mod engine;
mod fetch;
mod groups;
mod member;
mod real_broker;
#[cfg(feature = "tls")]
mod tls;
