//! The README's test command, as it stands there.

use super::shell::{cargo, must_pass};
use super::{Depth, Done};
use crate::outcome::Ended;

pub(super) fn run(_: Depth) -> Ended<Done> {
    must_pass(cargo(&["test", "--workspace"])).map(|()| Done::Passed)
}
