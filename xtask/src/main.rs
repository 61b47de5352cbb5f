//! The project's tasks, one file each: `cargo xtask --help` lists them.
#![forbid(unsafe_code)]

mod brokers;
mod bugs;
mod ci;
mod compare;
mod crash;
mod flags;
mod integration;
mod load;
mod outcome;
mod peers;
mod sim;
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
        Task::Integration(flags) => integration::run(&flags),
        Task::Sim(flags) => sim::run(&flags),
        Task::Bugs(flags) => bugs::run(&flags),
        Task::Crash(flags) => crash::run(&flags),
        Task::CrashWorker(flags) => crash::work(&flags),
        Task::Peers(flags) => peers::run(&flags),
        Task::Peer(flags) => peers::run_member(&flags),
        Task::Tidy => tidy::run(),
        Task::Ci(flags) => ci::run(&flags),
    };
    outcome::exit(ended)
}
