//! `cargo xtask ci`: every check that a change must pass, in order, with names and times. The first
//! that fails ends it.
//!
//! A stage is a function in a file of its own below `ci/`; the table here is the order. From cold,
//! on two cores, all of them have to stay below an hour together.

mod benches;
mod code;
mod crash;
mod deny;
mod examples;
mod fuzz;
mod instructions;
mod integration;
mod load;
mod loom;
mod planted;
pub(crate) mod shell;
mod sim;
mod tests;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::flags::CiFlags;
use crate::outcome::{Ended, Failure, say};

/// A named check.
struct Stage {
    name: &'static str,
    what: &'static str,
    run: fn(Depth) -> Ended<Done>,
}

/// How a stage ended, unless it failed.
enum Done {
    Passed,
    /// It could not be done here, for this reason.
    Skipped(String),
}

/// How long the checks may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Short,
    Deep,
}

/// What is cheap and most often wrong comes first.
const STAGES: [Stage; 17] = [
    Stage { name: "format", what: "cargo fmt --check", run: code::format },
    Stage { name: "tidy", what: "rules that no other tool checks", run: code::tidy },
    Stage { name: "clippy", what: "lints, warnings denied", run: code::clippy },
    Stage { name: "docs", what: "documentation, warnings denied", run: code::docs },
    Stage { name: "test", what: "the README's command", run: tests::run },
    Stage { name: "examples", what: "each example, run", run: examples::run },
    Stage { name: "load", what: "the load generator, its JSON checked", run: load::run },
    Stage { name: "benches", what: "benchmarks compile and run once", run: benches::run },
    Stage { name: "loom", what: "models of what threads share", run: loom::run },
    Stage { name: "sim", what: "the simulator: the corpus, and other seeds", run: sim::run },
    Stage { name: "planted bugs", what: "each is found", run: planted::run },
    Stage { name: "crash", what: "kill -9 and restart", run: crash::run },
    Stage { name: "fuzz", what: "parsers of foreign bytes", run: fuzz::run },
    Stage { name: "instructions", what: "counts against the baseline", run: instructions::run },
    Stage { name: "kafka", what: "tests against a real broker", run: integration::kafka },
    Stage { name: "rocketmq", what: "tests against a real broker", run: integration::rocketmq },
    Stage { name: "deny", what: "licences, bans, sources", run: deny::run },
];

/// What one stage alone builds: folders below the target folder. In the gate, where nothing is built
/// twice, they go once the stage has passed; together they are as much as the brokers need.
const OWN_FOLDERS: [(&str, &str); 4] =
    [("loom", "loom"), ("sim", "sim"), ("planted bugs", "bugs"), ("fuzz", "fuzz")];

/// The task.
pub(crate) fn run(flags: &CiFlags) -> Ended {
    let depth = if flags.deep { Depth::Deep } else { Depth::Short };
    let chosen = |stage: &&Stage| flags.only.as_ref().is_none_or(|only| stage.name.contains(only));
    let stages: Vec<&Stage> = STAGES.iter().filter(chosen).collect();
    if stages.is_empty() {
        let names: Vec<_> = STAGES.iter().map(|stage| stage.name).collect();
        return Err(Failure::usage(format!(
            "--only {}: no stage is called so; there are: {}",
            flags.only.as_deref().unwrap_or_default(),
            names.join(", ")
        )));
    }
    if flags.list {
        stages.iter().for_each(|stage| say(&format!("{:<14} {}", stage.name, stage.what)));
        return Ok(());
    }
    let start = Instant::now();
    let mut lines = Vec::new();
    for stage in stages {
        say(&format!("\n━━ {}: {}", stage.name, stage.what));
        let began = Instant::now();
        let done = (stage.run)(depth).map_err(|failure| match failure {
            Failure::Broken(why) => Failure::Broken(format!("stage {}: {why}", stage.name)),
            Failure::Usage(why) => Failure::Usage(format!("stage {}: {why}", stage.name)),
            Failure::Other(why) => Failure::Other(format!("stage {}: {why}", stage.name)),
        })?;
        if is_gate() {
            remove_own_folder(stage)?;
        }
        let took = began.elapsed();
        lines.push(line(stage.name, &done, took));
        if let Done::Skipped(why) = done {
            say(&format!("skipped: {why}"));
        }
    }
    say("");
    lines.iter().for_each(|line| say(line));
    say(&format!("all stages passed in {}", minutes(start.elapsed())));
    Ok(())
}

fn remove_own_folder(stage: &Stage) -> Ended {
    for (_, folder) in OWN_FOLDERS.iter().filter(|(name, _)| *name == stage.name) {
        let folder = target_folder().join(folder);
        if folder.exists() {
            let removed = std::fs::remove_dir_all(&folder);
            removed.map_err(|error| Failure::other(folder.display(), error))?;
        }
    }
    Ok(())
}

fn line(name: &str, done: &Done, took: Duration) -> String {
    match done {
        Done::Passed => format!("  {name:<14} {:>10}", minutes(took)),
        Done::Skipped(why) => format!("  {name:<14} {:>10}  skipped: {why}", minutes(took)),
    }
}

fn minutes(time: Duration) -> String {
    format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60)
}

/// Whether this is the gate, where nothing may be skipped for want of a tool.
pub(crate) fn is_gate() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR");
    set.map_or_else(|| root().join("target"), |folder| root().join(folder))
}
