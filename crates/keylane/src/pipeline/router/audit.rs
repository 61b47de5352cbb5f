//! What holds for the ways to the shards, for the simulator.

use super::{Door, Router};
use crate::pipeline::audit::{Audited, ensure};
use crate::pipeline::chunk::Chunk;

impl Router {
    pub(crate) fn audit(&self) -> Audited {
        let overflowing = self.ways.iter().filter(|way| !way.overflow.is_empty()).count();
        let noted = self.overflowing;
        ensure!(overflowing == noted, "{overflowing} ways have overflow, {noted} are noted");
        Ok(())
    }

    /// Messages that have not reached a shard: collected, in front of a channel, in it.
    pub(crate) fn in_hand(&self) -> usize {
        let way = |way: &super::Way| {
            let inside = match &way.door {
                Door::Inbox(inbox) => inbox.waiting(),
                Door::Shard(_) => 0,
            };
            inside + way.overflow.iter().map(Chunk::len).sum::<usize>()
        };
        self.collected + self.ways.iter().map(way).sum::<usize>()
    }

    /// What waits in front of a channel may wait only while that is more than half full.
    pub(crate) fn audit_rest(&self) -> Audited {
        for (index, way) in self.ways.iter().enumerate() {
            let Door::Inbox(inbox) = &way.door else { continue };
            let forgotten = !way.overflow.is_empty() && inbox.is_half_empty();
            ensure!(!forgotten, "way {index} has overflow and room for it, and nobody was woken");
        }
        Ok(())
    }
}
