//! Licences, bans and sources of all dependencies, with cargo-deny. (Its advisories come from a
//! repository that the gate may not reach: they are left out.)

use std::path::PathBuf;

use super::shell::{cargo, must_pass, program};
use super::{Depth, Done, is_gate, target_folder};
use crate::outcome::{Ended, Failure, say};

const VERSION: &str = "0.20.2";

pub(super) fn run(_: Depth) -> Ended<Done> {
    let deny = match tool() {
        Ok(deny) => deny,
        Err(failure) if is_gate() => return Err(failure),
        Err(failure) => return Ok(Done::Skipped(format!("no cargo-deny: {failure}"))),
    };
    // Also of what only other systems and settings build, which nothing has fetched so far.
    must_pass(cargo(&["fetch", "--locked"]))?;
    let check = ["--offline", "check", "licenses", "bans", "sources"];
    must_pass(program(&deny, &check)).map(|()| Done::Passed)
}

/// The program, installed below the target folder unless it is there.
fn tool() -> Ended<PathBuf> {
    let folder = target_folder().join("tools");
    let deny = folder.join("bin").join("cargo-deny");
    if deny.exists() {
        return Ok(deny);
    }
    say("cargo-deny is not there yet; it takes a few minutes, once");
    let root = folder.to_string_lossy();
    let install = ["install", "cargo-deny", "--locked", "--version", VERSION, "--root", &root];
    must_pass(cargo(&install))?;
    if deny.exists() {
        return Ok(deny);
    }
    Err(Failure::Other(format!("cargo install left no {}", deny.display())))
}
