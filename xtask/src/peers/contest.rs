//! What every broker's contest needs.

use std::process::Command;

use clap::ValueEnum;
use keylane_testkit::workload::Keys;
#[cfg(feature = "rocketmq")]
use keylane_testkit::workload::{Sizes, Workload};

use super::{Entry, Setting};
use crate::brokers::Place;
use crate::flags::{Broker, Mode};
use crate::outcome::{Ended, say};

/// Where the broker answers: as the variable says, or on this machine.
pub(super) fn address(broker: Broker) -> Ended<String> {
    let variable = format!("KEYLANE_{}", broker.name().to_uppercase());
    if let Ok(address) = std::env::var(variable) {
        return Ok(address);
    }
    let running = Place::usual(broker).up()?;
    say(&running.to_string());
    Ok(running.address)
}

/// How often which key occurs.
pub(super) fn keys(setting: &Setting) -> Keys {
    match setting.skew {
        0.0 => Keys::uniform(setting.keys.into()),
        skew => Keys::zipf(setting.keys.into(), skew),
    }
}

/// The messages: the same for everyone, and in every round.
#[cfg(feature = "rocketmq")]
pub(super) fn workload(setting: &Setting, topic: &str) -> Workload {
    let workload = Workload::new(1).queues(topic, setting.queues).messages(setting.messages);
    workload.keys(keys(setting)).sizes(Sizes::Fixed(100))
}

/// The command that has Keylane take part: this very program.
pub(super) fn keylane(broker: Broker, address: &str, mode: Mode, entry: &Entry<'_>) -> Command {
    // Where it cannot be told, the command fails, by this name.
    let program = std::env::current_exe().unwrap_or_else(|_| "xtask".into());
    let Entry { setting, topic, group, within } = entry;
    let mut command = Command::new(program);
    command.args(["peer", broker.name(), "--address", address, "--topic", topic]);
    command.args(["--group", group, "--mode", &mode_name(mode)]);
    for (option, value) in [
        ("--queues", u128::from(setting.queues)),
        ("--messages", setting.messages.into()),
        ("--threads", setting.threads.into()),
        ("--work", setting.work.as_micros()),
        ("--seconds", within.as_secs().into()),
    ] {
        command.arg(option).arg(value.to_string());
    }
    command
}

/// As it is written on the command line, and in the table.
pub(super) fn mode_name(mode: Mode) -> String {
    mode.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
