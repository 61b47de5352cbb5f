//! `cargo xtask tidy`.

use crate::outcome::Ended;

/// The task.
pub(crate) fn run() -> Ended {
    Ok(())
}
