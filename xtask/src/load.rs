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

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::flags::LoadFlags;
use crate::outcome::{Ended, Failure, say};
pub(crate) use json::Percentiles;
use plan::Plan;

/// What a comparison needs of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) messages: u64,
    pub(crate) messages_per_s: f64,
    /// Of bare threads that do the same work, as many as there are calls at a time.
    pub(crate) ceiling_per_s: Option<f64>,
    pub(crate) imbalance: f64,
    /// From the pull to the call, first attempts.
    pub(crate) latency_us: Percentiles,
    /// From the pull until the message was done.
    pub(crate) engine_latency_us: Percentiles,
    /// The same, whole: for a plot.
    #[serde(skip)]
    pub(crate) engine_latency: Histogram<u64>,
    pub(crate) cpu_us_a_message: Option<f64>,
    pub(crate) duplicates: u64,
    /// What was not as it should be, in words.
    pub(crate) broken: Vec<String>,
}

/// Runs what the options say in their first mode, and shows nothing.
pub(crate) fn figures(flags: &LoadFlags) -> Ended<Figures> {
    let plan = Plan { shown: progress::Shown::Hidden, ..Plan::new(flags)? };
    let Some(first) = plan.runs.first() else {
        return Err(Failure::usage("the options name no run"));
    };
    let result = run::run(&plan, *first)?;
    let delivered = result.delivered().max(1) as f64;
    Ok(Figures {
        messages: result.delivered(),
        messages_per_s: result.per_second(),
        ceiling_per_s: result.ceiling,
        imbalance: result.imbalance(),
        latency_us: Percentiles::of(&result.tally.hand_off),
        engine_latency_us: Percentiles::of(&result.tally.in_engine),
        cpu_us_a_message: result.cpu_seconds.map(|seconds| seconds * 1e6 / delivered),
        duplicates: result.verdict.duplicates,
        broken: result.broken(),
        engine_latency: result.tally.in_engine,
    })
}

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
