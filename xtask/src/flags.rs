//! The command line, declared once.

mod load;
mod value;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use load::{Break, LoadFlags, Mode, SourceKind};
pub(crate) use value::work_duration;

use crate::bugs::BugsFlags;
use crate::crash::{CrashFlags, WorkerFlags};
use crate::integration::IntegrationFlags;
use crate::outcome::{EXIT_STATUS, Ended, Failure};
use crate::peers::{MemberFlags, PeersFlags};
use crate::sim::SimFlags;

/// Keylane's tasks: the load generator, brokers for tests, and every check of the project
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", after_help = EXIT_STATUS, arg_required_else_help = true)]
pub(crate) struct Xtask {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    Load(Box<LoadFlags>),
    Compare(CompareFlags),
    Brokers(BrokersFlags),
    Integration(IntegrationFlags),
    Sim(SimFlags),
    Bugs(BugsFlags),
    Crash(CrashFlags),
    #[command(hide = true)]
    CrashWorker(WorkerFlags),
    Peers(PeersFlags),
    #[command(hide = true)]
    Peer(MemberFlags),
    /// Checks what the compiler does not: module documents, lengths, banned words, who reads the
    /// clock and who makes threads
    #[command(after_help = EXIT_STATUS)]
    Tidy,
    Ci(CiFlags),
}

/// The same messages in every mode, over threads (1 to 128), work (none, 1 ms of sleep, 10 µs of
/// computing) and skew of the keys; every run with its checkers on. A table, and a report with
/// pictures
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct CompareFlags {
    /// Fewer threads, less work, no skew: under a minute
    #[arg(long)]
    pub(crate) quick: bool,
    /// One JSON object a run on standard output, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the report goes [default: target/keylane/compare.html]
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<std::path::PathBuf>,
    /// Writes the pictures of throughput and latency into this folder, too
    #[arg(long, value_name = "FOLDER")]
    pub(crate) svg: Option<std::path::PathBuf>,
    /// What keys, order and sizes are drawn from
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Starts, stops and shows real brokers on this machine, for tests: on loopback, with little
/// memory, fetched by Maven, without containers
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct BrokersFlags {
    /// What to do
    pub(crate) action: BrokersAction,
    /// Which broker; both when not given
    pub(crate) broker: Option<Broker>,
    /// Where it lives, with its data, configuration and log; for more than one of a kind [default:
    /// brokers/BROKER below the target folder]
    #[arg(long, value_name = "FOLDER", requires = "broker")]
    pub(crate) folder: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub(crate) version: VersionFlag,
}

/// Which broker of RocketMQ's is meant, where one is.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct VersionFlag {
    /// RocketMQ's version, each in a folder of its own; 4.9.7 listens on every interface, and
    /// nothing can be set about it [default: 5.3.3]
    #[arg(long = "version", value_name = "VERSION", requires = "broker")]
    version: Option<RocketmqVersion>,
}

impl VersionFlag {
    /// The version of this broker.
    pub(crate) fn of(self, broker: Broker) -> Ended<RocketmqVersion> {
        match (broker, self.version) {
            (Broker::Kafka, Some(version)) => {
                let text = format!("--version {}: only rocketmq has versions", version.name());
                Err(Failure::usage(text))
            }
            (_, version) => Ok(version.unwrap_or_default()),
        }
    }
}

/// The versions of RocketMQ's broker that are tested: one of each line that is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RocketmqVersion {
    #[value(name = "4.9.7")]
    Before5,
    #[default]
    #[value(name = "5.3.3")]
    Latest,
}

impl RocketmqVersion {
    /// As Maven knows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Before5 => "4.9.7",
            Self::Latest => "5.3.3",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BrokersAction {
    /// Fetches, starts and waits until it answers; nothing if it runs already
    Up,
    /// Stops it by its process id
    Down,
    /// Says whether it runs, and where
    Status,
    /// Kills it as a crash would, and starts it again
    Restart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Broker {
    Kafka,
    Rocketmq,
}

/// Every check that a change must pass, in order; stops at the first that fails, and names it
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct CiFlags {
    /// The long forms too: more seeds, more rounds, longer fuzzing
    #[arg(long)]
    pub(crate) deep: bool,
    /// Only the stages whose names contain this; all when not given
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// Prints the names of the stages and ends
    #[arg(long)]
    pub(crate) list: bool,
}
