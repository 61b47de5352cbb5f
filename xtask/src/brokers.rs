//! `cargo xtask brokers`.

mod kafka;

use std::path::PathBuf;

use crate::flags::{Broker, BrokersAction, BrokersFlags};
use crate::outcome::{Ended, Failure, say};

/// The task.
pub(crate) fn run(flags: &BrokersFlags) -> Ended {
    let brokers =
        flags.broker.map_or_else(|| vec![Broker::Kafka, Broker::Rocketmq], |one| vec![one]);
    brokers.into_iter().try_for_each(|broker| act(flags.action, broker))
}

fn act(action: BrokersAction, broker: Broker) -> Ended {
    let dir = folder(broker);
    let _ = (dir, action);
    let _ = say;
    Err(Failure::Other("not wired yet".to_owned()))
}

fn folder(broker: Broker) -> PathBuf {
    crate::ci::target_folder().join("brokers").join(match broker {
        Broker::Kafka => "kafka",
        Broker::Rocketmq => "rocketmq",
    })
}
