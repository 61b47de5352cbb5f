//! The engine's options: any numbers, durations and names for all of them.

use std::time::Duration;

use bytes::Bytes;
use keylane::{
    Consumer, ConsumerBuilder, Exhausted, FailurePolicy, Mode, NoKey, OutOfRange, Outcome,
    StartFrom, listen,
};
use keylane_testkit::memory::{MemorySource, MemoryTopic};

/// How long a consumer of three messages may take to stop.
const STOP: Duration = Duration::from_secs(40);

/// Each option is a number that names it and what it is set to. What is refused is refused before
/// anything was started, by the name of an option that was set. With what is accepted a consumer
/// handles three messages and stops well, if that costs little.
///
/// # Panics
///
/// Where any of that is not so.
pub(crate) fn options(bytes: &[u8]) {
    let messages = ["a", "b", "a"].map(|key| (key, Bytes::from_static(b"payload")));
    let queue = keylane::QueueId::new("fuzz", 0);
    let messages = (0..).zip(messages).map(|(at, (key, payload))| {
        let offset = keylane::Offset::new(at).expect("a small number");
        keylane::Message::new(queue, offset).with_key(key).with_payload(payload)
    });
    let topic = MemoryTopic::from_messages(messages);
    let mut given = Given { bytes, set: Vec::new(), small: Small::default() };
    let mut builder = Consumer::builder(topic.source());
    let orderly = given.byte() == Some(1);
    while let Some(option) = given.byte() {
        builder = given.set(builder, option);
    }
    if let Err(error) = builder.check(orderly) {
        let text = error.to_string();
        let named = given.set.iter().any(|option| text.contains(option));
        return assert!(error.is_config() && named, "{:?} were set: {text}", given.set);
    }
    if !given.small.is_small() {
        return;
    }
    let started = match orderly {
        true => builder.start(listen::orderly(|_, _| keylane::OrderlyStatus::Success)),
        false => builder.start(listen::each(|_, _| Ok(Outcome::Done))),
    };
    let consumer = started.expect("they were accepted");
    let stopped = consumer.stop(STOP);
    assert!(stopped.is_ok(), "{stopped:?}");
}

/// What is left of the input, and what came of it so far.
struct Given<'a> {
    bytes: &'a [u8],
    /// As errors name them.
    set: Vec<&'static str>,
    small: Small,
}

/// What decides whether a consumer is cheap to start.
struct Small {
    shards: usize,
    channel: usize,
    stack: usize,
}

impl Default for Small {
    fn default() -> Self {
        Self { shards: 16, channel: 1_024, stack: 2 << 20 }
    }
}

impl Small {
    /// Few threads and channels; and stacks on which code that was built to be watched has room.
    fn is_small(&self) -> bool {
        self.shards <= 4 && self.channel <= 4_096 && (1 << 20..=4 << 20).contains(&self.stack)
    }
}

impl Given<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// A number of at most so many bytes as its first one says, missing ones are zero.
    fn number(&mut self) -> u64 {
        let length = self.byte().unwrap_or_default() % 9;
        (0..length).fold(0, |number, _| number << 8 | u64::from(self.byte().unwrap_or_default()))
    }

    fn size(&mut self) -> usize {
        usize::try_from(self.number()).unwrap_or(usize::MAX)
    }

    /// Of any length, in one of several units.
    fn duration(&mut self) -> Duration {
        let unit = self.byte().unwrap_or_default() % 4;
        let number = self.number();
        match unit {
            0 => Duration::from_nanos(number),
            1 => Duration::from_millis(number),
            2 => Duration::from_secs(number),
            _ => Duration::MAX,
        }
    }

    fn text(&mut self) -> String {
        let length = usize::from(self.byte().unwrap_or_default()).min(self.bytes.len());
        let (text, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        String::from_utf8_lossy(text).into_owned()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte().unwrap_or_default()) % from.len()]
    }

    /// Sets one option.
    fn set(
        &mut self,
        builder: ConsumerBuilder<MemorySource>,
        option: u8,
    ) -> ConsumerBuilder<MemorySource> {
        let (name, builder) = match option % 25 {
            0 => {
                let modes = [Mode::KeySharded, Mode::QueueLocked, Mode::Concurrent];
                ("mode", builder.mode(self.pick(&modes)))
            }
            1 => {
                self.small.shards = self.size();
                ("shards", builder.shards(self.small.shards))
            }
            2 => {
                self.small.channel = self.size();
                ("channel_capacity", builder.channel_capacity(self.small.channel))
            }
            3 => ("batch_max", builder.batch_max(self.size())),
            4 => ("linger", builder.linger(self.duration())),
            5 => ("fetch_max", builder.fetch_max(self.size())),
            6 => ("fetch_bytes_max", builder.fetch_bytes_max(self.size())),
            7 => ("in_flight_max", builder.in_flight_max(self.size())),
            8 => ("in_flight_bytes_max", builder.in_flight_bytes_max(self.size())),
            9 => ("queue_in_flight_max", builder.queue_in_flight_max(self.size())),
            10 => ("span_max", builder.span_max(self.number())),
            11 => ("commit_interval", builder.commit_interval(self.duration())),
            12 => ("commit_count", builder.commit_count(self.number())),
            13 => ("revoke_timeout", builder.revoke_timeout(self.duration())),
            14 => ("stop_timeout", builder.stop_timeout(self.duration())),
            15 => ("stall_after", builder.stall_after(self.duration())),
            16 => ("thread_name", builder.thread_name(self.text())),
            17 => {
                self.small.stack = self.size();
                ("stack_size", builder.stack_size(self.small.stack))
            }
            18 => ("failure.", builder.failure(self.policy())),
            _ => return self.set_choice(builder, option),
        };
        self.set.push(name);
        builder
    }

    /// Options that are one of few.
    fn set_choice(
        &mut self,
        builder: ConsumerBuilder<MemorySource>,
        option: u8,
    ) -> ConsumerBuilder<MemorySource> {
        let (name, builder) = match option % 25 {
            19 => {
                let milliseconds = self.number().cast_signed();
                let all =
                    [StartFrom::Earliest, StartFrom::Latest, StartFrom::TimestampMs(milliseconds)];
                ("start_from", builder.start_from(self.pick(&all)))
            }
            20 => {
                let all = [OutOfRange::Earliest, OutOfRange::Latest, OutOfRange::Fail];
                ("out_of_range", builder.out_of_range(self.pick(&all)))
            }
            21 => {
                let all = [NoKey::OneLane, NoKey::ByQueue, NoKey::Spread];
                ("no_key", builder.no_key(self.pick(&all)))
            }
            22 => ("route_by", builder.route_by(|message| Ok(message.key_bytes().cloned()))),
            23 => ("queue_locks", builder.queue_locks(self.pick(&[true, false]))),
            _ => ("hide_keys", builder.hide_keys(self.pick(&[true, false]))),
        };
        self.set.push(name);
        builder
    }

    fn policy(&mut self) -> FailurePolicy {
        let all = [Exhausted::DeadLetter, Exhausted::Skip, Exhausted::Stop];
        let policy = FailurePolicy::default()
            .backoff(self.duration(), self.duration())
            .jitter(f64::from_bits(self.number()))
            .then(self.pick(&all));
        match u32::try_from(self.number()) {
            Ok(attempts) => policy.attempts_max(attempts),
            Err(_) => policy,
        }
    }
}
