//! The consumer group as a source.
//!
//! The thread that owns the source never waits for a broker: it sends, and finds the answers in
//! its inbox, which the threads of the connections fill. So a broker that is slow or dead delays
//! nobody but its own queues. All state is on this side; the parts that decide are state machines
//! of their own:
//!
//! | module | decides |
//! | --- | --- |
//! | `group` | whom to tell of this member, whom to ask, which queues follow |
//! | `queue` | one queue: when to pull, what to give out, when to try again |
//! | `pull` | what an answer says; runs on the thread that read it |
//! | `locks` | when a lock may be given back |
//! | `first_commits` | which commits have to wait, and which are read back |
//!
//! Trouble of one broker is reported by its queues. [`Source::poll`] itself fails only when there
//! is nothing to read at all, so that the engine never backs off from queues that are well; and
//! once for each subscription mismatch.

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use keylane_source::{
    Commit, FetchLimits, QueueId, QueueLocks, SeekTo, Source, SourceError, SourceEvent, SourceWaker,
};

use crate::client::{Client, now_ms};
use crate::config::tags;
use crate::wire::body::{ConsumerData, HeartbeatData, SubscriptionData, java_hash};
use crate::{Config, Error};
use first_commits::FirstCommits;
use group::Group;
use incoming::{Bell, Ears, Incoming, LookUp};
use locks::{LockCalls, Locks};
use pull::Reading;
use queue::{Queue, Turn};

mod ask;
mod close;
mod first_commits;
mod group;
mod handle;
mod incoming;
mod locks;
pub(crate) mod pull;
mod queue;

/// One member of a RocketMQ consumer group.
///
/// Queues are allocated among the members as Java's consumers do by default ("averagely"), so that
/// a group may have members of both kinds. RocketMQ takes queues away without asking: only the
/// broker's locks ([`Source::locks`]) keep a successor from reading while this member still works.
///
/// Messages: the key is chosen by [`Config::key`], all properties are headers, the timestamp is the
/// time of storing, attempts start at the message's reconsume times. A message that has no
/// `UNIQ_KEY` carries the broker's id for it in the header `keylane.message_id`; a producer's own
/// flag, where it is not zero, is in `keylane.flag`.
///
/// Only masters are read from: while a broker has none, its queues report trouble and wait.
#[derive(Debug)]
pub struct RocketMqSource(Box<Member>);

pub(crate) struct Member {
    config: Config,
    client_id: String,
    client: Client,
    inbox: Receiver<Incoming>,
    outbox: Sender<Incoming>,
    bell: Bell,
    group: Group,
    /// By topic.
    readings: HashMap<String, Arc<Reading>>,
    subscriptions: Vec<SubscriptionData>,
    /// The mismatch that was reported last.
    mismatch: Option<String>,
    /// Another member of the same client id was seen.
    twin: bool,
    queues: HashMap<QueueId, Queue>,
    /// What the last allocation of each topic gave to this member.
    allocated: HashMap<String, HashSet<QueueId>>,
    /// Allocated, but the engine does not want them.
    given_up: HashSet<QueueId>,
    turns: u64,
    seeks: HashMap<QueueId, SeekTo>,
    committing: HashMap<QueueId, u32>,
    first_commits: FirstCommits,
    lock_calls: LockCalls,
    locks: Locks,
    limits: FetchLimits,
    /// Queues that may have something to give out.
    ready: VecDeque<QueueId>,
    /// Queues that may want to be pulled.
    to_pull: Vec<QueueId>,
    alarms: BinaryHeap<Reverse<(Instant, QueueId)>>,
    events: VecDeque<SourceEvent>,
    errors: VecDeque<SourceError>,
    closing: bool,
}

impl RocketMqSource {
    /// A member of the group; it joins when it is first polled.
    ///
    /// # Errors
    ///
    /// A configuration that cannot work, by the name of its option.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.validate()?;
        let (outbox, inbox) = unbounded();
        let ears = Ears { group: config.group.clone(), outbox: outbox.clone() };
        let name_servers = config.name_servers.clone();
        let client = Client::open(name_servers, config.call_timeout, Arc::new(ears))?;
        let client_id = config.client_id.clone().unwrap_or_else(unique_client_id);
        let reading = |expression: &str| {
            let tags = tags(expression).into_iter().map(Into::into).collect();
            Arc::new(Reading { key: config.key.clone(), tags })
        };
        let mut subscribed = config.subscriptions.clone();
        if config.retries {
            subscribed.push((config.retry_topic(), "*".to_owned()));
        }
        let version = now_ms();
        let member = Member {
            group: Group::new(&config, client_id.clone(), Instant::now()),
            readings: subscribed.iter().map(|(t, e)| (t.clone(), reading(e))).collect(),
            subscriptions: subscribed.iter().map(|(t, e)| subscription(t, e, version)).collect(),
            lock_calls: LockCalls::new(config.lock_lease),
            bell: Bell { rung: Arc::new(AtomicBool::new(false)), outbox: outbox.clone() },
            limits: FetchLimits { messages: config.pull_messages, bytes: config.pull_bytes },
            config,
            client_id,
            client,
            inbox,
            outbox,
            mismatch: None,
            twin: false,
            queues: HashMap::new(),
            allocated: HashMap::new(),
            given_up: HashSet::new(),
            turns: 0,
            seeks: HashMap::new(),
            committing: HashMap::new(),
            first_commits: FirstCommits::default(),
            locks: Locks::default(),
            ready: VecDeque::new(),
            to_pull: Vec::new(),
            alarms: BinaryHeap::new(),
            events: VecDeque::new(),
            errors: VecDeque::new(),
            closing: false,
        };
        Ok(Self(Box::new(member)))
    }

    /// The name of this member in the group.
    pub fn client_id(&self) -> &str {
        &self.0.client_id
    }
}

impl Source for RocketMqSource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.0.poll(limits, wait, events)
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        self.0.seek(queue, to);
    }

    fn pause(&mut self, queue: QueueId) {
        if let Some(queue) = self.0.queues.get_mut(&queue) {
            queue.pause();
        }
    }

    fn resume(&mut self, queue: QueueId) {
        if let Some(known) = self.0.queues.get_mut(&queue) {
            known.resume();
            self.0.look_at(queue);
        }
    }

    fn commit(&mut self, commit: Commit) {
        self.0.commit(commit);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        self.0.look_up_committed(queue);
    }

    fn release(&mut self, queue: QueueId) {
        self.0.release(queue);
    }

    fn waker(&self) -> SourceWaker {
        let bell = self.0.bell.clone();
        SourceWaker::new(move || bell.ring())
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        Some(&mut self.0.lock_calls)
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.0.close(timeout, events)
    }
}

impl Member {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.limits = limits;
        let (start, before) = (Instant::now(), events.len());
        let deadline = after(start, wait);
        loop {
            while let Ok(incoming) = self.inbox.try_recv() {
                self.handle(incoming, Instant::now());
            }
            let now = Instant::now();
            self.run_due(now);
            self.give_out(events);
            self.send_pulls(now);
            let woken = self.bell.take();
            if events.len() > before {
                return Ok(());
            }
            if let Some(error) = self.errors.pop_front() {
                return Err(error);
            }
            if woken || now >= deadline {
                return Ok(());
            }
            let until = self.next_due().map_or(deadline, |due| due.min(deadline));
            if let Ok(incoming) = self.inbox.recv_deadline(until) {
                self.handle(incoming, Instant::now());
            }
        }
    }

    /// Does what was noted down, and what time has come for.
    fn run_due(&mut self, now: Instant) {
        self.run_lock_calls();
        for step in self.group.steps(now) {
            self.ask(step);
        }
        while let Some(Reverse((at, queue))) = self.alarms.peek().copied()
            && at <= now
        {
            self.alarms.pop();
            if self.queues.get_mut(&queue).is_some_and(|known| known.seek_is_due(now)) {
                self.ask_seek(queue);
            }
            self.check(queue, now);
            self.to_pull.push(queue);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let alarm = self.alarms.peek().map(|Reverse((at, _))| *at);
        [alarm, self.group.next_due()].into_iter().flatten().min()
    }

    /// One fetch of each queue that has one; what is left of it waits for the next poll.
    fn give_out(&mut self, events: &mut Vec<SourceEvent>) {
        events.extend(self.events.drain(..));
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else { break };
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            queue.listed = false;
            events.extend(queue.give(self.limits));
            self.look_at(id);
        }
    }

    fn send_pulls(&mut self, now: Instant) {
        if self.closing {
            return;
        }
        for id in std::mem::take(&mut self.to_pull) {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            if let Some(plan) = queue.plan_pull(now) {
                self.ask_pull(id, plan, now);
            }
            self.check(id, now);
        }
    }

    /// Asks whether the queue's offset was moved, where nothing has said so for a while.
    fn check(&mut self, id: QueueId, now: Instant) {
        let Some(queue) = self.queues.get_mut(&id).filter(|_| !self.closing) else { return };
        let (plan, again_at) = queue.plan_check(self.config.check_every, now);
        self.alarms.extend(again_at.map(|at| Reverse((at, id))));
        if let Some(plan) = plan {
            self.ask_pull(id, plan, now);
        }
    }

    /// A queue may have something to give out, or want to be pulled.
    fn look_at(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.has_news() {
            if !std::mem::replace(&mut queue.listed, true) {
                self.ready.push_back(id);
            }
        } else {
            self.to_pull.push(id);
        }
    }

    fn next_turn(&mut self) -> Turn {
        self.turns += 1;
        Turn(self.turns)
    }

    fn seek(&mut self, id: QueueId, to: SeekTo) {
        let turn = self.next_turn();
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if !queue.is_known() || queue.is_revoking() {
            return;
        }
        match to {
            SeekTo::Position(position) => {
                queue.read_from(turn, position);
                self.look_at(id);
            }
            to => {
                queue.seek(turn);
                self.seeks.insert(id, to);
                self.ask_seek(id);
            }
        }
    }

    fn look_up_committed(&mut self, id: QueueId) {
        let turn = self.next_turn();
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.looks_up(turn);
        }
        self.ask_committed(id, LookUp::Again(turn));
    }

    fn commit(&mut self, commit: Commit) {
        if !self.queues.contains_key(&commit.queue) {
            let error =
                format!("commit {} at {}: not this member's", commit.queue, commit.watermark);
            let result = Err(SourceError::retryable(error));
            return self.events.push_back(SourceEvent::CommitResult { commit, result });
        }
        *self.committing.entry(commit.queue).or_default() += 1;
        if let Some(commit) = self.first_commits.wanted(commit) {
            self.ask_commit(commit);
        }
    }

    /// The engine is done with a queue, or does not want it.
    fn release(&mut self, id: QueueId) {
        let Some(queue) = self.queues.remove(&id) else { return };
        self.seeks.remove(&id);
        if queue.is_revoking() {
            // It may have come back meanwhile.
            self.take_allocated(id.topic());
        } else {
            self.given_up.insert(id);
        }
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("group", &self.config.group)
            .field("client_id", &self.client_id)
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}

fn subscription(topic: &str, expression: &str, version: i64) -> SubscriptionData {
    let tags = tags(expression);
    SubscriptionData {
        topic: topic.to_owned(),
        sub_string: expression.trim().to_owned(),
        code_set: tags.iter().map(|tag| java_hash(tag)).collect(),
        tags_set: tags,
        sub_version: version,
        expression_type: "TAG".to_owned(),
        class_filter_mode: false,
    }
}

fn heartbeat(client_id: &str, group: &str, subscriptions: &[SubscriptionData]) -> HeartbeatData {
    let consumer = ConsumerData {
        group_name: group.to_owned(),
        consume_type: "CONSUME_PASSIVELY",
        message_model: "CLUSTERING",
        consume_from_where: "CONSUME_FROM_FIRST_OFFSET",
        unit_mode: false,
        subscription_data_set: subscriptions.to_vec(),
    };
    HeartbeatData {
        client_id: client_id.to_owned(),
        producers: [],
        consumers: vec![consumer],
        fingerprint: 0,
        without_subscriptions: false,
    }
}

/// A name that no other member has: of this process by the counter, of this machine by the process
/// id, of another one by the time and by 64 random bits.
fn unique_client_id() -> String {
    static MEMBERS: AtomicU64 = AtomicU64::new(0);
    let member = MEMBERS.fetch_add(1, Ordering::Relaxed);
    let random = RandomState::new().build_hasher().finish();
    let process = std::process::id();
    format!("keylane@{process}#{:x}-{random:016x}-{member}", now_ms())
}

/// `start + wait`, or a day later where that cannot be told.
fn after(start: Instant, wait: Duration) -> Instant {
    let day = Duration::from_secs(86_400);
    start + wait.min(day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_ids_are_unique() {
        let ids: HashSet<String> = (0..1_000).map(|_| unique_client_id()).collect();
        assert_eq!(ids.len(), 1_000);
    }

    #[test]
    fn a_subscription_as_brokers_filter_by_it() {
        let data = subscription("t", "TagA || TagB ", 7);
        assert_eq!((&data.sub_string[..], data.sub_version), ("TagA || TagB", 7));
        assert_eq!(data.tags_set, ["TagA", "TagB"]);
        assert_eq!(data.code_set, [2_598_919, 2_598_920]);
        assert!(subscription("t", "*", 7).tags_set.is_empty());
    }
}
