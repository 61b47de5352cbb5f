//! What tests of and with [keylane] are made of.
//!
//! | module | for | what |
//! | --- | --- | --- |
//! | [`script`] | tests of an engine or a listener | a source that does what the test says |
//! | [`memory`] | benchmarks | a fast source over messages in memory |
//!
//! [keylane]: https://docs.rs/keylane
#![forbid(unsafe_code)]

pub mod conformance;
pub mod guarantee;
pub mod memory;
pub mod recorder;
pub mod script;
pub mod workload;
