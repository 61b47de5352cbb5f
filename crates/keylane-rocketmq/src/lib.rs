//! An Apache RocketMQ consumer group as a [`Source`](keylane_source::Source).
#![forbid(unsafe_code)]

mod allocate;
mod client;
mod config;
mod dead_letter;
mod error;
mod key;
mod outgoing;
mod source;
mod wire;

pub use client::{Client, Route, Sent};
pub use config::Config;
pub use dead_letter::RocketMqDeadLetters;
pub use error::Error;
pub use key::KeyFrom;
pub use outgoing::{Outgoing, SendBack};
pub use source::RocketMqSource;
