//! Lists that grow, and whose growth can be waited for.

use std::sync::Arc;

use keylane::{Event, Observer};
use parking_lot::{Condvar, Mutex};

use super::PATIENCE;

/// A list that threads append to. Clones are the same list.
#[derive(Debug)]
pub(crate) struct Log<T>(Arc<(Mutex<Vec<T>>, Condvar)>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self(Arc::new((Mutex::new(Vec::new()), Condvar::new())))
    }
}

impl<T: Clone + std::fmt::Debug> Log<T> {
    pub(crate) fn push(&self, item: T) {
        self.0.0.lock().push(item);
        self.0.1.notify_all();
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.0.lock().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.0.lock().len()
    }

    pub(crate) fn count(&self, which: impl Fn(&T) -> bool) -> usize {
        self.0.0.lock().iter().filter(|item| which(item)).count()
    }

    /// Waits until the list answers with something.
    #[track_caller]
    pub(crate) fn wait_map<R>(&self, what: &str, mut answer: impl FnMut(&[T]) -> Option<R>) -> R {
        let (items, changed) = &*self.0;
        let mut items = items.lock();
        loop {
            if let Some(answer) = answer(&items) {
                return answer;
            }
            if changed.wait_for(&mut items, PATIENCE).timed_out() && answer(&items).is_none() {
                let tail = &items[items.len().saturating_sub(40)..];
                panic!("waited {PATIENCE:?} in vain for: {what}; the last entries: {tail:#?}");
            }
        }
    }

    /// Waits until this holds for the list.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, mut holds: impl FnMut(&[T]) -> bool) {
        self.wait_map(what, |items| holds(items).then_some(()));
    }

    /// Waits for the first entry that fits, past or to come.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, mut fits: impl FnMut(&T) -> bool) -> T {
        self.wait_map(what, |items| items.iter().find(|item| fits(item)).cloned())
    }

    #[track_caller]
    pub(crate) fn wait_for_len(&self, len: usize) {
        self.wait_until(&format!("{len} entries"), |items| items.len() >= len);
    }
}

/// All events of a consumer.
pub(crate) type Events = Log<Event>;

impl Observer for Events {
    fn event(&self, event: &Event) {
        self.push(event.clone());
    }
}
