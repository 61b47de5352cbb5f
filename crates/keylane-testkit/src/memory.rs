//! A fast source over messages that are there from the start: for benchmarks.
//!
//! Nothing on the way of a message takes a lock or allocates, save the vector that a fetch is: a
//! message is cloned (shared bytes) or made by a function of its queue and offset. The work of a
//! poll does not grow with the number of queues: those that can be read stand in a line, and a poll
//! takes a few from its front.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keylane_source::{
    Commit, Committed, Emptied, EndOffset, Fetch, FetchLimits, Message, Offset, Position, QueueId,
    ResetCause, SeekTo, Source, SourceError, SourceEvent, SourceWaker, Watermark,
};
use parking_lot::{Condvar, Mutex};

#[cfg(test)]
mod tests;

/// How many queues one poll reads: enough to give every queue its turn, few enough that a poll
/// stays short.
const QUEUES_PER_POLL: usize = 8;
/// Stored in place of a watermark where nothing was committed; no watermark is as high.
const NOT_COMMITTED: u64 = u64::MAX;

/// Makes the messages of a fetch: one call for all of them, in which each is made where it stays.
type Generator = dyn Fn(QueueId, Range<u64>, FetchLimits, &mut Vec<Message>) + Send + Sync;

/// Messages in memory, and what a group has committed of them. Clones are the same topic.
///
/// ```
/// use keylane_source::{Message, Offset, QueueId};
/// use keylane_testkit::memory::MemoryTopic;
///
/// let topic = MemoryTopic::generate("numbers", 4, 1_000, |queue, offset| {
///     Message::new(queue, offset).with_key(format!("key-{}", offset.get() % 10))
/// });
/// let source = topic.source(); // give it to a consumer
/// # drop(source);
/// assert_eq!(topic.messages(), 4_000);
/// assert!(!topic.is_committed());
/// ```
#[derive(Clone)]
pub struct MemoryTopic(Arc<Topic>);

struct Topic {
    queues: Vec<Stock>,
    index: HashMap<QueueId, usize>,
    generator: Option<Box<Generator>>,
}

/// One queue: its messages, or the range of offsets to make them from.
struct Stock {
    queue: QueueId,
    messages: Vec<Message>,
    offsets: Range<u64>,
    committed: AtomicU64,
    fetched: AtomicU64,
}

impl MemoryTopic {
    /// A topic of these messages, each in the queue that it names.
    ///
    /// # Panics
    ///
    /// When the offsets of a queue do not ascend.
    pub fn from_messages(messages: impl IntoIterator<Item = Message>) -> Self {
        let mut by_queue: BTreeMap<QueueId, Vec<Message>> = BTreeMap::new();
        for message in messages {
            by_queue.entry(message.queue()).or_default().push(message);
        }
        Self::from_queues(by_queue)
    }

    /// A topic of these queues, some of them empty perhaps.
    ///
    /// # Panics
    ///
    /// When the offsets of a queue do not ascend.
    pub fn from_queues(queues: impl IntoIterator<Item = (QueueId, Vec<Message>)>) -> Self {
        let stock = |(queue, messages): (QueueId, Vec<Message>)| {
            let ascends = messages.windows(2).all(|pair| pair[0].offset() < pair[1].offset());
            assert!(ascends, "{queue}: offsets do not ascend");
            let begin = messages.first().map_or(0, |first| first.offset().get());
            let end = messages.last().map_or(0, |last| last.offset().next().get());
            Stock::new(queue, messages, begin..end)
        };
        Self::new(queues.into_iter().map(stock).collect(), None)
    }

    /// `queues` queues of `messages` messages each, offsets from zero on, made by `make` when they
    /// are read. It must give the queue and the offset that it was called with.
    pub fn generate(
        topic: &str,
        queues: u32,
        messages: u64,
        make: impl Fn(QueueId, Offset) -> Message + Send + Sync + 'static,
    ) -> Self {
        Self::generate_sized(topic, &vec![messages; queues as usize], make)
    }

    /// The same, with as many messages in each queue as stand in `messages`.
    pub fn generate_sized(
        topic: &str,
        messages: &[u64],
        make: impl Fn(QueueId, Offset) -> Message + Send + Sync + 'static,
    ) -> Self {
        let stock = |(index, messages): (u32, &u64)| {
            Stock::new(QueueId::new(topic, index), Vec::new(), 0..*messages)
        };
        let fetch = move |queue, offsets: Range<u64>, limits, taken: &mut Vec<Message>| {
            let offsets = offsets.filter_map(Offset::new);
            fill(taken, limits, offsets.map(|offset| make(queue, offset)));
        };
        Self::new((0..).zip(messages).map(stock).collect(), Some(Box::new(fetch)))
    }

    fn new(queues: Vec<Stock>, generator: Option<Box<Generator>>) -> Self {
        let index = queues.iter().enumerate().map(|(index, stock)| (stock.queue, index)).collect();
        Self(Arc::new(Topic { queues, index, generator }))
    }

    /// A source that is assigned all queues, beginning at what was committed. One at a time.
    pub fn source(&self) -> MemorySource {
        let queues = self.0.queues.len();
        MemorySource {
            topic: self.clone(),
            cursors: std::iter::repeat_with(Cursor::default).take(queues).collect(),
            ready: VecDeque::new(),
            told: Vec::new(),
            emptied: Emptied::default(),
            assigned: false,
            wakes: Arc::default(),
        }
    }

    /// The queues, in order.
    pub fn queues(&self) -> impl Iterator<Item = QueueId> {
        self.0.queues.iter().map(|stock| stock.queue)
    }

    /// How many messages there are.
    pub fn messages(&self) -> u64 {
        self.0.queues.iter().map(|stock| stock.messages_left(stock.offsets.start)).sum()
    }

    /// What was committed of this queue.
    pub fn committed(&self, queue: QueueId) -> Option<Watermark> {
        self.stock(queue)?.committed()
    }

    /// Where the queue ends.
    pub fn end(&self, queue: QueueId) -> Option<Position> {
        Position::new(self.stock(queue)?.offsets.end)
    }

    /// Whether everything has been given out.
    pub fn is_fetched(&self) -> bool {
        self.0.queues.iter().all(|s| s.fetched.load(Ordering::Acquire) >= s.offsets.end)
    }

    /// Whether every queue has been committed up to its end.
    pub fn is_committed(&self) -> bool {
        let at_end = |s: &Stock| s.committed().is_some_and(|mark| mark.get() >= s.offsets.end);
        self.0.queues.iter().all(|stock| at_end(stock) || stock.offsets.is_empty())
    }

    fn stock(&self, queue: QueueId) -> Option<&Stock> {
        self.0.index.get(&queue).map(|index| &self.0.queues[*index])
    }
}

impl fmt::Debug for MemoryTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryTopic({} queues, {} messages)", self.0.queues.len(), self.messages())
    }
}

impl Stock {
    fn new(queue: QueueId, messages: Vec<Message>, offsets: Range<u64>) -> Self {
        let fetched = AtomicU64::new(offsets.start);
        Self { queue, messages, offsets, committed: AtomicU64::new(NOT_COMMITTED), fetched }
    }

    fn committed(&self) -> Option<Watermark> {
        Watermark::new(self.committed.load(Ordering::Acquire))
    }

    /// How many messages stand at or behind this offset.
    fn messages_left(&self, from: u64) -> u64 {
        if self.messages.is_empty() {
            return self.offsets.end.saturating_sub(from);
        }
        (self.messages.len() - self.index_of(from)) as u64
    }

    fn index_of(&self, from: u64) -> usize {
        self.messages.partition_point(|message| message.offset().get() < from)
    }

    /// Messages from this offset on, and the position behind them.
    fn read(
        &self,
        generator: Option<&Generator>,
        from: u64,
        limits: FetchLimits,
        taken: &mut Vec<Message>,
    ) -> u64 {
        let offsets = from..self.offsets.end;
        match generator {
            None => fill(taken, limits, self.messages[self.index_of(from)..].iter().cloned()),
            Some(make) => make(self.queue, offsets, limits, taken),
        }
        taken.last().map_or(self.offsets.end, |last| last.offset().next().get())
    }
}

/// As many messages as a fetch may bring, and one at least.
fn fill(taken: &mut Vec<Message>, limits: FetchLimits, messages: impl Iterator<Item = Message>) {
    let most = limits.messages.max(1);
    taken.reserve(messages.size_hint().1.map_or(most, |left| left.min(most)));
    let mut bytes = 0_usize;
    for message in messages.take(most) {
        bytes = bytes.saturating_add(message.size());
        if bytes > limits.bytes && !taken.is_empty() {
            break;
        }
        taken.push(message);
    }
}

/// The source of a [`MemoryTopic`].
#[derive(Debug)]
pub struct MemorySource {
    topic: MemoryTopic,
    cursors: Vec<Cursor>,
    /// Queues that have something to read, each at most once, the next one in front.
    ready: VecDeque<usize>,
    told: Vec<SourceEvent>,
    /// What was given back, to be filled again.
    emptied: Emptied,
    assigned: bool,
    wakes: Arc<Wakes>,
}

/// A queue as the reader has it.
#[derive(Debug, Default)]
struct Cursor {
    /// `None` before the first seek and after the queue was released.
    next: Option<u64>,
    paused: bool,
    /// Whether it stands in the line of ready queues.
    in_line: bool,
}

#[derive(Debug, Default)]
struct Wakes {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl MemorySource {
    fn index(&self, queue: QueueId) -> Option<usize> {
        self.topic.0.index.get(&queue).copied()
    }

    fn assign(&mut self) {
        for stock in &self.topic.0.queues {
            let committed = stock.committed().map_or(Committed::None, Committed::at);
            self.told.push(SourceEvent::Assigned { queue: stock.queue, committed });
        }
    }

    /// Puts the queue into the line, where there is something to read and nothing forbids it.
    fn line_up(&mut self, index: usize) {
        let end = self.topic.0.queues[index].offsets.end;
        let cursor = &mut self.cursors[index];
        let readable = !cursor.paused && cursor.next.is_some_and(|next| next < end);
        if readable && !cursor.in_line {
            cursor.in_line = true;
            self.ready.push_back(index);
        }
    }

    fn fetch(&mut self, index: usize, limits: FetchLimits) -> Option<SourceEvent> {
        let topic = Arc::clone(&self.topic.0);
        let stock = &topic.queues[index];
        let cursor = &mut self.cursors[index];
        cursor.in_line = false;
        let from = cursor.next.filter(|next| !cursor.paused && *next < stock.offsets.end)?;
        let mut messages = self.emptied.take();
        let next = stock.read(topic.generator.as_deref(), from, limits, &mut messages);
        cursor.next = Some(next);
        stock.fetched.fetch_max(next, Ordering::AcqRel);
        self.line_up(index);
        let position = Position::new(next)?;
        let end = EndOffset::At(Position::new(stock.offsets.end)?);
        Some(SourceEvent::Fetched(Fetch { queue: stock.queue, messages, position, end }))
    }

    /// Appends what is to be told and a few fetches; `false` where there was nothing.
    fn bring(&mut self, limits: FetchLimits, events: &mut Vec<SourceEvent>) -> bool {
        let before = events.len();
        events.append(&mut self.told);
        let mut fetches = 0;
        // Those that stand in the line now, so that no queue comes twice and beyond its limits.
        for _ in 0..self.ready.len() {
            if fetches == QUEUES_PER_POLL {
                break;
            }
            // A queue that was paused while it stood in the line gives nothing and leaves it.
            let next = self.ready.pop_front();
            if let Some(fetched) = next.and_then(|index| self.fetch(index, limits)) {
                events.push(fetched);
                fetches += 1;
            }
        }
        events.len() > before
    }

    fn wait(&self, wait: Duration) {
        let deadline = Instant::now().checked_add(wait);
        let mut woken = self.wakes.woken.lock();
        while !*woken {
            match deadline {
                Some(at) if self.wakes.changed.wait_until(&mut woken, at).timed_out() => break,
                Some(_) => {}
                None => self.wakes.changed.wait(&mut woken),
            }
        }
        *woken = false;
    }
}

impl Source for MemorySource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        if !self.assigned {
            self.assigned = true;
            self.assign();
        }
        if !self.bring(limits, events) && !wait.is_zero() {
            self.wait(wait);
            self.bring(limits, events);
        }
        Ok(())
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        let Some(index) = self.index(queue) else { return };
        let stock = &self.topic.0.queues[index];
        let (begin, end) = (stock.offsets.start, stock.offsets.end);
        let target = match to {
            SeekTo::Position(position) => position.get(),
            SeekTo::Earliest => begin,
            SeekTo::TimestampMs(from) => {
                let late = |message: &Message| message.timestamp_ms().is_some_and(|at| at >= from);
                let all = FetchLimits { messages: usize::MAX, bytes: usize::MAX };
                let mut messages = Vec::new();
                stock.read(self.topic.0.generator.as_deref(), begin, all, &mut messages);
                messages.iter().find(|m| late(m)).map_or(end, |message| message.offset().get())
            }
            // Latest, and what later versions add.
            _ => end,
        };
        if (begin..=end).contains(&target) {
            self.cursors[index].next = Some(target);
            self.line_up(index);
            return;
        }
        self.cursors[index].next = None;
        let at = |offset| Position::new(offset).unwrap_or(Position::ZERO);
        let (asked, begin, end) = (at(target), at(begin), at(end));
        let cause = ResetCause::OutOfRange { asked, begin, end };
        self.told.push(SourceEvent::Reset { queue, cause });
    }

    fn pause(&mut self, queue: QueueId) {
        if let Some(index) = self.index(queue) {
            self.cursors[index].paused = true;
        }
    }

    fn resume(&mut self, queue: QueueId) {
        if let Some(index) = self.index(queue) {
            self.cursors[index].paused = false;
            self.line_up(index);
        }
    }

    fn commit(&mut self, commit: Commit) {
        let result = match self.topic.stock(commit.queue) {
            Some(stock) => {
                stock.committed.store(commit.watermark.get(), Ordering::Release);
                Ok(())
            }
            None => {
                let error = format!("commit {}: there is no such queue", commit.queue);
                Err(SourceError::fatal(error))
            }
        };
        self.told.push(SourceEvent::CommitResult { commit, result });
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        let committed = self.topic.committed(queue).map_or(Committed::None, Committed::at);
        self.told.push(SourceEvent::LookedUp { queue, committed });
    }

    fn release(&mut self, queue: QueueId) {
        if let Some(index) = self.index(queue) {
            self.cursors[index] =
                Cursor { in_line: self.cursors[index].in_line, ..Cursor::default() };
        }
    }

    fn waker(&self) -> SourceWaker {
        let wakes = Arc::clone(&self.wakes);
        SourceWaker::new(move || {
            *wakes.woken.lock() = true;
            wakes.changed.notify_all();
        })
    }

    fn recycle(&mut self, emptied: Vec<Message>) {
        self.emptied.put(emptied);
    }

    fn close(
        &mut self,
        _timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        events.append(&mut self.told);
        self.ready.clear();
        Ok(())
    }
}
