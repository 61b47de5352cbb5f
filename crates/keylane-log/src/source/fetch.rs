//! What a ready queue does in its turn: find the position that was sought, or bring messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{
    EndOffset, Fetch, FetchLimits, Message, Offset, QueueId, ResetCause, SeekTo, SourceEvent,
};

use super::timestamp;
use super::{LogSource, Reading};
use crate::Error;
use crate::block::Block;
use crate::inspect::at;
use crate::reader::{self, Read, Reader};
use crate::record::Stored;
use crate::topic::Topic;

/// What partly read blocks may keep in memory.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// How long a queue is left alone after the operating system has refused to read it.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// What became of a queue's turn in a poll.
enum Turn {
    /// It has nothing more to say.
    Done,
    /// It has, at the next poll.
    More,
    /// It has, now.
    Again,
}

impl LogSource {
    /// Gives each ready queue one turn, until the limits are reached.
    pub(super) fn fetch(&mut self, limits: FetchLimits, events: &mut Vec<SourceEvent>) {
        let (mut messages, mut bytes) = (0, 0);
        for _ in 0..self.ready.len() {
            if messages >= limits.messages || bytes >= limits.bytes {
                return;
            }
            let Some(index) = self.ready.pop_front() else { return };
            self.queues[index as usize].is_ready = false;
            let before = events.len();
            let turn = loop {
                match self.turn(index, limits, events) {
                    Turn::Again => {}
                    turn => break turn,
                }
            };
            if matches!(turn, Turn::More) {
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
                return Ok(Turn::Again);
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
        Ok(Turn::Again)
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
            timestamp::Search::Found(position) => {
                self.arrive(index, position, events);
                Ok(Turn::Again)
            }
            timestamp::Search::From(from) => {
                let queue = &mut self.queues[index as usize];
                queue.reading = Reading::Searching { timestamp_ms, from };
                Ok(Turn::More)
            }
        }
    }

    /// The queue reads from here on. Where there is nothing to fetch, its end is told at once.
    fn arrive(&mut self, index: u32, position: u64, events: &mut Vec<SourceEvent>) {
        let bounds = &self.topic.queues[index as usize];
        let queue = &mut self.queues[index as usize];
        queue.reading = Reading::At(position);
        let end = bounds.end();
        if queue.is_paused || position >= end {
            events.push(SourceEvent::End { queue: bounds.id, end: EndOffset::At(at(end)) });
        }
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
        position: u64,
        limits: FetchLimits,
        events: &mut Vec<SourceEvent>,
    ) -> Result<Turn, Error> {
        let topic = Arc::clone(&self.topic);
        let bounds = &topic.queues[index as usize];
        let messages = self.emptied.take();
        let mut fetched = Fetched { queue: bounds.id, messages, bytes: 0, position };
        let result = self.fetch_blocks(&topic, index, limits, &mut fetched);
        if fetched.messages.is_empty() {
            if result? == Stopped::ByRetention {
                self.out_of_range(index, position, events);
            }
            return Ok(Turn::Done);
        }
        // What was read comes first; damage or retention behind it is found again by the next turn.
        let Fetched { queue, messages, position, .. } = fetched;
        self.queues[index as usize].reading = Reading::At(position);
        let (more, end) = (position < bounds.end(), EndOffset::At(at(bounds.end())));
        events.push(SourceEvent::Fetched(Fetch { queue, messages, position: at(position), end }));
        Ok(if more { Turn::More } else { Turn::Done })
    }

    fn fetch_blocks(
        &mut self,
        topic: &Topic,
        index: u32,
        limits: FetchLimits,
        fetched: &mut Fetched,
    ) -> Result<Stopped, Error> {
        let end = topic.queues[index as usize].end();
        let mut next = self.take_kept(index, fetched.position);
        let mut reader = None;
        while fetched.position < end && fetched.has_room(limits) {
            let mut block = match next.take() {
                Some(block) => block,
                None => {
                    let position = fetched.position;
                    let open = || Reader::new(self.core(), topic, index, position);
                    match reader.get_or_insert_with(open).block(position)? {
                        Read::Block(block) => block,
                        Read::Trimmed => return Ok(Stopped::ByRetention),
                    }
                }
            };
            fetched.take_from(&mut block, limits)?;
            self.keep_block(index, block);
        }
        Ok(Stopped::ByLimits)
    }

    /// The block that was read in part, if the position is still in it.
    fn take_kept(&mut self, index: u32, position: u64) -> Option<Block> {
        let block = self.queues[index as usize].block.take()?;
        self.kept_bytes -= block.bytes_left();
        (block.next_offset() == position).then_some(block)
    }

    fn keep_block(&mut self, index: u32, block: Block) {
        if !block.is_finished() && self.kept_bytes + block.bytes_left() <= KEPT_BYTES_MAX {
            self.kept_bytes += block.bytes_left();
            self.queues[index as usize].block = Some(block);
        }
    }
}

/// What a fetch has brought so far.
struct Fetched {
    queue: QueueId,
    messages: Vec<Message>,
    bytes: usize,
    /// Behind the last message.
    position: u64,
}

/// Why a fetch ended.
#[derive(PartialEq)]
enum Stopped {
    /// It has what it may bring, or all there is.
    ByLimits,
    /// What comes next is not there any more.
    ByRetention,
}

impl Fetched {
    fn has_room(&self, limits: FetchLimits) -> bool {
        self.messages.len() < limits.messages && self.bytes < limits.bytes
    }

    /// Moves records from the front of a block into messages, while the limits allow.
    fn take_from(&mut self, block: &mut Block, limits: FetchLimits) -> Result<(), Error> {
        let left = usize::try_from(block.header.end() - block.next_offset()).unwrap_or(usize::MAX);
        self.messages.reserve(left.min(limits.messages - self.messages.len()));
        while self.has_room(limits) {
            let Some((offset, stored)) = reader::record(block, self.queue)? else { return Ok(()) };
            self.position = offset + 1;
            let message = message(self.queue, offset, stored);
            self.bytes += message.size();
            self.messages.push(message);
        }
        Ok(())
    }
}

fn message(queue: QueueId, offset: u64, stored: Stored) -> Message {
    // The block has checked that its offsets are in range.
    let offset = Offset::new(offset).unwrap_or(Offset::MAX);
    let mut message = Message::new(queue, offset).with_headers(stored.headers);
    if let Some(key) = stored.key {
        message = message.with_key(key);
    }
    if let Some(payload) = stored.payload {
        message = message.with_payload(payload);
    }
    if let Some(timestamp_ms) = stored.timestamp_ms {
        message = message.with_timestamp_ms(timestamp_ms);
    }
    message
}
