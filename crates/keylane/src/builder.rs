//! One documented method per option.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_source::{DeadLetterSink, Message, Source};

use crate::config::{Config, FailurePolicy, Mode, NoKey, OutOfRange, StartFrom};
use crate::consumer::Consumer;
use crate::error::Error;
use crate::listener::IntoListener;
use crate::observer::Observer;
use crate::outcome::BoxError;

/// Sets the options of a [`Consumer`]; made by [`Consumer::builder`].
///
/// Nothing is checked and nothing is started before [`start`](Self::start), which rejects options
/// that cannot work by a sentence with the option's name, its value and the allowed range.
#[must_use]
pub struct ConsumerBuilder<S> {
    source: S,
    config: Config,
    sink: Option<Box<dyn DeadLetterSink>>,
}

impl<S: Source + 'static> ConsumerBuilder<S> {
    pub(crate) fn new(source: S) -> Self {
        Self { source, config: Config::default(), sink: None }
    }

    /// How much order is kept. Default [`Mode::KeySharded`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.config.mode = mode;
        self
    }

    /// How many shards there are, each with a thread of its own: how many listener calls run at the
    /// same time. Default 16; 1 to 4,096. For listeners that wait (for a database, for a service)
    /// many more than there are cores; for listeners that compute, about as many.
    pub fn shards(mut self, shards: usize) -> Self {
        self.config.shards = shards;
        self
    }

    /// How many messages may wait in the channel of one shard. Default 1,024; 1 to 1,048,576, and
    /// 16,777,216 for all shards together: channels are allocated at the start. What
    /// does not fit waits in front of it, so this bounds hand-off latency and not what is in flight.
    /// The memory for it, about 120 bytes a message and shard, is taken at the start. No effect in
    /// queue-locked mode, which has no channels.
    pub fn channel_capacity(mut self, messages: usize) -> Self {
        self.config.channel_capacity = messages;
        self
    }

    /// How many messages one listener call gets at most. Default 32; 1 to 65,536. A maximum: a call
    /// gets what is there. For listeners per message it only says how often the thread looks for
    /// new messages.
    pub fn batch_max(mut self, messages: usize) -> Self {
        self.config.batch_max = messages;
        self
    }

    /// How long a batch that is not full waits for more messages. Default zero: not at all; at most
    /// 1 h. Every message of a small batch pays this delay.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.config.linger = linger;
        self
    }

    /// How many messages one fetch of a queue may bring. Default 512; 1 to 1,048,576.
    pub fn fetch_max(mut self, messages: usize) -> Self {
        self.config.fetch_max = messages;
        self
    }

    /// How many bytes one fetch of a queue may bring. Default 4 MiB; 1 byte to 1 TiB.
    pub fn fetch_bytes_max(mut self, bytes: usize) -> Self {
        self.config.fetch_bytes_max = bytes;
        self
    }

    /// How many messages may be in flight (pulled and not finished), over all queues. Default
    /// 10,000; 1 to 100 million. Half of it is divided among the assigned queues as a reserve (at
    /// least one message each), half is shared, so that stuck queues cannot starve the others.
    pub fn in_flight_max(mut self, messages: usize) -> Self {
        self.config.in_flight_max = messages;
        self
    }

    /// How many bytes of key, payload and headers may be in flight, over all queues. Default 64 MiB;
    /// 1 byte to 1 TiB. Divided as [`in_flight_max`](Self::in_flight_max) is. A message that is larger
    /// than its queue's part is admitted once nothing else of that queue is in flight; one that is
    /// larger than all of it is admitted alone, which the traffic of other queues can put off: choose
    /// it larger than any message. The event [`Held`](crate::Event::Held) names one that waits.
    pub fn in_flight_bytes_max(mut self, bytes: usize) -> Self {
        self.config.in_flight_bytes_max = bytes;
        self
    }

    /// How many messages of one queue may be in flight. Default: no bound of its own; at least 1, at
    /// most [`in_flight_max`](Self::in_flight_max).
    pub fn queue_in_flight_max(mut self, messages: usize) -> Self {
        self.config.queue_in_flight_max = Some(messages);
        self
    }

    /// How many messages of a queue may have been pulled behind its first unfinished one, finished
    /// or not. Default 100,000; 1 to 2^32. It bounds what a restart delivers again, and the memory
    /// of the queue's tracker.
    pub fn span_max(mut self, messages: u64) -> Self {
        self.config.span_max = messages;
        self
    }

    /// How often watermarks are committed. Default 1 s; 1 ms to 1 h. Only what has changed is
    /// committed.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.config.commit_interval = interval;
        self
    }

    /// Commits a queue as soon as this many of its messages have been finished since the last
    /// commit, without waiting for the interval. Default: off; at least 1.
    pub fn commit_count(mut self, messages: u64) -> Self {
        self.config.commit_count = Some(messages);
        self
    }

    /// Where a queue starts for which nothing has been committed. Default
    /// [`StartFrom::Earliest`].
    pub fn start_from(mut self, start: StartFrom) -> Self {
        self.config.start_from = start;
        self
    }

    /// What to do when the position to read from does not exist. Default [`OutOfRange::Earliest`].
    pub fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.config.out_of_range = policy;
        self
    }

    /// What becomes of messages without a key. Default [`NoKey::OneLane`].
    pub fn no_key(mut self, policy: NoKey) -> Self {
        self.config.no_key = policy;
        self
    }

    /// Decides the routing key of a message, in place of its own key; `None` is treated as an absent
    /// key is.
    ///
    /// The function must answer the same for the same message, and must not use the consumer's
    /// handle. An error or a panic of it is a failed attempt of that message, which then waits on
    /// the shard of `"__nokey"`; since the answer would be the same again, later attempts fail too,
    /// until the failure policy gives the message up.
    pub fn route_by(
        mut self,
        route: impl Fn(&Message) -> Result<Option<Bytes>, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.config.route_by = Some(Arc::new(route));
        self
    }

    /// What becomes of failed attempts. Default: again, for ever.
    pub fn failure(mut self, policy: FailurePolicy) -> Self {
        self.config.failure = policy;
        self
    }

    /// Where messages go that are given up. Default: nowhere, and none may be. The sink has a thread
    /// of its own.
    pub fn dead_letters(mut self, sink: impl DeadLetterSink + 'static) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// How long a queue that the group takes away may finish what runs. Default 10 s; 1 ms to 1 h.
    /// It has to be shorter than the group's own patience (Kafka: `session.timeout.ms` and
    /// `max.poll.interval.ms`).
    pub fn revoke_timeout(mut self, timeout: Duration) -> Self {
        self.config.revoke_timeout = timeout;
        self
    }

    /// The deadline of stops that are asked for without one: by a listener, a [`Stopper`], a fatal
    /// error of the source, a drop. Default 30 s; 1 ms to 1 h.
    ///
    /// [`Stopper`]: crate::Stopper
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.config.stop_timeout = timeout;
        self
    }

    /// How long a listener call, or a ticket, may run before it is reported as stalled, and how long a
    /// queue may wait to be read (for its lock, or for its committed offset) before that is. Default
    /// 60 s; 1 ms to 24 h. Nothing is interrupted.
    pub fn stall_after(mut self, after: Duration) -> Self {
        self.config.stall_after = after;
        self
    }

    /// Whether the source's locks on queues are used, where it has them. Default `true`. Without
    /// them two members that both believe to own a queue (a rebalance under way) both deliver it.
    pub fn queue_locks(mut self, use_them: bool) -> Self {
        self.config.queue_locks = use_them;
        self
    }

    /// Whether keys are left out of logs, events, reports and health. Default `false`. Payloads
    /// never appear there.
    pub fn hide_keys(mut self, hide: bool) -> Self {
        self.config.hide_keys = hide;
        self
    }

    /// The first part of the names of threads. Default `"keylane"`: `keylane-source`,
    /// `keylane-shard-3`.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.config.thread_name = name.into();
        self
    }

    /// The stack of each shard's thread, in bytes. Default 2 MiB; 16 KiB to 1 GiB.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.config.stack_size = bytes;
        self
    }

    /// Who is told of events, beside the log.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.config.observer = Some(Arc::new(observer));
        self
    }

    /// Replaces the hash of routing keys, so that a test knows which key goes to which shard. The
    /// default is `ahash` with a random seed per process: nobody outside can choose keys that all
    /// meet in one shard, and the hash has nothing to do with the one that dealt keys to queues.
    #[doc(hidden)]
    pub fn hasher(mut self, hash: impl Fn(&[u8]) -> u64 + Send + Sync + 'static) -> Self {
        self.config.hasher = Some(Arc::new(hash));
        self
    }

    /// What [`start`](Self::start) checks before it starts anything. `orderly`: the listener handles
    /// one lane a call.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`].
    #[doc(hidden)]
    pub fn check(&self, orderly: bool) -> Result<(), Error> {
        self.config.check(self.sink.is_some(), orderly)
    }

    /// Checks the options, then starts the threads and begins to consume.
    ///
    /// `listener` is what [`listen`](crate::listen) makes: a closure per message, a closure per
    /// batch, or one instance per shard.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] before anything has been started; otherwise a thread that the operating
    /// system refused, after what had been started was ended.
    pub fn start(self, listener: impl IntoListener) -> Result<Consumer, Error> {
        let factory = listener.into_factory();
        self.check(factory.one_lane)?;
        if cfg!(panic = "abort") {
            log::warn!(
                "the profile says panic = \"abort\": a panicking listener ends the process, and is \
                 not a failed attempt"
            );
        }
        Consumer::start(Box::new(self.source), self.config, self.sink, factory)
    }
}

impl<S> fmt::Debug for ConsumerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("mode", &self.config.mode)
            .field("shards", &self.config.shards)
            .finish_non_exhaustive()
    }
}
