//! The engine on Apache's broker, with the test kit's checkers: every promise is watched while members,
//! locks, offsets and brokers come and go under load.
//!
//! | file | what happens |
//! | --- | --- |
//! | `flow.rs` | many keys, failures, panics, dead letters; 300,000 real messages |
//! | `members.rs` | members are processes: they join, leave, are killed; one of them is Java's |
//! | `operator.rs` | the broker is killed, offsets are reset, a lock runs out |
//!
//! A run is over when the broker itself has the group's offsets at the end of every queue. Only then
//! members stop, and the verdict has to be clean.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keylane::{Consumer, ConsumerBuilder, Mode, Outcome, listen};
use keylane_rocketmq::{Client, Config, Outgoing, RocketMqSource};
use keylane_source::{Message, Offset, QueueId, Source, Watermark};
use keylane_testkit::guarantee::{self, Scope};
use keylane_testkit::recorder::{Recorded, Recorder};

use crate::member::at;
use crate::real::{self, real};

mod flow;
mod lossy;
mod members;
mod operator;

/// A run that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(150);
const LOOK: Duration = Duration::from_millis(20);
/// Long after this, a broker has counted what it has stored.
const COUNTED: Duration = Duration::from_secs(5);
const STOP: Duration = Duration::from_secs(20);
/// So many messages may wait to be handled while more are sent.
const AHEAD: u64 = 1_000;
/// Messages that are sent in one request.
const BATCH: u64 = 50;

/// A topic of this run's own, its group, and what is known of both.
struct Stage {
    server: String,
    client: Client,
    topic: String,
    group: String,
    queues: Vec<QueueId>,
    recorder: Recorder,
}

impl Stage {
    /// On the broker that all tests share.
    fn shared(test: &str, queues: u32, scope: Scope) -> Option<Self> {
        let real = real(test, queues)?;
        let queues = real.route.readable().to_vec();
        let real::Real { server, client, topic, group, .. } = real;
        Some(Self { server, client, topic, group, queues, recorder: Recorder::new(scope) })
    }

    /// On a broker of the test's own.
    fn at(server: String, queues: u32, scope: Scope) -> Self {
        let client = Client::new([server.clone()]).unwrap();
        let (topic, group) = ("t".to_owned(), "g".to_owned());
        let route = client.create_topic(&topic, queues).unwrap();
        let queues = route.readable().to_vec();
        Self { server, client, topic, group, queues, recorder: Recorder::new(scope) }
    }

    fn config(&self) -> Config {
        Config::new([self.server.clone()], self.group.clone())
            .subscribe(self.topic.clone(), "*")
            .retries(false)
    }

    /// A member of the group, in an order of keys, whose listener takes this long for a message.
    fn member(&self, recorder: &Recorder, work: Duration) -> Consumer {
        start(RocketMqSource::new(self.config()).unwrap(), recorder, Mode::KeySharded, work)
    }

    fn committed(&self) -> Vec<Option<u64>> {
        let committed = |queue: &QueueId| self.client.committed(&self.group, *queue);
        let value = |queue| committed(queue).ok().flatten().map(Watermark::get);
        self.queues.iter().map(value).collect()
    }

    /// Waits until the broker has the group's offset of each queue at these ends.
    fn until_committed(&self, ends: &[u64]) {
        until("everything is committed", || {
            let committed = self.committed();
            let is_so = committed.iter().zip(ends).all(|(at, end)| at.unwrap_or(0) == *end);
            if is_so { Ok(()) } else { Err(format!("{committed:?} of {ends:?}")) }
        });
    }

    /// Ends the run: every member stops in peace, and nothing was broken.
    fn end(self, members: Vec<Consumer>, delivered: u64) -> guarantee::Verdict {
        for member in members {
            let report = member.stop(STOP).unwrap();
            assert!(report.all_committed() && report.unfinished == 0, "{report}");
        }
        let verdict = self.recorder.verdict();
        verdict.assert_clean();
        assert_eq!(verdict.delivered, delivered, "{verdict}");
        verdict
    }
}

/// A member of a group whose listener takes this long for a message.
fn start(
    source: impl Source + 'static,
    recorder: &Recorder,
    mode: Mode,
    work: Duration,
) -> Consumer {
    let builder = builder(source, recorder, mode);
    let recorder = recorder.clone();
    let listener = listen::each(move |message: &Message, context| {
        let call = recorder.begin(message, context.shard(), context.attempt());
        std::thread::sleep(work);
        call.settle(guarantee::Outcome::Done);
        Ok(Outcome::Done)
    });
    builder.start(listener).unwrap()
}

fn builder(
    source: impl Source + 'static,
    recorder: &Recorder,
    mode: Mode,
) -> ConsumerBuilder<impl Source + 'static> {
    Consumer::builder(Recorded::new(source, recorder))
        .mode(mode)
        .shards(8)
        .commit_interval(Duration::from_millis(200))
}

/// Writes messages whose keys decide their queues, and says so to the recorder. Nobody else writes,
/// so an offset is known before its message is there.
struct Filler<'a> {
    stage: &'a Stage,
    keys: u64,
    ends: Vec<u64>,
    sent: u64,
}

impl<'a> Filler<'a> {
    fn new(stage: &'a Stage, keys: u64) -> Self {
        Self { stage, keys, ends: vec![0; stage.queues.len()], sent: 0 }
    }

    /// At least so many more messages.
    fn send(&mut self, messages: u64) {
        let end = self.sent + messages;
        while self.sent < end {
            self.round();
        }
    }

    /// Never far ahead of what is handled, so that what waits at the end is little.
    fn send_until(&mut self, over: &AtomicBool, handled: impl Fn() -> u64) {
        while !over.load(Ordering::Acquire) {
            if self.sent < handled() + AHEAD {
                self.round();
            } else {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// The next messages of each queue in turn. Keys come in an order that is not theirs.
    fn round(&mut self) {
        let queues = self.ends.len() as u64;
        for index in 0..queues {
            let keys_of_queue = self.keys / queues;
            let key = |n: u64| index + queues * ((self.sent + n) * 7_919 % keys_of_queue);
            let batch: Vec<Outgoing> = (0..BATCH)
                .map(|n| Outgoing::new(format!("{:040}", n)).key(format!("key-{}", key(n))))
                .collect();
            self.put(usize::try_from(index).unwrap(), &batch);
        }
    }

    /// Sends a batch until it is stored, and stored once: an answer that is lost says neither, and a
    /// broker that is killed while it stores one has stored a part.
    fn put(&mut self, index: usize, batch: &[Outgoing]) {
        let (queue, first) = (self.stage.queues[index], self.ends[index]);
        let end = first + batch.len() as u64;
        self.stage.recorder.produced_range(queue, Offset::new(first).unwrap(), at(end));
        let mut rest = batch;
        until("a batch is stored", || {
            let Err(error) = self.stage.client.send_batch(queue, rest) else { return Ok(()) };
            let stored = self.stored(queue) - first;
            rest = &batch[usize::try_from(stored).unwrap()..];
            if rest.is_empty() { Ok(()) } else { Err(error.to_string()) }
        });
        self.ends[index] = end;
        self.sent += batch.len() as u64;
    }

    /// The end of a queue, once the broker says so and has counted what it has stored.
    fn stored(&self, queue: QueueId) -> u64 {
        let mut known = None;
        until("the broker has counted what it has stored", || {
            let end = self.stage.client.max_offset(queue).map_err(|error| error.to_string())?.get();
            match known {
                Some((before, since)) if before == end => {
                    if Instant::elapsed(&since) < COUNTED {
                        Err(end.to_string())
                    } else {
                        Ok(())
                    }
                }
                _ => {
                    known = Some((end, Instant::now()));
                    Err(end.to_string())
                }
            }
        });
        known.map_or(0, |(end, _)| end)
    }
}

/// Lets messages flow while something happens. `handled`: how many of them were.
fn under_load<T>(
    filler: &mut Filler<'_>,
    handled: impl Fn() -> u64 + Send,
    what: impl FnOnce() -> T,
) -> T {
    /// Also where a test fails the filler has to end.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| filler.send_until(&is_over, handled));
        let over = Over(&is_over);
        let done = what();
        drop(over);
        filling.join().unwrap();
        done
    })
}

/// Waits until something is so that nobody announces; what it gives meanwhile is shown if it never
/// comes.
#[track_caller]
fn until(what: &str, is_so: impl FnMut() -> Result<(), String>) {
    until_within(PATIENCE, what, is_so);
}

#[track_caller]
fn until_within(patience: Duration, what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while let Err(state) = is_so() {
        assert!(start.elapsed() < patience, "not so after {patience:?}: {what}: {state}");
        std::thread::sleep(LOOK);
    }
}

/// Waits until so many messages more have succeeded here.
#[track_caller]
fn until_handled(member: &Consumer, more: u64) {
    let before = member.metrics().succeeded;
    until("messages flow", || {
        let now = member.metrics().succeeded;
        if now >= before + more { Ok(()) } else { Err(format!("{now}, {before} before")) }
    });
}

/// How many of the topic's queues a member reads; the group's retry topic is not counted.
fn reading(member: &Consumer) -> usize {
    let queues = member.metrics().queues;
    queues.iter().filter(|q| q.epoch.is_some() && !q.queue.topic().starts_with('%')).count()
}

/// Waits until a member reads so many of the queues.
#[track_caller]
fn until_reading(member: &Consumer, queues: usize) {
    until("it reads its queues", || {
        let reading = reading(member);
        if reading == queues { Ok(()) } else { Err(format!("{reading}, not {queues}")) }
    });
}
