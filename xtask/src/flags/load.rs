//! The options of `cargo xtask load`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use keylane_testkit::workload::Work;

use super::value;
use crate::outcome::EXIT_STATUS;

const ABOUT: &str = "\
Writes messages into a source, consumes them in a mode or two, checks every guarantee while it
does, and prints what came of it. Without options: the real flights of 2013, through the embedded
log in a temporary folder, key-sharded, with a listener that takes about a millisecond.";

/// The load generator: writes messages, consumes them, checks every guarantee
#[derive(Debug, Clone, Args)]
#[command(long_about = ABOUT, after_help = EXIT_STATUS)]
pub(crate) struct LoadFlags {
    /// How much order is kept [default: every mode that there is; one with --json or --dir:
    /// key-sharded]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<Mode>,

    /// Where the messages are written to and consumed from
    #[arg(long, value_name = "SOURCE", default_value = "log")]
    pub(crate) source: SourceKind,

    /// Messages from a CSV file with a header, plain or gzip, one a row [default: the flights of
    /// 2013, which come along]
    #[arg(long, value_name = "FILE", requires_all = ["key", "queue"])]
    #[arg(conflicts_with_all = ["queues", "keys", "skew", "hot_key", "payload"])]
    pub(crate) input: Option<PathBuf>,

    /// The column of --input that is the key; an empty field: no key
    #[arg(long, value_name = "COLUMN", requires = "input")]
    pub(crate) key: Option<String>,

    /// The column of --input that is the queue: one queue for each of its values, at most 65,536
    #[arg(long, value_name = "COLUMN", requires = "input")]
    pub(crate) queue: Option<String>,

    /// Made-up messages in this many queues, 1 to 65,536 [default: 4]
    #[arg(long, value_name = "Q", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) queues: Option<u32>,

    /// Made-up messages with this many keys, 1 to 10 million [default: 10,000]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) keys: Option<u32>,

    /// Made-up messages whose keys are Zipf-distributed with this exponent, 0 to 10 [default: 0,
    /// all keys alike]
    #[arg(long, value_name = "S", value_parser = value::exponent)]
    pub(crate) skew: Option<f64>,

    /// Made-up messages of which this share, 0 to 1, has one key, and the others are alike
    #[arg(long, value_name = "P", value_parser = value::key_share, conflicts_with = "skew")]
    pub(crate) hot_key: Option<f64>,

    /// Made-up messages with payloads of this many bytes, 0 to 16 MiB [default: 100]
    #[arg(long, value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=16 << 20))]
    pub(crate) payload: Option<u32>,

    /// How many messages [default: all rows of the file; 200,000 made-up ones]
    #[arg(long, value_name = "M", value_parser = value::count)]
    pub(crate) messages: Option<u64>,

    /// How many listener calls run at the same time, each on a thread of its own, 1 to 4,096. The
    /// default is many more than there are queues or cores: the listener waits, as one that calls a
    /// database does, so its threads cost next to nothing
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) shards: u32,

    /// Hands the listener up to this many messages a call, 1 to 65,536; the work is still done for
    /// each message [default: one message a call]
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch: Option<u32>,

    /// How many messages may be pulled and unfinished, 1 to 100 million
    #[arg(long, value_name = "M", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) in_flight: u32,

    /// What the listener does with each message: none, sleep:DURATION or spin:DURATION (it computes
    /// for so long), with us, ms or s, at most an hour
    #[arg(long, value_name = "WORK", default_value = "sleep:1ms", value_parser = value::work)]
    pub(crate) work: Work,

    /// Messages per second that are produced while they are consumed [default: all are written
    /// first, then consumed as fast as it goes]
    #[arg(long, value_name = "R", value_parser = value::rate)]
    pub(crate) rate: Option<f64>,

    /// The share of attempts that fail, 0 to 0.9; a failed message is tried again, after 5 ms
    /// doubling to 100 ms, until it succeeds
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = value::share)]
    pub(crate) fail_rate: f64,

    /// The share of attempts that panic, 0 to 0.9; at most 0.9 together with --fail-rate
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = value::share)]
    pub(crate) panic_rate: f64,

    /// Decides which keys made-up messages get and which attempts fail; the same seed, the same
    /// ones. (Which shard a key belongs to is drawn anew in every process.)
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,

    /// As many messages as are done within a few seconds: ends within 20 s on two cores
    #[arg(long, conflicts_with_all = ["full", "messages"])]
    pub(crate) quick: bool,

    /// All messages in every mode, also where that takes minutes; otherwise modes slower than
    /// key-sharded get a slice
    #[arg(long)]
    pub(crate) full: bool,

    /// Prints one JSON object on standard output, and nothing else there; one mode
    #[arg(long)]
    pub(crate) json: bool,

    /// Where the report goes, one HTML file that needs nothing beside it [default:
    /// keylane/load.html in the target folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Keeps the log in this folder: a run that was killed goes on where it had committed; one that
    /// had ended starts over. One mode; --source log only
    #[arg(long, value_name = "DIR", conflicts_with = "full")]
    pub(crate) dir: Option<PathBuf>,

    /// Breaks a guarantee on purpose, to see that it is noticed
    #[arg(long = "break", value_name = "WHAT", hide = true)]
    pub(crate) break_on_purpose: Option<Break>,
}

/// How much order is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Order per key, any number of threads
    KeySharded,
    /// Order per queue, at most one call a queue
    QueueLocked,
    /// No order
    Concurrent,
}

/// Where messages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SourceKind {
    /// The embedded log: durable, no broker needed
    Log,
    /// Memory: nothing but the engine
    Memory,
    /// A Kafka broker (`cargo xtask brokers up kafka`)
    Kafka,
    /// A RocketMQ broker (`cargo xtask brokers up rocketmq`)
    Rocketmq,
}

/// Which guarantee is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Break {
    /// A message is reported as done and was never handled
    Loss,
    /// Two messages of a key are handled the wrong way round
    Order,
    /// A commit passes an unfinished message
    Commit,
}
