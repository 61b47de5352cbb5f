//! A consumer's surroundings: source, recorder, and what the listener and the observer saw.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use keylane::source::{Message, QueueId};
use keylane::{
    Batch, BatchHandled, BatchOutcome, Consumer, ConsumerBuilder, Context, FailurePolicy, Handled,
    IntoListener, Mode, OrderlyContext, OrderlyStatus, Outcome, StopReport, Ticket, listen,
};
use keylane_testkit::guarantee::{self, Scope};
use keylane_testkit::recorder::{Call, Recorded, Recorder};
use keylane_testkit::script::{Script, ScriptedSource};
use parking_lot::{Condvar, Mutex};

use super::kept::Kept;
use super::{Events, Latch, Log, MS, SECOND, offset, position};

/// Calls that have returned, by queue and offset.
type OpenCalls = HashMap<(QueueId, u64), Call>;

/// One message in one listener call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) queue: QueueId,
    pub(crate) offset: u64,
    pub(crate) key: Option<Bytes>,
    pub(crate) attempt: u32,
    pub(crate) shard: usize,
    pub(crate) epoch: u64,
    pub(crate) thread: String,
}

/// See the module's description. Clones are the same rig.
#[derive(Clone)]
pub(crate) struct Rig {
    mode: Mode,
    pub(crate) script: Script,
    pub(crate) recorder: Recorder,
    /// Calls as they begin; messages of a batch one by one.
    pub(crate) calls: Log<Seen>,
    /// How many messages each batch had.
    pub(crate) batches: Log<usize>,
    pub(crate) events: Events,
    /// Calls that have returned, and whose ticket is open.
    open: Arc<(Mutex<OpenCalls>, Condvar)>,
    kept: Kept,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Script::new(), Recorder::new(Scope::key()))
    }

    pub(crate) fn with(script: Script, recorder: Recorder) -> Self {
        Self::build(Mode::KeySharded, script, recorder)
    }

    fn build(mode: Mode, script: Script, recorder: Recorder) -> Self {
        let (calls, batches, events) = (Log::default(), Log::default(), Log::default());
        let (open, kept) = (Arc::default(), Kept::default());
        Self { mode, script, recorder, calls, batches, events, open, kept }
    }

    /// A rig whose queues `0..queues` are assigned, each with offset 0 committed: so the first commit
    /// is that of something finished.
    pub(crate) fn with_queues(queues: u32) -> Self {
        Self::in_mode(Mode::KeySharded, Script::new(), queues)
    }

    /// The same in another mode, whose order and exclusion are checked.
    pub(crate) fn in_mode(mode: Mode, script: Script, queues: u32) -> Self {
        let scope = match mode {
            Mode::QueueLocked => Scope::Queue,
            Mode::Concurrent => Scope::Free,
            _ => Scope::key(),
        };
        let rig = Self::build(mode, script, Recorder::new(scope));
        for queue in (0..queues).map(super::q) {
            rig.script.store(queue, super::watermark(0));
            rig.script.assign(queue);
        }
        rig
    }

    /// A second life on the same broker, as after `kill -9`: with fresh logs.
    pub(crate) fn crash(&self) -> Self {
        Self::build(self.mode, self.script.clone(), self.recorder.crash())
    }

    /// Another consumer on the same broker, after an orderly stop: with fresh logs.
    pub(crate) fn again(&self) -> Self {
        Self::build(self.mode, self.script.clone(), self.recorder.another_member())
    }

    /// Appends a message with this key, and gives its offset.
    pub(crate) fn produce(&self, queue: QueueId, key: impl Into<Bytes>) -> u64 {
        let offset = self.script.produce(queue, key, "payload");
        self.recorder.produced(queue, offset);
        offset.get()
    }

    /// Appends messages with these keys.
    pub(crate) fn produce_all<K: Into<Bytes>>(
        &self,
        queue: QueueId,
        keys: impl IntoIterator<Item = K>,
    ) -> Range<u64> {
        let begin = self.script.look(|state| state.end(queue)).get();
        let make = |(offset, key): (u64, K)| {
            let offset = super::offset(offset);
            Message::new(queue, offset).with_key(key.into()).with_payload("payload")
        };
        let messages: Vec<_> = (begin..).zip(keys).map(make).collect();
        let end = begin + messages.len() as u64;
        self.recorder.produced_range(queue, offset(begin), position(end));
        self.script.append(queue, messages);
        begin..end
    }

    /// Options that make a test quick: everything else is the default.
    pub(crate) fn builder(&self) -> ConsumerBuilder<Recorded<ScriptedSource>> {
        Consumer::builder(Recorded::new(self.script.source(), &self.recorder))
            .mode(self.mode)
            .shards(4)
            .commit_interval(5 * MS)
            .failure(quick())
            .stop_timeout(5 * SECOND)
            .revoke_timeout(5 * SECOND)
            .observer(self.events.clone())
    }

    /// A listener per message that records what it is called with, and does `handle`.
    pub(crate) fn each<F>(&self, handle: F) -> impl IntoListener + use<F>
    where
        F: Fn(&Message, &mut Context<'_>) -> Handled + Send + Sync + 'static,
    {
        let rig = self.clone();
        listen::each(move |message, context| rig.record(message, context, &handle))
    }

    /// A listener that finishes everything.
    pub(crate) fn done(&self) -> impl IntoListener + use<> {
        self.each(|_, _| Ok(Outcome::Done))
    }

    /// A listener that waits at the latch with each message that `waits`, and finishes everything.
    pub(crate) fn passing<F>(&self, latch: &Latch, waits: F) -> impl IntoListener + use<F>
    where
        F: Fn(&Message) -> bool + Send + Sync + 'static,
    {
        let latch = latch.clone();
        self.each(move |message, _| {
            if waits(message) {
                latch.pass();
            }
            Ok(Outcome::Done)
        })
    }

    /// Records a call around what a listener does.
    pub(crate) fn record(
        &self,
        message: &Message,
        context: &mut Context<'_>,
        handle: impl FnOnce(&Message, &mut Context<'_>) -> Handled,
    ) -> Handled {
        let call = self.recorder.begin(message, context.shard(), context.attempt());
        let (attempt, shard, epoch) = (context.attempt(), context.shard(), context.epoch());
        self.calls.push(Seen { attempt, shard, epoch, ..seen(message) });
        let handled = handle(message, context);
        match &handled {
            Ok(Outcome::Done) => call.settle(guarantee::Outcome::Done),
            Ok(Outcome::Skip(_)) => call.settle(guarantee::Outcome::Skipped),
            Ok(Outcome::Deferred(_)) => {
                let name = (message.queue(), message.offset().get());
                self.open.0.lock().insert(name, call);
                self.open.1.notify_all();
            }
            // Dropped, it has failed.
            _ => drop(call),
        }
        handled
    }

    /// A deferred call, once the listener has returned from it: its ticket may be quicker.
    fn deferred(&self, queue: QueueId, offset: u64) -> Call {
        let (open, returned) = &*self.open;
        let mut open = open.lock();
        loop {
            if let Some(call) = open.remove(&(queue, offset)) {
                return call;
            }
            let late = returned.wait_for(&mut open, 10 * SECOND).timed_out();
            assert!(!late, "no call of {queue} at {offset} was deferred");
        }
    }

    /// Finishes a deferred message, and says so to the recorder first.
    pub(crate) fn finish(&self, queue: QueueId, offset: u64, ticket: Ticket) {
        let call = self.deferred(queue, offset);
        call.settle(guarantee::Outcome::Done);
        ticket.done();
    }

    /// Fails a deferred message, likewise.
    pub(crate) fn fail(&self, queue: QueueId, offset: u64, ticket: Ticket, error: &str) {
        drop(self.deferred(queue, offset));
        ticket.fail(error);
    }

    /// A listener per batch that records what it is called with, and does `handle`.
    pub(crate) fn batches<F>(&self, handle: F) -> impl IntoListener + use<F>
    where
        F: Fn(&Batch<'_>) -> BatchHandled + Send + Sync + 'static,
    {
        let rig = self.clone();
        listen::batches(move |batch| rig.record_batch(batch, &handle))
    }

    fn record_batch(
        &self,
        batch: &Batch<'_>,
        handle: impl FnOnce(&Batch<'_>) -> BatchHandled,
    ) -> BatchHandled {
        let call = self.recorder.begin_batch(batch.iter(), batch.shard());
        for (index, message) in batch.iter().enumerate() {
            let (attempt, shard) = (batch.attempt(index), batch.shard());
            self.calls.push(Seen { attempt, shard, ..seen(message) });
        }
        self.batches.push(batch.len());
        let handled = handle(batch);
        call.settle_each(&outcomes(&handled, batch.len()));
        handled
    }

    /// A listener in RocketMQ's shape that records what it is called with, and does `consume`. It
    /// suspends for the shortest time there is, unless the call says otherwise.
    pub(crate) fn orderly<F>(&self, consume: F) -> impl IntoListener + use<F>
    where
        F: Fn(&[Message], &mut OrderlyContext) -> OrderlyStatus + Send + Sync + 'static,
    {
        let rig = self.clone();
        let listener = listen::orderly(move |messages, context| {
            rig.record_orderly(messages, context, &consume)
        });
        listener.suspend_current_queue_time(10 * MS)
    }

    /// Records an orderly call, and what its status means for the messages of earlier ones.
    fn record_orderly(
        &self,
        messages: &[Message],
        context: &mut OrderlyContext,
        consume: impl FnOnce(&[Message], &mut OrderlyContext) -> OrderlyStatus,
    ) -> OrderlyStatus {
        let call = self.recorder.begin_batch(messages, 0);
        let attempt = context.attempt();
        messages.iter().for_each(|message| self.calls.push(Seen { attempt, ..seen(message) }));
        self.batches.push(messages.len());
        // Dropped by a panic, or with a status that gives the messages back, the call has failed.
        let status = consume(messages, context);
        let lane = match self.mode {
            Mode::KeySharded => (context.queue(), messages[0].key_bytes().cloned()),
            _ => (context.queue(), None),
        };
        match (status, context.auto_commit()) {
            (OrderlyStatus::Success, false) => {
                call.settle(guarantee::Outcome::Held);
                self.kept.keep(&self.recorder, lane, messages);
            }
            (OrderlyStatus::Success, true) | (OrderlyStatus::Commit, _) => {
                call.settle(guarantee::Outcome::Done);
                for message in self.kept.take(&self.recorder, &lane) {
                    self.recorder.later(&message).settle(guarantee::Outcome::Done);
                }
            }
            (OrderlyStatus::Rollback, _) => {
                drop(call);
                self.recorder.rewound(&self.kept.take(&self.recorder, &lane));
            }
            (OrderlyStatus::SuspendCurrentQueueAMoment, _) => drop(call),
        }
        status
    }

    /// Offsets of this queue in the order in which their calls began; each attempt counts.
    pub(crate) fn offsets(&self, queue: QueueId) -> Vec<u64> {
        let all = self.calls.all();
        all.iter().filter(|seen| seen.queue == queue).map(|seen| seen.offset).collect()
    }

    /// How often this message was handed to the listener.
    pub(crate) fn attempts(&self, queue: QueueId, offset: u64) -> usize {
        self.calls.count(|seen| seen.queue == queue && seen.offset == offset)
    }

    /// Waits until the group's offset of this queue has reached `committed`.
    #[track_caller]
    pub(crate) fn wait_for_commit(&self, queue: QueueId, committed: u64) {
        let reached = super::watermark(committed);
        self.script.wait_for(&format!("commit {queue} at {committed}"), |state| {
            state.committed(queue).is_some_and(|stored| stored >= reached)
        });
    }

    /// Lets a whole round of commits pass: this queue has a message more, which is finished and
    /// committed, and with it all that was finished before. Its shard must be free.
    #[track_caller]
    pub(crate) fn commit_round(&self, queue: QueueId, key: &'static str) {
        let offset = self.produce(queue, key);
        self.wait_for_commit(queue, offset + 1);
    }

    /// Stops, and expects that all went well and every guarantee was kept.
    #[track_caller]
    pub(crate) fn stop(&self, consumer: &Consumer) -> StopReport {
        let report = consumer.stop(10 * SECOND).expect("an orderly stop");
        self.recorder.verdict().assert_clean();
        report
    }

    /// Stops, and expects the same of a run that was not to finish everything.
    #[track_caller]
    pub(crate) fn stop_early(&self, consumer: &Consumer) -> StopReport {
        let report = consumer.stop(10 * SECOND).expect("an orderly stop");
        self.recorder.verdict_so_far().assert_clean();
        report
    }
}

/// Retries for ever, but without delay worth mentioning.
pub(crate) fn quick() -> FailurePolicy {
    FailurePolicy::default().backoff(MS, 5 * MS)
}

fn seen(message: &Message) -> Seen {
    let thread = std::thread::current().name().unwrap_or_default().to_owned();
    let (queue, offset) = (message.queue(), message.offset().get());
    let key = message.key_bytes().cloned();
    Seen { queue, offset, key, attempt: 0, shard: 0, epoch: 0, thread }
}

/// What a batch's answer says of each message; results behind a failure of their key are the
/// recorder's business.
fn outcomes(handled: &BatchHandled, messages: usize) -> Vec<guarantee::Outcome> {
    use guarantee::Outcome::{Done, Failed, Skipped};
    let through = |done: usize| (0..messages).map(move |i| if i < done { Done } else { Failed });
    match handled {
        Ok(BatchOutcome::Done) => vec![Done; messages],
        Ok(BatchOutcome::DoneThrough(last)) if *last < messages => through(last + 1).collect(),
        Ok(BatchOutcome::FailedAt { index, .. }) if *index < messages => through(*index).collect(),
        Ok(BatchOutcome::Each(each)) if each.len() == messages => each
            .iter()
            .map(|handled| match handled {
                Ok(Outcome::Done) => Done,
                Ok(Outcome::Skip(_)) => Skipped,
                _ => Failed,
            })
            .collect(),
        _ => vec![Failed; messages],
    }
}
