//! How the scripted broker answers, where it does more than say yes.

use keylane_source::{SourceError, Watermark};

/// What becomes of a commit.
#[derive(Debug, Clone)]
pub enum CommitAnswer {
    /// It is stored, and the answer says so.
    Stored,
    /// It is not stored, and the answer says so.
    Failed(SourceError),
    /// It is stored, and the answer says that it failed: the reply was lost on its way.
    StoredButFailed(SourceError),
}

/// How requests for a queue's lock are answered.
#[derive(Debug, Clone)]
pub enum LockAnswer {
    /// Granted, or prolonged.
    Grant,
    /// Somebody else has it. A lock that is held is lost with this answer.
    Refuse,
    /// An error instead of an answer.
    Fail(SourceError),
    /// No answer at all.
    Silence,
}

/// What a group has stored for a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The watermark.
    pub watermark: Watermark,
    /// What was committed beside it.
    pub metadata: String,
}
