//! An Apache RocketMQ consumer group as a [`Source`](keylane_source::Source).
#![forbid(unsafe_code)]

mod allocate;
mod outgoing;
mod wire;

pub use outgoing::{Outgoing, SendBack};
