//! From message to routing key to shard.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ahash::RandomState;
use bytes::Bytes;
use keylane_source::Message;

use super::Target;
use crate::config::{Config, Hasher, NoKey, RouteBy};
use crate::pipeline::chunk::{Extra, NO_KEY, Route};
use crate::pipeline::in_memory;
use crate::pipeline::shared::panic_text;

/// Decides the routing key of a message, and the shard of a key.
pub(crate) struct Keys {
    shards: u64,
    hash: Hash,
    no_key: NoKey,
    route_by: Option<RouteBy>,
    /// Where the next spread message goes.
    next_spread: u64,
}

/// From a key's bytes to a number.
enum Hash {
    Random(RandomState),
    Given(Hasher),
}

impl Keys {
    pub(super) fn new(config: &Config) -> Self {
        let hash =
            config.hasher.clone().map_or_else(|| Hash::Random(RandomState::new()), Hash::Given);
        let shards = config.shards as u64;
        let (no_key, route_by) = (config.no_key, config.route_by.clone());
        Self { shards, hash, no_key, route_by, next_spread: 0 }
    }

    pub(super) fn target(&mut self, message: &Message) -> Target {
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
                let text = panic_text(panic);
                self.unroutable(&format!("the routing function panicked: {text}"))
            }
        }
    }

    fn by_key(&mut self, message: &Message, key: Option<&Bytes>, route: Route) -> Target {
        let (way, route) = match (key, self.no_key) {
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
        Target { way, route, extra: None }
    }

    fn unroutable(&self, error: &str) -> Target {
        let extra = Some(Box::new(Extra { key: None, error: Some(error.into()) }));
        let way = self.shard(NO_KEY);
        Target { way, route: Route::Unroutable, extra }
    }

    /// Any hash value gives a shard, and the same one each time.
    fn shard(&self, key: &[u8]) -> usize {
        match &self.hash {
            // The upper half of the hash as a fraction of one, times the shards: as even as what a
            // division leaves, and not waited for as long.
            Hash::Random(state) => in_memory(((state.hash_one(key) >> 32) * self.shards) >> 32),
            Hash::Given(hash) => self.nth_shard(hash(key)),
        }
    }

    fn nth_shard(&self, n: u64) -> usize {
        in_memory(n % self.shards)
    }
}
