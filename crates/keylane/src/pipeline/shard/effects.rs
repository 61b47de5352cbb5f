//! What a shard's thread has to do after a step, outside of the shard's mutex.

use keylane_source::DeadLetter;

use crate::observer::Event;

/// Which dead letter; unique inside its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LetterId(pub(crate) u64);

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) events: Vec<Event>,
    /// To be handed to the sink.
    pub(crate) letters: Vec<(LetterId, DeadLetter)>,
    /// The consumer has to stop, for this reason.
    pub(crate) stop: Option<String>,
    /// Queues (by slot) whose budget or watermark the source thread should look at.
    pub(crate) noted: Vec<usize>,
    /// How many messages left the budget.
    pub(crate) finished: u64,
}
