//! The tests that need a real broker, as `cargo xtask integration` runs them.

use super::{Depth, Done, is_gate};
use crate::flags::Broker;
use crate::integration;
use crate::outcome::Ended;

/// In the short form without the tests that kill the broker: on a machine that has no time for it,
/// a broker takes minutes to come back.
pub(super) fn kafka(depth: Depth) -> Ended<Done> {
    against(Broker::Kafka, depth == Depth::Deep)
}

/// Only in the long form.
pub(super) fn rocketmq(depth: Depth) -> Ended<Done> {
    match depth {
        Depth::Short => {
            Ok(Done::Skipped("with --deep: tests against a real RocketMQ broker".to_owned()))
        }
        Depth::Deep => against(Broker::Rocketmq, true),
    }
}

/// Where the broker cannot be started, for want of Java or Maven say, this is skipped; in the gate
/// it has failed.
fn against(broker: Broker, with_restarts: bool) -> Ended<Done> {
    match integration::start(broker) {
        Ok(started) => integration::test(broker, started, with_restarts).map(|()| Done::Passed),
        Err(failure) if is_gate() => Err(failure),
        Err(failure) => Ok(Done::Skipped(failure.to_string())),
    }
}
