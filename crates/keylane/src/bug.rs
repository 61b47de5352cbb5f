//! Planted bugs: faults that we know, to see that the checks find them (`docs/testing.md`).
//!
//! No build has them but one with `--cfg keylane_bug`, and there they sleep until one is named.

#[cfg(keylane_bug)]
static PLANTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Whether this bug was planted: `false` in every build that anybody uses.
macro_rules! bug {
    ($name:literal) => {
        cfg!(keylane_bug) && $crate::bug::is_planted($name)
    };
}
pub(crate) use bug;

#[cfg(not(keylane_bug))]
pub(crate) const fn is_planted(_name: &str) -> bool {
    false
}

#[cfg(keylane_bug)]
pub(crate) fn is_planted(name: &str) -> bool {
    PLANTED.get().is_some_and(|planted| planted == name)
}

/// Plants a bug, once for the life of the process.
///
/// # Errors
///
/// When this build cannot have any, or has one.
#[cfg(feature = "sim")]
pub(crate) fn plant(name: &str) -> Result<(), String> {
    #[cfg(keylane_bug)]
    return PLANTED.set(name.to_owned()).map_err(|_| "there is a bug already".to_owned());
    #[cfg(not(keylane_bug))]
    Err(format!("{name}: this build has no bugs; --cfg keylane_bug makes one that has"))
}
