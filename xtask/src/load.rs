//! `cargo xtask load`: writes messages, consumes them in one mode or several, checks every
//! guarantee while it does, and shows what came of it.
//!
//! Read in the order of the modules: what is to be run, where its messages come from and go to,
//! what the engine calls, the run itself, what is made of it.

// What is to be run.
mod plan;

// The messages.
mod balances;
mod input;
mod workload;

// Where they are.
mod pace;
mod stage;
mod tap;
mod timeline;

// The run.
mod ceiling;
mod consume;
mod listener;
mod progress;
mod run;
mod usage;

// What came of it.
mod json;
mod report;
mod result;
mod table;

use crate::flags::LoadFlags;
use crate::outcome::{Ended, Failure, say};
use plan::Plan;

/// The task.
pub(crate) fn run(flags: &LoadFlags) -> Ended {
    let plan = Plan::new(flags)?;
    listener::silence_planned_panics();
    let mut results = Vec::new();
    for run in &plan.runs {
        results.push(run::run(&plan, *run)?);
    }
    if plan.json {
        json::print(&results)?;
    } else {
        table::print(&results, &plan.report)?;
    }
    report::write(&plan.report, &results)?;
    let broken: Vec<String> = results.iter().flat_map(result::RunResult::broken).collect();
    if broken.is_empty() {
        return Ok(());
    }
    broken.iter().for_each(|what| say(&format!("  {what}")));
    Err(Failure::Broken("a guarantee was broken; what it was stands above".to_owned()))
}
