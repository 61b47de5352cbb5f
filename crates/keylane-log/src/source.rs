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
//! 3. A block that was read in part stays with its queue, so that small fetches do not read and check
//!    it again; together these blocks keep at most [`KEPT_BYTES_MAX`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use keylane_source::{
    Commit, Committed, EndOffset, Fetch, FetchLimits, Message, Offset, QueueId, ResetCause, SeekTo,
    Source, SourceError, SourceEvent, SourceWaker,
};

use crate::background::Request;
use crate::block::Block;
use crate::error::Kind;
use crate::inbox::Inbox;
use crate::inspect::at;
use crate::log::{Core, Shared};
use crate::manifest::check_name;
use crate::reader::{self, Read};
use crate::retention::in_use;
use crate::state;
use crate::topic::Topic;
use crate::{Error, timestamp};

/// What partly read blocks may keep in memory.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// How long a queue is left alone after the operating system has refused to read it.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// The longest metadata of a commit.
const METADATA_BYTES_MAX: usize = 64 << 10;

/// A group's consumer of a topic, as the engine drives it. Made by [`Log::source`].
///
/// It is assigned every queue of the topic at its first poll, and keeps them: there is no other
/// member to share with. Positions below what retention has left, or above a queue's end, are
/// answered by [`ResetCause::OutOfRange`]. A dead record is a fatal error of its queue; the other
/// queues go on.
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

/// What became of a queue's turn in a poll.
enum Turn {
    /// It has nothing more to say.
    Done,
    /// It has, at the next poll.
    More,
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
        let inbox = Arc::new(Inbox::new(topic.queues.len()));
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
        };
        topic.subscribers.lock().push(inbox);
        // An earlier consumer of the group may have left commits behind that are still to be written.
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

    /// Gives each ready queue one turn, until the limits are reached.
    fn fetch(&mut self, limits: FetchLimits, events: &mut Vec<SourceEvent>) {
        let (mut messages, mut bytes) = (0, 0);
        for _ in 0..self.ready.len() {
            if messages >= limits.messages || bytes >= limits.bytes {
                return;
            }
            let Some(index) = self.ready.pop_front() else { return };
            self.queues[index as usize].is_ready = false;
            let before = events.len();
            if matches!(self.turn(index, limits, events), Turn::More) {
                self.make_ready(index);
            }
            for event in &events[before..] {
                if let SourceEvent::Fetched(fetch) = event {
                    messages += fetch.messages.len();
                    bytes += fetch.messages.iter().map(Message::size).sum::<usize>();
                }
            }
        }
    }

    fn turn(&mut self, index: u32, limits: FetchLimits, events: &mut Vec<SourceEvent>) -> Turn {
        let queue = &mut self.queues[index as usize];
        if queue.not_before.is_some_and(|time| time > Instant::now()) {
            return Turn::More;
        }
        queue.not_before = None;
        let result = match queue.reading {
            Reading::Idle | Reading::Released => return Turn::Done,
            Reading::Sought(to) => self.find(index, to, events),
            Reading::Searching { timestamp_ms, from } => {
                self.search(index, timestamp_ms, from, events)
            }
            Reading::At(_) if queue.is_paused => return Turn::Done,
            Reading::At(position) => self.fetch_queue(index, position, limits, events),
        };
        result.unwrap_or_else(|error| {
            self.drop_block(index);
            let queue = &mut self.queues[index as usize];
            let error = error.to_source_error();
            let turn = if error.is_fatal() {
                queue.reading = Reading::Idle;
                Turn::Done
            } else {
                queue.not_before = Some(Instant::now() + RETRY_AFTER);
                Turn::More
            };
            events.push(SourceEvent::QueueError { queue: queue.id, error });
            turn
        })
    }

    /// Turns a seek into a position.
    fn find(
        &mut self,
        index: u32,
        to: SeekTo,
        events: &mut Vec<SourceEvent>,
    ) -> Result<Turn, Error> {
        let bounds = &self.topic.queues[index as usize];
        // The begin first: it never passes an end that is read after it.
        let (begin, end) = (bounds.begin(), bounds.end());
        let position = match to {
            SeekTo::Earliest => begin,
            SeekTo::Latest => end,
            SeekTo::Position(position) => position.get(),
            SeekTo::TimestampMs(timestamp_ms) => {
                let from = timestamp::first_block(self.core(), &self.topic, index, timestamp_ms)?;
                let queue = &mut self.queues[index as usize];
                queue.reading = Reading::Searching { timestamp_ms, from };
                return Ok(Turn::More);
            }
            _ => {
                let queue = bounds.id;
                return Err(Error::invalid(format!("seek {queue} to {to:?}: not known here")));
            }
        };
        if position < begin || position > end {
            self.out_of_range(index, position, events);
            return Ok(Turn::Done);
        }
        self.arrive(index, position, events);
        Ok(Turn::More)
    }

    /// Goes on looking for the first record with this timestamp or a later one.
    fn search(
        &mut self,
        index: u32,
        timestamp_ms: i64,
        from: u64,
        events: &mut Vec<SourceEvent>,
    ) -> Result<Turn, Error> {
        match timestamp::search(self.core(), &self.topic, index, timestamp_ms, from)? {
            timestamp::Search::Found(position) => self.arrive(index, position, events),
            timestamp::Search::From(from) => {
                let queue = &mut self.queues[index as usize];
                queue.reading = Reading::Searching { timestamp_ms, from };
            }
        }
        Ok(Turn::More)
    }

    /// The queue reads from here on; a reader at the end is told so.
    fn arrive(&mut self, index: u32, position: u64, events: &mut Vec<SourceEvent>) {
        let bounds = &self.topic.queues[index as usize];
        self.queues[index as usize].reading = Reading::At(position);
        let end = EndOffset::At(at(bounds.end()));
        events.push(SourceEvent::End { queue: bounds.id, end });
    }

    fn out_of_range(&mut self, index: u32, position: u64, events: &mut Vec<SourceEvent>) {
        self.drop_block(index);
        let bounds = &self.topic.queues[index as usize];
        let (begin, end) = (at(bounds.begin()), at(bounds.end()));
        let cause = ResetCause::OutOfRange { asked: at(position), begin, end };
        self.queues[index as usize].reading = Reading::Idle;
        events.push(SourceEvent::Reset { queue: bounds.id, cause });
    }

    /// One fetch of one queue: as much as the limits let through, from as many blocks as it takes.
    fn fetch_queue(
        &mut self,
        index: u32,
        mut position: u64,
        limits: FetchLimits,
        events: &mut Vec<SourceEvent>,
    ) -> Result<Turn, Error> {
        let mut messages = Vec::new();
        let mut bytes = 0;
        let end = self.topic.queues[index as usize].end();
        let mut failure = None;
        while position < end
            && messages.len() < limits.messages.max(1)
            && bytes < limits.bytes.max(1)
        {
            let mut block = match self.take_block(index, position) {
                Ok(Read::Block(block)) => block,
                Ok(Read::Trimmed) if messages.is_empty() => {
                    self.out_of_range(index, position, events);
                    return Ok(Turn::Done);
                }
                // What was read comes first; the next turn finds the same again.
                Ok(Read::Trimmed) => break,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            let taken = take_messages(
                &mut block,
                self.queues[index as usize].id,
                limits,
                &mut bytes,
                &mut messages,
            );
            position = block.next_offset();
            if let Err(error) = taken {
                failure = Some(error);
                break;
            }
            self.keep_block(index, block);
        }
        match failure {
            Some(error) if messages.is_empty() => return Err(error),
            _ => {}
        }
        let queue = &mut self.queues[index as usize];
        queue.reading = Reading::At(position);
        if messages.is_empty() {
            return Ok(Turn::Done);
        }
        // Read again: it may have moved while we read.
        let end = self.topic.queues[index as usize].end();
        let fetch = Fetch {
            queue: queue.id,
            messages,
            position: at(position),
            end: EndOffset::At(at(end)),
        };
        events.push(SourceEvent::Fetched(fetch));
        Ok(if position < end { Turn::More } else { Turn::Done })
    }

    fn take_block(&mut self, index: u32, position: u64) -> Result<Read, Error> {
        let kept = self.queues[index as usize].block.take();
        if let Some(block) = kept {
            self.kept_bytes -= block.bytes_left();
            if block.next_offset() == position {
                return Ok(Read::Block(block));
            }
        }
        reader::block(self.core(), &self.topic, index, position)
    }

    fn keep_block(&mut self, index: u32, block: Block) {
        if !block.is_finished() && self.kept_bytes + block.bytes_left() <= KEPT_BYTES_MAX {
            self.kept_bytes += block.bytes_left();
            self.queues[index as usize].block = Some(block);
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
        let mut grown = Vec::new();
        let woken = self.inbox.take(&mut grown, events);
        self.commits_open -= events.len() - before;
        for index in grown {
            self.make_ready(index);
        }
        self.look_up(events);
        self.fetch(limits, events);
        woken
    }

    fn leave(&mut self) {
        self.topic.subscribers.lock().retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        if !std::mem::replace(&mut self.closed, true) {
            self.core().live.lock().remove(&(self.topic.number, Arc::clone(&self.group)));
        }
    }
}

/// Moves records from the front of a block into messages, while the limits allow.
fn take_messages(
    block: &mut Block,
    queue: QueueId,
    limits: FetchLimits,
    bytes: &mut usize,
    messages: &mut Vec<Message>,
) -> Result<(), Error> {
    // At most what the block has, and what the limit allows.
    let left = usize::try_from(block.header.end() - block.next_offset()).unwrap_or(usize::MAX);
    messages.reserve(left.min(limits.messages.saturating_sub(messages.len())));
    while messages.len() < limits.messages.max(1) && *bytes < limits.bytes.max(1) {
        let Some((offset, stored)) = reader::record(block, queue)? else { return Ok(()) };
        let offset = Offset::new(offset).unwrap_or(Offset::MAX);
        let mut message = Message::new(queue, offset).with_headers(stored.headers);
        if let Some(key) = stored.key {
            message = message.with_key(key);
        }
        if let Some(payload) = stored.payload {
            message = message.with_payload(payload);
        }
        if let Some(timestamp) = stored.timestamp_ms {
            message = message.with_timestamp_ms(timestamp);
        }
        *bytes += message.size();
        messages.push(message);
    }
    Ok(())
}

impl Source for LogSource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
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
        } else if commit.metadata.len() > METADATA_BYTES_MAX {
            Some(format!("{} bytes of metadata are too many", commit.metadata.len()))
        } else {
            None
        };
        if let Some(why) = refusal {
            let error = SourceError::fatal(format!(
                "commit {} at {} for group {:?}: {why}",
                commit.queue, commit.watermark, self.group
            ));
            self.inbox.result(SourceEvent::CommitResult { commit, result: Err(error) });
            return;
        }
        let (topic, group) = (Arc::clone(&self.topic), Arc::clone(&self.group));
        let reply = Arc::clone(&self.inbox);
        self.core().background.commit(Request { topic, group, commit, reply });
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

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let deadline = Instant::now() + timeout.min(Duration::from_secs(86_400));
        let mut ignored = Vec::new();
        loop {
            let before = events.len();
            self.inbox.take(&mut ignored, events);
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
            "close the consumer of topic {:?} in group {:?}: {} commits were not answered within {timeout:?}",
            self.topic.name, self.group, self.commits_open
        )))
    }
}

impl Drop for LogSource {
    fn drop(&mut self) {
        self.leave();
    }
}
