//! Kill -9 and restart: many rounds on one log, and a consumer that commits too early is found.

use tempfile::TempDir;

use super::{Depth, Done};
use crate::crash::{CrashFlags, run as crash};
use crate::outcome::{Ended, Failure, say};

pub(super) fn run(depth: Depth) -> Ended<Done> {
    crash(&CrashFlags::of(match depth {
        Depth::Short => 50,
        Depth::Deep => 500,
    }))?;
    say("\nand with a consumer that commits too early, which has to be found:");
    let folder = TempDir::with_prefix("keylane-crash-")
        .map_err(|error| Failure::other("create a temporary folder", error))?;
    let (dir, commit_too_early) = (Some(folder.path().join("found")), true);
    match crash(&CrashFlags { dir, commit_too_early, ..CrashFlags::of(5) }) {
        Err(Failure::Broken(_)) => Ok(Done::Passed),
        Err(other) => Err(other),
        Ok(()) => Err(Failure::Broken("commits that came too early were not found".to_owned())),
    }
}
