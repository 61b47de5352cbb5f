//! The tests that need a real broker, as `cargo xtask integration` runs them.

use super::{Depth, Done, is_gate};
use crate::flags::Broker;
use crate::integration;
use crate::outcome::Ended;

pub(super) fn kafka(depth: Depth) -> Ended<Done> {
    against(depth, Broker::Kafka)
}

pub(super) fn rocketmq(depth: Depth) -> Ended<Done> {
    against(depth, Broker::Rocketmq)
}

/// Only in the long form: a real broker takes minutes, and Java and Maven have to be there.
fn against(depth: Depth, broker: Broker) -> Ended<Done> {
    if depth == Depth::Short {
        return Ok(Done::Skipped("with --deep: tests against a real broker".to_owned()));
    }
    match integration::start(broker) {
        Ok(started) => integration::test(broker, started).map(|()| Done::Passed),
        Err(failure) if is_gate() => Err(failure),
        Err(failure) => Ok(Done::Skipped(failure.to_string())),
    }
}
