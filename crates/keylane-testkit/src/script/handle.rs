//! The test's handle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use keylane_source::{
    CommitTag, Committed, EndOffset, Fetch, Message, Offset, Position, QueueId, ResetCause,
    SourceError, SourceEvent, Watermark,
};

use super::call::Call;
use super::plan::{CommitAnswer, LockAnswer, Stored};
use super::state::ScriptState;
use super::{Caller, ScriptedLocks, ScriptedSource, Shared, wait_for_change};

/// How long [`Script::wait_for`] waits before it calls the test failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Controls a [`ScriptedSource`] from the test's thread. Clones are the same script.
///
/// Everything takes effect at once and ends the wait of a `poll` that is under way.
#[derive(Debug, Clone, Default)]
pub struct Script {
    shared: Arc<Shared>,
}

/// Sources, and what they were asked.
impl Script {
    /// A broker without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// The source to give to the engine, with all that was scripted before. A second call is a
    /// [`restart`](Self::restart).
    pub fn source(&self) -> ScriptedSource {
        let first = self.shared.change(|state| {
            let first = state.generation == 0;
            state.generation += u64::from(first);
            first
        });
        if first { self.source_of_generation(1) } else { self.restart() }
    }

    /// The source of a process that starts after a crash: the queues that the old one had are
    /// assigned to it, each with what the broker has stored. Commits that were not answered are
    /// lost, locks stay with the broker, planned answers stay planned.
    pub fn restart(&self) -> ScriptedSource {
        let generation = self.shared.change(|state| {
            state.note(Call::Restarted);
            let member = std::mem::take(&mut state.member);
            for queue in member.tenures.into_keys() {
                let committed = state.look_up(queue);
                state.assign(queue, committed);
            }
            state.generation += 1;
            state.generation
        });
        self.source_of_generation(generation)
    }

    fn source_of_generation(&self, generation: u64) -> ScriptedSource {
        let member = Caller { shared: Arc::clone(&self.shared), generation };
        ScriptedSource { locks: ScriptedLocks(member.clone()), member }
    }

    /// Asks the state something. The closure must not use the script: it runs under its lock.
    pub fn look<T>(&self, question: impl FnOnce(&ScriptState) -> T) -> T {
        question(&self.shared.state.lock())
    }

    /// Waits until the state answers yes, and says whether it did within `timeout`. The closure
    /// must not use the script: it runs under its lock.
    #[must_use]
    pub fn wait_until(
        &self,
        mut condition: impl FnMut(&ScriptState) -> bool,
        timeout: Duration,
    ) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.shared.state.lock();
        let mut last_look = timeout.is_zero();
        loop {
            if condition(&state) || last_look {
                return condition(&state);
            }
            last_look = wait_for_change(&self.shared.changed, &mut state, deadline);
        }
    }

    /// Waits until the state answers yes, for at most 30 s.
    ///
    /// # Panics
    ///
    /// When it does not: with `what` was awaited, and the end of the history.
    #[track_caller]
    pub fn wait_for(&self, what: &str, condition: impl FnMut(&ScriptState) -> bool) {
        if !self.wait_until(condition, PATIENCE) {
            let history = self.look(|state| state.history().to_vec());
            let tail = &history[history.len().saturating_sub(30)..];
            panic!("waited {PATIENCE:?} in vain for: {what}; the last calls: {tail:#?}");
        }
    }

    /// Every call so far, in order.
    pub fn history(&self) -> Vec<Call> {
        self.look(|state| state.history().to_vec())
    }

    /// The commits asked for on this queue, in order.
    pub fn commits(&self, queue: QueueId) -> Vec<u64> {
        self.look(|state| state.commits(queue).iter().map(|mark| mark.get()).collect())
    }

    /// The watermark stored for the group.
    pub fn committed(&self, queue: QueueId) -> Option<u64> {
        self.look(|state| state.committed(queue).map(Watermark::get))
    }
}

/// Messages.
impl Script {
    /// Appends a message and gives its offset.
    pub fn produce(
        &self,
        queue: QueueId,
        key: impl Into<Bytes>,
        payload: impl Into<Bytes>,
    ) -> Offset {
        let (key, payload) = (key.into(), payload.into());
        self.produce_with(queue, |message| message.with_key(key).with_payload(payload))
    }

    /// Appends what `make` makes of an empty message: to leave key or payload away, to set headers
    /// and timestamp.
    ///
    /// # Panics
    ///
    /// When `make` changes queue or offset, or the queue is full.
    pub fn produce_with(&self, queue: QueueId, make: impl FnOnce(Message) -> Message) -> Offset {
        let end = self.look(|state| state.end(queue));
        let offset = Offset::new(end.get()).expect("the queue has a free offset");
        self.append(queue, [make(Message::new(queue, offset))]);
        offset
    }

    /// Appends messages with offsets of their own; an offset left out is a hole.
    ///
    /// # Panics
    ///
    /// When offsets do not ascend from the queue's end on, or a message names another queue.
    pub fn append(&self, queue: QueueId, messages: impl IntoIterator<Item = Message>) {
        let messages: Vec<_> = messages.into_iter().collect();
        self.shared.change(|state| {
            let known = state.queue(queue);
            for message in messages {
                let offset = message.offset();
                assert_eq!(message.queue(), queue, "message of another queue");
                assert!(Position::from(offset) >= known.end, "{queue}: {offset} < {}", known.end);
                known.end = offset.next();
                known.log.push(message);
            }
        });
    }

    /// Leaves a hole of `offsets` offsets at the end: the position passes it, without a message.
    ///
    /// # Panics
    ///
    /// When there are not as many offsets left.
    pub fn hole(&self, queue: QueueId, offsets: u64) {
        self.shared.change(|state| {
            let known = state.queue(queue);
            let end = known.end.get().checked_add(offsets).and_then(Position::new);
            known.end = end.expect("the hole ends at 2^63 at most");
        });
    }

    /// Removes what stands below `begin`, as retention does. The reader is not told: it finds out
    /// when it seeks there.
    pub fn trim(&self, queue: QueueId, begin: Position) {
        self.shared.change(|state| {
            let known = state.queue(queue);
            known.log.retain(|message| Position::from(message.offset()) >= begin);
            (known.begin, known.end) = (begin, known.end.max(begin));
        });
    }

    /// Starts an empty queue at this position: both its begin and its end.
    ///
    /// # Panics
    ///
    /// When the queue has messages.
    pub fn start_at(&self, queue: QueueId, position: Position) {
        self.shared.change(|state| {
            let known = state.queue(queue);
            assert!(known.log.is_empty(), "{queue} has messages");
            (known.begin, known.end) = (position, position);
        });
    }

    /// Reports this end from now on, whatever the queue holds; `None`: the true one.
    pub fn report_end(&self, queue: QueueId, end: Option<EndOffset>) {
        self.shared.change(|state| state.queue(queue).reported_end = end);
    }
}

/// Fetches that are not as one would wish.
impl Script {
    /// Gives out this fetch, whatever was paused or sought; the position read from stays.
    pub fn inject_fetch(&self, fetch: Fetch) {
        self.inject(SourceEvent::Fetched(fetch));
    }

    /// Gives out this event.
    pub fn inject(&self, event: SourceEvent) {
        self.shared.change(|state| state.member.events.push_back(event));
    }

    /// The next fetch begins here again, without a word: it repeats or overlaps the last one.
    pub fn read_again_from(&self, queue: QueueId, position: Position) {
        self.shared.change(|state| {
            let tenure = state.member.tenures.get_mut(&queue);
            tenure.expect("the queue is assigned").position = Some(position);
        });
    }

    /// Whether fetches bring all there is, whatever the limits say.
    pub fn ignore_limits(&self, queue: QueueId, ignore: bool) {
        self.shared.change(|state| state.queue(queue).ignores_limits = ignore);
    }

    /// Whether fetches come in spite of a pause.
    pub fn ignore_pause(&self, queue: QueueId, ignore: bool) {
        self.shared.change(|state| state.queue(queue).ignores_pause = ignore);
    }

    /// Lets the next `times` polls fail with this error.
    pub fn fail_polls(&self, times: usize, error: &SourceError) {
        self.shared.change(|state| {
            let failures = std::iter::repeat_n(error.clone(), times);
            state.member.poll_failures.extend(failures);
        });
    }

    /// Reports trouble of one queue; a fatal error ends its tenure.
    pub fn fail_queue(&self, queue: QueueId, error: SourceError) {
        self.shared.change(|state| {
            if error.is_fatal() {
                state.end_tenure(queue);
            }
            state.member.events.push_back(SourceEvent::QueueError { queue, error });
        });
    }
}

/// Assignment.
impl Script {
    /// Assigns the queue, with what the group has stored for it.
    pub fn assign(&self, queue: QueueId) {
        self.shared.change(|state| {
            let committed = state.look_up(queue);
            state.assign(queue, committed);
        });
    }

    /// Assigns the queue with this instead of what is stored. `At` and `None` are stored as well,
    /// so that a later look-up says the same.
    pub fn assign_with(&self, queue: QueueId, committed: Committed) {
        self.shared.change(|state| {
            match &committed {
                Committed::At { watermark, metadata } => {
                    let (watermark, metadata) = (*watermark, metadata.clone());
                    state.queue(queue).stored = Some(Stored { watermark, metadata });
                }
                Committed::None => state.queue(queue).stored = None,
                _ => {}
            }
            state.assign(queue, committed);
        });
    }

    /// Stores this watermark for the group, as an earlier process would have.
    pub fn store(&self, queue: QueueId, watermark: Watermark) {
        let stored = Stored { watermark, metadata: String::new() };
        self.shared.change(|state| state.queue(queue).stored = Some(stored));
    }

    /// The next `times` look-ups of this queue fail, the one at its assignment included.
    pub fn fail_look_ups(&self, queue: QueueId, times: u32) {
        self.shared.change(|state| state.queue(queue).failing_look_ups = times);
    }

    /// Begins to take the queue away: nothing more is fetched, the engine is expected to release
    /// it.
    pub fn begin_revoke(&self, queue: QueueId) {
        self.shared.change(|state| {
            let tenure = state.member.tenures.get_mut(&queue).expect("the queue is assigned");
            tenure.revoking = true;
            state.member.events.push_back(SourceEvent::Revoking { queue });
        });
    }

    /// Takes the queue away at once.
    pub fn lose(&self, queue: QueueId) {
        self.shared.change(|state| {
            assert!(state.end_tenure(queue), "{queue} is not assigned");
            state.member.events.push_back(SourceEvent::Lost { queue });
        });
    }

    /// Reports a reset; reading stops until the next seek. `Moved` stores the new offset for the
    /// group, `Recreated` empties the queue and forgets what the group had.
    pub fn reset(&self, queue: QueueId, cause: ResetCause) {
        self.shared.change(|state| state.reset(queue, cause));
    }
}

/// Commits. Without a word from the script each is stored and answered at once.
impl Script {
    /// The next commits get these answers, one each.
    pub fn answer_next_commits(&self, answers: impl IntoIterator<Item = CommitAnswer>) {
        self.shared.change(|state| state.commit_answers.extend(answers));
    }

    /// The next `times` commits fail with this error.
    pub fn fail_commits(&self, times: usize, error: &SourceError) {
        self.answer_next_commits(std::iter::repeat_n(CommitAnswer::Failed(error.clone()), times));
    }

    /// Holds every commit from now on, until it is answered by hand.
    pub fn hold_commits(&self) {
        self.shared.change(|state| state.commits_held = true);
    }

    /// Answers what is held, in order, and holds no more. Gives how many there were.
    pub fn let_commits_go(&self) -> usize {
        self.shared.change(|state| {
            state.commits_held = false;
            state.answer_where(|_| true, None)
        })
    }

    /// Answers one held commit; in any order, so that results are reordered. `false`: no such one.
    pub fn answer_commit(&self, tag: CommitTag, answer: &CommitAnswer) -> bool {
        self.shared.change(|state| {
            state.answer_where(|waiting| waiting.commit.tag == tag, Some(answer)) > 0
        })
    }

    /// Answers each commit from now on only with the `polls`-th poll after it; 0: at once.
    pub fn delay_commits(&self, polls: u64) {
        self.shared.change(|state| state.commit_delay_polls = polls);
    }

    /// `close` reports this error, after it has done its work.
    pub fn fail_close(&self, error: SourceError) {
        self.shared.change(|state| state.close_error = Some(error));
    }
}

/// Queue locks.
impl Script {
    /// Gives the source queue locks with this lease. Without this call it has none.
    pub fn with_locks(self, lease: Duration) -> Self {
        self.shared.change(|state| state.lock_lease = Some(lease));
        self
    }

    /// How requests for this queue's lock are answered from now on. Default: granted.
    pub fn answer_locks(&self, queue: QueueId, answer: LockAnswer) {
        self.shared.change(|state| state.queue(queue).lock_answer = answer);
    }

    /// Takes the lock away and says so.
    pub fn lose_lock(&self, queue: QueueId) {
        self.shared.change(|state| {
            state.queue(queue).lock_held = false;
            let reply = keylane_source::LockReply::Lost;
            state.member.events.push_back(SourceEvent::Lock { queue, reply });
        });
    }

    /// Lets the lock expire at the broker, without a word.
    pub fn expire_lock(&self, queue: QueueId) {
        self.shared.change(|state| state.queue(queue).lock_held = false);
    }
}
