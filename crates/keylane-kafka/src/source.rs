//! The source: one thread polls it, librdkafka's threads fetch for it.
//!
//! A round of [`poll`](Source::poll) never waits: events of the group, answers, a revoke that is
//! due, seeks and commits that were asked for, then messages. Where a round brings nothing, `poll`
//! sleeps until librdkafka or the engine raises the [`Signal`], or a deadline comes.
//!
//! Polling is what keeps the membership: it goes on whatever the engine does with what it was
//! given, and nothing here waits for the engine.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{
    Commit, EndOffset, Fetch, FetchLimits, Message, Position, QueueId, SeekTo, Source, SourceError,
    SourceEvent, SourceWaker,
};
use rdkafka::ClientConfig;

use crate::Error;
use crate::config::{KafkaSourceBuilder, Options, Topics};
use crate::native::{Client, Code, Event, Reader, Run, Tag, Tail};
use crate::signal::Signal;

mod close;
mod commits;
mod group;
mod queues;
mod requests;

use commits::Pending;
use group::Revoke;
use queues::{Phase, Queues};
use requests::Request;

/// How many events of librdkafka's one round takes in before it looks at messages.
const EVENTS_PER_ROUND: usize = 1_000;

/// For how long trouble that goes on is not told again: while it lasts, and a little longer.
const TROUBLE_AGAIN: Duration = Duration::from_secs(2);

/// A consumer group (or a fixed set of partitions) of Kafka's, as a [`Source`].
///
/// Dropped without [`close`](Source::close) it does not leave the group: as in a crash, its session
/// has to run out first. The connections end once the last large payload
/// ([`Message`](keylane_source::Message)) read from it has been dropped.
pub struct KafkaSource {
    options: Options,
    client: Client,
    reader: Reader,
    signal: Arc<Signal>,
    queues: Queues,
    /// A revoke that waits for the engine.
    revoke: Option<Revoke>,
    /// The group went on without us: what we have is somebody else's, until the next assignment.
    expelled: bool,
    /// Commits that were asked for since the last round.
    commits: Vec<Pending>,
    /// Commits that a rebalance has refused, to be sent again at that moment.
    refused: Vec<Pending>,
    commits_again_at: Option<Instant>,
    /// Queues with a seek that is still to be carried out.
    seeks: Vec<QueueId>,
    /// Queues whose range is to be asked for, after one that did not exist was.
    ranges: Vec<(QueueId, Position)>,
    requests: HashMap<Tag, Request>,
    last_tag: Tag,
    /// Not before this moment is anything tried again that was refused.
    retry_at: Option<Instant>,
    /// What happened between rounds, in order.
    told: VecDeque<SourceEvent>,
    trouble: VecDeque<SourceError>,
    last_trouble: Option<(Code, Instant)>,
    started: bool,
    closed: bool,
    runs: Vec<Run>,
}

impl KafkaSource {
    /// A source of the Kafka servers `host:port[,host:port...]`, as a member of this group.
    pub fn builder(servers: impl Into<String>, group: impl Into<String>) -> KafkaSourceBuilder {
        KafkaSourceBuilder::new(servers.into(), group.into())
    }

    pub(crate) fn open(config: &ClientConfig, options: Options) -> Result<Self, Error> {
        let signal = Arc::new(Signal::default());
        let client = Client::new(config, Arc::clone(&signal))?;
        let reader = client
            .reader(options.headers)
            .map_err(|error| Error::new(format!("start a thread beside librdkafka's: {error}")))?;
        if let Topics::Subscribe(topics) = &options.topics {
            client.subscribe(topics).map_err(|code| {
                Error::new(format!("subscribe to {}: {code}", topics.join(", ")))
            })?;
        }
        Ok(Self {
            options,
            client,
            reader,
            signal,
            queues: Queues::default(),
            revoke: None,
            expelled: false,
            commits: Vec::new(),
            refused: Vec::new(),
            commits_again_at: None,
            seeks: Vec::new(),
            ranges: Vec::new(),
            requests: HashMap::new(),
            last_tag: 0,
            retry_at: None,
            told: VecDeque::new(),
            trouble: VecDeque::new(),
            last_trouble: None,
            started: false,
            closed: false,
            runs: Vec::new(),
        })
    }

    /// One round: everything that is due, without waiting.
    fn round(&mut self, limits: FetchLimits, now: Instant, events: &mut Vec<SourceEvent>) {
        if !self.started {
            self.started = true;
            self.take_fixed_partitions();
        }
        self.serve_events(now);
        self.serve_replies(now);
        self.serve_revoke(now);
        self.send_requests(now);
        events.extend(self.told.drain(..));
        self.give_out(limits, events);
    }

    fn serve_events(&mut self, now: Instant) {
        for _ in 0..EVENTS_PER_ROUND {
            let Some(event) = self.client.events.next() else { return };
            match event {
                Event::Assign(partitions) => self.on_assign(&partitions),
                Event::Revoke(partitions) => self.on_revoke(&partitions, now),
                Event::Trouble { code, fatal, text } => self.on_trouble(code, fatal, &text),
                Event::Log { level, facility, text } => log_line(level, &facility, &text),
                _ => {}
            }
        }
    }

    fn on_trouble(&mut self, code: Code, fatal: bool, text: &str) {
        let text = format!("kafka group {}: {text}", self.options.group);
        if code == Code::TRANSPORT && !fatal {
            // A broker's connection; "all brokers are down" is another code.
            log::debug!("{text}");
            return;
        }
        self.expelled |= code == Code::POLLED_TOO_LATE;
        let now = Instant::now();
        let again = self.last_trouble.replace((code, now));
        if !fatal && again.is_some_and(|(known, at)| known == code && now - at < TROUBLE_AGAIN) {
            // librdkafka repeats itself ten times a second while a broker is away.
            log::debug!("{text}");
            return;
        }
        let error = if fatal { SourceError::fatal(text) } else { SourceError::retryable(text) };
        if self.trouble.len() < EVENTS_PER_ROUND {
            self.trouble.push_back(error);
        }
    }

    /// What waits is given out first, and nothing more is read before it is.
    fn give_out(&mut self, limits: FetchLimits, events: &mut Vec<SourceEvent>) {
        if !self.queues.has_ready() {
            self.read(limits);
        }
        let client = &self.client;
        let mut emptied = Vec::new();
        self.queues.give(limits, |queue, portion| {
            let end = client.end_of(queue).and_then(Position::from_i64);
            let end = end.map_or(EndOffset::Unknown, EndOffset::At);
            let (messages, position) = (portion.messages, portion.position);
            events.push(SourceEvent::Fetched(Fetch { queue, messages, position, end }));
            emptied.push(queue);
        });
        for queue in emptied {
            self.match_forwarding(queue);
        }
    }

    fn read(&mut self, limits: FetchLimits) {
        let mut runs = std::mem::take(&mut self.runs);
        self.reader.read(limits.messages, &mut runs);
        if !runs.is_empty() {
            // There may be more, of which no flag will be raised: not to be slept on, also where
            // nothing of this is given out.
            self.signal.activity();
        }
        for run in runs.drain(..) {
            let (end, trouble) = match run.tail {
                None => (None, None),
                Some(Tail::End(end)) => (Some(end), None),
                Some(Tail::Trouble(trouble)) => (None, Some(trouble)),
            };
            self.queues.read(run.queue, run.messages, end);
            if let Some(trouble) = trouble {
                self.on_queue_trouble(run.queue, &trouble);
            }
        }
        self.runs = runs;
    }

    /// Forwards the partition, or keeps its messages in a queue of their own, as its state wants.
    fn match_forwarding(&mut self, queue: QueueId) {
        let Some(state) = self.queues.get_mut(queue) else { return };
        let wanted = state.wants_forward();
        if state.forwarded != wanted {
            state.forwarded = wanted;
            self.client.forward(queue, wanted);
        }
    }

    /// The next moment at which time alone makes something due.
    fn next_timer(&self) -> Option<Instant> {
        let revoke = self.revoke.as_ref().map(|revoke| revoke.deadline);
        [revoke, self.retry_at, self.commits_again_at].into_iter().flatten().min()
    }
}

impl Source for KafkaSource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let (known, mut now) = (events.len(), Instant::now());
        let deadline = now.checked_add(wait);
        loop {
            self.round(limits, now, events);
            // Events first: an error is told by a poll that has nothing else to tell.
            let woken = self.signal.take_woken();
            if events.len() > known {
                return Ok(());
            }
            if let Some(error) = self.trouble.pop_front() {
                return Err(error);
            }
            if woken || deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(());
            }
            let park = now + self.options.park_max;
            let until = [deadline, self.next_timer()].into_iter().flatten().min();
            self.signal.wait_until(until.map_or(park, |until| until.min(park)));
            now = Instant::now();
        }
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        let Some(state) = self.queues.get_mut(queue) else { return };
        if state.phase != Phase::Open {
            return;
        }
        state.drop_stash();
        state.seek = Some(to);
        if !self.seeks.contains(&queue) {
            self.seeks.push(queue);
        }
    }

    fn pause(&mut self, queue: QueueId) {
        if let Some(state) = self.queues.get_mut(queue) {
            state.paused = true;
            self.match_forwarding(queue);
        }
    }

    fn resume(&mut self, queue: QueueId) {
        if let Some(state) = self.queues.get_mut(queue) {
            state.paused = false;
            self.match_forwarding(queue);
            self.queues.note_ready(queue);
        }
    }

    fn commit(&mut self, commit: Commit) {
        self.ask_commit(commit);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        if let Some(state) = self.queues.get(queue) {
            let asked = vec![(queue, state.tenure)];
            self.ask_committed(asked, false);
        }
    }

    fn release(&mut self, queue: QueueId) {
        self.on_release(queue);
    }

    fn waker(&self) -> SourceWaker {
        let signal = Arc::clone(&self.signal);
        SourceWaker::new(move || signal.wake())
    }

    fn recycle(&mut self, emptied: Vec<Message>) {
        self.reader.emptied.put(emptied);
    }

    fn close(
        &mut self,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.close_within(timeout, events)
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource")
            .field("group", &self.options.group)
            .field("topics", &self.options.topics)
            .finish_non_exhaustive()
    }
}

/// A line of librdkafka's log, by its syslog level.
fn log_line(level: i32, facility: &str, text: &str) {
    let level = match level {
        0..=3 => log::Level::Error,
        4 => log::Level::Warn,
        5 | 6 => log::Level::Info,
        _ => log::Level::Debug,
    };
    log::log!(target: "librdkafka", level, "{facility}: {text}");
}
