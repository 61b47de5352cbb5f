//! An Apache RocketMQ consumer group as a [`Source`](keylane_source::Source).
#![forbid(unsafe_code)]

mod allocate;
mod client;
mod error;
mod outgoing;
mod wire;

pub use client::{Client, Route, Sent};
pub use error::Error;
pub use outgoing::{Outgoing, SendBack};
