//! `cargo xtask ci`.

use std::path::PathBuf;

use crate::flags::CiFlags;
use crate::outcome::Ended;

/// The task.
pub(crate) fn run(_flags: &CiFlags) -> Ended {
    Ok(())
}

/// The repository's root: cargo sets this when it builds us.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
