//! A source in memory that does what a test tells it to, and remembers what was asked of it.
//!
//! [`ScriptedSource`] is what an engine gets; [`Script`] is the handle that the test keeps. Behind
//! both stands a small broker: queues with messages and holes, the group's stored offsets, locks.
//! It outlives the source: [`Script::restart`] gives a second source which begins where the first
//! one's commits ended.
//!
//! ```
//! use std::time::Duration;
//! use keylane_source::*;
//! use keylane_testkit::script::Script;
//!
//! let queue = QueueId::new("orders", 0);
//! let script = Script::new();
//! script.assign(queue);
//! script.produce(queue, "account-9", "withdraw 5");
//!
//! let mut source = script.source();
//! let limits = FetchLimits { messages: 100, bytes: 1 << 20 };
//! let mut events = Vec::new();
//! source.poll(limits, Duration::ZERO, &mut events)?; // assigned, nothing more before a seek
//! source.seek(queue, SeekTo::Earliest);
//! source.poll(limits, Duration::ZERO, &mut events)?;
//! let Some(SourceEvent::Fetched(fetch)) = events.last() else { panic!("{events:?}") };
//! assert_eq!(fetch.messages[0].key(), Some(&b"account-9"[..]));
//! assert_eq!(script.look(|state| state.position(queue)), Position::new(1));
//! # Ok::<(), SourceError>(())
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{
    Commit, FetchLimits, Message, QueueId, QueueLocks, SeekTo, Source, SourceError, SourceEvent,
    SourceWaker,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

mod call;
mod handle;
mod plan;
mod state;
#[cfg(test)]
mod tests;

pub use call::Call;
pub use handle::Script;
pub use plan::{CommitAnswer, LockAnswer, Stored};
pub use state::ScriptState;
use state::Unanswered;

/// The lock and the one condition that everybody waits on: polls for events, tests for calls.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<ScriptState>,
    changed: Condvar,
}

impl Shared {
    /// Changes the state and lets everybody look again.
    fn change<T>(&self, change: impl FnOnce(&mut ScriptState) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_all();
        result
    }
}

/// The source of a [`Script`].
///
/// It keeps every rule of [`Source`] unless the script says otherwise. Once the script has been
/// [restarted](Script::restart) it is a zombie: a poll is a fatal error, other calls do nothing.
#[derive(Debug)]
pub struct ScriptedSource {
    member: Caller,
    /// A value of its own: a source that is its own lock service has two methods `release`.
    locks: ScriptedLocks,
}

#[derive(Debug)]
struct ScriptedLocks(Caller);

/// One source's access to the script's state.
#[derive(Debug, Clone)]
struct Caller {
    shared: Arc<Shared>,
    generation: u64,
}

impl Caller {
    /// Notes the call and carries it out, unless another source has taken over.
    fn call(&self, call: Call, carry_out: impl FnOnce(&mut ScriptState)) {
        self.shared.change(|state| {
            if state.generation == self.generation {
                state.note(call);
                carry_out(state);
            }
        });
    }

    fn alive(&self, state: &ScriptState) -> Result<(), SourceError> {
        if state.generation != self.generation {
            return Err(SourceError::fatal("poll: the script was restarted with another source"));
        }
        if state.member.closed {
            return Err(SourceError::fatal("poll: the source was closed"));
        }
        Ok(())
    }
}

impl Source for ScriptedSource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let deadline = Instant::now().checked_add(wait);
        let before = events.len();
        let mut state = self.member.shared.state.lock();
        self.member.alive(&state)?;
        state.note_poll();
        self.member.shared.changed.notify_all();
        let mut last_look = wait.is_zero();
        loop {
            self.member.alive(&state)?;
            if let Some(error) = state.member.poll_failures.pop_front() {
                return Err(error);
            }
            state.take_events(limits, events);
            let woken = std::mem::take(&mut state.member.woken);
            if woken || events.len() > before || last_look {
                self.member.shared.changed.notify_all();
                return Ok(());
            }
            last_look = wait_for_change(&self.member.shared.changed, &mut state, deadline);
        }
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        self.member.call(Call::Seek { queue, to }, |state| state.seek(queue, to));
    }

    fn pause(&mut self, queue: QueueId) {
        self.member.call(Call::Pause(queue), |state| {
            state.member.tenures.entry(queue).and_modify(|tenure| tenure.paused = true);
        });
    }

    fn resume(&mut self, queue: QueueId) {
        self.member.call(Call::Resume(queue), |state| {
            state.member.tenures.entry(queue).and_modify(|tenure| tenure.paused = false);
        });
    }

    fn commit(&mut self, commit: Commit) {
        self.member.call(Call::Commit(commit.clone()), |state| state.commit(commit));
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        self.member.call(Call::LookUp(queue), |state| {
            let committed = state.look_up(queue);
            state.member.events.push_back(SourceEvent::LookedUp { queue, committed });
        });
    }

    fn release(&mut self, queue: QueueId) {
        self.member.call(Call::Release(queue), |state| {
            state.end_tenure(queue);
        });
    }

    fn waker(&self) -> SourceWaker {
        let shared = Arc::clone(&self.member.shared);
        SourceWaker::new(move || shared.change(|state| state.member.woken = true))
    }

    fn recycle(&mut self, emptied: Vec<Message>) {
        self.member.shared.change(|state| state.recycled.push(emptied.len()));
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        let has_locks = self.member.shared.state.lock().lock_lease.is_some();
        has_locks.then_some(&mut self.locks as &mut dyn QueueLocks)
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.member.shared.state.lock();
        self.member.alive(&state)?;
        state.note(Call::Close { timeout });
        // No poll will come any more: what waits for one is answered now.
        state.answer_where(Unanswered::waits_for_a_poll, None);
        self.member.shared.changed.notify_all();
        let mut late = timeout.is_zero();
        while !state.member.unanswered.is_empty() && !late {
            late = wait_for_change(&self.member.shared.changed, &mut state, deadline);
        }
        let abandoned = state.unanswered();
        let error = SourceError::retryable("commit: not answered before the source was closed");
        state.answer_where(|_| true, Some(&CommitAnswer::Failed(error)));
        events.extend(state.member.events.drain(..));
        state.member.tenures.clear();
        state.member.closed = true;
        self.member.shared.changed.notify_all();
        match (state.close_error.take(), abandoned.first()) {
            (Some(error), _) => Err(error),
            (None, None) => Ok(()),
            (None, Some(commit)) => Err(SourceError::retryable(format!(
                "close: {} commits unanswered, the first one {} at {}",
                abandoned.len(),
                commit.queue,
                commit.watermark
            ))),
        }
    }
}

impl QueueLocks for ScriptedLocks {
    fn lease(&self) -> Duration {
        self.0.shared.state.lock().lock_lease.unwrap_or_default()
    }

    fn acquire(&mut self, queues: &[QueueId]) {
        self.0.call(Call::AcquireLocks(queues.to_vec()), |state| {
            queues.iter().for_each(|queue| state.acquire_lock(*queue));
        });
    }

    fn release(&mut self, queues: &[QueueId]) {
        self.0.call(Call::ReleaseLocks(queues.to_vec()), |state| {
            queues.iter().for_each(|queue| state.queue(*queue).lock_held = false);
        });
    }
}

impl Drop for ScriptedSource {
    fn drop(&mut self) {
        self.member.call(Call::Dropped, |_| ());
    }
}

/// Waits for a notification; `true` once the deadline has passed. Without one it waits for ever.
fn wait_for_change(
    changed: &Condvar,
    state: &mut MutexGuard<'_, ScriptState>,
    deadline: Option<Instant>,
) -> bool {
    match deadline {
        Some(deadline) => changed.wait_until(state, deadline).timed_out(),
        None => {
            changed.wait(state);
            false
        }
    }
}
