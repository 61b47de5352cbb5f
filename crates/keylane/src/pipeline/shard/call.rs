//! The messages of one listener call, and what was said about them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use keylane_source::{DeadLetterReason, Message};

use super::lane::Held;
use crate::bug::bug;
use crate::outcome::{BatchOutcome, Handled, Outcome};
use crate::pipeline::chunk::{Entry, LaneId, LaneName, Run, Tag};
use crate::sync::{AtomicUsize, Ordering};
use crate::ticket::TicketId;

/// Messages that are handed to a listener together, in order.
///
/// While the call runs it is shared with the shard, read-only, so that it can be said what runs.
#[derive(Debug, Default)]
pub(crate) struct Call {
    pub(crate) messages: Vec<Message>,
    pub(crate) tags: Vec<Tag>,
    pub(crate) runs: Vec<Run>,
    /// The message that the listener is looking at, for reports and for panics.
    cursor: AtomicUsize,
}

impl Call {
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.tags.clear();
        self.runs.clear();
        self.cursor = AtomicUsize::new(0);
    }

    /// Adds an entry of a run (of which more entries may follow).
    pub(super) fn push(&mut self, entry: Entry, run: &Run) {
        match self.runs.last_mut() {
            Some(last) if Arc::ptr_eq(&last.page, &run.page) => last.len += 1,
            _ => self.runs.push(Run { len: 1, ..run.clone() }),
        }
        self.messages.push(entry.message);
        self.tags.push(entry.tag);
    }

    /// Adds `messages` entries of a run at once.
    pub(super) fn append(
        &mut self,
        entries: impl Iterator<Item = Entry>,
        messages: usize,
        run: &Run,
    ) {
        match self.runs.last_mut() {
            Some(last) if Arc::ptr_eq(&last.page, &run.page) => last.len += messages,
            _ => self.runs.push(Run { len: messages, ..run.clone() }),
        }
        self.messages.reserve(messages);
        self.tags.reserve(messages);
        entries.for_each(|Entry { message, tag }| {
            self.messages.push(message);
            self.tags.push(tag);
        });
    }

    pub(super) fn push_held(&mut self, held: Held) {
        let run = Run { tenure: held.tenure, page: held.page, len: 1 };
        self.push(Entry { message: held.message, tag: held.tag }, &run);
    }

    /// The run that a message belongs to.
    pub(crate) fn run(&self, index: usize) -> &Run {
        let mut end = 0;
        let run = self.runs.iter().find(|run| {
            end += run.len;
            index < end
        });
        run.expect("the runs cover all messages")
    }

    pub(crate) fn lane(&self, index: usize) -> LaneId {
        self.tags[index].lane(&self.messages[index], &self.run(index).tenure)
    }

    /// The number of the attempt that this call is for the message, counted from one.
    pub(crate) fn attempt(&self, index: usize) -> u32 {
        self.messages[index].attempts().saturating_add(self.tags[index].tried()).saturating_add(1)
    }

    pub(crate) fn move_cursor(&self, index: usize) {
        // Relaxed: only read to report, and after the call by its own thread.
        self.cursor.store(index, Ordering::Relaxed);
    }

    pub(crate) fn cursor(&self) -> usize {
        self.cursor.load(Ordering::Relaxed).min(self.len().saturating_sub(1))
    }
}

/// What became of one message of a call.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Finished.
    Done,
    /// Given up; counts as finished.
    Skip(String),
    Failed {
        error: Arc<str>,
        asked: Option<Duration>,
        panicked: bool,
    },
    DeadLetter(DeadLetterReason),
    /// Unfinished; the consumer stops.
    Stop(String),
    Deferred(TicketId),
    /// Not looked at, or its answer does not count: it is delivered again, with no attempt counted.
    Returned {
        /// In a call of its own.
        alone: bool,
    },
    /// Comes again behind the failed message before it, which failed together with it.
    FailedToo,
    /// Succeeded; finished once the lane is committed.
    Keep,
    /// Succeeded, and commits what the lane has kept.
    Commit,
    /// It and all that the lane has kept come again, after the delay; no attempt is counted.
    Rollback(Duration),
}

impl Verdict {
    /// From what a listener returned for one message.
    pub(crate) fn of(handled: Handled) -> Self {
        match handled {
            Ok(Outcome::Done) => Self::Done,
            Ok(Outcome::Retry) => Self::failed("the listener asked for a retry", None),
            Ok(Outcome::RetryAfter(delay)) => {
                Self::failed("the listener asked for a retry", Some(delay))
            }
            Ok(Outcome::DeadLetter(reason)) => {
                Self::DeadLetter(DeadLetterReason::Listener(reason.into()))
            }
            Ok(Outcome::Skip(reason)) => Self::Skip(reason),
            Ok(Outcome::Stop(reason)) => Self::Stop(reason),
            Ok(Outcome::Deferred(deferred)) => Self::Deferred(deferred.0),
            Err(error) => Self::failed(&error.to_string(), None),
        }
    }

    pub(crate) fn failed(error: &str, asked: Option<Duration>) -> Self {
        Self::Failed { error: error.into(), asked, panicked: false }
    }

    pub(crate) fn panicked(error: &str) -> Self {
        Self::Failed { error: error.into(), asked: None, panicked: true }
    }

    /// Whether later messages of the lane have to wait.
    fn holds(&self) -> bool {
        match self {
            Self::Done | Self::Skip(_) | Self::Keep | Self::Commit => false,
            Self::Failed { .. }
            | Self::DeadLetter(_)
            | Self::Stop(_)
            | Self::Deferred(_)
            | Self::Returned { .. }
            | Self::FailedToo
            | Self::Rollback(_) => true,
        }
    }
}

/// The verdicts over a call's messages, in order. As long as nothing but "done" was said, nothing
/// is stored: that is the path of nearly every call.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    all: Vec<Verdict>,
    held: HashSet<LaneId>,
    /// Keys with a ticket open: they hold back other queues' messages of that key too.
    open: HashSet<LaneName>,
    /// A call that failed as a whole: why, and whether it panicked.
    pub(super) whole: Option<(Arc<str>, bool)>,
}

impl Verdicts {
    pub(super) fn all_done(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.held.clear();
        self.open.clear();
        self.whole = None;
    }

    pub(super) fn take(&mut self, index: usize) -> Verdict {
        std::mem::replace(&mut self.all[index], Verdict::Done)
    }

    /// Whether the message may be looked at, or was held back by an earlier one of its lane. To be
    /// asked in order.
    pub(crate) fn admits(&mut self, call: &Call, index: usize) -> bool {
        if self.held.is_empty() && self.open.is_empty() {
            return true;
        }
        let lane = call.lane(index);
        if !self.held.contains(&lane) && !self.open.contains(&lane.name) {
            return true;
        }
        self.all[index] = Verdict::Returned { alone: false };
        false
    }

    /// Says what became of a message; in order, and only of admitted ones.
    pub(crate) fn decide(&mut self, call: &Call, index: usize, verdict: Verdict) {
        if matches!(verdict, Verdict::Done) {
            return;
        }
        if self.all.is_empty() {
            self.all.resize_with(call.len(), || Verdict::Done);
        }
        if verdict.holds() {
            let lane = call.lane(index);
            // A message that waits for nobody has a lane of its own, which no other shares.
            if matches!(verdict, Verdict::Deferred(_)) {
                self.open.insert(lane.name.clone());
            }
            self.held.insert(lane);
        }
        self.all[index] = verdict;
    }

    /// Everything from `from` on was not looked at.
    pub(crate) fn return_from(&mut self, call: &Call, from: usize) {
        for index in from..call.len() {
            self.decide(call, index, Verdict::Returned { alone: false });
        }
    }

    /// The call failed without saying where. A single message has failed; several come again one by
    /// one.
    pub(crate) fn failed_whole(&mut self, call: &Call, error: &str, panicked: bool) {
        if call.len() == 1 {
            let error = error.into();
            return self.decide(call, 0, Verdict::Failed { error, asked: None, panicked });
        }
        self.whole = Some((error.into(), panicked));
        for index in 0..call.len() {
            self.decide(call, index, Verdict::Returned { alone: true });
        }
    }

    /// The call's messages, all of one lane, come again after the delay, and it counts.
    pub(crate) fn suspend(&mut self, call: &Call, error: &str, delay: Duration, panicked: bool) {
        let failed = Verdict::Failed { error: error.into(), asked: Some(delay), panicked };
        self.decide(call, 0, failed);
        for index in 1..call.len() {
            self.decide(call, index, Verdict::FailedToo);
        }
    }

    /// Says the same of all messages, and `last` of the last one.
    pub(crate) fn all_but_last(&mut self, call: &Call, all: impl Fn() -> Verdict, last: Verdict) {
        for index in 0..call.len() - 1 {
            self.decide(call, index, all());
        }
        self.decide(call, call.len() - 1, last);
    }

    /// What a batch listener returned.
    pub(crate) fn batch(&mut self, call: &Call, outcome: BatchOutcome) {
        let messages = call.len();
        let outside = |index: usize| {
            format!("the listener named index {index} of a batch of {messages} messages")
        };
        match outcome {
            BatchOutcome::Done => {}
            BatchOutcome::DoneThrough(index) if index < messages => {
                self.return_from(call, index + 1);
            }
            BatchOutcome::FailedAt { index, error } if index < messages => {
                self.decide(call, index, Verdict::failed(&error.to_string(), None));
                self.return_from(call, index + 1);
            }
            BatchOutcome::DoneThrough(index) | BatchOutcome::FailedAt { index, .. } => {
                self.failed_whole(call, &outside(index), false);
            }
            BatchOutcome::Each(each) if each.len() == messages => {
                for (index, handled) in each.into_iter().enumerate() {
                    if self.admits(call, index) || bug!("keep_results_behind_failure") {
                        self.decide(call, index, Verdict::of(handled));
                    }
                }
            }
            BatchOutcome::Each(each) => {
                let answers = each.len();
                let error = format!("the listener gave {answers} answers for {messages} messages");
                self.failed_whole(call, &error, false);
            }
        }
    }
}
