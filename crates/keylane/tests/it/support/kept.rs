//! What an orderly listener has handled and not committed.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use keylane::source::{Message, QueueId};
use keylane_testkit::guarantee::Epoch;
use keylane_testkit::recorder::Recorder;
use parking_lot::Mutex;

/// A queue, and a key where order is kept for keys.
pub(crate) type LaneName = (QueueId, Option<Bytes>);

type ByLane = HashMap<LaneName, (Epoch, Vec<Message>)>;

/// Per lane, oldest first. What was kept in an epoch that is over is forgotten: it comes again.
/// Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<ByLane>>);

impl Kept {
    pub(super) fn keep(&self, recorder: &Recorder, lane: LaneName, messages: &[Message]) {
        let mut all = self.take(recorder, &lane);
        all.extend_from_slice(messages);
        let epoch = recorder.epoch(lane.0);
        self.0.lock().insert(lane, (epoch, all));
    }

    pub(super) fn take(&self, recorder: &Recorder, lane: &LaneName) -> Vec<Message> {
        let epoch = recorder.epoch(lane.0);
        let kept = self.0.lock().remove(lane);
        kept.filter(|(of, _)| *of == epoch).map(|(_, messages)| messages).unwrap_or_default()
    }
}
