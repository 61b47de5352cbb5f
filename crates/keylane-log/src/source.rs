//! A group's consumer of one topic.
//!
//! What another thread tells it comes through the [`Inbox`]; everything else is its own. Nothing
//! waits but `poll`, for at most the time given, and `close`: a seek is noted and answered by the
//! next `poll`, a commit is handed to the log's thread.
//!
//! Invariants:
//!
//! 1. `ready` holds each queue that may have something to say at the next `poll`, once, as
//!    `is_ready` says. A queue leaves it when it has nothing left, and comes back when it grows
//!    or is sought or resumed. So a poll costs what it brings, not what there are queues.
//! 2. A position lies between the queue's begin and end, or is answered by a reset.
//! 3. A block that was read in part stays with its queue, so that small fetches do not read and
//!    check it again; together these blocks keep at most 32 MiB.

mod fetch;
mod timestamp;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use keylane_source::{
    Commit, Committed, Emptied, FetchLimits, Message, QueueId, ResetCause, SeekTo, Source,
    SourceError, SourceEvent, SourceWaker,
};

use crate::Error;
use crate::background::Request;
use crate::block::Block;
use crate::error::Kind;
use crate::groups::in_use;
use crate::inbox::Inbox;
use crate::manifest::check_name;
use crate::shared::{Core, Shared};
use crate::state;
use crate::topic::Topic;

/// The longest metadata of a commit.
const METADATA_BYTES_MAX: usize = 64 << 10;

/// A group's consumer of a topic, as the engine drives it. Made by [`Log::source`].
///
/// It is assigned every queue of the topic at its first poll, and keeps them: there is no other
/// member to share with. Positions below what retention has left, or above a queue's end, are
/// answered by [`ResetCause::OutOfRange`]. A damaged record is a fatal error of its queue; the
/// other queues go on.
///
/// Commits are written by the log's own thread. A result that says "stored" means: survives a
/// `kill -9`, and what [`Fsync`](crate::Fsync) says of a power failure. Any watermark is accepted,
/// also a lower one than before.
///
/// [`Log::source`]: crate::Log::source
#[derive(Debug)]
pub struct LogSource {
    shared: Arc<Shared>,
    topic: Arc<Topic>,
    group: Arc<str>,
    inbox: Arc<Inbox>,
    queues: Vec<QueueState>,
    ready: VecDeque<u32>,
    /// Queues whose committed offset was asked for: all of them at first.
    look_ups: Vec<u32>,
    is_assigned: bool,
    commits_open: usize,
    kept_bytes: usize,
    closed: bool,
    /// Vectors that came back, to be filled again.
    emptied: Emptied,
}

#[derive(Debug)]
struct QueueState {
    id: QueueId,
    reading: Reading,
    is_paused: bool,
    is_ready: bool,
    /// The block that the position lies in, if it has been read in part.
    block: Option<Block>,
    not_before: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Reading {
    /// Not sought yet, or its position was answered by a reset, or it has failed.
    Idle,
    /// Sought; the next poll finds out where that is.
    Sought(SeekTo),
    /// By timestamp, from this position on.
    Searching { timestamp_ms: i64, from: u64 },
    /// The next offset to read.
    At(u64),
    /// Given back.
    Released,
}

impl LogSource {
    pub(crate) fn open(shared: &Arc<Shared>, topic: &str, group: &str) -> Result<Self, Error> {
        let doing = || format!("consume topic {topic:?} as group {group:?}");
        check_name("group", group).map_err(|error| error.context(doing()))?;
        let core = &shared.core;
        let topic = core.topic(topic)?;
        let group: Arc<str> = group.into();
        {
            let mut live = core.live.lock();
            if topic.deleted.load(Ordering::Acquire) {
                return Err(Error::new(Kind::NotFound, "the topic was deleted").context(doing()));
            }
            if !live.insert((topic.number, Arc::clone(&group))) {
                return Err(in_use(&group, &topic.name));
            }
        }
        let inbox = Arc::new(Inbox::new(&group, topic.queues.len()));
        let queue = |queue: &crate::topic::Queue| QueueState {
            id: queue.id,
            reading: Reading::Idle,
            is_paused: false,
            is_ready: false,
            block: None,
            not_before: None,
        };
        // From here on its drop makes the group free again.
        let source = Self {
            shared: Arc::clone(shared),
            queues: topic.queues.iter().map(queue).collect(),
            topic: Arc::clone(&topic),
            group,
            inbox: Arc::clone(&inbox),
            ready: VecDeque::new(),
            look_ups: Vec::new(),
            is_assigned: false,
            commits_open: 0,
            kept_bytes: 0,
            closed: false,
            emptied: Emptied::default(),
        };
        topic.subscribers.lock().push(inbox);
        // An earlier consumer of the group may have left commits behind that are still to be
        // written.
        core.background.drain();
        source.register().map_err(|error| error.context(doing()))?;
        Ok(source)
    }

    /// The log remembers the group, for retention.
    fn register(&self) -> Result<(), Error> {
        let core = self.core();
        let key = state::group_key(self.topic.number, &self.group);
        if core.store.state(&key)?.is_some() {
            return Ok(());
        }
        core.check_running()?;
        let mut write = core.store.write();
        write.put_state(&key, &[]);
        write.commit(core.syncs_each_batch()).map_err(|error| core.stop(error))?;
        core.background.written();
        Ok(())
    }

    fn core(&self) -> &Core {
        &self.shared.core
    }

    /// The group that it consumes for.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The topic that it consumes.
    pub fn topic(&self) -> &str {
        &self.topic.name
    }

    fn queue(&mut self, id: QueueId) -> Option<(u32, &mut QueueState)> {
        let index = id.index();
        let queue = self.queues.get_mut(index as usize)?;
        let is_ours = queue.id == id && queue.reading != Reading::Released;
        is_ours.then_some((index, queue))
    }

    fn make_ready(&mut self, index: u32) {
        let queue = &mut self.queues[index as usize];
        let may_speak = match queue.reading {
            Reading::Idle | Reading::Released => false,
            Reading::Sought(_) | Reading::Searching { .. } => true,
            Reading::At(_) => !queue.is_paused,
        };
        if may_speak && !std::mem::replace(&mut queue.is_ready, true) {
            self.ready.push_back(index);
        }
    }

    fn drop_block(&mut self, index: u32) {
        if let Some(block) = self.queues[index as usize].block.take() {
            self.kept_bytes -= block.bytes_left();
        }
    }

    /// The look-ups that are due, and at the first time the assignments.
    fn look_up(&mut self, events: &mut Vec<SourceEvent>) {
        let is_assigned = std::mem::replace(&mut self.is_assigned, true);
        let due = if is_assigned {
            std::mem::take(&mut self.look_ups)
        } else {
            self.queues.iter().map(|queue| queue.id.index()).collect()
        };
        for index in due {
            let queue = self.queues[index as usize].id;
            let committed = match self.core().committed(&self.topic, &self.group, index) {
                Ok(None) => Committed::None,
                Ok(Some(stored)) => {
                    Committed::At { watermark: stored.watermark, metadata: stored.metadata }
                }
                Err(error) => Committed::Failed(error.to_source_error()),
            };
            events.push(match is_assigned {
                true => SourceEvent::LookedUp { queue, committed },
                false => SourceEvent::Assigned { queue, committed },
            });
        }
    }

    /// When a queue that the operating system refused to read is to be tried again.
    fn retry_at(&self) -> Option<Instant> {
        let ready = self.ready.iter();
        ready.filter_map(|index| self.queues[*index as usize].not_before).min()
    }

    /// Everything that can be said without waiting. True: woken.
    fn step(&mut self, limits: FetchLimits, events: &mut Vec<SourceEvent>) -> bool {
        let before = events.len();
        let letters = self.inbox.take(events);
        self.commits_open -= events.len() - before;
        for index in letters.grown {
            self.make_ready(index);
        }
        self.look_up(events);
        for (index, to) in letters.moved {
            let queue = &mut self.queues[index as usize];
            if queue.reading != Reading::Released {
                queue.reading = Reading::Idle;
                let (queue, cause) = (queue.id, ResetCause::Moved { to });
                events.push(SourceEvent::Reset { queue, cause });
                self.drop_block(index);
            }
        }
        self.fetch(limits, events);
        letters.woken
    }

    fn leave(&mut self) {
        self.topic.subscribers.lock().retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        if !std::mem::replace(&mut self.closed, true) {
            self.core().live.lock().remove(&(self.topic.number, Arc::clone(&self.group)));
        }
    }
}

impl Source for LogSource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let limits = FetchLimits { messages: limits.messages.max(1), bytes: limits.bytes.max(1) };
        let before = events.len();
        let mut deadline = None;
        loop {
            if self.step(limits, events) || events.len() > before || wait.is_zero() {
                return Ok(());
            }
            let now = Instant::now();
            // A wait too long for the clock is as good as a day.
            let day = Duration::from_secs(86_400);
            let deadline = *deadline.get_or_insert_with(|| now + wait.min(day));
            let until = self.retry_at().map_or(deadline, |retry| retry.min(deadline));
            // A timestamp is still being looked for: no time to wait.
            if until > now
                && self.ready.iter().all(|i| self.queues[*i as usize].not_before.is_some())
            {
                self.inbox.wait(until);
            } else if deadline <= now {
                return Ok(());
            }
        }
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        let Some((index, state)) = self.queue(queue) else { return };
        state.reading = Reading::Sought(to);
        state.not_before = None;
        self.drop_block(index);
        self.make_ready(index);
    }

    fn pause(&mut self, queue: QueueId) {
        if let Some((_, state)) = self.queue(queue) {
            state.is_paused = true;
        }
    }

    fn resume(&mut self, queue: QueueId) {
        let Some((index, state)) = self.queue(queue) else { return };
        state.is_paused = false;
        self.make_ready(index);
    }

    fn commit(&mut self, commit: Commit) {
        let ours = self.queue(commit.queue).is_some();
        self.commits_open += 1;
        let refusal = if !ours {
            Some("the queue is not assigned".to_owned())
        } else if self.inbox.is_moving(commit.queue.index()) {
            Some("the group's offset has been moved meanwhile".to_owned())
        } else if commit.metadata.len() > METADATA_BYTES_MAX {
            Some(format!("{} bytes of metadata are too many", commit.metadata.len()))
        } else {
            None
        };
        if let Some(why) = refusal {
            let error = SourceError::retryable(format!(
                "commit {} at {} for group {:?}: {why}",
                commit.queue, commit.watermark, self.group
            ));
            self.inbox.result(SourceEvent::CommitResult { commit, result: Err(error) });
            return;
        }
        let request = Request::new(&self.topic, &self.group, commit, &self.inbox);
        self.core().background.commit(request);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        if let Some((index, _)) = self.queue(queue) {
            self.look_ups.push(index);
        }
    }

    fn release(&mut self, queue: QueueId) {
        let Some((index, state)) = self.queue(queue) else { return };
        state.reading = Reading::Released;
        self.drop_block(index);
        self.look_ups.retain(|asked| *asked != index);
    }

    fn waker(&self) -> SourceWaker {
        let inbox = Arc::clone(&self.inbox);
        SourceWaker::new(move || inbox.wake())
    }

    fn recycle(&mut self, emptied: Vec<Message>) {
        self.emptied.put(emptied);
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let deadline = Instant::now() + timeout.min(Duration::from_secs(86_400));
        loop {
            let before = events.len();
            self.inbox.take(events);
            self.commits_open -= events.len() - before;
            if self.commits_open == 0 || !self.inbox.wait(deadline) {
                break;
            }
        }
        self.leave();
        if self.commits_open == 0 {
            return Ok(());
        }
        Err(SourceError::retryable(format!(
            "close the consumer of topic {:?} in group {:?}: {} commits were not \
             answered within {timeout:?}",
            self.topic.name, self.group, self.commits_open
        )))
    }
}

impl Drop for LogSource {
    fn drop(&mut self) {
        self.leave();
    }
}
