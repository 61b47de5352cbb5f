//! What travels from the router to a shard: messages, each with its place in a tracker.

use std::sync::Arc;
use std::time::Instant;
use std::vec::IntoIter;

use bytes::Bytes;
use keylane_source::{Message, Offset, QueueId};
use smallvec::SmallVec;

use super::tenure::Tenure;
use super::tracker::Page;

/// The routing key of messages that have none.
pub(crate) const NO_KEY: &[u8] = b"__nokey";

/// Messages for one shard, from one or more queues, in the order in which each queue has them.
#[derive(Debug)]
pub(crate) struct Chunk {
    messages: IntoIter<Message>,
    /// One for each message.
    tags: IntoIter<Tag>,
    /// The first one stands last.
    runs: Runs,
    pub(crate) pulled_at: Instant,
    /// All of them may be called: none is [`Route::Unroutable`].
    pub(crate) callable: bool,
}

/// Messages that will become a chunk. Its memory stays where it is and is used again, so that it is
/// in the source thread's cache; what is sent is a copy, made in one go into memory of the right
/// size. Writing each message into memory that another core had last costs more than both.
///
/// Messages and tags lie apart: put together just before it is moved, a message with its tag would
/// be read back while it is still being written, which a processor waits for.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    messages: Vec<Message>,
    tags: Vec<Tag>,
    runs: Runs,
    uncallable: bool,
}

/// Most chunks have one: no memory of its own for that.
type Runs = SmallVec<[Run; 2]>;

/// The next `len` entries of a chunk belong to this tenure and have their bits in this page.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) page: Arc<Page>,
    pub(crate) len: usize,
}

/// A message by itself.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    pub(crate) tag: Tag,
}

/// What the engine knows about a message beside the message. Kept small: it is moved with it.
#[derive(Debug)]
pub(crate) struct Tag {
    /// Only for the few that need it.
    pub(crate) extra: Option<Box<Extra>>,
    /// Failed attempts in this epoch.
    pub(crate) tried: u32,
    /// Its place in the page.
    pub(crate) bit: u16,
    pub(crate) route: Route,
}

/// Where a message's routing key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Its own key.
    Key,
    /// [`NO_KEY`].
    NoKey,
    /// It has none, and shares a lane with its queue's other ones.
    NoKeyOfQueue,
    /// It has none, and waits for nobody.
    Spread,
    /// [`Extra::key`], from the user's function.
    Custom,
    /// The user's function failed; the error is in [`Extra::error`].
    Unroutable,
}

#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) key: Option<Bytes>,
    /// Why its last attempt failed.
    pub(crate) error: Option<Arc<str>>,
}

/// Which messages wait for each other: a lane is one of these in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum LaneName {
    Key(Bytes),
    NoKeyOf(QueueId),
    Alone(QueueId, Offset),
}

/// A lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LaneId {
    pub(crate) epoch: u64,
    pub(crate) name: LaneName,
}

impl Collected {
    /// Notes a message that is about to be [pushed](Self::push).
    pub(crate) fn place(&mut self, tag: Tag) {
        self.uncallable |= tag.route == Route::Unroutable;
        self.tags.push(tag);
    }

    /// Adds the next of the messages that were [placed](Self::place).
    pub(crate) fn push(&mut self, message: Message, tenure: &Arc<Tenure>, page: &Arc<Page>) {
        self.messages.push(message);
        match self.runs.last_mut() {
            Some(run) if Arc::ptr_eq(&run.page, page) => run.len += 1,
            _ => {
                let (tenure, page) = (Arc::clone(tenure), Arc::clone(page));
                self.runs.push(Run { tenure, page, len: 1 });
            }
        }
    }

    /// Takes out what was collected, if anything was.
    pub(crate) fn take(&mut self, pulled_at: Instant) -> Option<Chunk> {
        if self.messages.is_empty() {
            return None;
        }
        debug_assert_eq!(self.messages.len(), self.tags.len());
        let mut runs = std::mem::take(&mut self.runs);
        runs.reverse();
        Some(Chunk {
            messages: moved(&mut self.messages),
            tags: moved(&mut self.tags),
            runs,
            pulled_at,
            callable: !std::mem::take(&mut self.uncallable),
        })
    }
}

/// All of them in memory of its own, of the right size.
fn moved<T>(all: &mut Vec<T>) -> IntoIter<T> {
    let mut moved = Vec::with_capacity(all.len());
    moved.append(all);
    moved.into_iter()
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Takes out the next run; its entries are the caller's to take.
    pub(crate) fn take_run(&mut self) -> Option<Run> {
        self.runs.pop()
    }

    /// Gives back what is left of the run that was taken out last.
    pub(crate) fn return_run(&mut self, run: Run) {
        self.runs.push(run);
    }

    /// The next message and its tag.
    pub(crate) fn first(&self) -> Option<(&Message, &Tag)> {
        Some((self.messages.as_slice().first()?, self.tags.as_slice().first()?))
    }

    /// Takes out the next message.
    pub(crate) fn take_first(&mut self) -> Option<Entry> {
        Some(Entry { message: self.messages.next()?, tag: self.tags.next()? })
    }

    /// Moves the next messages behind those.
    pub(crate) fn move_to(
        &mut self,
        messages: &mut Vec<Message>,
        tags: &mut Vec<Tag>,
        count: usize,
    ) {
        messages.extend(self.messages.by_ref().take(count));
        tags.extend(self.tags.by_ref().take(count));
    }

    /// Drops the next messages.
    pub(crate) fn skip(&mut self, count: usize) {
        self.messages.by_ref().take(count).for_each(drop);
        self.tags.by_ref().take(count).for_each(drop);
    }

    /// Cuts off the first `messages`; the rest stays.
    pub(crate) fn split_front(&mut self, messages: usize) -> Self {
        let (mut front, mut tags) = (Vec::with_capacity(messages), Vec::with_capacity(messages));
        self.move_to(&mut front, &mut tags, messages);
        let mut runs = Runs::new();
        let mut left = messages;
        while left > 0 {
            let Some(run) = self.runs.last_mut() else { break };
            let taken = left.min(run.len);
            left -= taken;
            if taken == run.len {
                runs.extend(self.runs.pop());
            } else {
                run.len -= taken;
                runs.push(Run { len: taken, ..run.clone() });
            }
        }
        runs.reverse();
        let (pulled_at, callable) = (self.pulled_at, self.callable);
        Self { messages: front.into_iter(), tags: tags.into_iter(), runs, pulled_at, callable }
    }

    /// Drops the messages of tenures that have ended; returns how many.
    pub(crate) fn drop_ended(&mut self, ended: impl Fn(&Tenure) -> bool) -> usize {
        if !self.runs.iter().any(|run| ended(&run.tenure)) {
            return 0;
        }
        let before = self.len();
        let (mut messages, mut tags) = (Vec::new(), Vec::new());
        let mut runs = std::mem::take(&mut self.runs);
        for run in runs.iter().rev() {
            if ended(&run.tenure) {
                self.skip(run.len);
            } else {
                self.move_to(&mut messages, &mut tags, run.len);
            }
        }
        runs.retain(|run| !ended(&run.tenure));
        (self.messages, self.tags, self.runs) = (messages.into_iter(), tags.into_iter(), runs);
        before - self.len()
    }
}

impl Tag {
    pub(crate) fn new(route: Route, bit: u16) -> Self {
        Self { extra: None, tried: 0, bit, route }
    }

    pub(crate) fn last_error(&self) -> Option<&Arc<str>> {
        self.extra.as_ref()?.error.as_ref()
    }

    /// The lane of this message.
    pub(crate) fn lane(&self, message: &Message, tenure: &Tenure) -> LaneId {
        let no_key = || LaneName::Key(Bytes::from_static(NO_KEY));
        let name = match self.route {
            Route::Key => message.key_bytes().cloned().map_or_else(no_key, LaneName::Key),
            Route::NoKey | Route::Unroutable => no_key(),
            Route::NoKeyOfQueue => LaneName::NoKeyOf(tenure.queue),
            Route::Spread => LaneName::Alone(tenure.queue, message.offset()),
            Route::Custom => self
                .extra
                .as_ref()
                .and_then(|extra| extra.key.clone())
                .map_or_else(no_key, LaneName::Key),
        };
        LaneId { epoch: tenure.epoch, name }
    }
}

impl LaneName {
    /// The same name in memory of its own, to be kept.
    pub(crate) fn detach(&self) -> Self {
        match self {
            Self::Key(key) => Self::Key(Bytes::copy_from_slice(key)),
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(lens: &[u16]) -> Chunk {
        let mut chunk = Collected::default();
        for (index, &len) in (0..).zip(lens) {
            let queue = QueueId::new("chunk", index);
            let tenure = Arc::new(Tenure::new(queue, u64::from(index), 0, None));
            let page = Arc::default();
            for bit in 0..len {
                let message = Message::new(queue, Offset::new(u64::from(bit)).unwrap());
                chunk.place(Tag::new(Route::NoKey, bit));
                chunk.push(message, &tenure, &page);
            }
        }
        chunk.take(crate::time::Clock.now()).unwrap()
    }

    fn shape(chunk: &Chunk) -> (Vec<(u32, u64)>, Vec<usize>) {
        let place = |message: &Message| (message.queue().index(), message.offset().get());
        (
            chunk.messages.as_slice().iter().map(place).collect(),
            chunk.runs.iter().rev().map(|run| run.len).collect(),
        )
    }

    #[test]
    fn a_message_travels_with_little_more_than_itself() {
        assert_eq!(size_of::<Tag>(), 16);
    }

    #[test]
    fn a_cut_keeps_order_and_runs() {
        let mut rest = chunk(&[2, 3]);
        let front = rest.split_front(3);
        assert_eq!(shape(&front), (vec![(0, 0), (0, 1), (1, 0)], vec![2, 1]));
        assert_eq!(shape(&rest), (vec![(1, 1), (1, 2)], vec![2]));
    }

    #[test]
    fn ended_tenures_drop_out() {
        let mut chunk = chunk(&[2, 3, 1]);
        assert_eq!(chunk.drop_ended(|tenure| tenure.epoch == 1), 3);
        assert_eq!(shape(&chunk), (vec![(0, 0), (0, 1), (2, 0)], vec![2, 1]));
        assert_eq!(chunk.drop_ended(|tenure| tenure.epoch == 1), 0);
    }
}
