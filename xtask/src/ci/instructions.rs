//! Instruction counts of the engine's parts, against those that are noted beside the benchmark.

use std::path::Path;

use super::shell::{cargo, must_pass, output, program};
use super::{Depth, Done, is_gate};
use crate::outcome::{Ended, Failure};

pub(super) fn run(depth: Depth) -> Ended<Done> {
    if let Err(failure) = output(program(Path::new("valgrind"), &["--version"])) {
        let why = format!("no valgrind, which counts them: {failure}");
        return if is_gate() { Err(Failure::Other(why)) } else { Ok(Done::Skipped(why)) };
    }
    let mut arguments =
        vec!["bench", "--package", "benches", "--bench", "instructions", "--locked"];
    if depth == Depth::Deep {
        arguments.extend(["--", "--deep"]);
    }
    must_pass(cargo(&arguments)).map(|()| Done::Passed)
}
