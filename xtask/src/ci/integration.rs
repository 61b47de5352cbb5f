//! The tests that need a real broker: it is started, they run, it is stopped.

use super::shell::{cargo, must_pass};
use super::{Depth, Done, is_gate};
use crate::brokers;
use crate::flags::Broker;
use crate::outcome::{Ended, Failure};

pub(super) fn kafka(depth: Depth) -> Ended<Done> {
    against(depth, Broker::Kafka, "KEYLANE_KAFKA", "keylane-kafka")
}

pub(super) fn rocketmq(depth: Depth) -> Ended<Done> {
    against(depth, Broker::Rocketmq, "KEYLANE_ROCKETMQ", "keylane-rocketmq")
}

/// Runs the tests of this package with the broker's address in this variable. Only in the long form:
/// a real broker takes minutes, and Java and Maven have to be there.
fn against(depth: Depth, broker: Broker, variable: &str, package: &str) -> Ended<Done> {
    if depth == Depth::Short {
        return Ok(Done::Skipped("with --deep: tests against a real broker".to_owned()));
    }
    let ran_before = brokers::status(broker)?.is_some();
    let running = match brokers::up(broker) {
        Ok(running) => running,
        Err(failure) if is_gate() => return Err(failure),
        Err(failure) => return Ok(Done::Skipped(failure.to_string())),
    };
    let mut tests = cargo(&["test", "--package", package, "--tests", "--locked"]);
    tests.env(variable, &running.address);
    let tested = must_pass(tests);
    if !ran_before {
        let stopped = brokers::down(broker);
        tested?;
        stopped?;
        return Ok(Done::Passed);
    }
    tested.map(|()| Done::Passed).map_err(|failure| match failure {
        Failure::Broken(why) => Failure::Broken(format!("{why} ({running} goes on)")),
        other => other,
    })
}
