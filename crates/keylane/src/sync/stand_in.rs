//! Locks and channels on `loom`'s primitives, as far as the engine uses them: so that a model sees
//! every acquisition, and tries every order.

mod atomics;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crossbeam_channel::{TryRecvError, TrySendError};
use loom::sync::MutexGuard;

pub(crate) use atomics::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// `parking_lot::Mutex`.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// The two ends of a bounded channel.
pub(crate) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let queue = Arc::new(Mutex::default());
    (Sender { queue: Arc::clone(&queue), capacity }, Receiver { queue })
}

/// `crossbeam_channel::Sender`; its channel is never disconnected.
#[derive(Debug, Clone)]
pub(crate) struct Sender<T> {
    queue: Arc<Mutex<VecDeque<T>>>,
    capacity: usize,
}

impl<T> Sender<T> {
    pub(crate) fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let mut queue = self.queue.lock();
        if queue.len() == self.capacity {
            return Err(TrySendError::Full(value));
        }
        queue.push_back(value);
        Ok(())
    }
}

/// `crossbeam_channel::Receiver`.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    queue: Arc<Mutex<VecDeque<T>>>,
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue) }
    }
}

impl<T> Receiver<T> {
    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        self.queue.lock().pop_front().ok_or(TryRecvError::Empty)
    }

    #[cfg(feature = "sim")]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }
}

/// Waits for a chunk or the bell. A time that was given may come at once.
///
/// A wait that nothing ends is a loop without an end: `loom` gives up on it, which is how a lost
/// wake-up shows.
pub(crate) fn first_of<T>(
    chunks: &Receiver<T>,
    rung: &Receiver<()>,
    until: Option<Instant>,
) -> Option<T> {
    loop {
        if let Ok(chunk) = chunks.try_recv() {
            return Some(chunk);
        }
        if rung.try_recv().is_ok() || until.is_some() {
            return None;
        }
        loom::thread::yield_now();
    }
}
