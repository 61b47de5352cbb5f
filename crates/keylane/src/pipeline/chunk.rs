//! What travels from the router to a shard: messages, each with its place in a tracker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use keylane_source::{Message, Offset, QueueId};

use super::tenure::Tenure;
use super::tracker::Page;

/// The routing key of messages that have none.
pub(crate) const NO_KEY: &[u8] = b"__nokey";

/// Messages for one shard, from one or more queues, in the order in which each queue has them.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) runs: VecDeque<Run>,
    pub(crate) pulled_at: Instant,
    /// All of them may be called: none is [`Route::Unroutable`].
    pub(crate) callable: bool,
}

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

impl Chunk {
    /// `expected` is how many messages it will probably hold.
    pub(crate) fn new(pulled_at: Instant, expected: usize) -> Self {
        let entries = VecDeque::with_capacity(expected);
        Self { entries, runs: VecDeque::with_capacity(2), pulled_at, callable: true }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn push(&mut self, entry: Entry, tenure: &Arc<Tenure>, page: &Arc<Page>) {
        self.callable &= entry.tag.route != Route::Unroutable;
        self.entries.push_back(entry);
        match self.runs.back_mut() {
            Some(run) if Arc::ptr_eq(&run.page, page) => run.len += 1,
            _ => {
                let (tenure, page) = (Arc::clone(tenure), Arc::clone(page));
                self.runs.push_back(Run { tenure, page, len: 1 });
            }
        }
    }

    /// Cuts off the first `messages`; the rest stays.
    pub(crate) fn split_front(&mut self, messages: usize) -> Self {
        let mut front = Self::new(self.pulled_at, 0);
        front.entries = self.entries.drain(..messages).collect();
        front.callable = self.callable;
        let mut left = messages;
        while left > 0 {
            let Some(run) = self.runs.front_mut() else { break };
            let taken = left.min(run.len);
            left -= taken;
            if taken == run.len {
                front.runs.extend(self.runs.pop_front());
            } else {
                run.len -= taken;
                front.runs.push_back(Run { len: taken, ..run.clone() });
            }
        }
        front
    }

    /// Drops the messages of tenures that have ended; returns how many.
    pub(crate) fn drop_ended(&mut self, ended: impl Fn(&Tenure) -> bool) -> usize {
        if !self.runs.iter().any(|run| ended(&run.tenure)) {
            return 0;
        }
        let before = self.entries.len();
        let mut entries = std::mem::take(&mut self.entries).into_iter();
        self.runs.retain(|run| {
            let kept = !ended(&run.tenure);
            let of_run = entries.by_ref().take(run.len);
            if kept {
                self.entries.extend(of_run);
            } else {
                of_run.for_each(drop);
            }
            kept
        });
        before - self.entries.len()
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
        let mut chunk = Chunk::new(crate::time::Clock.now(), 0);
        for (index, &len) in (0..).zip(lens) {
            let queue = QueueId::new("chunk", index);
            let tenure = Arc::new(Tenure::new(queue, u64::from(index), 0, None));
            let page = Arc::default();
            for bit in 0..len {
                let message = Message::new(queue, Offset::new(u64::from(bit)).unwrap());
                chunk.push(Entry { message, tag: Tag::new(Route::NoKey, bit) }, &tenure, &page);
            }
        }
        chunk
    }

    fn shape(chunk: &Chunk) -> (Vec<(u32, u64)>, Vec<usize>) {
        let message = |entry: &Entry| (entry.message.queue().index(), entry.message.offset().get());
        (
            chunk.entries.iter().map(message).collect(),
            chunk.runs.iter().map(|run| run.len).collect(),
        )
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
