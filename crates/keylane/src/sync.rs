//! What threads share: atomics, locks and channels; the real ones, or stand-ins that `loom` sees
//! through under `--cfg loom`, for the models.

#[cfg(loom)]
mod stand_in;

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

#[cfg(not(loom))]
pub(crate) use crossbeam_channel::{Receiver, Sender, bounded};
#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(loom)]
pub(crate) use stand_in::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Mutex, Ordering, Receiver, Sender, bounded,
    first_of,
};

/// Waits for a chunk, which is returned, for the bell, or for the time.
#[cfg(not(loom))]
pub(crate) fn first_of<T>(
    chunks: &Receiver<T>,
    rung: &Receiver<()>,
    until: Option<std::time::Instant>,
) -> Option<T> {
    let deadline = match until {
        None => crossbeam_channel::never(),
        Some(until) => crossbeam_channel::at(until),
    };
    crossbeam_channel::select! {
        recv(chunks) -> chunk => chunk.ok(),
        recv(rung) -> _ => None,
        recv(deadline) -> _ => None,
    }
}

/// Whether this transition is taken out, to see that the models notice: `false` in every build but
/// theirs.
macro_rules! removed {
    ($name:literal) => {
        cfg!(loom) && $crate::sync::is_removed($name)
    };
}
pub(crate) use removed;

#[cfg(not(loom))]
pub(crate) const fn is_removed(_name: &str) -> bool {
    false
}

#[cfg(loom)]
static REMOVED: std::sync::OnceLock<String> = std::sync::OnceLock::new();

#[cfg(loom)]
pub(crate) fn is_removed(name: &str) -> bool {
    REMOVED.get().is_some_and(|removed| removed == name)
}

/// Takes a transition out, once for the life of the process.
#[cfg(loom)]
pub(crate) fn remove(name: &str) {
    let set = REMOVED.set(name.to_owned());
    assert!(set.is_ok(), "one transition a process");
}
