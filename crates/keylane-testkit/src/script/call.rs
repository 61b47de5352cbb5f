//! What an engine asked of the source, as it is remembered.

use std::time::Duration;

use keylane_source::{Commit, QueueId, SeekTo};

/// One call of the engine, in the history of a [`Script`](crate::script::Script).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// `poll`, this often in a row.
    Poll {
        /// How many calls without another one between them.
        times: u64,
    },
    /// `seek`.
    Seek {
        /// The queue.
        queue: QueueId,
        /// Where to.
        to: SeekTo,
    },
    /// `pause`.
    Pause(QueueId),
    /// `resume`.
    Resume(QueueId),
    /// `commit`.
    Commit(Commit),
    /// `look_up_committed`.
    LookUp(QueueId),
    /// `release`.
    Release(QueueId),
    /// `QueueLocks::acquire`.
    AcquireLocks(Vec<QueueId>),
    /// `QueueLocks::release`.
    ReleaseLocks(Vec<QueueId>),
    /// `close`.
    Close {
        /// How long it was allowed to take.
        timeout: Duration,
    },
    /// The source was dropped.
    Dropped,
    /// [`Script::restart`](crate::script::Script::restart): calls from here on are the new
    /// source's.
    Restarted,
}
