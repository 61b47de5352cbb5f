//! What holds for the lanes of a shard, for the simulator: each one waits for something that will
//! come.

use super::{LaneId, LaneName, LaneState, Lanes};
use crate::pipeline::audit::{Audited, ensure};

impl Lanes {
    pub(in crate::pipeline::shard) fn audit(
        &self,
        is_in_call: impl Fn(&LaneId) -> bool,
        is_outside: impl Fn(&LaneId) -> bool,
    ) -> Audited {
        for (id, lane) in &self.lanes {
            let has_first = lane.head.is_some() || !lane.rest.is_empty();
            let timed = |at| self.timers.iter().any(|((due, _), of)| *due == at && of == id);
            let comes = match &lane.state {
                LaneState::Ready => has_first && self.ready.contains(id),
                LaneState::Running => is_in_call(id),
                LaneState::BackingOff(at) | LaneState::Resending(at, _) => {
                    lane.head.is_some() && timed(*at)
                }
                LaneState::Outside => lane.head.is_none() && is_outside(id),
                LaneState::Behind => self.open.get(&id.name).is_some_and(|all| all.contains(id)),
                LaneState::Idle => !has_first && !lane.kept.is_empty(),
                LaneState::Stopped => true,
            };
            ensure!(comes, "the lane {id:?} waits for nothing: {lane:?}");
        }
        Ok(())
    }

    /// Whether a lane has stopped for good: what would stand behind its head was dropped.
    pub(in crate::pipeline::shard) fn has_stopped(&self) -> bool {
        self.lanes.values().any(|lane| matches!(lane.state, LaneState::Stopped))
    }

    pub(in crate::pipeline::shard) fn messages(&self) -> usize {
        let lane = |lane: &super::Lane| {
            lane.kept.len() + lane.rest.len() + usize::from(lane.head.is_some())
        };
        self.lanes.values().map(lane).sum()
    }

    pub(in crate::pipeline::shard) fn is_open(&self, name: &LaneName) -> bool {
        self.open.contains_key(name)
    }
}
