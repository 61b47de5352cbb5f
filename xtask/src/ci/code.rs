//! What can be said of the code without running it.

use super::shell::{cargo, must_pass};
use super::{Depth, Done};
use crate::outcome::Ended;

pub(super) fn format(_: Depth) -> Ended<Done> {
    must_pass(cargo(&["fmt", "--all", "--check"])).map(|()| Done::Passed)
}

pub(super) fn tidy(_: Depth) -> Ended<Done> {
    crate::tidy::run().map(|()| Done::Passed)
}

pub(super) fn clippy(_: Depth) -> Ended<Done> {
    must_pass(cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-Dwarnings"]))?;
    // What no default build has: the simulator.
    let simulator = [
        "clippy",
        "-p",
        "keylane",
        "--all-targets",
        "--features",
        "sim",
        "--locked",
        "--",
        "-Dwarnings",
    ];
    must_pass(cargo(&simulator)).map(|()| Done::Passed)
}

pub(super) fn docs(_: Depth) -> Ended<Done> {
    let mut docs = cargo(&["doc", "--workspace", "--no-deps", "--locked"]);
    docs.env("RUSTDOCFLAGS", "-Dwarnings");
    must_pass(docs).map(|()| Done::Passed)
}
