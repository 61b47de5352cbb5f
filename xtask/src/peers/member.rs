//! Keylane as a contestant: a process of its own that reads a topic as a group's only member.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use keylane::{Consumer, Outcome, listen};
use keylane_source::Source;
use keylane_testkit::workload::Work;

use super::tally::Tally;
use super::{Printed, measured};
use crate::flags::{Broker, Mode};
use crate::outcome::{Ended, Failure};

const STOP_WITHIN: Duration = Duration::from_secs(20);

/// One consumer, as `peers` runs it. Prints one JSON object
#[derive(Debug, Args)]
pub(crate) struct MemberFlags {
    /// Whose topic
    broker: Broker,
    /// Where the broker answers
    #[arg(long)]
    address: String,
    #[arg(long)]
    topic: String,
    #[arg(long)]
    group: String,
    #[arg(long)]
    mode: Mode,
    #[arg(long)]
    queues: u32,
    /// How many there are in the topic
    #[arg(long)]
    messages: u64,
    #[arg(long)]
    threads: usize,
    /// What is done with each message, in microseconds of sleep
    #[arg(long)]
    work: u64,
    /// After so many seconds it ends, finished or not
    #[arg(long)]
    seconds: u64,
}

/// The task.
pub(crate) fn run(flags: &MemberFlags) -> Ended {
    let (tally, all) = Tally::new(flags.queues, flags.messages);
    let tally = Arc::new(tally);
    let work = match flags.work {
        0 => Work::None,
        micros => Work::Sleep(Duration::from_micros(micros)),
    };
    let counting = Arc::clone(&tally);
    let listener = listen::each(move |message, _| {
        work.run();
        counting.note(message);
        Ok(Outcome::Done)
    });
    let mode = match flags.mode {
        Mode::KeySharded => keylane::Mode::KeySharded,
        Mode::QueueLocked => keylane::Mode::QueueLocked,
        Mode::Concurrent => keylane::Mode::Concurrent,
    };
    let before = measured::own_cpu_seconds();
    let builder = Consumer::builder(source(flags)?).mode(mode).shards(flags.threads);
    let consumer = builder.start(listener);
    let consumer = consumer.map_err(|error| Failure::other("start the consumer", error))?;
    // Finished or not: what has come is what is shown.
    let _ = all.recv_timeout(Duration::from_secs(flags.seconds));
    let cpu_s = measured::own_cpu_seconds() - before;
    let total = tally.total();
    let stopped = consumer.stop(STOP_WITHIN);
    stopped.map_err(|error| Failure::other("stop the consumer", error))?;
    let printed = Printed {
        delivered: total.delivered,
        elapsed_s: total.elapsed.as_secs_f64(),
        order_violations: total.order_violations,
        duplicates: total.duplicates,
        cpu_s,
    };
    let line = serde_json::to_string(&printed);
    let line = line.map_err(|error| Failure::other("write the result", error))?;
    let written = writeln!(std::io::stdout(), "{line}");
    written.map_err(|error| Failure::other("write the result", error))
}

fn source(flags: &MemberFlags) -> Ended<Box<dyn Source>> {
    match flags.broker {
        #[cfg(feature = "rocketmq")]
        Broker::Rocketmq => super::rocketmq::source(&flags.address, &flags.topic, &flags.group),
        #[cfg(feature = "kafka")]
        Broker::Kafka => super::kafka::source(&flags.address, &flags.topic, &flags.group),
        #[cfg(not(all(feature = "kafka", feature = "rocketmq")))]
        missing => Err(super::build_with(missing)),
    }
}
