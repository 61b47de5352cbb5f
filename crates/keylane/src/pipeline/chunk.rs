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
    entries: IntoIter<Entry>,
    /// The first one stands last.
    runs: Runs,
    pub(crate) pulled_at: Instant,
    /// All of them may be called: none is [`Route::Unroutable`].
    pub(crate) callable: bool,
}

/// Messages that will become a chunk. Its memory stays where it is and is used again, so that it is
/// in the source thread's cache; what is sent is a copy, made in one go into memory of the right
/// size. Writing each message into memory that another core had last costs more than both.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    entries: Vec<Entry>,
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

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    pub(crate) tag: Tag,
}

/// What the engine knows about a message beside the message. Kept small, as it is moved with it, and
/// of whole words, because a processor waits for what was just put together from smaller pieces
/// (`docs/performance.md`).
#[derive(Debug)]
pub(crate) struct Tag {
    /// Only for the few that need it.
    pub(crate) extra: Option<Box<Extra>>,
    /// Failed attempts, route, place in the page: 32, 16 and 16 bits.
    packed: u64,
}

/// Where a message's routing key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
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
    pub(crate) fn push(
        &mut self,
        message: Message,
        tag: Tag,
        tenure: &Arc<Tenure>,
        page: &Arc<Page>,
    ) {
        self.uncallable |= tag.route() == Route::Unroutable;
        self.entries.push(Entry { message, tag });
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
        if self.entries.is_empty() {
            return None;
        }
        let mut entries = Vec::with_capacity(self.entries.len());
        entries.append(&mut self.entries);
        let mut runs = std::mem::take(&mut self.runs);
        runs.reverse();
        let callable = !std::mem::take(&mut self.uncallable);
        Some(Chunk { entries: entries.into_iter(), runs, pulled_at, callable })
    }
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes out the next run; its entries are the caller's to take.
    pub(crate) fn take_run(&mut self) -> Option<Run> {
        self.runs.pop()
    }

    /// Gives back what is left of the run that was taken out last.
    pub(crate) fn return_run(&mut self, run: Run) {
        self.runs.push(run);
    }

    /// The next entry.
    pub(crate) fn first(&self) -> Option<&Entry> {
        self.entries.as_slice().first()
    }

    /// Takes out the next entries.
    pub(crate) fn take(&mut self, count: usize) -> impl Iterator<Item = Entry> {
        self.entries.by_ref().take(count)
    }

    /// Cuts off the first `messages`; the rest stays.
    pub(crate) fn split_front(&mut self, messages: usize) -> Self {
        let entries: Vec<_> = self.take(messages).collect();
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
        Self { entries: entries.into_iter(), runs, pulled_at, callable }
    }

    /// Drops the messages of tenures that have ended; returns how many.
    pub(crate) fn drop_ended(&mut self, ended: impl Fn(&Tenure) -> bool) -> usize {
        if !self.runs.iter().any(|run| ended(&run.tenure)) {
            return 0;
        }
        let before = self.len();
        let mut kept = Vec::new();
        for run in self.runs.iter().rev() {
            let entries = self.entries.by_ref().take(run.len);
            if ended(&run.tenure) {
                entries.for_each(drop);
            } else {
                kept.extend(entries);
            }
        }
        self.runs.retain(|run| !ended(&run.tenure));
        self.entries = kept.into_iter();
        before - self.len()
    }
}

impl Route {
    /// By number.
    const ALL: [Self; 6] =
        [Self::Key, Self::NoKey, Self::NoKeyOfQueue, Self::Spread, Self::Custom, Self::Unroutable];
}

impl Tag {
    /// Of a message that was not tried yet.
    pub(crate) fn new(route: Route, bit: u16, extra: Option<Box<Extra>>) -> Self {
        Self { extra, packed: (route as u64) << 16 | u64::from(bit) }
    }

    /// The same without the extra.
    pub(crate) fn without_extra(&self) -> Self {
        Self { extra: None, packed: self.packed }
    }

    /// Takes the tag out of a message that will not be asked for it any more.
    pub(crate) fn take(&mut self) -> Self {
        Self { extra: self.extra.take(), packed: self.packed }
    }

    /// Its place in the page.
    pub(crate) fn bit(&self) -> u16 {
        (self.packed & 0xFFFF) as u16
    }

    pub(crate) fn route(&self) -> Route {
        Route::ALL[usize::from((self.packed >> 16 & 0xFF) as u8)]
    }

    /// Failed attempts in this epoch.
    pub(crate) fn tried(&self) -> u32 {
        (self.packed >> 32) as u32
    }

    /// Counts a failed attempt, as long as there are numbers.
    pub(crate) fn count_attempt(&mut self) {
        let tried = self.tried().saturating_add(1);
        self.packed = u64::from(tried) << 32 | self.packed & u64::from(u32::MAX);
    }

    pub(crate) fn last_error(&self) -> Option<&Arc<str>> {
        self.extra.as_ref()?.error.as_ref()
    }

    /// The lane of this message.
    pub(crate) fn lane(&self, message: &Message, tenure: &Tenure) -> LaneId {
        let no_key = || LaneName::Key(Bytes::from_static(NO_KEY));
        let name = match self.route() {
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
                chunk.push(message, Tag::new(Route::NoKey, bit, None), &tenure, &page);
            }
        }
        chunk.take(crate::time::Clock.now()).unwrap()
    }

    fn shape(chunk: &Chunk) -> (Vec<(u32, u64)>, Vec<usize>) {
        let place = |entry: &Entry| (entry.message.queue().index(), entry.message.offset().get());
        (
            chunk.entries.as_slice().iter().map(place).collect(),
            chunk.runs.iter().rev().map(|run| run.len).collect(),
        )
    }

    #[test]
    fn a_tag_keeps_its_parts_apart() {
        let mut tag = Tag::new(Route::Unroutable, u16::MAX, None);
        (0..3).for_each(|_| tag.count_attempt());
        assert_eq!((tag.tried(), tag.route(), tag.bit()), (3, Route::Unroutable, u16::MAX));
        tag.packed |= u64::from(u32::MAX) << 32;
        tag.count_attempt();
        assert_eq!((tag.tried(), tag.route(), tag.bit()), (u32::MAX, Route::Unroutable, u16::MAX));
        for (number, route) in (0..).zip(Route::ALL) {
            assert_eq!((route as u8, Tag::new(route, 0, None).route()), (number, route));
        }
    }

    #[test]
    fn an_entry_is_little_more_than_its_message() {
        assert_eq!(size_of::<Entry>(), size_of::<Message>() + 16);
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
