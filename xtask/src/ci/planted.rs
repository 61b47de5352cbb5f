//! The place of: builds with a planted bug.

use super::{Depth, Done};
use crate::outcome::Ended;

pub(super) fn run(_: Depth) -> Ended<Done> {
    Ok(Done::Skipped("nothing is wired up here yet".to_owned()))
}
