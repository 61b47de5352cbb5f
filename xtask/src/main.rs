//! The project's tasks, one file each: `cargo xtask --help` lists them.
#![forbid(unsafe_code)]

mod brokers;
mod ci;
mod compare;
mod flags;
mod load;
mod outcome;
mod peers;
mod tidy;

use std::process::ExitCode;

use clap::Parser;

use crate::flags::{Task, Xtask};

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    let ended = match Xtask::parse().task {
        Task::Load(flags) => load::run(&flags),
        Task::Compare(flags) => compare::run(&flags),
        Task::Brokers(flags) => brokers::run(&flags),
        Task::Peers(flags) => peers::run(&flags),
        Task::Peer(flags) => peers::run_member(&flags),
        Task::Tidy => tidy::run(),
        Task::Ci(flags) => ci::run(&flags),
    };
    outcome::exit(ended)
}
