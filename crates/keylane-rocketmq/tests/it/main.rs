//! The adaptor against brokers: one in this process, and a real one where there is one.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

mod apache;
mod broker;
mod client;
mod conformance;
mod engine;
mod faults;
mod group;
mod locks;
mod member;
mod reading;
mod real;
