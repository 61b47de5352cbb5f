//! The scripted source, with one thing wrong.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use keylane_source::*;

use super::super::scripted::Scripted;
use crate::conformance::{Capabilities, Fixture, Record};
use crate::script::{Script, ScriptedSource};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    None,
    ReadsUnasked,
    AssignsTwice,
    ZeroForNone,
    ForgetsMetadata,
    AssignsFailed,
    LooksUpNone,
    NoLookUp,
    FailedIsNone,
    Descends,
    LosesOne,
    PositionTooLow,
    SeeksOnce,
    TimeIsEarliest,
    KeepsFetchedAhead,
    ClampsSeeks,
    IgnoresLimits,
    SkipsLarge,
    IgnoresPause,
    LosesAtResume,
    CountsPauses,
    PausesAll,
    SeekResumes,
    StopsAtHoles,
    EndTooHigh,
    EndUnknown,
    KeepsWhatIsGivenBack,
    CutsAtZero,
    SharesKey,
    KeysAreText,
    EmptyKeyIsNone,
    NoPayloadIsEmpty,
    HeadersAreAMap,
    NoTimestamps,
    NoTag,
    NoMetadataInResult,
    StoresNothing,
    FirstCommitWins,
    CommitSkips,
    ZeroIsNoCommit,
    FailedIsOk,
    CloseForgets,
    CloseHangs,
    CloseSaysNothing,
    ReleasesAtOnce,
    LosesRevoked,
    ReadsOnAfterTheEnd,
    HidesResets,
    SeeksAfterReset,
    NoWaker,
    SleepsThrough,
    AlwaysWaits,
    WaitsForEver,
    NoLocks,
    LocksTheFirst,
    HeldWithoutAsking,
    AlwaysHeld,
    KeepsLocks,
}

thread_local! {
    /// The bug of the sources that this thread makes.
    static BUG: Cell<Bug> = const { Cell::new(Bug::None) };
    static STARTS_FOR_NONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs it with sources that have this bug.
pub(super) fn with_bug<T>(bug: Bug, run: impl FnOnce() -> T) -> T {
    BUG.set(bug);
    run()
}

/// Runs it with a fixture that says that its broker answers the start where nothing is committed.
pub(super) fn with_starts_for_none<T>(run: impl FnOnce() -> T) -> T {
    STARTS_FOR_NONE.set(true);
    run()
}

const FOR_EVER: Duration = Duration::from_secs(24 * 3_600);

pub(super) struct Broken(Scripted);

impl Fixture for Broken {
    type Source = BrokenSource;

    fn new(queues: u32) -> Self {
        Self(Scripted::new(queues))
    }
    fn capabilities() -> Capabilities {
        Scripted::capabilities()
    }
    fn without_a_commit() -> Option<Watermark> {
        STARTS_FOR_NONE.get().then_some(Watermark::ZERO)
    }
    fn patience() -> Duration {
        // What a bug keeps back is awaited for as long as this. A right source needs microseconds,
        // and more only where the machine stands still.
        if BUG.get() == Bug::None { Duration::from_secs(10) } else { Duration::from_millis(600) }
    }
    fn queues(&self) -> Vec<QueueId> {
        self.0.queues()
    }
    fn produce(&mut self, queue: QueueId, record: Record) -> Offset {
        self.0.produce(queue, record)
    }
    fn source(&mut self) -> BrokenSource {
        let bug = BUG.get();
        let source = self.0.source();
        self.0.script.ignore_limits(self.queues()[0], bug == Bug::IgnoresLimits);
        BrokenSource {
            inner: source,
            script: self.0.script.clone(),
            bug,
            ahead: Vec::new(),
            sought: HashSet::new(),
            pauses: HashMap::new(),
            committed: HashSet::new(),
            gone: HashSet::new(),
            given_back: Vec::new(),
        }
    }
    fn stored(&mut self, queue: QueueId) -> Option<Watermark> {
        self.0.stored(queue)
    }
    fn leave_hole(&mut self, queue: QueueId) -> Position {
        self.0.leave_hole(queue)
    }
    fn trim(&mut self, queue: QueueId, begin: Position) {
        self.0.trim(queue, begin);
    }
    fn fail_next_look_up(&mut self, queue: QueueId) {
        self.0.fail_next_look_up(queue);
    }
    fn fail_next_commit(&mut self, queue: QueueId) {
        self.0.fail_next_commit(queue);
    }
    fn fall_silent(&mut self) {
        self.0.fall_silent();
    }
    fn revoke_one(&mut self) {
        self.0.revoke_one();
    }
    fn lose_one(&mut self) {
        self.0.lose_one();
    }
    fn move_offset(&mut self, queue: QueueId, to: Position) {
        self.0.move_offset(queue, to);
    }
    fn lock_elsewhere(&mut self, queue: QueueId) {
        self.0.lock_elsewhere(queue);
    }
    fn is_locked(&mut self, queue: QueueId) -> bool {
        self.0.is_locked(queue)
    }
}

pub(super) struct BrokenSource {
    inner: ScriptedSource,
    script: Script,
    bug: Bug,
    ahead: Vec<SourceEvent>,
    sought: HashSet<QueueId>,
    pauses: HashMap<QueueId, u32>,
    committed: HashSet<QueueId>,
    gone: HashSet<QueueId>,
    given_back: Vec<Message>,
}

impl BrokenSource {
    /// The event as the bug has it; `None`: it never comes.
    fn spoil(&mut self, event: SourceEvent, limits: FetchLimits) -> Option<SourceEvent> {
        match event {
            SourceEvent::Fetched(fetch) => self.spoil_fetch(fetch, limits),
            SourceEvent::Assigned { queue, committed } => {
                if self.bug == Bug::ReadsUnasked {
                    self.inner.seek(queue, SeekTo::Earliest);
                }
                Some(SourceEvent::Assigned { queue, committed: self.spoil_committed(committed) })
            }
            SourceEvent::LookedUp { queue, committed } => {
                let committed = match (self.bug, committed) {
                    (Bug::NoLookUp, _) => return None,
                    (Bug::LooksUpNone, _) | (Bug::FailedIsNone, Committed::Failed(_)) => {
                        Committed::None
                    }
                    (_, committed) => committed,
                };
                Some(SourceEvent::LookedUp { queue, committed })
            }
            SourceEvent::End { .. } if self.bug == Bug::EndUnknown => None,
            SourceEvent::End { queue, end: EndOffset::At(end) } if self.bug == Bug::EndTooHigh => {
                Some(SourceEvent::End { queue, end: EndOffset::At(Offset::new(end.get())?.next()) })
            }
            SourceEvent::CommitResult { commit, result } => Some(self.spoil_result(commit, result)),
            SourceEvent::Revoking { queue } => {
                self.gone.insert(queue);
                match self.bug {
                    Bug::ReleasesAtOnce => self.inner.release(queue),
                    Bug::LosesRevoked => self.ahead.push(SourceEvent::Lost { queue }),
                    _ => {}
                }
                Some(SourceEvent::Revoking { queue })
            }
            SourceEvent::Lost { queue } => {
                self.gone.insert(queue);
                Some(SourceEvent::Lost { queue })
            }
            SourceEvent::Reset { queue, .. } if self.bug == Bug::HidesResets => {
                self.inner.seek(queue, SeekTo::Earliest);
                None
            }
            SourceEvent::Reset { queue, cause } => {
                if self.bug == Bug::SeeksAfterReset {
                    self.inner.seek(queue, SeekTo::Earliest);
                }
                Some(SourceEvent::Reset { queue, cause })
            }
            SourceEvent::Lock { queue, .. } if self.bug == Bug::AlwaysHeld => {
                Some(SourceEvent::Lock { queue, reply: LockReply::Held })
            }
            other => Some(other),
        }
    }

    fn spoil_committed(&self, committed: Committed) -> Committed {
        match (self.bug, committed) {
            (Bug::ZeroForNone, _) => Committed::at(Watermark::ZERO),
            (Bug::AssignsFailed, Committed::At { .. }) => {
                Committed::Failed(SourceError::retryable("always"))
            }
            (Bug::ForgetsMetadata, Committed::At { watermark, .. }) => Committed::at(watermark),
            (_, committed) => committed,
        }
    }

    fn spoil_result(&self, mut commit: Commit, result: Result<(), SourceError>) -> SourceEvent {
        match self.bug {
            Bug::NoTag => commit.tag = CommitTag::default(),
            Bug::NoMetadataInResult => commit.metadata.clear(),
            _ => {}
        }
        let result = if self.bug == Bug::FailedIsOk { Ok(()) } else { result };
        SourceEvent::CommitResult { commit, result }
    }

    fn spoil_fetch(&mut self, mut fetch: Fetch, limits: FetchLimits) -> Option<SourceEvent> {
        let last = fetch.messages.last().map(|message| message.offset().next());
        match self.bug {
            Bug::Descends => fetch.messages.reverse(),
            Bug::LosesOne if fetch.messages.len() > 1 => _ = fetch.messages.remove(1),
            Bug::PositionTooLow if last.is_some() => {
                fetch.position = fetch.messages.last()?.offset().into();
            }
            Bug::SkipsLarge => fetch.messages.retain(|message| message.size() <= limits.bytes),
            Bug::KeepsWhatIsGivenBack => _ = fetch.messages.splice(0..0, self.given_back.drain(..)),
            Bug::StopsAtHoles => fetch.position = last?,
            Bug::EndUnknown => fetch.end = EndOffset::Unknown,
            Bug::EndTooHigh => {
                let EndOffset::At(end) = fetch.end else { return None };
                fetch.end = EndOffset::At(Offset::new(end.get())?.next());
            }
            _ => {}
        }
        let key = fetch.messages.first().and_then(Message::key_bytes).cloned();
        let spoil = |message: Message| spoil_message(self.bug, message, key.as_ref());
        fetch.messages = fetch.messages.into_iter().map(spoil).collect();
        Some(SourceEvent::Fetched(fetch))
    }
}

fn spoil_message(bug: Bug, message: Message, first_key: Option<&Bytes>) -> Message {
    let mut spoiled = Message::new(message.queue(), message.offset());
    let key = match (bug, message.key_bytes().cloned()) {
        (Bug::SharesKey, _) => first_key.cloned(),
        (Bug::KeysAreText, Some(key)) => Some(String::from_utf8_lossy(&key).into_owned().into()),
        (Bug::EmptyKeyIsNone, key) => key.filter(|key| !key.is_empty()),
        (_, key) => key,
    };
    let payload = match (bug, message.payload_bytes().cloned()) {
        (Bug::CutsAtZero, Some(payload)) => {
            let zero = payload.iter().position(|byte| *byte == 0).unwrap_or(payload.len());
            Some(payload.slice(..zero))
        }
        (Bug::NoPayloadIsEmpty, None) => Some(Bytes::new()),
        (_, payload) => payload,
    };
    if let Some(key) = key {
        spoiled = spoiled.with_key(key);
    }
    if let Some(payload) = payload {
        spoiled = spoiled.with_payload(payload);
    }
    if let Some(at) = message.timestamp_ms().filter(|_| bug != Bug::NoTimestamps) {
        spoiled = spoiled.with_timestamp_ms(at);
    }
    let mut headers: Vec<_> = message.headers().iter().collect();
    if bug == Bug::HeadersAreAMap {
        headers.sort_unstable();
        headers.dedup_by_key(|(name, _)| *name);
    }
    let owned = |(name, value): (&[u8], Option<&[u8]>)| (name.to_vec(), value.map(<[u8]>::to_vec));
    spoiled.with_headers(headers.into_iter().map(owned).collect())
}

impl Source for BrokenSource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let wait = match self.bug {
            Bug::AlwaysWaits => wait.max(Duration::from_millis(5)),
            Bug::WaitsForEver if wait == Duration::from_millis(10) => FOR_EVER,
            Bug::SleepsThrough if wait > Duration::from_secs(3_600) => {
                thread::park_timeout(wait);
                return Ok(());
            }
            _ => wait,
        };
        let mut came = std::mem::take(&mut self.ahead);
        let wait = if came.is_empty() { wait } else { Duration::ZERO };
        self.inner.poll(limits, wait, &mut came)?;
        for event in came {
            if let (Bug::AssignsTwice, SourceEvent::Assigned { queue, .. }) = (self.bug, &event) {
                let committed = Committed::None;
                events.push(SourceEvent::Assigned { queue: *queue, committed });
            }
            events.extend(self.spoil(event, limits));
        }
        if self.bug == Bug::KeepsFetchedAhead {
            self.inner.poll(limits, Duration::ZERO, &mut self.ahead)?;
        }
        if self.bug == Bug::ReadsOnAfterTheEnd {
            for &queue in &self.gone {
                let message = Message::new(queue, Offset::MAX);
                let (messages, position) = (vec![message], Offset::MAX.next());
                let end = EndOffset::Unknown;
                events.push(SourceEvent::Fetched(Fetch { queue, messages, position, end }));
            }
        }
        Ok(())
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        let again = !self.sought.insert(queue);
        let known = |offset: Position| offset <= self.script.look(|state| state.end(queue));
        match (self.bug, to) {
            (Bug::SeeksOnce, _) if again => {}
            (Bug::TimeIsEarliest, SeekTo::TimestampMs(_)) => {
                self.inner.seek(queue, SeekTo::Earliest);
            }
            (Bug::ClampsSeeks, SeekTo::Position(position)) => {
                // What is trimmed shows by the first message, what is not there by the end.
                let to = if known(position) { SeekTo::Earliest } else { SeekTo::Latest };
                self.inner.seek(queue, to);
            }
            (Bug::SeekResumes, to) => {
                self.inner.resume(queue);
                self.inner.seek(queue, to);
            }
            (_, to) => self.inner.seek(queue, to),
        }
    }

    fn pause(&mut self, queue: QueueId) {
        *self.pauses.entry(queue).or_default() += 1;
        match self.bug {
            Bug::IgnoresPause => {}
            Bug::PausesAll => {
                let index = queue.index();
                let both = [0, 1].map(|other| QueueId::new(queue.topic(), index ^ other));
                both.into_iter().for_each(|queue| self.inner.pause(queue));
            }
            _ => self.inner.pause(queue),
        }
    }

    fn resume(&mut self, queue: QueueId) {
        let pauses = self.pauses.entry(queue).or_default();
        *pauses = pauses.saturating_sub(1);
        if self.bug == Bug::CountsPauses && *pauses > 0 {
            return;
        }
        if self.bug == Bug::LosesAtResume
            && let Some(position) = self.script.look(|state| state.position(queue))
            && let Some(next) = Position::new(position.get() + 1)
        {
            self.script.read_again_from(queue, next);
        }
        self.inner.resume(queue);
    }

    fn commit(&mut self, commit: Commit) {
        let again = !self.committed.insert(commit.queue);
        let drop_it = match self.bug {
            Bug::StoresNothing => true,
            Bug::FirstCommitWins => again,
            Bug::ZeroIsNoCommit => commit.watermark == Watermark::ZERO,
            _ => false,
        };
        if drop_it {
            return self.ahead.push(SourceEvent::CommitResult { commit, result: Ok(()) });
        }
        if self.bug == Bug::CommitSkips {
            self.inner.seek(commit.queue, SeekTo::Latest);
        }
        self.inner.commit(commit);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        self.inner.look_up_committed(queue);
    }

    fn release(&mut self, queue: QueueId) {
        self.inner.release(queue);
    }

    fn waker(&self) -> SourceWaker {
        if self.bug == Bug::NoWaker { SourceWaker::noop() } else { self.inner.waker() }
    }

    fn recycle(&mut self, emptied: Vec<Message>) {
        self.given_back.extend(emptied);
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        (self.bug != Bug::NoLocks).then_some(self as &mut dyn QueueLocks)
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let timeout = if self.bug == Bug::CloseHangs { FOR_EVER } else { timeout };
        let before = events.len();
        let result = self.inner.close(timeout, events);
        match self.bug {
            Bug::CloseForgets => events.truncate(before),
            Bug::CloseSaysNothing => {
                events.truncate(before);
                return Ok(());
            }
            _ => {}
        }
        result
    }
}

impl QueueLocks for BrokenSource {
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn acquire(&mut self, queues: &[QueueId]) {
        let asked = match self.bug {
            Bug::LocksTheFirst => &queues[..1],
            Bug::HeldWithoutAsking => {
                let held =
                    |queue: &QueueId| SourceEvent::Lock { queue: *queue, reply: LockReply::Held };
                return self.ahead.extend(queues.iter().map(held));
            }
            _ => queues,
        };
        self.inner.locks().unwrap().acquire(asked);
    }

    fn release(&mut self, queues: &[QueueId]) {
        if self.bug != Bug::KeepsLocks {
            self.inner.locks().unwrap().release(queues);
        }
    }
}
