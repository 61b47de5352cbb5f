//! What a run draws from its seed before it begins: how large everything is, which options the
//! consumers have, and which faults there are. Small is likelier than large: capacities of one are
//! where wake-ups are lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_source::Message;
use keylane_testkit::guarantee;

use super::faults::Faults;
use super::random::Random;
use crate::config::{Config, Exhausted, FailurePolicy, Mode, NoKey, OutOfRange, StartFrom};
use crate::observer::Observer;
use crate::pipeline::SLICE;

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// See the module's description.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) processes: usize,
    pub(super) queues: usize,
    /// How many messages are produced, over the whole run.
    pub(super) messages: u64,
    /// For how long there are faults.
    pub(super) chaos: Duration,
    pub(super) keys: Arc<[Bytes]>,
    /// How often a message has the first key, and none.
    pub(super) hot_key: f64,
    pub(super) no_key: f64,
    pub(super) empty_key: f64,
    /// Bytes of payload, at most.
    pub(super) payload_max: usize,
    /// How often an offset holds no message.
    pub(super) hole: f64,
    pub(super) per_message: bool,
    /// The listener has RocketMQ's shape; how often a call of it is not to commit by itself.
    pub(super) orderly: Option<f64>,
    pub(super) has_sink: bool,
    /// The user's routing function, where there is one.
    pub(super) routes: bool,
    pub(super) locks: Option<Locks>,
    /// How long a listener call takes, mostly.
    pub(super) call: (Duration, Duration),
    /// How long the source takes for a fetch, an answer, a commit.
    pub(super) latency: (Duration, Duration),
    /// How long the group waits for a queue to be given back.
    pub(super) patience: (Duration, Duration),
    pub(super) options: Config,
    pub(super) faults: Faults,
}

/// How the broker's locks work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Locks {
    /// What the source says about how long one may be trusted.
    pub(super) lease: Duration,
    /// When the broker lets go of it.
    pub(super) expiry: Duration,
}

impl Plan {
    pub(super) fn draw(seed: u64, random: &mut Random) -> Self {
        let mut per_message = random.chance(0.6);
        let has_sink = random.chance(0.5);
        let mut options = draw_options(seed, has_sink, random);
        // What cannot be routed fails for ever, so it needs a policy that gives it up.
        let gives_up =
            options.failure.attempts_max.is_some() && options.failure.exhausted != Exhausted::Stop;
        let has_keys = options.mode == Mode::KeySharded;
        let routes = gives_up && random.chance(0.3) && has_keys;
        if routes {
            options.route_by = Some(Arc::new(route));
        }
        let latency = random.time(MS / 10, 50 * MS);
        let locks = random.chance(0.35).then(|| {
            // A lease that is over when its grant arrives is none.
            let lease = random.time(6 * latency + 100 * MS, 30 * SECOND);
            Locks { lease, expiry: lease + random.time(MS, lease) }
        });
        let key_count = random.pick(&[1, 2, 5, 30, 300]);
        let large = random.chance(0.1);
        let may_be_orderly = options.mode != Mode::Concurrent && random.chance(0.25);
        let orderly = may_be_orderly.then(|| random.pick(&[0.0, 0.3, 0.9]));
        per_message &= orderly.is_none();
        Self {
            processes: random.pick(&[1, 1, 2, 2, 3]),
            queues: random.pick(&[1, 2, 3, 6]),
            messages: random.between(50, if large { 4_000 } else { 600 }),
            chaos: random.time(200 * MS, 60 * SECOND),
            keys: (0..key_count).map(|n| Bytes::from(format!("key-{n}"))).collect(),
            hot_key: random.pick(&[0.0, 0.0, 0.3, 0.8]),
            no_key: random.pick(&[0.0, 0.1, 0.9]),
            empty_key: random.pick(&[0.0, 0.05]),
            payload_max: random.pick(&[0, 20, 300]),
            hole: random.pick(&[0.0, 0.0, 0.1, 0.6]),
            per_message,
            orderly,
            has_sink,
            routes,
            locks,
            call: (Duration::from_micros(1), random.time(10 * MS / 1_000, 50 * MS)),
            latency: (Duration::from_micros(10), latency),
            patience: (options.revoke_timeout, options.revoke_timeout * 3 + SECOND),
            faults: Faults::draw(random),
            options,
        }
    }

    /// For whoever reads about a failure.
    pub(super) fn in_words(&self) -> String {
        let Self { processes, queues, messages, chaos, per_message, has_sink, routes, .. } = self;
        let Self { orderly, locks, call, latency, patience, options, faults, .. } = self;
        let Config { mode, slice, shards, channel_capacity, batch_max, linger, fetch_max, .. } =
            options;
        let Config { in_flight_max, in_flight_bytes_max, queue_in_flight_max, .. } = options;
        let Config { span_max, commit_interval, commit_count, start_from, .. } = options;
        let Config { out_of_range, no_key, failure, revoke_timeout, stop_timeout, .. } = options;
        format!(
            "{mode:?}, {processes} processes, {queues} queues, {messages} messages, \
             faults for {chaos:?}, \
             per message {per_message}, orderly {orderly:?}, \
             sink {has_sink}, routes {routes}, locks {locks:?}, calls \
             {call:?}, latency {latency:?}, patience {patience:?}\n\
             shards {shards}, slice {slice:?}, channel {channel_capacity}, batch {batch_max}, \
             linger {linger:?}, \
             fetch {fetch_max}, in flight {in_flight_max} ({in_flight_bytes_max} bytes, queue \
             {queue_in_flight_max:?}), span {span_max}, commit {commit_interval:?} \
             {commit_count:?}, start {start_from:?}, out of range {out_of_range:?}, no key \
             {no_key:?}, revoke {revoke_timeout:?}, stop {stop_timeout:?}, {failure:?}\n{faults:?}"
        )
    }

    /// The options of one process.
    pub(super) fn config(&self, process: u64, observer: Arc<dyn Observer>) -> Config {
        let seed = self.options.seed.wrapping_add(process);
        let hasher = move |key: &[u8]| hash(key, seed);
        Config {
            observer: Some(observer),
            hasher: Some(Arc::new(hasher)),
            seed,
            ..self.options.clone()
        }
    }

    /// In which scope the guarantees hold.
    pub(super) fn scope(&self) -> guarantee::Scope {
        use guarantee::{Lane, NoKey as Spec, Scope};
        let no_key = match self.options.no_key {
            NoKey::OneLane => Spec::Shared,
            NoKey::ByQueue => Spec::ByQueue,
            NoKey::Spread => Spec::Spread,
        };
        match self.options.mode {
            Mode::QueueLocked => Scope::Queue,
            Mode::Concurrent => Scope::Free,
            Mode::KeySharded if !self.routes => Scope::Key(no_key),
            Mode::KeySharded => Scope::routed(move |message| match routed_key(message) {
                None => Lane::key(guarantee::NO_KEY),
                Some(None) => {
                    let keyless = Message::new(message.queue(), message.offset());
                    Scope::Key(no_key).lane(&keyless)
                }
                Some(Some(key)) if key.is_empty() => Lane::key(guarantee::NO_KEY),
                Some(Some(key)) => Lane::Key(key),
            }),
        }
    }
}

fn draw_options(seed: u64, has_sink: bool, random: &mut Random) -> Config {
    let mode = random.pick(&[
        Mode::KeySharded,
        Mode::KeySharded,
        Mode::KeySharded,
        Mode::QueueLocked,
        Mode::Concurrent,
    ]);
    let no_key = random.pick(&[NoKey::OneLane, NoKey::ByQueue, NoKey::Spread]);
    let in_flight_max = random.pick(&[1, 2, 7, 30, 200, 2_000]);
    let start_from = random.pick(&[
        StartFrom::Earliest,
        StartFrom::Earliest,
        StartFrom::Latest,
        StartFrom::TimestampMs(20),
    ]);
    Config {
        mode,
        slice: random.pick(&[SLICE, 20 * MS, Duration::ZERO]),
        shards: random.pick(&[1, 2, 3, 7]),
        channel_capacity: random.pick(&[1, 1, 2, 5, 64, 1_024]),
        batch_max: random.pick(&[1, 1, 2, 5, 32]),
        linger: random.pick(&[Duration::ZERO, Duration::ZERO, MS, 40 * MS]),
        fetch_max: random.pick(&[1, 3, 20, 64, 512]),
        fetch_bytes_max: random.pick(&[1, 500, 1 << 20]),
        in_flight_max,
        in_flight_bytes_max: random.pick(&[100, 2_000, 1 << 20, 1 << 20]),
        queue_in_flight_max: random.chance(0.2).then(|| random.index(in_flight_max) + 1),
        span_max: random.pick(&[1, 2, 10, 63, 64, 65, 600, 100_000]),
        commit_interval: random.pick(&[MS, 20 * MS, SECOND, 5 * SECOND]),
        commit_count: random.pick(&[None, None, Some(1), Some(10)]),
        start_from,
        out_of_range: random.pick(&[
            OutOfRange::Earliest,
            OutOfRange::Earliest,
            OutOfRange::Latest,
            OutOfRange::Fail,
        ]),
        // The other modes have no routing keys.
        no_key: if mode == Mode::KeySharded { no_key } else { NoKey::OneLane },
        failure: draw_policy(has_sink, random),
        revoke_timeout: random.time(MS, 10 * SECOND),
        stop_timeout: random.time(50 * MS, 20 * SECOND),
        stall_after: random.time(10 * MS, 60 * SECOND),
        hide_keys: random.chance(0.2),
        seed,
        ..Config::default()
    }
}

fn draw_policy(has_sink: bool, random: &mut Random) -> FailurePolicy {
    let first = random.time(MS, 200 * MS);
    let policy = FailurePolicy::default()
        .backoff(first, first * random.pick(&[1, 4, 50]))
        .jitter(random.pick(&[0.0, 0.2, 1.0]));
    if random.chance(0.5) {
        return policy;
    }
    let exhausted = if has_sink { Exhausted::DeadLetter } else { Exhausted::Skip };
    let exhausted = random.pick(&[exhausted, exhausted, Exhausted::Skip, Exhausted::Stop]);
    policy.attempts_max(random.pick(&[1, 2, 5])).then(exhausted)
}

/// FNV-1a with a seed: which key goes to which shard has to be the same on every processor.
fn hash(key: &[u8], seed: u64) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
    key.iter().fold(0xCBF2_9CE4_8422_2325 ^ seed, fold) >> 7
}

/// The routing function of users who have one: two keys share a lane, some messages have none, and
/// a few cannot be routed.
fn route(message: &Message) -> Result<Option<Bytes>, crate::BoxError> {
    match routed_key(message) {
        Some(key) => Ok(key),
        None if message.offset().get().is_multiple_of(2) => Err("no route".into()),
        // Not `panic!`: the hook would write to the terminal.
        None => std::panic::resume_unwind(Box::new("no route, loudly")),
    }
}

/// `None`: it cannot be routed.
fn routed_key(message: &Message) -> Option<Option<Bytes>> {
    match (message.offset().get() % 37, message.key_bytes()) {
        (5 | 24, _) => None,
        (7, _) | (_, None) => Some(None),
        (_, Some(key)) => {
            // An empty key has no last digit, and stays empty: it is a key.
            Some(Some(key.slice(..key.len().saturating_sub(1))))
        }
    }
}
