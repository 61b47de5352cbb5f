//! The ways to the shards. Never waits: what does not fit into a channel is kept here, in order,
//! inside the budget.
//!
//! Messages are collected per way over all that one look at the source brought, and sent as one
//! chunk: a send costs about as much as everything else that happens to a message.
//!
//! Invariant: *no chunk passes another of its way*. While a way has overflow, everything new goes
//! behind that overflow.

#[cfg(feature = "sim")]
mod audit;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use keylane_source::Message;

use super::cell::{Inbox, ShardCell};
use super::chunk::{Chunk, Collected, Tag};
use super::mode::Target;
use super::tenure::Tenure;
use super::tracker::Page;
use crate::bug::bug;

/// See the module's description.
pub(crate) struct Router {
    ways: Vec<Way>,
    /// Where the messages that are about to come go.
    placed: Vec<(usize, Tag)>,
    overflowing: usize,
    /// What was sent came into a channel that is crowded.
    crowded: bool,
    /// Messages collected since the last flush.
    collected: usize,
    /// When the oldest of them was pulled.
    pulled_at: Option<Instant>,
    /// The longest chunk: where several threads share a way, so that each gets something.
    chunk_max: usize,
}

/// What is on its way to one shard, or to several that share a channel.
struct Way {
    door: Door,
    /// Collected since the last flush.
    collected: Collected,
    /// Did not fit into the channel.
    overflow: VecDeque<Chunk>,
}

/// The end of a way.
pub(crate) enum Door {
    /// A bounded channel.
    Inbox(Arc<Inbox>),
    /// The shard itself; only the budget bounds what waits in it.
    Shard(Arc<ShardCell>),
}

impl Router {
    pub(crate) fn new(doors: impl IntoIterator<Item = Door>, chunk_max: usize) -> Self {
        let mut router = Self {
            ways: Vec::new(),
            placed: Vec::new(),
            overflowing: 0,
            crowded: false,
            collected: 0,
            pulled_at: None,
            chunk_max,
        };
        doors.into_iter().for_each(|door| router.add(door));
        router
    }

    /// Adds a way; its index is the number of those before it.
    pub(crate) fn add(&mut self, door: Door) {
        self.ways.push(Way { door, collected: Collected::default(), overflow: VecDeque::new() });
    }

    /// Notes where a registered message goes; [`collect`](Self::collect) brings it.
    pub(crate) fn place(&mut self, target: Target, bit: u16) {
        let Target { way, route, extra } = target;
        self.placed.push((way, Tag::new(route, bit, extra)));
    }

    /// Collects messages for their shards: those that were [placed](Self::place) since the last time,
    /// all of one page. A vector given whole comes back, empty.
    pub(crate) fn collect(
        &mut self,
        messages: impl Iterator<Item = Message>,
        tenure: &Arc<Tenure>,
        page: &Arc<Page>,
        now: Instant,
    ) -> Vec<Message> {
        self.pulled_at.get_or_insert(now);
        self.collected += self.placed.len();
        let mut placed = self.placed.drain(..);
        let nothing_left = messages.filter_map(|message| {
            let (way, tag) = placed.next().expect("each message was placed");
            self.ways[way].collected.push(message, tag, tenure, page);
            None
        });
        // What a vector's own iterator yields is collected into that vector's memory.
        nothing_left.collect()
    }

    /// Messages collected since the last flush.
    pub(crate) fn collected(&self) -> usize {
        self.collected
    }

    /// How many ways there are.
    pub(crate) fn ways(&self) -> usize {
        self.ways.len()
    }

    /// Sends what was collected, as far as it fits.
    pub(crate) fn flush(&mut self) {
        let Some(pulled_at) = self.pulled_at.take() else { return };
        self.collected = 0;
        for way in &mut self.ways {
            let Some(chunk) = way.collected.take(pulled_at) else { continue };
            let fits = chunk.len() <= way.door.room().min(self.chunk_max);
            if way.overflow.is_empty() && fits {
                self.crowded |= way.door.send(chunk);
                continue;
            }
            if way.overflow.is_empty() {
                self.overflowing += 1;
            }
            self.crowded = true;
            if bug!("pass_overflow") {
                way.overflow.push_front(chunk);
            } else {
                way.overflow.push_back(chunk);
            }
            self.overflowing -= usize::from(way.send_overflow(self.chunk_max));
        }
    }

    /// Whether a thread was behind since this was last asked: what was sent came into a crowded
    /// channel, or did not fit.
    pub(crate) fn take_crowded(&mut self) -> bool {
        std::mem::take(&mut self.crowded)
    }

    /// Sends overflow that fits by now.
    pub(crate) fn flush_overflow(&mut self) {
        if self.overflowing == 0 {
            return;
        }
        for way in self.ways.iter_mut().filter(|way| !way.overflow.is_empty()) {
            self.overflowing -= usize::from(way.send_overflow(self.chunk_max));
        }
    }

    /// Messages that wait in front of full channels.
    pub(crate) fn overflow(&self) -> usize {
        self.ways.iter().flat_map(|way| &way.overflow).map(Chunk::len).sum()
    }

    /// Messages that wait in front of one full channel.
    pub(crate) fn overflow_of(&self, way: usize) -> usize {
        self.ways.get(way).map_or(0, |way| way.overflow.iter().map(Chunk::len).sum())
    }

    /// Drops what belongs to tenures that have ended.
    pub(crate) fn drop_ended(&mut self, ended: impl Fn(&Tenure) -> bool) {
        if self.overflowing == 0 {
            return;
        }
        for way in &mut self.ways {
            let had = !way.overflow.is_empty();
            way.overflow.retain_mut(|chunk| {
                chunk.drop_ended(&ended);
                chunk.len() > 0 && !bug!("drop_overflow_on_revoke")
            });
            self.overflowing -= usize::from(had && way.overflow.is_empty());
        }
    }
}

impl Way {
    /// Returns whether everything was sent. If not, the source thread will be woken once the channel
    /// is half empty.
    fn send_overflow(&mut self, chunk_max: usize) -> bool {
        loop {
            while let Some(chunk) = self.overflow.front_mut() {
                let room = self.door.room().min(chunk_max);
                while bug!("block_on_full_channel") && self.door.room() == 0 {
                    std::thread::yield_now();
                }
                if room == 0 {
                    break;
                }
                if chunk.len() > room {
                    let front = chunk.split_front(room);
                    self.door.send(front);
                } else if let Some(chunk) = self.overflow.pop_front() {
                    self.door.send(chunk);
                }
            }
            if self.overflow.is_empty() {
                return true;
            }
            if self.door.wait_for_room() {
                return false;
            }
        }
    }
}

impl Door {
    fn room(&self) -> usize {
        match self {
            Self::Inbox(inbox) => inbox.room(),
            Self::Shard(_) => usize::MAX,
        }
    }

    /// Returns whether what is behind it is [crowded](Inbox::send).
    fn send(&self, chunk: Chunk) -> bool {
        match self {
            Self::Inbox(inbox) => inbox.send(chunk),
            Self::Shard(cell) => {
                cell.shard.lock().offer(chunk);
                cell.nudge();
                false
            }
        }
    }

    fn wait_for_room(&self) -> bool {
        match self {
            Self::Inbox(inbox) => inbox.wait_for_room(),
            Self::Shard(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use keylane_source::{Offset, QueueId};

    use super::*;
    use crate::pipeline::chunk::Route;

    #[test]
    fn a_thread_is_behind_once_more_than_an_eighth_of_its_channel_waits() {
        let (inbox, receiver) = Inbox::new(16);
        let mut router = Router::new([Door::Inbox(inbox)], usize::MAX);
        let queue = QueueId::new("router", 0);
        let tenure = Arc::new(Tenure::new(queue, 1, 0, None));
        let now = crate::time::Clock.now();
        let mut offsets = (0..).map(|at| Offset::new(at).unwrap());
        let mut send = |messages: u16| {
            (0..messages).for_each(|bit| {
                router.place(Target { way: 0, route: Route::NoKey, extra: None }, bit);
            });
            let messages = offsets.by_ref().take(messages.into()).map(|at| Message::new(queue, at));
            router.collect(messages, &tenure, &Arc::default(), now);
            router.flush();
            (router.take_crowded(), router.overflow(), router.take_crowded())
        };
        assert_eq!(send(2), (false, 0, false));
        assert_eq!(send(1), (true, 0, false));
        assert_eq!(send(14), (true, 1, false), "one does not fit");
        assert_eq!(
            receiver.iter().take(3).map(|chunk| chunk.len()).collect::<Vec<_>>(),
            [2, 1, 13]
        );
    }
}
