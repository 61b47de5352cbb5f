//! Benchmarks compile, and each runs once: they measure nothing here.

use super::shell::{cargo, must_pass};
use super::{Depth, Done};
use crate::outcome::Ended;

pub(super) fn run(_: Depth) -> Ended<Done> {
    // Through `cargo test`, which runs a benchmark in its test mode and in the profile of the tests.
    must_pass(cargo(&["test", "--package", "benches", "--benches", "--locked"]))
        .map(|()| Done::Passed)
}
