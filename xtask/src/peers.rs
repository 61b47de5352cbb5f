//! `cargo xtask peers`: what people use today beside Keylane, on the same broker and topic.
//!
//! Every contestant, Keylane too, is a process of its own with a listener that counts the same
//! things and prints one JSON object. How much memory it had is read from outside, in the same way
//! for each. Each round has every contestant once, so that a machine that gets slower gets slower
//! for all of them.
//!
//! A broker is an [`Arena`], in a file of its own.

#[cfg(any(feature = "kafka", feature = "rocketmq"))]
mod contest;
#[cfg(feature = "kafka")]
mod kafka;
mod maven;
mod measured;
mod member;
mod report;
#[cfg(feature = "rocketmq")]
mod rocketmq;
mod tally;

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::flags::Broker;
use crate::outcome::{EXIT_STATUS, Ended, Failure, say};
use measured::Measured;
use report::Run;

pub(crate) use member::{MemberFlags, run as run_member};

/// The clients that people use today beside Keylane, on the same broker and topic: a table (in
/// Markdown) of messages per second, CPU, memory, and what was delivered twice or out of order
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct PeersFlags {
    /// Whose clients; the broker is started if need be, and goes on running
    pub(crate) broker: Broker,
    /// Fewer messages and one round: to see that it works, not for figures
    #[arg(long)]
    pub(crate) quick: bool,
    /// How often each of them runs; the table has the medians [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20))]
    pub(crate) rounds: Option<u32>,
    /// One JSON object a run on standard output, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
}

/// What all contestants get in a run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Setting {
    queues: u32,
    keys: u32,
    /// The exponent of the keys' Zipf distribution; 0: all alike.
    skew: f64,
    /// How many calls may run at the same time.
    threads: u32,
    /// How long a listener sleeps for each message.
    work: Duration,
    messages: u64,
}

/// A broker, and those who consume from it.
trait Arena {
    /// What is measured; for figures, or only to see that it works.
    fn settings(&self, quick: bool) -> Vec<Setting>;

    /// A topic that has the setting's messages, and nothing else.
    fn topic(&mut self, setting: &Setting) -> Ended<String>;

    /// Who consumes it, in the order of the table.
    fn contestants(&self, setting: &Setting) -> Vec<String>;

    /// Consumes the topic once, as the only member of this group. `class_path` is what the broker's
    /// Maven project was built to.
    fn command(&self, contestant: &str, entry: &Entry<'_>, class_path: &str) -> Command;
}

/// One contestant's run, from outside.
struct Entry<'a> {
    setting: &'a Setting,
    topic: &'a str,
    group: &'a str,
    /// After so long it has to end, finished or not.
    within: Duration,
}

/// What a contestant prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Printed {
    /// Different messages that were handled.
    delivered: u64,
    /// From the first message to the last new one.
    elapsed_s: f64,
    order_violations: u64,
    /// Deliveries of what had been handled before.
    duplicates: u64,
    /// From before it began to consume to after the last message: without what a virtual machine
    /// needs to start.
    cpu_s: f64,
}

/// The task.
pub(crate) fn run(flags: &PeersFlags) -> Ended {
    let mut arena = arena(flags.broker)?;
    let class_path = maven::build(&maven::project(flags.broker))?;
    let rounds = flags.rounds.unwrap_or(if flags.quick { 1 } else { 3 });
    let mut runs = Vec::new();
    for setting in arena.settings(flags.quick) {
        say(&format!("writing {} messages: {}", setting.messages, setting.title()));
        let topic = arena.topic(&setting)?;
        for round in 1..=rounds {
            for contestant in arena.contestants(&setting) {
                let group = unique_name("g");
                let within = patience(&setting);
                let entry = Entry { setting: &setting, topic: &topic, group: &group, within };
                let (broker, command) =
                    (flags.broker, arena.command(&contestant, &entry, &class_path));
                let measured = entry.run(&contestant, command)?;
                let printed = printed(&contestant, &measured.stdout)?;
                let run = Run::new(broker, &setting, contestant, round, &printed, &measured);
                say(&format!("  {}", run.line()));
                runs.push(run);
            }
        }
    }
    report::print(&runs, flags.json)?;
    judge(&runs)
}

impl Entry<'_> {
    fn run(&self, contestant: &str, command: Command) -> Ended<Measured> {
        let Self { setting, topic, group, within } = self;
        log::debug!("{contestant} reads {topic} as {group}: {}", setting.title());
        // What it needs to start and to stop.
        measured::run(command, contestant, *within + Duration::from_secs(60))
    }
}

/// The broker's contest; this program again, with the broker's client, where it has none.
fn arena(broker: Broker) -> Ended<Box<dyn Arena>> {
    match broker {
        #[cfg(feature = "rocketmq")]
        Broker::Rocketmq => Ok(Box::new(rocketmq::open(&contest::address(broker)?)?)),
        #[cfg(feature = "kafka")]
        Broker::Kafka => Ok(Box::new(kafka::open(&contest::address(broker)?))),
        #[cfg(not(all(feature = "kafka", feature = "rocketmq")))]
        missing => Err(build_with(missing)),
    }
}

/// Replaces this program by one that has the broker's client. Returns only when that failed.
#[cfg(not(all(feature = "kafka", feature = "rocketmq")))]
fn build_with(broker: Broker) -> Failure {
    use std::os::unix::process::CommandExt;

    let feature = broker.name();
    say(&format!("building the client of {feature}: this takes a while, once"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--release", "--package", "xtask", "--features", feature]);
    command.arg("--manifest-path").arg(crate::ci::root().join("Cargo.toml"));
    command.arg("--").args(std::env::args_os().skip(1));
    Failure::other("run cargo again", command.exec())
}

/// How long a run may take: ten times what the slowest mode needs, and time to join a group.
fn patience(setting: &Setting) -> Duration {
    let one_thread_a_queue = setting.messages as f64 / f64::from(setting.queues);
    let work = one_thread_a_queue * setting.work.as_secs_f64();
    // Nobody is slower than 2,000 messages a second when there is no work.
    Duration::from_secs_f64(60.0 + 3.0 * work + setting.messages as f64 / 2_000.0)
}

/// The last line is the object: what else a client prints comes before it.
fn printed(contestant: &str, stdout: &str) -> Ended<Printed> {
    let line = stdout.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let read = serde_json::from_str(line);
    read.map_err(|error| Failure::other(format!("read what {contestant} printed: {line}"), error))
}

/// What Keylane promises it has to keep here, too. The others are only shown.
fn judge(runs: &[Run]) -> Ended {
    let wrong: Vec<String> = runs.iter().filter_map(Run::broken_promise).collect();
    match wrong.first() {
        None => Ok(()),
        Some(first) => Err(Failure::Broken(format!("{} runs: {first}", wrong.len()))),
    }
}

impl Setting {
    fn title(&self) -> String {
        let skew = match self.skew {
            0.0 => String::new(),
            skew => format!(", Zipf({skew})"),
        };
        let work = if self.work.is_zero() { "none".to_owned() } else { format!("{:?}", self.work) };
        let Self { queues, keys, threads, .. } = self;
        format!("{queues} queues, {keys} keys{skew}, {threads} threads, work {work}")
    }
}

/// A name that no other run has.
fn unique_name(what: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("peers-{what}-{}-{}", now.as_millis(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_what_counts() {
        let object = r#"{"delivered":3,"elapsed_s":0.5,"order_violations":1,"duplicates":2,
            "cpu_s":0.25,"more":"is left out"}"#
            .replace('\n', "");
        let read = printed("x", &format!("hello\n{object}\n\n")).unwrap();
        let expected = Printed {
            delivered: 3,
            elapsed_s: 0.5,
            order_violations: 1,
            duplicates: 2,
            cpu_s: 0.25,
        };
        assert_eq!(read, expected);
        let error = printed("x", &format!("{object}\nbye")).unwrap_err().to_string();
        assert!(error.starts_with("read what x printed: bye: "), "{error}");
        assert!(printed("x", "").is_err());
    }
}
