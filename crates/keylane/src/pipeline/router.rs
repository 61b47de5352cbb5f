//! From routing key to shard. Never waits: what does not fit into a shard's channel is kept here, in
//! order, inside the budget.
//!
//! Messages are collected per shard over all that one look at the source brought, and sent as one
//! chunk a shard: a send costs about as much as everything else that happens to a message.
//!
//! Invariant: *no chunk passes another of its shard*. While a shard has overflow, everything new for
//! it goes behind that overflow.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use keylane_source::Message;

use super::chunk::{Chunk, Entry, Extra, NO_KEY, Route, Tag};
use super::shared::{ShardCell, panic_text};
use super::tenure::Tenure;
use super::tracker::Page;
use crate::config::{Config, Hasher, NoKey, RouteBy};

/// See the module's description.
pub(crate) struct Router {
    lanes: Lanes,
    ways: Vec<Way>,
    overflowing: usize,
}

/// What is on its way to one shard.
struct Way {
    cell: Arc<ShardCell>,
    /// Collected since the last flush.
    collected: Option<Chunk>,
    /// Did not fit into the channel.
    overflow: VecDeque<Chunk>,
}

/// Where a message goes.
pub(crate) struct Target {
    pub(crate) shard: u16,
    route: Route,
    extra: Option<Box<Extra>>,
}

/// Decides the routing key of a message, and the shard of a key.
struct Lanes {
    shards: u64,
    hasher: Hasher,
    no_key: NoKey,
    route_by: Option<RouteBy>,
    /// Where the next spread message goes.
    next_spread: u64,
}

impl Router {
    pub(crate) fn new(config: &Config, shards: &[Arc<ShardCell>]) -> Self {
        let way = |cell: &Arc<ShardCell>| Way {
            cell: Arc::clone(cell),
            collected: None,
            overflow: VecDeque::new(),
        };
        Self { lanes: Lanes::new(config), ways: shards.iter().map(way).collect(), overflowing: 0 }
    }

    /// Where a message goes.
    pub(crate) fn target(&mut self, message: &Message) -> Target {
        self.lanes.target(message)
    }

    /// Collects a registered message for its shard.
    pub(crate) fn push(
        &mut self,
        message: Message,
        target: Target,
        (tenure, page, bit): (&Arc<Tenure>, &Arc<Page>, u16),
        now: Instant,
    ) {
        let Target { shard, route, extra } = target;
        let tag = Tag { extra, ..Tag::new(route, bit) };
        let chunk = self.ways[usize::from(shard)].collected.get_or_insert_with(|| Chunk::new(now));
        chunk.push(Entry { message, tag }, tenure, page);
    }

    /// Sends what was collected, as far as it fits.
    pub(crate) fn flush(&mut self) {
        for way in &mut self.ways {
            let Some(chunk) = way.collected.take() else { continue };
            if way.overflow.is_empty() && chunk.len() <= way.cell.room() {
                way.cell.send(chunk);
                continue;
            }
            if way.overflow.is_empty() {
                self.overflowing += 1;
            }
            way.overflow.push_back(chunk);
            self.overflowing -= usize::from(way.send_overflow());
        }
    }

    /// Sends overflow that fits by now.
    pub(crate) fn flush_overflow(&mut self) {
        if self.overflowing == 0 {
            return;
        }
        for way in self.ways.iter_mut().filter(|way| !way.overflow.is_empty()) {
            self.overflowing -= usize::from(way.send_overflow());
        }
    }

    /// Messages that wait in front of full channels.
    pub(crate) fn overflow(&self) -> usize {
        self.ways.iter().flat_map(|way| &way.overflow).map(Chunk::len).sum()
    }

    /// Messages that wait in front of one shard's full channel.
    pub(crate) fn overflow_of(&self, shard: usize) -> usize {
        self.ways[shard].overflow.iter().map(Chunk::len).sum()
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
                chunk.len() > 0
            });
            self.overflowing -= usize::from(had && way.overflow.is_empty());
        }
    }
}

impl Way {
    /// Returns whether everything was sent. If not, the shard will wake the source thread once its
    /// channel is half empty.
    fn send_overflow(&mut self) -> bool {
        loop {
            while let Some(chunk) = self.overflow.front_mut() {
                let room = self.cell.room();
                if room == 0 {
                    break;
                }
                if chunk.len() > room {
                    let front = chunk.split_front(room);
                    self.cell.send(front);
                } else if let Some(chunk) = self.overflow.pop_front() {
                    self.cell.send(chunk);
                }
            }
            if self.overflow.is_empty() {
                return true;
            }
            if self.cell.wait_for_room() {
                return false;
            }
        }
    }
}

impl Lanes {
    fn new(config: &Config) -> Self {
        let state = ahash::RandomState::new();
        let hasher =
            config.hasher.clone().unwrap_or_else(|| Arc::new(move |key| state.hash_one(key)));
        let shards = config.shards as u64;
        let (no_key, route_by) = (config.no_key, config.route_by.clone());
        Self { shards, hasher, no_key, route_by, next_spread: 0 }
    }

    fn target(&mut self, message: &Message) -> Target {
        let Some(route_by) = &self.route_by else {
            return self.by_key(message, message.key_bytes(), Route::Key);
        };
        // The user's function: whatever it does, the message has to go somewhere.
        match catch_unwind(AssertUnwindSafe(|| route_by(message))) {
            Ok(Ok(Some(key))) => {
                let mut target = self.by_key(message, Some(&key), Route::Custom);
                target.extra = Some(Box::new(Extra { key: Some(key), error: None }));
                target
            }
            Ok(Ok(None)) => self.by_key(message, None, Route::Custom),
            Ok(Err(error)) => self.unroutable(&format!("the routing function failed: {error}")),
            Err(panic) => {
                let text = panic_text(&*panic);
                self.unroutable(&format!("the routing function panicked: {text}"))
            }
        }
    }

    fn by_key(&mut self, message: &Message, key: Option<&Bytes>, route: Route) -> Target {
        let (shard, route) = match (key, self.no_key) {
            (Some(key), _) if !key.is_empty() => (self.shard(key), route),
            // An empty key is a key; which lane it takes does not depend on the policy.
            (Some(_), _) | (None, NoKey::OneLane) => (self.shard(NO_KEY), Route::NoKey),
            (None, NoKey::ByQueue) => {
                (self.shard(message.queue().to_string().as_bytes()), Route::NoKeyOfQueue)
            }
            (None, NoKey::Spread) => {
                self.next_spread += 1;
                (self.nth_shard(self.next_spread), Route::Spread)
            }
        };
        Target { shard, route, extra: None }
    }

    fn unroutable(&self, error: &str) -> Target {
        let extra = Some(Box::new(Extra { key: None, error: Some(error.into()) }));
        Target { shard: self.shard(NO_KEY), route: Route::Unroutable, extra }
    }

    /// Any hash value gives a shard, and the same one each time.
    fn shard(&self, key: &[u8]) -> u16 {
        self.nth_shard((self.hasher)(key))
    }

    fn nth_shard(&self, n: u64) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 4,096 shards")]
        let shard = (n % self.shards) as u16;
        shard
    }
}
