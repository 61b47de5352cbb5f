//! `cargo xtask brokers`: real brokers on loopback, each in a folder of its own below the target
//! folder. `down` keeps what they hold; for an empty one delete the folder.

mod kafka;
mod maven;
mod rocketmq;
#[cfg(feature = "kafka")]
mod topic;

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

#[cfg(feature = "kafka")]
pub(crate) use topic::create_kafka_topic;

use crate::flags::{Broker, BrokersAction, BrokersFlags};
use crate::outcome::{Ended, Failure, say};

/// The task.
pub(crate) fn run(flags: &BrokersFlags) -> Ended {
    let all = || vec![Broker::Kafka, Broker::Rocketmq];
    let brokers = flags.broker.map_or_else(all, |broker| vec![broker]);
    brokers.into_iter().try_for_each(|broker| match flags.action {
        BrokersAction::Up => show(&up(broker)?),
        BrokersAction::Down => down(broker).map(|()| say(&format!("{} is down", broker.name()))),
        BrokersAction::Restart => show(&restart(broker)?),
        BrokersAction::Status => match status(broker)? {
            Some(running) => show(&running),
            None => {
                say(&format!("{} does not run", broker.name()));
                Ok(())
            }
        },
    })
}

/// A broker that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// Which one.
    pub(crate) broker: Broker,
    /// What a client takes: Kafka's `bootstrap.servers`, RocketMQ's name server.
    pub(crate) address: String,
    /// The process of the broker itself.
    pub(crate) pid: u32,
}

impl std::fmt::Display for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { broker, address, pid } = self;
        write!(f, "{} answers at {address}, process {pid}", broker.name())
    }
}

/// In words for people; on standard output the address alone, for a command that wants it.
fn show(running: &Running) -> Ended {
    say(&running.to_string());
    let written = writeln!(std::io::stdout(), "{}", running.address);
    written.map_err(|error| Failure::other("write the address", error))
}

/// Starts a broker, or finds the one that runs, and waits until it answers.
pub(crate) fn up(broker: Broker) -> Ended<Running> {
    let dir = folder(broker);
    match broker {
        Broker::Kafka => kafka::up(&dir).map(of_kafka),
        Broker::Rocketmq => rocketmq::up(&dir).map(of_rocketmq),
    }
    .map_err(|error| Failure::other(format!("start {}", broker.name()), error))
}

/// Kills a broker as a crash would, and starts it again.
fn restart(broker: Broker) -> Ended<Running> {
    let failed = |error: String| Failure::other(format!("kill {}", broker.name()), error);
    match (broker, status(broker)?) {
        (_, None) => {}
        (Broker::Rocketmq, Some(_)) => rocketmq::kill_broker(&folder(broker)).map_err(failed)?,
        (Broker::Kafka, Some(running)) => {
            let pid = running.pid.to_string();
            let killed = Command::new("kill").args(["-KILL", &pid]).status();
            killed.map_err(|error| failed(error.to_string()))?;
            // Gone when it is reaped; until then its port may not be free.
            while status(broker)?.is_some() {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    up(broker)
}

/// Stops a broker, if it runs.
pub(crate) fn down(broker: Broker) -> Ended {
    let dir = folder(broker);
    match broker {
        Broker::Kafka => kafka::down(&dir),
        Broker::Rocketmq => rocketmq::down(&dir),
    }
    .map_err(|error| Failure::other(format!("stop {}", broker.name()), error))
}

/// The broker that runs, if one does.
pub(crate) fn status(broker: Broker) -> Ended<Option<Running>> {
    let dir = folder(broker);
    match broker {
        Broker::Kafka => kafka::status(&dir).map(|running| running.map(of_kafka)),
        Broker::Rocketmq => rocketmq::status(&dir).map(|running| running.map(of_rocketmq)),
    }
    .map_err(|error| Failure::other(format!("look for {}", broker.name()), error))
}

fn of_kafka(running: kafka::Running) -> Running {
    Running { broker: Broker::Kafka, address: running.servers, pid: running.pid }
}

fn of_rocketmq(running: rocketmq::Running) -> Running {
    Running { broker: Broker::Rocketmq, address: running.name_server, pid: running.broker_pid }
}

fn folder(broker: Broker) -> PathBuf {
    crate::ci::target_folder().join("brokers").join(broker.name())
}

impl Broker {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Rocketmq => "rocketmq",
        }
    }
}
