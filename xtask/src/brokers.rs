//! `cargo xtask brokers`: real brokers on loopback, each in a folder of its own, usually below the
//! target folder. `down` keeps what they hold; for an empty one delete the folder.

mod kafka;
mod maven;
mod rocketmq;
#[cfg(feature = "kafka")]
mod topic;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

#[cfg(feature = "kafka")]
pub(crate) use topic::create_kafka_topic;

use crate::flags::{Broker, BrokersAction, BrokersFlags, RocketmqVersion};
use crate::outcome::{Ended, Failure, say};

/// The task.
pub(crate) fn run(flags: &BrokersFlags) -> Ended {
    let all = || vec![Broker::Kafka, Broker::Rocketmq];
    let brokers = flags.broker.map_or_else(all, |broker| vec![broker]);
    brokers.into_iter().try_for_each(|broker| {
        let mut place = Place::of_version(broker, flags.version.of(broker)?);
        if let Some(folder) = &flags.folder {
            place.folder.clone_from(folder);
        }
        match flags.action {
            BrokersAction::Up => show(&place.up()?),
            BrokersAction::Down => {
                place.down().map(|()| say(&format!("{} is down", broker.name())))
            }
            BrokersAction::Restart => show(&place.restart()?),
            BrokersAction::Status => match place.status()? {
                Some(running) => show(&running),
                None => {
                    say(&format!("{} does not run", broker.name()));
                    Ok(())
                }
            },
        }
    })
}

/// A broker that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// Which one.
    pub(crate) broker: Broker,
    /// What a client takes: Kafka's `bootstrap.servers`, RocketMQ's name server.
    pub(crate) address: String,
    /// The same through TLS, where it has that.
    pub(crate) tls: Option<kafka::Tls>,
    /// The process of the broker itself.
    pub(crate) pid: u32,
}

impl std::fmt::Display for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { broker, address, tls, pid } = self;
        write!(f, "{} answers at {address}", broker.name())?;
        if let Some(kafka::Tls { servers, certificate }) = tls {
            write!(f, ", through TLS at {servers} ({})", certificate.display())?;
        }
        write!(f, ", process {pid}")
    }
}

/// In words for people; on standard output the address alone, for a command that wants it.
fn show(running: &Running) -> Ended {
    say(&running.to_string());
    let written = writeln!(std::io::stdout(), "{}", running.address);
    written.map_err(|error| Failure::other("write the address", error))
}

/// A broker and the folder that it lives in.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Which one.
    pub(crate) broker: Broker,
    /// Where its data, its configuration and its log lie.
    pub(crate) folder: PathBuf,
    /// Which one to start, where it is RocketMQ's.
    pub(crate) version: RocketmqVersion,
}

impl Place {
    /// The one below the target folder.
    pub(crate) fn usual(broker: Broker) -> Self {
        Self::of_version(broker, RocketmqVersion::default())
    }

    /// The one of this version below the target folder.
    pub(crate) fn of_version(broker: Broker, version: RocketmqVersion) -> Self {
        let name = match version {
            RocketmqVersion::Latest => broker.name().to_owned(),
            RocketmqVersion::Before5 => format!("{}-{}", broker.name(), version.name()),
        };
        let folder = crate::ci::target_folder().join("brokers").join(name);
        Self { broker, folder, version }
    }

    /// Starts it, or finds the one that runs, and waits until it answers.
    pub(crate) fn up(&self) -> Ended<Running> {
        match self.broker {
            // Every broker of Kafka's has the same jars.
            Broker::Kafka => {
                kafka::up(&self.folder, &Self::usual(Broker::Kafka).folder).map(of_kafka)
            }
            Broker::Rocketmq => rocketmq::up(&self.folder, self.version).map(of_rocketmq),
        }
        .map_err(|error| self.failed("start", error))
    }

    /// Kills it as a crash would, and starts it again.
    fn restart(&self) -> Ended<Running> {
        let failed = |error: String| self.failed("kill", error);
        match (self.broker, self.status()?) {
            (_, None) => {}
            (Broker::Rocketmq, Some(_)) => rocketmq::kill_broker(&self.folder).map_err(failed)?,
            (Broker::Kafka, Some(running)) => {
                let pid = running.pid.to_string();
                let killed = Command::new("kill").args(["-KILL", &pid]).status();
                killed.map_err(|error| failed(error.to_string()))?;
                // Gone when it is reaped; until then its port may not be free.
                while self.status()?.is_some() {
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
        self.up()
    }

    /// Stops it, if it runs.
    pub(crate) fn down(&self) -> Ended {
        match self.broker {
            Broker::Kafka => kafka::down(&self.folder),
            Broker::Rocketmq => rocketmq::down(&self.folder),
        }
        .map_err(|error| self.failed("stop", error))
    }

    /// Throws away what it stored; its jars and its logs stay. It must not run.
    pub(crate) fn empty(&self) -> Ended {
        match self.broker {
            Broker::Kafka => kafka::empty(&self.folder),
            Broker::Rocketmq => rocketmq::empty(&self.folder),
        }
        .map_err(|error| self.failed("empty", error))
    }

    /// The one that runs, if one does.
    pub(crate) fn status(&self) -> Ended<Option<Running>> {
        match self.broker {
            Broker::Kafka => kafka::status(&self.folder).map(|running| running.map(of_kafka)),
            Broker::Rocketmq => {
                rocketmq::status(&self.folder).map(|running| running.map(of_rocketmq))
            }
        }
        .map_err(|error| self.failed("look for", error))
    }

    fn failed(&self, doing: &str, error: String) -> Failure {
        Failure::other(format!("{doing} {}", self.broker.name()), error)
    }
}

fn of_kafka(running: kafka::Running) -> Running {
    let kafka::Running { servers, tls, pid } = running;
    Running { broker: Broker::Kafka, address: servers, tls, pid }
}

fn of_rocketmq(running: rocketmq::Running) -> Running {
    let rocketmq::Running { name_server, broker_pid, .. } = running;
    Running { broker: Broker::Rocketmq, address: name_server, tls: None, pid: broker_pid }
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

/// Removes a folder, unless there is none.
fn remove(folder: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("remove {}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}
