//! `cargo xtask bugs`: plants each known bug in the engine and runs the simulator until it is
//! found.
//!
//! One build, in a folder of its own, has all of them (`crates/keylane/src/bug.rs`); each run wakes
//! one. A bug that is not found is a hole in the checks, and fails the task.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::ci::{root, target_folder};
use crate::outcome::{EXIT_STATUS, Ended, Failure, say};

/// Plants each known bug in the engine, runs the simulator until something finds it, and fails if
/// nothing does
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct BugsFlags {
    /// Only this bug
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How many seeds each bug has
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    pub(crate) seeds: u64,
}

/// The bugs, in the order of the data; `docs/testing.md` says what each one is.
const BUGS: [&str; 26] = [
    "take_fetch_from_before_seek",
    "position_before_stash",
    "pass_overflow",
    "block_on_full_channel",
    "drop_overflow_on_revoke",
    "lose_wake_up",
    "skip_epoch_check",
    "trust_expired_lock",
    "time_before_call",
    "release_lane_early",
    "ticket_leaves_key_open",
    "keep_results_behind_failure",
    "kept_is_finished",
    "rollback_leaves_kept",
    "forget_panic",
    "retry_keeps_budget",
    "word_boundary",
    "commit_highest",
    "second_commit",
    "failed_commit_counts",
    "forget_old_commit",
    "failed_look_up_is_none",
    "revoke_keeps_budget",
    "release_lock_under_call",
    "commit_after_release",
    "commit_before_shards",
];

/// The task.
pub(crate) fn run(flags: &BugsFlags) -> Ended {
    let chosen: Vec<_> = match &flags.only {
        None => BUGS.to_vec(),
        Some(only) => BUGS.into_iter().filter(|bug| bug == only).collect(),
    };
    if chosen.is_empty() {
        let known = BUGS.join(", ");
        let only = flags.only.as_deref().unwrap_or_default();
        return Err(Failure::usage(format!("--only {only}: there are: {known}")));
    }
    let program = build()?;
    let mut missed = Vec::new();
    for bug in chosen {
        match find(&program, bug, flags)? {
            Some(found) => say(&format!("{bug:<28} {found}")),
            None => missed.push(bug),
        }
    }
    if missed.is_empty() {
        return Ok(());
    }
    let seeds = flags.seeds;
    Err(Failure::Broken(format!("{seeds} seeds did not find: {}", missed.join(", "))))
}

/// Builds the simulator with the bugs in it, and says where it is.
fn build() -> Ended<PathBuf> {
    let folder = target_folder().join("bugs");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root()).env("RUSTFLAGS", "--cfg keylane_bug");
    command.args(["build", "--quiet", "-p", "keylane-sim", "--profile", "sim", "--target-dir"]);
    let status = command.arg(&folder).status();
    let status = status.map_err(|error| Failure::other("build the planted bugs", error))?;
    if !status.success() {
        return Err(Failure::Broken(format!("the build with the planted bugs: {status}")));
    }
    Ok(folder.join("sim").join("keylane-sim").with_extension(std::env::consts::EXE_EXTENSION))
}

/// Runs seeds with this bug; what found it, or `None`.
fn find(program: &PathBuf, bug: &str, flags: &BugsFlags) -> Ended<Option<String>> {
    let (seed, seeds) = (flags.seed.to_string(), flags.seeds.to_string());
    let mut command = Command::new(program);
    let output = command.args(["--bug", bug, "--seed", &seed, "--seeds", &seeds]).output();
    let output =
        output.map_err(|error| Failure::other(format!("run with the bug {bug}"), error))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => Ok(None),
        Some(1) => {
            let found = printed.lines().rev().find(|line| line.starts_with("broken"));
            Ok(Some(found.unwrap_or("broken").to_owned()))
        }
        _ => {
            let last = printed.lines().last().unwrap_or_default();
            Err(Failure::Other(format!("the run with the bug {bug} ended: {last}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The names in `bug!("...")` below this folder.
    fn planted(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                planted(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let names = text.split("bug!(\"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_planted_bug_is_looked_for_and_described() {
        let mut found = BTreeSet::new();
        planted(&root().join("crates/keylane/src"), &mut found);
        assert_eq!(found, BUGS.iter().map(ToString::to_string).collect());
        let document = std::fs::read_to_string(root().join("docs/testing.md")).unwrap();
        let missing: Vec<_> = BUGS.iter().filter(|bug| !document.contains(**bug)).collect();
        assert!(missing.is_empty(), "docs/testing.md does not describe {missing:?}");
    }
}
