//! The simulator: the seeds that have found something, and others. In the short form always the same
//! ones, so that what fails was broken by the change; in the long form new ones.

use super::{Depth, Done};
use crate::outcome::Ended;
use crate::sim::{SimFlags, run as simulate};

/// How many seeds the short form runs: half a minute of a core.
const SEEDS: u64 = 3_000;

pub(super) fn run(depth: Depth) -> Ended<Done> {
    simulate(&SimFlags { corpus: true, ..SimFlags::default() })?;
    simulate(&match depth {
        Depth::Short => SimFlags { seed: Some(1), seeds: Some(SEEDS), ..SimFlags::default() },
        Depth::Deep => SimFlags { minutes: Some(15), ..SimFlags::default() },
    })?;
    Ok(Done::Passed)
}
