//! `cargo xtask sim`: runs the simulator, in a profile of its own: optimised, with every assertion.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::ci::root;
use crate::outcome::{EXIT_STATUS, Ended, Failure};

/// Runs the engine on one thread in an order drawn from a seed, with every kind of fault. Prints
/// the seed first, and the line that replays a failure last
#[derive(Debug, Default, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct SimFlags {
    /// The first seed, and the only one without --minutes or --seeds [default: drawn]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// For how long one seed after the other is run [default: 1, unless --seed or --seeds is given]
    #[arg(long, value_name = "M")]
    pub(crate) minutes: Option<u64>,
    /// How many seeds are run
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    pub(crate) seeds: Option<u64>,
    /// Runs the seeds that have found something, in place of others
    #[arg(long, conflicts_with_all = ["seed", "seeds", "minutes"])]
    pub(crate) corpus: bool,
}

/// The task.
pub(crate) fn run(flags: &SimFlags) -> Ended {
    let mut command = program();
    if flags.corpus {
        command.arg("--corpus");
        return finish(command);
    }
    command.args(["--seed", &flags.seed.unwrap_or_else(drawn).to_string()]);
    let minutes = match (flags.minutes, flags.seed, flags.seeds) {
        (None, None, None) => Some(1),
        (minutes, ..) => minutes,
    };
    if let Some(minutes) = minutes {
        command.args(["--seconds", &minutes.saturating_mul(60).to_string()]);
    }
    if let Some(seeds) = flags.seeds {
        command.args(["--seeds", &seeds.to_string()]);
    }
    finish(command)
}

/// The simulator's program, by way of cargo.
fn program() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command.args(["run", "--quiet", "-p", "keylane-sim", "--profile", "sim", "--"]);
    command
}

fn finish(mut command: Command) -> Ended {
    let status = command.status().map_err(|error| Failure::other("run the simulator", error))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Broken(format!(
        "the simulator found something ({status}); its last line replays it"
    )))
}

/// A seed that nobody has chosen.
fn drawn() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |time| u64::from(time.subsec_nanos()) ^ time.as_secs() << 20)
}
