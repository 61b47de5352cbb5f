//! A member of a group, driven as the engine drives it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use keylane_rocketmq::{Config, RocketMqSource};
use keylane_source::{
    Commit, CommitTag, Committed, Fetch, FetchLimits, LockReply, Position, QueueId, SeekTo, Source,
    SourceError, SourceEvent, Watermark,
};

use crate::broker::Cluster;

/// A test that waits for this long hangs.
const HANGS: Duration = Duration::from_secs(30);

pub(crate) struct Member {
    pub(crate) source: RocketMqSource,
    /// What has come and was not asked for yet.
    pub(crate) events: VecDeque<SourceEvent>,
    pub(crate) errors: Vec<SourceError>,
    pub(crate) limits: FetchLimits,
}

/// A group's configuration with timers that never fire in a test, so that what happens, happens
/// because of something.
pub(crate) fn config(cluster: &Cluster) -> Config {
    Config::new([cluster.name_server.clone()], "g")
        .subscribe("t", "*")
        .retries(false)
        .check_every(Duration::from_secs(600))
        .heartbeat_every(Duration::from_secs(60))
        .rebalance_every(Duration::from_secs(600))
        .route_every(Duration::from_secs(600))
        .call_timeout(Duration::from_secs(60))
}

pub(crate) fn queue(broker: &str, index: u32) -> QueueId {
    QueueId::on_broker("t", broker, index)
}

pub(crate) fn at(number: u64) -> Position {
    Position::new(number).unwrap()
}

pub(crate) fn commit(queue: QueueId, watermark: u64, tag: u64) -> Commit {
    let watermark = Watermark::new(watermark).unwrap();
    Commit { queue, watermark, metadata: String::new(), tag: CommitTag(tag) }
}

impl Member {
    pub(crate) fn join(config: Config) -> Self {
        Self {
            source: RocketMqSource::new(config).unwrap(),
            events: VecDeque::new(),
            errors: Vec::new(),
            limits: FetchLimits { messages: 100, bytes: 1 << 20 },
        }
    }

    /// A member that has been assigned these queues, and reads them from their start.
    pub(crate) fn reading(config: Config, queues: &[QueueId]) -> Self {
        let mut member = Self::join(config);
        member.assigned(queues.len());
        for queue in queues {
            member.source.seek(*queue, SeekTo::Earliest);
        }
        member
    }

    /// One poll, which may wait a little.
    pub(crate) fn poll(&mut self) {
        self.poll_for(Duration::from_millis(20));
    }

    pub(crate) fn poll_for(&mut self, wait: Duration) {
        let mut events = Vec::new();
        match self.source.poll(self.limits, wait, &mut events) {
            Ok(()) => {}
            Err(error) => self.errors.push(error),
        }
        self.events.extend(events);
    }

    /// Polls until an event is taken. The others stay, in their order.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut take: impl FnMut(&SourceEvent) -> Option<T>,
    ) -> T {
        let start = Instant::now();
        loop {
            let taken = self.events.iter().enumerate().find_map(|(i, e)| Some((i, take(e)?)));
            if let Some((index, taken)) = taken {
                self.events.remove(index);
                return taken;
            }
            assert!(
                start.elapsed() < HANGS,
                "no {what}; there are {:?} and {:?}",
                self.events,
                self.errors
            );
            self.poll();
        }
    }

    /// Polls until something outside is so.
    pub(crate) fn until_so(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < HANGS, "not so: {what}; {:?} {:?}", self.events, self.errors);
            self.poll();
        }
    }

    pub(crate) fn assigned(&mut self, count: usize) -> BTreeMap<QueueId, Committed> {
        let mut assigned = BTreeMap::new();
        while assigned.len() < count {
            let (queue, committed) = self.until("assignment", |event| match event {
                SourceEvent::Assigned { queue, committed } => Some((*queue, committed.clone())),
                _ => None,
            });
            assigned.insert(queue, committed);
        }
        assigned
    }

    pub(crate) fn revoking(&mut self) -> QueueId {
        self.until("revocation", |event| match event {
            SourceEvent::Revoking { queue } => Some(*queue),
            _ => None,
        })
    }

    pub(crate) fn lock_reply(&mut self) -> (QueueId, LockReply) {
        self.until("lock reply", |event| match event {
            SourceEvent::Lock { queue, reply } => Some((*queue, reply.clone())),
            _ => None,
        })
    }

    pub(crate) fn commit_result(&mut self) -> (Commit, Result<(), SourceError>) {
        self.until("commit result", |event| match event {
            SourceEvent::CommitResult { commit, result } => Some((commit.clone(), result.clone())),
            _ => None,
        })
    }

    pub(crate) fn queue_error(&mut self) -> (QueueId, String) {
        self.until("queue error", |event| match event {
            SourceEvent::QueueError { queue, error } => Some((*queue, error.to_string())),
            _ => None,
        })
    }

    /// The next fetch, with or without messages.
    pub(crate) fn fetch(&mut self) -> Fetch {
        loop {
            let fetched = |event: &SourceEvent| matches!(event, SourceEvent::Fetched(_));
            if let Some(index) = self.events.iter().position(fetched)
                && let Some(SourceEvent::Fetched(fetch)) = self.events.remove(index)
            {
                return fetch;
            }
            self.until_so("fetch", |member| member.events.iter().any(fetched));
        }
    }

    /// The bodies of the next messages, by queue, in the order in which they came.
    pub(crate) fn read(&mut self, count: usize) -> BTreeMap<QueueId, Vec<String>> {
        let mut bodies: BTreeMap<QueueId, Vec<String>> = BTreeMap::new();
        let mut seen = 0;
        while seen < count {
            let fetch = self.fetch();
            for message in fetch.messages {
                assert_eq!(message.queue(), fetch.queue);
                let body = String::from_utf8(message.payload().unwrap().to_vec()).unwrap();
                bodies.entry(fetch.queue).or_default().push(body);
                seen += 1;
            }
        }
        assert_eq!(seen, count);
        bodies
    }

    /// Nothing of this kind is there, or comes while a few more answers do.
    pub(crate) fn none(&mut self, what: &str, is: impl Fn(&SourceEvent) -> bool) {
        for _ in 0..5 {
            self.poll();
        }
        assert!(!self.events.iter().any(is), "{what}: {:?}", self.events);
    }

    pub(crate) fn close(mut self) -> (Vec<SourceEvent>, Result<(), SourceError>) {
        let mut events = Vec::new();
        let result = self.source.close(Duration::from_secs(5), &mut events);
        (events, result)
    }
}
