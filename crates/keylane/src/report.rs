//! What a consumer says about itself: what holds a watermark back, how it is, how it ended.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use keylane_source::{Offset, QueueId, Watermark};

/// A key, fit to be printed: escaped where it is not text, hidden where
/// [`hide_keys`](crate::ConsumerBuilder::hide_keys) says so.
#[derive(Clone, PartialEq, Eq)]
pub struct ShownKey(Shown);

#[derive(Clone, PartialEq, Eq)]
enum Shown {
    None,
    Hidden,
    Key(Bytes),
}

impl ShownKey {
    pub(crate) fn new(key: Option<&Bytes>, hide: bool) -> Self {
        Self(match key {
            None => Shown::None,
            Some(_) if hide => Shown::Hidden,
            // A copy, so that an event that is kept does not keep a broker's buffer.
            Some(key) => Shown::Key(Bytes::copy_from_slice(key)),
        })
    }

    /// The bytes, unless there is no key or keys are hidden.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Shown::Key(key) => Some(key),
            Shown::None | Shown::Hidden => None,
        }
    }
}

impl fmt::Display for ShownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Shown::None => f.write_str("(no key)"),
            Shown::Hidden => f.write_str("(hidden)"),
            Shown::Key(key) => write!(f, "\"{}\"", key.escape_ascii()),
        }
    }
}

impl fmt::Debug for ShownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The message that holds a queue's watermark back.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Holding {
    /// The queue.
    pub queue: QueueId,
    /// The first unfinished message.
    pub offset: Offset,
    /// The shard that it belongs to; `None` in concurrent mode, until one has it.
    pub shard: Option<usize>,
    /// What it is doing.
    pub state: HoldingState,
    /// How long ago it was pulled.
    pub age: Duration,
    /// Its key; known once its call began or its lane is held back.
    pub key: Option<ShownKey>,
    /// How often it has been tried; known as the key is.
    pub attempts: Option<u32>,
    /// Why it failed the last time, where it did.
    pub last_error: Option<String>,
    /// How many messages behind it are registered, finished or not: what a restart would deliver
    /// again at most.
    pub span: u64,
}

/// What the message at the watermark is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldingState {
    /// It waits for its shard: in the channel, in the overflow, or behind another call.
    Waiting,
    /// A listener call for it is running, or its ticket is open.
    Running,
    /// It failed and waits for its next attempt.
    BackingOff,
    /// It waits for the dead-letter sink.
    DeadLettering,
    /// It waits for an earlier message of its key.
    BehindItsKey,
    /// It succeeded, and waits for the listener to commit.
    Uncommitted,
}

impl fmt::Display for HoldingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting for its shard",
            Self::Running => "running",
            Self::BackingOff => "backing off",
            Self::DeadLettering => "waiting for the dead-letter sink",
            Self::BehindItsKey => "waiting for an earlier message of its key",
            Self::Uncommitted => "waiting for the listener's commit",
        })
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, offset, state, age, .. } = self;
        write!(f, "{queue} is held at {offset}")?;
        if let Some(shard) = self.shard {
            write!(f, " on shard {shard}")?;
        }
        write!(f, ", {state}, {age:.1?} old")?;
        if let Some(key) = &self.key {
            write!(f, ", key {key}")?;
        }
        if let Some(attempts) = self.attempts {
            write!(f, ", attempts {attempts}")?;
        }
        if let Some(error) = &self.last_error {
            write!(f, ", last error: {error}")?;
        }
        write!(f, ", span {}", self.span)
    }
}

/// How a consumer is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// Everything moves.
    Healthy,
    /// It works, but something fails or stalls: these things, in words.
    Degraded(Vec<String>),
    /// It has stopped, or is about to.
    Stopped,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => f.write_str("healthy"),
            Self::Degraded(reasons) => write!(f, "degraded: {}", reasons.join("; ")),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// How a consumer ended.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// Per queue that was assigned, in order of name: also those that had ended with an error, or
    /// waited to be read.
    pub queues: Vec<QueueReport>,
    /// The messages whose listener calls were still running when the deadline came.
    pub abandoned: Vec<Abandoned>,
    /// Messages that were pulled and never handed to a listener, or not finished by it: they are
    /// delivered again after a restart. The sum of what the queues have.
    pub unfinished: u64,
    /// What [`Source::close`](keylane_source::Source::close) said, if it failed.
    pub close_error: Option<String>,
    /// How long the stop took.
    pub took: Duration,
}

/// How one queue ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QueueReport {
    /// The queue.
    pub queue: QueueId,
    /// Everything below is finished; `None` when the queue never started.
    pub watermark: Option<Watermark>,
    /// What the broker has acknowledged as committed.
    pub committed: Option<Watermark>,
    /// Messages that were pulled and never handed to a listener, or not finished by it.
    pub unfinished: u64,
    /// Messages at or above the watermark that were finished all the same: a restart delivers them
    /// again.
    pub finished_above: u64,
    /// Why the watermark is not committed, if it is not and should be: the last commit failed or was
    /// not answered, or the queue had ended with an error before.
    pub commit_error: Option<String>,
    /// Why the queue was not being read, if it was not: it had ended with an error, or waited for its
    /// lock or for its committed offset. The other numbers are those of when it was read last; what
    /// a queue has finished that has lost its lock since is not this consumer's to commit, and comes
    /// again.
    pub not_read: Option<String>,
}

/// A message whose listener call had not returned when the deadline came.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Abandoned {
    /// The queue.
    pub queue: QueueId,
    /// The message.
    pub offset: Offset,
    /// The shard, whose thread was left behind.
    pub shard: usize,
    /// The message's key.
    pub key: ShownKey,
    /// How long the call had been running.
    pub running_for: Duration,
}

impl StopReport {
    /// Whether every queue's watermark was acknowledged as committed, where it should have been.
    pub fn all_committed(&self) -> bool {
        self.queues.iter().all(|queue| queue.commit_error.is_none())
    }
}

impl fmt::Display for StopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped in {:.1?}, {} unfinished", self.took, self.unfinished)?;
        for abandoned in &self.abandoned {
            let Abandoned { queue, offset, shard, key, running_for } = abandoned;
            write!(
                f,
                "; the call for {queue} offset {offset}, key {key}, on shard {shard} has been \
                 running for {running_for:.1?} and was left behind"
            )?;
        }
        for QueueReport { queue, committed, unfinished, commit_error, not_read, .. } in &self.queues
        {
            if let Some(why) = not_read {
                write!(f, "; {queue} was not read: {why}, {unfinished} unfinished, ")?;
                match committed {
                    None => f.write_str("nothing committed")?,
                    Some(committed) => write!(f, "committed at {committed}")?,
                }
            }
            if let Some(error) = commit_error {
                write!(f, "; commit {queue}: {error}")?;
            }
        }
        match &self.close_error {
            None => Ok(()),
            Some(error) => write!(f, "; close the source: {error}"),
        }
    }
}
