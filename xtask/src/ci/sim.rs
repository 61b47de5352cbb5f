//! The simulator: the seeds that have found something, and new ones.

use super::{Depth, Done};
use crate::outcome::Ended;
use crate::sim::{SimFlags, run as simulate};

pub(super) fn run(depth: Depth) -> Ended<Done> {
    simulate(&SimFlags { corpus: true, ..SimFlags::default() })?;
    let minutes = match depth {
        Depth::Short => 1,
        Depth::Deep => 15,
    };
    simulate(&SimFlags { minutes: Some(minutes), ..SimFlags::default() })?;
    Ok(Done::Passed)
}
