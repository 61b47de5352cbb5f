//! The engine's parts, one by one, for benchmarks that count instructions. Each is the production
//! state machine; what surrounds it here is as little as it can be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{CommitTag, Offset, Position, QueueId, Source, SourceEvent, Watermark};

use crate::config::{Config, FailurePolicy};
use crate::listener::IntoListener;
use crate::pipeline::Coordinator;
use crate::pipeline::inside::{Committer, Finished, Next, Parts, Random, Tracker, Worker};
use crate::time::Clock;

/// How many messages come together.
const PULL: usize = 256;

/// The whole engine on the caller's thread: the source thread's turn, then each shard's.
#[expect(missing_debug_implementations, reason = "no interface")]
pub struct Inline<S> {
    source: S,
    coordinator: Coordinator,
    workers: Vec<Worker>,
    events: Vec<SourceEvent>,
    pulled: u64,
    handled: u64,
}

impl<S: Source> Inline<S> {
    /// `in_flight` is the budget in messages, `pull` how many a fetch brings at most.
    pub fn new(
        source: S,
        shards: usize,
        in_flight: usize,
        pull: usize,
        listener: impl IntoListener,
    ) -> Self {
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let config = Config {
            shards,
            in_flight_max: in_flight,
            in_flight_bytes_max: usize::MAX >> 1,
            span_max: u64::MAX,
            channel_capacity: (2 * in_flight / shards).max(1_024),
            fetch_max: pull,
            commit_interval: Duration::from_secs(3_600),
            hasher: Some(Arc::new(move |key| hasher.hash_one(key))),
            ..Config::default()
        };
        let factory = listener.into_factory();
        let parts = Parts::new(&Arc::new(config), source.waker(), false, &factory, None);
        let Parts { coordinator, workers, .. } = parts;
        Self { source, coordinator, workers, events: Vec::new(), pulled: 0, handled: 0 }
    }

    /// One look at the source.
    pub fn pull(&mut self) {
        let polled = self.source.poll(self.coordinator.limits(), Duration::ZERO, &mut self.events);
        for event in &self.events {
            if let SourceEvent::Fetched(fetch) = event {
                self.pulled += fetch.messages.len() as u64;
            }
        }
        self.coordinator.step(&mut self.source, &mut self.events, polled, Clock.now());
    }

    /// Looks at the source until it has brought so many more messages.
    pub fn pull_messages(&mut self, messages: u64) {
        let until = self.pulled + messages;
        while self.pulled < until {
            self.pull();
        }
    }

    /// Messages that the listener has had.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    /// Messages that were pulled and that the listener has not had.
    pub fn in_flight(&self) -> u64 {
        self.pulled - self.handled
    }

    /// Each shard handles what it has, `calls` calls at most.
    pub fn handle(&mut self, calls: usize) {
        for worker in &mut self.workers {
            for _ in 0..calls {
                let next = worker.look();
                worker.runner.carry_out();
                if next != Some(Next::Call) {
                    break;
                }
                self.handled += worker.runner.call.len() as u64;
                worker.runner.call_listener();
                worker.runner.settle(Clock.now());
                worker.runner.carry_out_settled();
            }
        }
    }
}

/// Registers, finishes out of order and looks at the watermark.
#[expect(missing_debug_implementations, reason = "no interface")]
pub struct Tracking(Tracker, Instant);

impl Tracking {
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        Self(Tracker::new(Position::ZERO), Clock.now())
    }

    /// So many messages in pulls of 256, each pull finished a word at a time, the last word first.
    pub fn run(&mut self, messages: u64) -> Watermark {
        let Self(tracker, now) = self;
        let until = tracker.position().get() + messages;
        let mut places = Vec::with_capacity(PULL);
        while tracker.position().get() < until {
            for _ in 0..PULL {
                let offset = Offset::new(tracker.position().get()).expect("few messages");
                let bit = tracker.register(offset, 0, *now);
                places.push((Arc::clone(tracker.page()), bit));
            }
            for word in places.rchunks(64) {
                let mut finished = Finished::default();
                word.iter().for_each(|(page, bit)| finished.add(page, *bit));
                finished.flush(&word[0].0);
            }
            places.clear();
        }
        tracker.watermark()
    }
}

/// Commits one watermark after the other.
#[expect(missing_debug_implementations, reason = "no interface")]
pub struct Committing(Committer, FailurePolicy, Random, Instant);

impl Committing {
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        let committer = Committer::new(QueueId::new("bench", 0), None);
        Self(committer, FailurePolicy::default(), Random::new(1), Clock.now())
    }

    /// As many commits, each acknowledged before the next; `from` is the first watermark.
    pub fn run(&mut self, from: u64, commits: u64) -> Option<Watermark> {
        let Self(committer, policy, random, now) = self;
        for watermark in from..from + commits {
            let watermark = Watermark::new(watermark)?;
            let commit = committer.next(watermark, CommitTag(watermark.get()), *now)?;
            committer.answer(&commit, Ok(()), *now, (policy, random));
        }
        committer.acknowledged()
    }
}
