//! The state behind a script: a broker, which survives a restart, and one member, which does not.
//!
//! Nothing here waits or wakes: [`Script`](super::Script) and
//! [`ScriptedSource`](super::ScriptedSource) do, under one lock, and every change is followed by a
//! notification.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use keylane_source::{
    Commit, Committed, EndOffset, Fetch, FetchLimits, LockReply, Message, Position, QueueId,
    ResetCause, SeekTo, SourceError, SourceEvent, Watermark,
};

use super::call::Call;
use super::plan::{CommitAnswer, LockAnswer, Stored};

/// What a script knows: see [`Script::wait_until`](super::Script::wait_until).
#[derive(Debug, Default)]
pub struct ScriptState {
    pub(super) broker: BTreeMap<QueueId, BrokerQueue>,
    pub(super) member: Member,
    pub(super) generation: u64,
    pub(super) polls: u64,
    pub(super) history: Vec<Call>,
    /// Given to the next commits, one each; then `Stored`.
    pub(super) commit_answers: VecDeque<CommitAnswer>,
    pub(super) commits_held: bool,
    pub(super) commit_delay_polls: u64,
    pub(super) lock_lease: Option<Duration>,
    pub(super) close_error: Option<SourceError>,
    pub(super) recycled: Vec<usize>,
}

/// A queue as the broker has it.
#[derive(Debug)]
pub(super) struct BrokerQueue {
    /// Ascending; a missing offset is a hole.
    pub(super) log: Vec<Message>,
    pub(super) begin: Position,
    pub(super) end: Position,
    /// Reported in place of `end`.
    pub(super) reported_end: Option<EndOffset>,
    pub(super) stored: Option<Stored>,
    pub(super) failing_look_ups: u32,
    pub(super) lock_answer: LockAnswer,
    pub(super) lock_held: bool,
    pub(super) ignores_limits: bool,
    pub(super) ignores_pause: bool,
}

/// The one consumer of the group.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) tenures: BTreeMap<QueueId, Tenure>,
    pub(super) events: VecDeque<SourceEvent>,
    pub(super) poll_failures: VecDeque<SourceError>,
    pub(super) unanswered: Vec<Unanswered>,
    pub(super) woken: bool,
    pub(super) closed: bool,
}

/// A queue as the member has it.
#[derive(Debug, Default)]
pub(super) struct Tenure {
    /// Nothing is read before the first seek.
    pub(super) position: Option<Position>,
    pub(super) paused: bool,
    pub(super) revoking: bool,
    end_told: Option<EndOffset>,
}

/// A commit that the broker has not answered.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) commit: Commit,
    answer: CommitAnswer,
    /// The poll that brings the answer; `None`: the script answers by hand.
    due: Option<u64>,
}

impl Unanswered {
    pub(super) fn waits_for_a_poll(&self) -> bool {
        self.due.is_some()
    }
}

impl BrokerQueue {
    fn new() -> Self {
        Self {
            log: Vec::new(),
            begin: Position::ZERO,
            end: Position::ZERO,
            reported_end: None,
            stored: None,
            failing_look_ups: 0,
            lock_answer: LockAnswer::Grant,
            lock_held: false,
            ignores_limits: false,
            ignores_pause: false,
        }
    }

    fn end_offset(&self) -> EndOffset {
        self.reported_end.unwrap_or(EndOffset::At(self.end))
    }

    /// Index of the first message at or behind `position`.
    fn index_of(&self, position: Position) -> usize {
        self.log.partition_point(|message| Position::from(message.offset()) < position)
    }

    /// One fetch from `position`: the messages, and the position behind the holes after them.
    fn read(&self, position: Position, limits: FetchLimits) -> (Vec<Message>, Position) {
        let start = self.index_of(position);
        let mut bytes = 0_usize;
        let fits = |(index, message): &(usize, &Message)| {
            bytes = bytes.saturating_add(message.size());
            self.ignores_limits
                || *index == 0
                || (*index < limits.messages && bytes <= limits.bytes)
        };
        let messages: Vec<_> = self.log[start..]
            .iter()
            .enumerate()
            .take_while(fits)
            .map(|(_, message)| message.clone())
            .collect();
        let next = self.log.get(start + messages.len());
        let behind = next.map_or(self.end, |message| message.offset().into());
        (messages, behind.max(position))
    }
}

impl ScriptState {
    pub(super) fn queue(&mut self, queue: QueueId) -> &mut BrokerQueue {
        self.broker.entry(queue).or_insert_with(BrokerQueue::new)
    }

    pub(super) fn note(&mut self, call: Call) {
        self.history.push(call);
    }

    pub(super) fn note_poll(&mut self) {
        self.polls += 1;
        match self.history.last_mut() {
            Some(Call::Poll { times }) => *times += 1,
            _ => self.history.push(Call::Poll { times: 1 }),
        }
    }

    /// What a look-up of the group's offset answers now.
    pub(super) fn look_up(&mut self, queue: QueueId) -> Committed {
        let known = self.queue(queue);
        if known.failing_look_ups > 0 {
            known.failing_look_ups -= 1;
            let error = format!("look up the committed offset of {queue}: scripted failure");
            return Committed::Failed(SourceError::retryable(error));
        }
        match known.stored.clone() {
            None => Committed::None,
            Some(Stored { watermark, metadata }) => Committed::At { watermark, metadata },
        }
    }

    pub(super) fn assign(&mut self, queue: QueueId, committed: Committed) {
        self.queue(queue);
        self.member.tenures.insert(queue, Tenure::default());
        self.member.events.push_back(SourceEvent::Assigned { queue, committed });
    }

    pub(super) fn seek(&mut self, queue: QueueId, to: SeekTo) {
        let known = self.queue(queue);
        let (begin, end) = (known.begin, known.end);
        let target = match to {
            SeekTo::Position(position) => position,
            SeekTo::Earliest => begin,
            SeekTo::TimestampMs(from) => {
                let late = |message: &&Message| message.timestamp_ms().is_some_and(|at| at >= from);
                known.log.iter().find(late).map_or(end, |message| message.offset().into())
            }
            // Latest, and what later versions add.
            _ => end,
        };
        let Some(tenure) = self.member.tenures.get_mut(&queue) else { return };
        tenure.end_told = None;
        if target < begin || target > end {
            tenure.position = None;
            let cause = ResetCause::OutOfRange { asked: target, begin, end };
            self.member.events.push_back(SourceEvent::Reset { queue, cause });
        } else {
            tenure.position = Some(target);
        }
    }

    /// The broker's side of a commit: answered now, later, or when the script says so.
    pub(super) fn commit(&mut self, commit: Commit) {
        let answer = self.commit_answers.pop_front().unwrap_or(CommitAnswer::Stored);
        let due = match (self.commits_held, self.commit_delay_polls) {
            (true, _) => None,
            (false, 0) => return self.answer(commit, answer),
            (false, delay) => Some(self.polls + delay),
        };
        self.member.unanswered.push(Unanswered { commit, answer, due });
    }

    pub(super) fn answer(&mut self, commit: Commit, answer: CommitAnswer) {
        let stored = Stored { watermark: commit.watermark, metadata: commit.metadata.clone() };
        let queue = commit.queue;
        let result = if !self.member.tenures.contains_key(&queue) {
            let error = format!("commit {queue} at {}: the queue is not ours", commit.watermark);
            Err(SourceError::retryable(error))
        } else {
            match answer {
                CommitAnswer::Failed(error) => Err(error),
                CommitAnswer::Stored => {
                    self.queue(queue).stored = Some(stored);
                    Ok(())
                }
                CommitAnswer::StoredButFailed(error) => {
                    self.queue(queue).stored = Some(stored);
                    Err(error)
                }
            }
        };
        self.member.events.push_back(SourceEvent::CommitResult { commit, result });
    }

    /// Answers the unanswered commits that `which` picks; with the answer planned for them, or with
    /// this one.
    pub(super) fn answer_where(
        &mut self,
        which: impl Fn(&Unanswered) -> bool,
        with: Option<&CommitAnswer>,
    ) -> usize {
        let (picked, kept) =
            std::mem::take(&mut self.member.unanswered).into_iter().partition(which);
        self.member.unanswered = kept;
        let picked: Vec<Unanswered> = picked;
        let count = picked.len();
        for Unanswered { commit, answer, .. } in picked {
            self.answer(commit, with.cloned().unwrap_or(answer));
        }
        count
    }

    pub(super) fn end_tenure(&mut self, queue: QueueId) -> bool {
        self.member.tenures.remove(&queue).is_some()
    }

    pub(super) fn reset(&mut self, queue: QueueId, cause: ResetCause) {
        let known = self.queue(queue);
        match &cause {
            ResetCause::Moved { to } => {
                let watermark = Watermark::from(*to);
                known.stored = Some(Stored { watermark, metadata: String::new() });
            }
            ResetCause::Recreated { begin } => {
                known.log.clear();
                (known.begin, known.end) = ((*begin).into(), (*begin).into());
                known.stored = None;
            }
            // Out of range, and what later versions add: the broker's data is what it is.
            _ => {}
        }
        if let Some(tenure) = self.member.tenures.get_mut(&queue) {
            tenure.position = None;
            self.member.events.push_back(SourceEvent::Reset { queue, cause });
        }
    }

    /// Asks for one lock and pushes the answer.
    pub(super) fn acquire_lock(&mut self, queue: QueueId) {
        let known = self.queue(queue);
        let reply = match known.lock_answer.clone() {
            LockAnswer::Grant => {
                known.lock_held = true;
                LockReply::Held
            }
            LockAnswer::Refuse if std::mem::take(&mut known.lock_held) => LockReply::Lost,
            LockAnswer::Refuse => LockReply::Refused,
            LockAnswer::Fail(error) => LockReply::Failed(error),
            LockAnswer::Silence => return,
        };
        self.member.events.push_back(SourceEvent::Lock { queue, reply });
    }

    /// Everything that a poll brings now.
    pub(super) fn take_events(&mut self, limits: FetchLimits, events: &mut Vec<SourceEvent>) {
        let polls = self.polls;
        self.answer_where(|commit| commit.due.is_some_and(|due| due <= polls), None);
        events.extend(self.member.events.drain(..));
        for (&queue, tenure) in &mut self.member.tenures {
            let Some(known) = self.broker.get(&queue) else { continue };
            events.extend(tenure.fetch(queue, known, limits));
        }
    }
}

impl Tenure {
    fn fetch(
        &mut self,
        queue: QueueId,
        known: &BrokerQueue,
        limits: FetchLimits,
    ) -> Option<SourceEvent> {
        let position = self.position?;
        let end = known.end_offset();
        if !self.revoking && (!self.paused || known.ignores_pause) {
            let (messages, behind) = known.read(position, limits);
            if behind > position {
                (self.position, self.end_told) = (Some(behind), Some(end));
                return Some(SourceEvent::Fetched(Fetch {
                    queue,
                    messages,
                    position: behind,
                    end,
                }));
            }
        }
        (self.end_told.replace(end) != Some(end)).then_some(SourceEvent::End { queue, end })
    }
}

/// Questions, for [`Script::wait_until`](super::Script::wait_until) and
/// [`Script::look`](super::Script::look).
impl ScriptState {
    /// How often `poll` was called.
    pub fn polls(&self) -> u64 {
        self.polls
    }

    /// How many messages each vector had that came back by [`recycle`]: none, if all is well.
    ///
    /// [`recycle`]: keylane_source::Source::recycle
    pub fn recycled(&self) -> &[usize] {
        &self.recycled
    }

    /// Every call, in order, but for polls in a row and what is [recycled](Self::recycled).
    pub fn history(&self) -> &[Call] {
        &self.history
    }

    /// The commits asked for on this queue, in order, whatever became of them; of all sources of
    /// this script.
    pub fn commits(&self, queue: QueueId) -> Vec<Watermark> {
        let of_queue = |call: &Call| match call {
            Call::Commit(commit) if commit.queue == queue => Some(commit.watermark),
            _ => None,
        };
        self.history.iter().filter_map(of_queue).collect()
    }

    /// The commits that wait for an answer.
    pub fn unanswered(&self) -> Vec<Commit> {
        self.member.unanswered.iter().map(|waiting| waiting.commit.clone()).collect()
    }

    /// What the broker has stored for the group.
    pub fn stored(&self, queue: QueueId) -> Option<Stored> {
        self.broker.get(&queue).and_then(|known| known.stored.clone())
    }

    /// The watermark stored for the group.
    pub fn committed(&self, queue: QueueId) -> Option<Watermark> {
        self.broker.get(&queue)?.stored.as_ref().map(|stored| stored.watermark)
    }

    /// The next offset that will be given out; `None` before the first seek, after a reset, and
    /// where the queue is not assigned.
    pub fn position(&self, queue: QueueId) -> Option<Position> {
        self.member.tenures.get(&queue)?.position
    }

    /// The offset that the next message of the queue gets.
    pub fn end(&self, queue: QueueId) -> Position {
        self.broker.get(&queue).map_or(Position::ZERO, |known| known.end)
    }

    /// Whether the queue is assigned (a revoke that waits for its release included).
    pub fn is_assigned(&self, queue: QueueId) -> bool {
        self.member.tenures.contains_key(&queue)
    }

    /// Whether the queue is assigned and paused.
    pub fn is_paused(&self, queue: QueueId) -> bool {
        self.member.tenures.get(&queue).is_some_and(|tenure| tenure.paused)
    }

    /// Whether the engine has released the queue since it was last assigned.
    pub fn is_released(&self, queue: QueueId) -> bool {
        !self.is_assigned(queue) && self.history.contains(&Call::Release(queue))
    }

    /// Whether `close` has been called on the source at hand.
    pub fn is_closed(&self) -> bool {
        self.member.closed
    }

    /// Whether the broker holds the queue's lock for this consumer.
    pub fn is_locked(&self, queue: QueueId) -> bool {
        self.broker.get(&queue).is_some_and(|known| known.lock_held)
    }
}
